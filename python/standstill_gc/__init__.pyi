from contextlib import ContextDecorator
from gc import (
    DEBUG_COLLECTABLE as DEBUG_COLLECTABLE,
    DEBUG_LEAK as DEBUG_LEAK,
    DEBUG_SAVEALL as DEBUG_SAVEALL,
    DEBUG_STATS as DEBUG_STATS,
    DEBUG_UNCOLLECTABLE as DEBUG_UNCOLLECTABLE,
    callbacks as callbacks,
    freeze as freeze,
    garbage as garbage,
    get_count as get_count,
    get_debug as get_debug,
    get_freeze_count as get_freeze_count,
    get_objects as get_objects,
    get_referents as get_referents,
    get_referrers as get_referrers,
    get_stats as get_stats,
    get_threshold as get_threshold,
    is_finalized as is_finalized,
    is_tracked as is_tracked,
    set_debug as set_debug,
    set_threshold as set_threshold,
    unfreeze as unfreeze,
)
from typing import Literal, SupportsIndex, TypedDict, type_check_only

__version__: str
__all__: list[str]

# A context manager, and a decorator.
class _Block(ContextDecorator):
    def __enter__(self) -> None: ...
    def __exit__(self, *details: object) -> None: ...

@type_check_only
class _Pauses(TypedDict):
    p50: float
    p90: float
    p99: float
    p999: float
    max: float
    total: float
    count: int

@type_check_only
class _Phases(TypedDict):
    stop: float
    find: float
    recheck: float
    child: float
    clear: float

@type_check_only
class _Collection(TypedDict):
    collected: int
    uncollectable: int
    duration: float
    abandoned: str | None
    ran: bool
    automatic: bool
    ended: float
    candidates: int
    unreachable: int
    finalized: int
    resurrected: int
    overvisited: int
    threads: int
    time_to_stop: float
    child: _Child | None
    no_child: str | None
    late_thread: str | None
    find: float
    recheck: float
    waited: float
    pauses: list[float]

@type_check_only
class _Child(TypedDict):
    took: float
    proposed: int
    parts: int

@type_check_only
class _HeldUp(TypedDict):
    count: int
    total: float
    max: float

@type_check_only
class _Checked(TypedDict):
    compared: int
    missed: int
    wrong: int

@type_check_only
class _Stats(TypedDict):
    collections: int
    collected: int
    uncollectable: int
    pauses: _Pauses
    phases: _Phases
    last: _Collection | None
    held_up: _HeldUp | None
    checked: _Checked | None

def active() -> bool: ...
def inactive_reason() -> str | None: ...
def collect(generation: int = 2, *, threads: SupportsIndex | None = None) -> int: ...
def enable() -> None: ...
def disable() -> None: ...
def isenabled() -> bool: ...
def install(
    *,
    threads: SupportsIndex | None = None,
    where: Literal["thread", "main", "program"] | None = None,
    child_from: SupportsIndex | None = None,
) -> None: ...
def uninstall() -> None: ...
def installed() -> bool: ...
def defer() -> _Block: ...
def set_checked(checked: object) -> None: ...
def stats() -> _Stats: ...

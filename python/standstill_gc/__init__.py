"""A parallel garbage collector for free-threaded CPython.

    import standstill_gc
    standstill_gc.enable()

From then on ``gc.collect()`` and automatic collections are this package's: several threads search,
and one thread runs finalizers and clears. If something about the interpreter is not as tested,
CPython's collector stays, and one warning gives the reason: see ``active()``.
"""

import _thread
import atexit as _atexit
import contextlib as _contextlib
import gc as _gc
import operator as _operator
import os as _os
import sys as _sys
import threading as _threading
import time as _time
import warnings as _warnings
from gc import (  # What CPython's collector keeps is the same for both collectors.
    DEBUG_COLLECTABLE,
    DEBUG_LEAK,
    DEBUG_SAVEALL,
    DEBUG_STATS,
    DEBUG_UNCOLLECTABLE,
    callbacks,
    freeze,
    garbage,
    get_count,
    get_debug,
    get_freeze_count,
    get_objects,
    get_referents,
    get_referrers,
    get_stats,
    get_threshold,
    is_finalized,
    is_tracked,
    set_debug,
    set_threshold,
    unfreeze,
)

__version__ = "0.1.0"
__all__ = [
    "DEBUG_COLLECTABLE", "DEBUG_LEAK", "DEBUG_SAVEALL", "DEBUG_STATS", "DEBUG_UNCOLLECTABLE",
    "active", "callbacks", "collect", "defer", "disable", "enable", "freeze", "garbage",
    "get_count", "get_debug", "get_freeze_count", "get_objects", "get_referents", "get_referrers",
    "get_stats", "get_threshold", "inactive_reason", "install", "installed", "is_finalized",
    "is_tracked", "isenabled", "set_checked", "set_debug", "set_threshold", "stats", "unfreeze",
    "uninstall",
]


def _why_missing(error):
    """Why the extension module cannot be imported."""
    import importlib.machinery
    import sysconfig

    here = _os.path.dirname(__file__)
    ours = sorted(name for name in _os.listdir(here) if name.startswith("_standstill_gc."))
    suffixes = importlib.machinery.EXTENSION_SUFFIXES
    if any(name == "_standstill_gc" + suffix for name in ours for suffix in suffixes):
        return str(error)
    return (
        f"{here} has no extension module for this interpreter"
        f" ({sysconfig.get_config_var('SOABI')}); it has {', '.join(ours) or 'none'}"
    )


# The functions of `gc` that the package replaces while it is installed.
_NAMES = ("collect", "enable", "disable", "isenabled")

try:
    from . import _standstill_gc as _extension
    _reason = _extension.activate()
except ImportError as error:
    _extension, _reason = None, _why_missing(error)

if _reason is not None:
    _warnings.warn(
        f"standstill_gc is not active, and CPython's collector stays: {_reason}",
        RuntimeWarning, stacklevel=2,
    )

# Whether the extension has the state of the package: see `switch.rs`.
_has_switch = _reason is None
_own = _extension.kept() if _has_switch else None
_is_first_import = _own is None
if _is_first_import:
    _own = (*(getattr(_gc, name) for name in _NAMES), _gc, _thread.start_joinable_thread)
# CPython's own functions, also if `gc` has those of an earlier import of this package.
_cpython = dict(zip(_NAMES, _own))

# The most threads, unless a call sets another number. ``PYTHON_CPU_COUNT`` can lower it.
_cores = _os.process_cpu_count() or 1
_checked = _os.environ.get("STANDSTILL_GC_CHECKED", "") not in ("", "0")


def _from_environment():
    text = _os.environ.get("STANDSTILL_GC_CHILD_FROM", "").strip()
    if text.isascii() and text.isdecimal():
        return min(int(text), _sys.maxsize)
    if text:
        _warnings.warn(
            f"STANDSTILL_GC_CHILD_FROM is {text!r}, which is no number of objects: no collection"
            " searches in a child process", RuntimeWarning, stacklevel=3,
        )
    return 0


_child_from = _from_environment()


def active():
    """Whether this package can collect. If not, CPython's collector does all work."""
    return _reason is None


def inactive_reason():
    """Why the package is not active; None if it is."""
    return _reason


def collect(generation=2, *, threads=None):
    """Collect now, and return the number of unreachable objects, as ``gc.collect`` does.

    Each generation is a full collection, as in CPython's free-threaded builds. ``threads`` is the
    most threads that find the garbage; None means one for each core that
    ``os.process_cpu_count()`` counted when the package was imported.

    If an automatic collection is running, this function waits for its end, up to two seconds, and
    then collects. If it still runs then, or if any other collection is running, nothing happens,
    and the result is 0.
    """
    limit = _cores if threads is None else _positive(threads)
    if _reason is not None:
        return _cpython["collect"](generation)
    generation = _generation(generation)
    # What this thread has to drop, it drops when a function begins.
    _extension.settle()
    _nothing()
    end = _time.monotonic() + 2.0
    while True:
        was_running = _extension.runs_elsewhere()
        outcome = (_collect_checked if _checked else _collect)(generation, limit)
        if outcome["abandoned"] is not None:
            result = _cpython["collect"](generation)
            _warn_once(outcome["abandoned"])
            return result
        if outcome["ran"]:
            break
        # Another collection runs. If it is an automatic one, wait for it, but not for ever: a
        # finalizer of that one may wait for this thread.
        was_running = was_running or _extension.runs_elsewhere()
        while _extension.runs_elsewhere() and _time.monotonic() < end:
            # A signal arrives between two of these waits.
            _extension.wait_for_automatic(0.05)
        if not was_running or _time.monotonic() >= end:
            break
    return outcome["collected"] + outcome["uncollectable"]


def _collect(generation, limit):
    if _checking:
        # `gc.DEBUG_SAVEALL` is set: this collection would put its garbage into `gc.garbage`.
        return _not_run()
    return _extension.collect(generation, limit, None)


def _collect_automatically(limit):
    collect(0, threads=limit or None)


# Has one entry while a result is checked. It is not reentrant: a finalizer collects nothing either.
# Not a lock: an exception of another thread between `acquire` and `try` would leave it locked.
_checking = {}


def _nothing():
    pass


def _not_run():
    return {"abandoned": None, "ran": False, "collected": 0, "uncollectable": 0}


def _generation(generation):
    """A number of a generation. The errors are those of ``gc.collect``."""
    generation = _operator.index(generation)
    if not -1 << 31 <= generation < 1 << 31:
        raise OverflowError("Python int too large to convert to C int")
    if not 0 <= generation <= 2:
        raise ValueError("invalid generation")
    return generation


def _positive(threads):
    threads = _operator.index(threads)
    if threads < 1:
        raise ValueError("the number of threads must be positive")
    return min(threads, 1 << 20)


_warned = set()


def _warn_once(why):
    if why not in _warned:
        _warned.add(why)
        _warnings.warn(
            f"standstill_gc has left a collection to CPython's collector: {why}",
            RuntimeWarning, stacklevel=3,
        )


# ---------------------------------------------------------------------------------- the switch

def enable():
    """Run automatic collections with this collector. Installs it first, if it is not."""
    install()
    if not _has_switch:
        return _cpython["enable"]()
    _extension.set_enabled(True)


def disable():
    """Run no automatic collections. ``collect`` still works."""
    if not _has_switch:
        return _cpython["disable"]()
    _extension.set_enabled(False)


def isenabled():
    """Whether automatic collections run, with either collector, outside of ``defer``."""
    return _extension.isenabled() if _has_switch else _cpython["isenabled"]()


# The places of automatic collections, in the extension's order.
_PLACES = ("thread", "main", "program")


def install(*, threads=None, where=None, child_from=None):
    """Replace ``gc.collect``, ``gc.enable``, ``gc.disable`` and ``gc.isenabled``, and start the
    thread for automatic collections. They are enabled if CPython's were. ``threads`` limits the
    threads of automatic collections, also if the package is installed already; None changes no
    limit then.

    ``where`` is the place of automatic collections, with their finalizers: ``"thread"``, the
    package's thread; ``"main"``, the main thread; or ``"program"``, the thread that next executes
    Python code. In the last two cases the package's thread only asks for a collection, and it
    begins between two instructions of Python. None means ``"thread"``, or no change if the package
    is installed already.

    ``child_from`` is a number of live objects from which on automatic collections search in a child
    process, so that they stop the program for milliseconds; 0 means never. It takes effect where
    automatic collections run on the package's thread, on Linux with glibc. None means the number in
    ``STANDSTILL_GC_CHILD_FROM`` in the environment, or 0, or no change if the package is installed
    already.
    """
    if child_from is None:
        child_from = -1 if installed() else _child_from
    elif _operator.index(child_from) < 0:
        raise ValueError("child_from must not be negative")
    limit = 0 if threads is None else _positive(threads)
    if where is not None and where not in _PLACES:
        raise ValueError(f"where must be one of {', '.join(map(repr, _PLACES))}")
    if _reason is None:
        _extension.install(
            limit, -1 if where is None else _PLACES.index(where), _operator.index(child_from)
        )


def uninstall():
    """Give all collections back to CPython's collector.

    Waits until an automatic collection that runs has ended, without a limit. Hold no lock that a
    finalizer may need. A finalizer of that collection does not wait.
    """
    if _has_switch:
        _extension.uninstall(None)


def installed():
    """Whether ``gc.collect`` and automatic collections are this package's."""
    return _has_switch and _extension.installed()


class _PlainBlock:
    """A block of ``defer`` for a package that is not active."""

    lock, number, was_enabled = _threading.Lock(), 0, False

    def __enter__(self):
        with _PlainBlock.lock:
            if not _PlainBlock.number:
                _PlainBlock.was_enabled = _gc.isenabled()
            _PlainBlock.number += 1
            _gc.disable()

    def __exit__(self, *error):
        with _PlainBlock.lock:
            _PlainBlock.number -= 1
            if not _PlainBlock.number and _PlainBlock.was_enabled:
                _gc.enable()


class _Block(_extension.Block if _has_switch else _PlainBlock, _contextlib.ContextDecorator):
    """A block of ``defer``. Each call of a function that it decorates is a block of its own."""

    def _recreate_cm(self):
        return _Block()

    def __call__(self, function):
        if _sys.version_info >= (3, 15):
            return super().__call__(function)
        # What `ContextDecorator` does from 3.15 on: a block lasts until the body ends, not only the
        # call that makes a coroutine or a generator.
        import functools
        import inspect

        if inspect.iscoroutinefunction(function):
            async def inner(*args, **kwargs):
                with self._recreate_cm():
                    return await function(*args, **kwargs)
        elif inspect.isasyncgenfunction(function):
            async def inner(*args, **kwargs):
                with self._recreate_cm():
                    async with _contextlib.aclosing(function(*args, **kwargs)) as values:
                        async for value in values:
                            yield value
        elif inspect.isgeneratorfunction(function):
            def inner(*args, **kwargs):
                with self._recreate_cm():
                    return (yield from function(*args, **kwargs))
        else:
            return super().__call__(function)
        return functools.wraps(function)(inner)


def defer():
    """Begin no automatic collection while any thread is in the ``with`` block. One that has begun
    goes on, unless a child process still searches. The next one starts after the block, if it is
    due. As a decorator it does the same for each call of a function, and for the whole body of a
    coroutine or a generator.

    If some thread always is in such a block, no automatic collection ever begins, and memory grows:
    keep blocks short, and do not put one around each request of a busy server.
    """
    return _Block()


# -------------------------------------------------------------------------------- checked mode

def set_checked(checked):
    """Compare each result with that of CPython's collector before anything is cleared.

    CPython collects first, so it is slow. An object that CPython has not found is kept. If it is
    found so twice, a line is written to ``sys.stderr``. ``STANDSTILL_GC_CHECKED`` in the
    environment, not empty and not ``0``, does the same from the start.
    """
    global _checked
    _checked = bool(checked)


def _collect_checked(generation, limit):
    """Both collectors in turn, without another collection between them."""
    here = object()
    try:
        if _checking.setdefault("by", here) is not here:
            return _not_run()
        return _extension.collect(generation, limit, _expected(generation))
    finally:
        # Without a call: an exception of another thread arrives right after a call.
        if _checking == {"by": here}:
            del _checking["by"]


def _expected(generation):
    """The addresses of the garbage that CPython's collector finds."""
    before, flags = len(garbage), get_debug()
    try:
        # An exception of another thread or of a signal can arrive right after this call.
        set_debug(flags | DEBUG_SAVEALL)
        _cpython["collect"](generation)
        found = [id(thing) for thing in garbage[before:]]
        thing = None
    finally:
        # Also after such an exception: the objects would stay in `gc.garbage`.
        del garbage[before:]
        set_debug(flags)
    # CPython has ended the deferred counting of these objects. Some have died with the list.
    alive = set(map(id, get_objects()))
    _extension.keep_suspects(alive.difference(found))
    return [address for address in found if address in alive]


# ---------------------------------------------------------------------------------- statistics

def stats():
    """Figures of the last collections (1,000 at most): a dictionary.

    ``collections`` is their number. ``collected`` and ``uncollectable`` are sums over them.

    ``pauses`` are the stops of the world, in seconds, each from its request until the threads run
    again: ``p50``, ``p90``, ``p99`` and ``p999``, which may be 1.6 % too long, ``max``, ``total``,
    and their number ``count``. So the time is included that other threads wait for one in a long C
    function. ``phases`` has the seconds of each phase in all: ``stop`` (until all threads stand),
    ``find`` (the first stop), ``recheck`` (the second stop), ``child`` (waits for a child process
    that searches, with the world running) and ``clear`` (the rest, with the world running:
    finalizers, callbacks, clearing).

    ``last`` is the last collection, or None: ``collected`` and ``uncollectable`` as in ``gc``;
    ``automatic``, whether it was an automatic one; ``ended``, the time of its end, as from
    ``time.time()``; ``candidates``, the objects that were looked at; ``unreachable``;
    ``finalized``, the objects whose finalizer was called; ``resurrected``, those that finalizers
    kept alive; ``overvisited``, objects whose traversals report more references than there are,
    which are kept; ``threads``, the most threads that searched; ``duration``, from "start" to
    "stop" of ``gc.callbacks``, ``pauses``, ``time_to_stop``, ``waited``, ``find`` and ``recheck``
    in seconds; ``child``, if a child process has searched: how long it ``took``, the number of
    objects that it has ``proposed``, and of the ``parts`` of its proposal, each with a stop of its
    own; otherwise None. ``find`` is the sum of all stops then. ``no_child``: why a child that was
    wanted has not searched, or None. ``late_thread``, the last thread to stop, if that took a
    millisecond, or None; ``ran``, which is True; ``abandoned``, which is None.

    Since the start of the process: ``held_up`` has the pauses of threads that made garbage too
    fast: ``count``, and ``total`` and ``max`` in seconds. ``checked`` has the results of the
    checked mode: the collections that were ``compared``, the objects that were ``missed`` and that
    were ``wrong``. These three begin anew in the child of a fork, and after a collection that was
    abandoned because the package's tables were full. For counters of all collections, see
    ``gc.get_stats()``.
    """
    no_pauses = dict.fromkeys(("p50", "p90", "p99", "p999", "max", "total"), 0.0) | {"count": 0}
    records, pauses = _extension.records() if _extension else ([], no_pauses)
    keys = ("time_to_stop", "find", "recheck", "duration", "waited")
    total = {key: sum(record[key] for record in records) for key in keys}
    return {
        "collections": len(records),
        "collected": sum(record["collected"] for record in records),
        "uncollectable": sum(record["uncollectable"] for record in records),
        "pauses": pauses,
        "phases": {
            "stop": total["time_to_stop"], "find": total["find"], "recheck": total["recheck"],
            "child": total["waited"],
            "clear": total["duration"] - pauses["total"] - total["waited"],
        },
        "last": records[-1] if records else None,
        "held_up": _extension.held_up() if _extension else None,
        "checked": _extension.checked_results() if _extension else None,
    }


# ----------------------------------------------------------------------------- fork and imports

def _after_fork(reason):
    """In the child. ``reason``: why the package is not active there, or None."""
    global _reason
    _checking.clear()
    if reason is not None:
        _reason = reason
        _warnings.warn(f"standstill_gc is not active after a fork: {reason}", RuntimeWarning)


if _has_switch:
    if _is_first_import:
        _os.register_at_fork(after_in_child=_extension.after_fork)
        _atexit.register(_extension.uninstall, 2.0)
    # `stats()` begins anew.
    _extension.forget_records()
    # From now on `gc`, the package's thread and the children of forks use the functions of this
    # module, and not those of an earlier import.
    _extension.adopt(
        _own,
        (collect, enable, disable, isenabled, _collect_automatically, _after_fork),
        _threading.main_thread().ident,
    )

"""A parallel garbage collector for free-threaded CPython.

    import standstill_gc
    standstill_gc.enable()

From then on ``gc.collect()`` and automatic collections run on all cores. If something about the
interpreter is not as tested, CPython's collector stays, and one warning gives the reason: see
``active()``.
"""

import _thread
import atexit as _atexit
import collections as _collections
import contextlib as _contextlib
import gc as _gc
import operator as _operator
import os as _os
import sys as _sys
import threading as _threading
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

# CPython's own functions, which the package replaces while it is enabled.
_cpython = {name: getattr(_gc, name) for name in ("collect", "enable", "disable", "isenabled")}

try:
    from . import _standstill_gc as _extension
    _reason = _extension.activate()
except ImportError as error:
    _extension, _reason = None, str(error)

if _reason is not None:
    _warnings.warn(
        f"standstill_gc is not active, and CPython's collector stays: {_reason}",
        RuntimeWarning, stacklevel=2,
    )

# The last collections, oldest first.
_records = _collections.deque(maxlen=1_000)
_checked = _os.environ.get("STANDSTILL_GC_CHECKED") == "1"


def active():
    """Whether this package can collect. If not, CPython's collector does all work."""
    return _reason is None


def inactive_reason():
    """Why the package is not active; None if it is."""
    return _reason


def collect(generation=2, *, threads=None):
    """Collect now, and return the number of unreachable objects, as ``gc.collect`` does.

    Each generation is a full collection, as in CPython's free-threaded builds. ``threads`` is the
    most threads that find the garbage; None means one for each core. If a collection is running
    already, nothing happens, and the result is 0.
    """
    limit = 0 if threads is None else _positive(threads)
    if _reason is not None:
        return _cpython["collect"](generation)
    generation = _generation(generation)
    # What this thread has to drop, it drops when a function begins.
    _extension.settle()
    _nothing()
    # Only an automatic collection holds other threads up. A collection of this thread holds this
    # thread up.
    automatic = _automatic
    holds_up = _deferring if automatic is not None and automatic.is_current() else None
    if _checked:
        # Both collectors in turn, and nobody between them.
        here = object()
        try:
            if _checking.setdefault("by", here) is not here:
                return 0
            outcome = _extension.collect(generation, limit, _expected(generation), holds_up)
        finally:
            # Without a call: an exception of another thread arrives right after a call.
            if _checking == {"by": here}:
                del _checking["by"]
    else:
        outcome = _extension.collect(generation, limit, None, holds_up)
    if outcome["abandoned"] is not None:
        result = _cpython["collect"](generation)
        _warn_once(outcome["abandoned"])
        return result
    if outcome["ran"]:
        _records.append(outcome)
    elif _waits_for(_automatic):
        return collect(generation, threads=threads)
    return outcome["collected"] + outcome["uncollectable"]


# Has one entry while a result is checked. It is not reentrant: a finalizer collects nothing either.
# Not a lock: an exception of another thread between `acquire` and `try` would leave it locked.
_checking = {}


def _waits_for(automatic):
    """Waits for the end of an automatic collection that runs on the package's thread, but not for
    ever: a finalizer of it may wait for this thread. Returns whether it has ended.
    """
    if automatic is None or automatic.is_current() or automatic.idle.is_set():
        return False
    return automatic.idle.wait(2.0)


def _nothing():
    pass


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


# ------------------------------------------------------------------------------- automatic

class _Reported:
    """Passes an error to ``sys.unraisablehook`` when it dies: only the interpreter can call that."""

    __slots__ = ("error",)

    def __init__(self, error):
        self.error = error

    def __del__(self):
        raise self.error


class _Automatic:
    """The thread that runs automatic collections."""

    def __init__(self, threads):
        self.threads = threads
        self.wanted = True
        self.thread = None
        # Set while no automatic collection runs.
        self.idle = _threading.Event()
        self.idle.set()

    def start(self):
        # No `threading.Thread`: a program that waits for all of its threads would wait for this
        # one.
        self.thread = _thread.start_joinable_thread(self.run, daemon=True)

    def run(self):
        while self.wanted:
            if _extension.wait_until_due(1.0) and self.wanted and _enabled and not _deferring:
                self.idle.clear()
                try:
                    collect(0, threads=self.threads)
                except BaseException as error:
                    # For example a warning that is an error. The thread goes on.
                    _Reported(error)
                finally:
                    self.idle.set()
            elif self.wanted and not (_enabled and not _deferring):
                _extension.pause(0.05)

    def is_current(self):
        return self.thread is not None and self.thread.ident == _threading.get_ident()

    def stop(self, seconds=None):
        self.wanted = False
        _extension.wake()
        if self.thread is not None and not self.is_current():
            # A finalizer may wait for something that does not come any more.
            self.thread.join(seconds)


_automatic = None
_enabled = False
# How many ``with`` blocks of ``defer`` each thread is in, by the thread's identifier.
_deferring = {}
# How many blocks of ``defer`` keep CPython's automatic collections from running.
_withheld = 0
_lock = _threading.RLock()


def _set_enabled(enabled):
    global _enabled
    _enabled = enabled
    _extension.hold_up(enabled)


def enable():
    """Run automatic collections with this collector. Installs it first, if it is not."""
    install()
    if _reason is not None:
        return _cpython["enable"]()
    _set_enabled(True)


def disable():
    """Run no automatic collections. ``collect`` still works."""
    if not installed():
        return _cpython["disable"]()
    _set_enabled(False)


def isenabled():
    """Whether automatic collections run, with either collector."""
    return _enabled if installed() else _cpython["isenabled"]()


def install(*, threads=None):
    """Replace ``gc.collect``, ``gc.enable``, ``gc.disable`` and ``gc.isenabled``, and start the
    thread for automatic collections. They are enabled if CPython's were. ``threads`` limits the
    threads of automatic collections.
    """
    global _automatic
    limit = None if threads is None else _positive(threads)
    with _lock:
        if _reason is not None or _automatic is not None:
            return
        automatic = _Automatic(limit)
        # If no thread can start, nothing has changed.
        automatic.start()
        _automatic = automatic
        _set_enabled(_cpython["isenabled"]() or _withheld > 0)
        _cpython["disable"]()
        _gc.collect, _gc.enable, _gc.disable, _gc.isenabled = collect, enable, disable, isenabled


def uninstall():
    """Give all collections back to CPython's collector."""
    _uninstall(None)


def _uninstall(seconds):
    """As ``uninstall``. Waits so many seconds for the end of the package's thread; None: for ever."""
    global _automatic
    with _lock:
        if _automatic is None:
            return
        automatic, _automatic = _automatic, None
        for name, function in _cpython.items():
            setattr(_gc, name, function)
        if _enabled:
            _cpython["enable"]()
        _set_enabled(False)
    # Without the lock: the thread may be in a finalizer that needs it.
    automatic.stop(seconds)


def installed():
    """Whether ``gc.collect`` and automatic collections are this package's."""
    return _automatic is not None


@_contextlib.contextmanager
def defer():
    """Run no automatic collection inside the ``with`` block, for example while a request is
    served. The next one starts after the block, if it is due.
    """
    # A signal or another thread may raise an exception here. It arrives at a call or at the end of
    # a loop, so none arrives between a change and the note of the change.
    global _withheld
    is_counted = False
    if not installed():
        try:
            with _lock:
                was_enabled = _cpython["isenabled"]()
                if was_enabled or _withheld:
                    _withheld += 1
                    is_counted = True
                _cpython["disable"]()
            yield
        finally:
            with _lock:
                if is_counted:
                    _withheld -= 1
                    # `install` has taken over what was withheld.
                    if not _withheld and not installed():
                        _cpython["enable"]()
        return
    # Without a lock: only this thread changes its entry.
    thread = _threading.get_ident()
    try:
        if thread not in _deferring:
            _deferring[thread] = 0
        _deferring[thread] += 1
        is_counted = True
        yield
    finally:
        # After a fork in another thread, the entry is gone.
        if is_counted and thread in _deferring:
            _deferring[thread] -= 1
            if not _deferring[thread]:
                del _deferring[thread]


# -------------------------------------------------------------------------------- checked mode

def set_checked(checked):
    """Compare each result with that of CPython's collector before anything is cleared.

    CPython collects first, so it is slow. A difference is written to ``sys.stderr``, and nothing is
    cleared. ``STANDSTILL_GC_CHECKED=1`` in the environment does the same from the start.
    """
    global _checked
    _checked = bool(checked)


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
    return [address for address in found if address in alive]


# ---------------------------------------------------------------------------------- statistics

def stats():
    """Figures of the last collections (1,000 at most): a dictionary.

    ``pauses`` are the stops of the world, in seconds: ``p50``, ``p90``, ``p99``, ``p999``, ``max``
    and ``total``. ``phases`` has the seconds of each phase in all: ``stop`` (until all threads
    stand), ``find`` (the first stop), ``recheck`` (the second stop) and ``clear`` (the rest, with
    the world running: finalizers, callbacks, clearing). ``held_up`` has the pauses of threads that
    made garbage too fast, since the start of the process: ``count``, and ``total`` and ``max`` in
    seconds.
    """
    records = _records.copy()
    pauses = sorted(
        pause for record in records for pause in (record["find"], record["recheck"]) if pause
    )

    def rank(share):
        return pauses[min(len(pauses) - 1, int(share * len(pauses)))] if pauses else 0.0

    keys = ("time_to_stop", "find", "recheck", "duration")
    total = {key: sum(record[key] for record in records) for key in keys}
    return {
        "collections": len(records),
        "collected": sum(record["collected"] for record in records),
        "uncollectable": sum(record["uncollectable"] for record in records),
        "pauses": {
            "p50": rank(0.5), "p90": rank(0.9), "p99": rank(0.99), "p999": rank(0.999),
            "max": pauses[-1] if pauses else 0.0, "total": sum(pauses), "count": len(pauses),
        },
        "phases": {
            "stop": total["time_to_stop"], "find": total["find"], "recheck": total["recheck"],
            "clear": total["duration"] - total["find"] - total["recheck"],
        },
        "last": records[-1] if records else None,
        "held_up": _extension.held_up() if _extension else None,
        "checked": _extension.checked_results() if _extension else None,
    }


# ------------------------------------------------------------------------------- fork and exit

def _after_fork():
    global _reason, _automatic, _lock
    _lock = _threading.RLock()
    _checking.clear()
    # The other threads do not exist in the child.
    here = _threading.get_ident()
    for thread in [thread for thread in _deferring if thread != here]:
        del _deferring[thread]
    reason = _extension.forked()
    automatic, _automatic = _automatic, None
    if reason is not None:
        _reason = reason
        _warnings.warn(f"standstill_gc is not active after a fork: {reason}", RuntimeWarning)
        for name, function in _cpython.items():
            setattr(_gc, name, function)
        if _enabled:
            _cpython["enable"]()
    elif automatic is not None:
        automatic.wanted = False
        try:
            # The child of another thread than the main one ends with its thread, unless others run.
            if not _forks_in_main:
                raise RuntimeError("the fork was not in the main thread")
            _automatic = _Automatic(automatic.threads)
            _automatic.start()
        except RuntimeError:
            # Automatic collections are CPython's in this process. `gc.collect` is CPython's too.
            _automatic = None
            for name, function in _cpython.items():
                setattr(_gc, name, function)
            if _enabled:
                _cpython["enable"]()


_forks_in_main = True


def _before_fork():
    global _forks_in_main
    _forks_in_main = _threading.current_thread() is _threading.main_thread()


def _at_exit():
    if _automatic is not None:
        _uninstall(2.0)


if _reason is None:
    _os.register_at_fork(before=_before_fork, after_in_child=_after_fork)
    _atexit.register(_at_exit)

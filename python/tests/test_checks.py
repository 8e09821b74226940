"""The checks on import: the version, the symbols, the layouts, and the enumeration of objects.

``_standstill_gc.check(None)`` runs them. Its last check compares, in one stop of the world, the
objects that the package finds in the allocator's pages with those of ``PyUnstable_GC_VisitObjects``,
and the number of blocks in use with the allocator's.
"""

import gc
import subprocess
import sys
import threading

import pytest

from standstill_gc import _standstill_gc
from support import REFUSE


def agrees():
    assert _standstill_gc.check(None) is None


def run(code, **environment):
    """Runs code in a new interpreter, in which warnings are printed; its output and errors."""
    import os

    result = subprocess.run(
        [sys.executable, "-W", "always", "-c", code],
        capture_output=True, text=True, timeout=120, env=os.environ | environment,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout, result.stderr


class Instance:
    def __init__(self, value):
        self.value = value


class Slots:
    __slots__ = ("value", "__weakref__")


KINDS = [
    lambda i: [i],
    lambda i: (i, []),
    lambda i: {i: []},
    lambda i: {i},
    lambda i: Instance(i),
    lambda i: Slots(),
    lambda i: (lambda: i),
    lambda i: (x for x in ()),
    lambda i: type("Made", (), {}),
    lambda i: (None,) * (i % 300) + ([],),
]


def objects_of_all_kinds(n):
    return [KINDS[i % len(KINDS)](i) for i in range(n)]


# ---------------------------------------------------------------------------- one wrong expectation


@pytest.mark.parametrize("name, reason", [
    ("version", "was not tested; tested: none"),
    ("symbol", "does not export _PyEval_StopTheUniverse"),
    ("headers", "headers of another interpreter: gc.collecting of debug_offsets"),
    ("structures", "gc.size of debug_offsets is"),
    ("enumeration", "1 were not found, and 0 others were found"),
    ("page.sanitizer", "not that of the headers: a page has another heap"),
    ("page.heap", "a page has another heap"),
    ("page.tag", "a page has another tag than its heap"),
    ("page.previous", "a page follows another one"),
    ("page.used", "a page has more blocks in use than it has"),
    ("page.capacity", "a page has more blocks in use than it has"),
    ("page.size", "a page has blocks without a length"),
    ("page.blocks", "the blocks of a page end outside of it"),
    ("page.slices", "a page ends outside of its segment"),
    ("page.offset", "a slice is not the first of its page"),
    ("page.free", "a list of free blocks leads out of its page"),
    ("page.freed", "a list of free blocks leads out of its page"),
    ("page.number", "a page has another number of free blocks"),
])
def test_a_wrong_expectation_fails_its_check(name, reason):
    assert reason in _standstill_gc.check(name)


def test_the_tested_interpreter_passes():
    agrees()


def test_an_unknown_name_is_an_error():
    with pytest.raises(ValueError, match="no expectation of this name"):
        _standstill_gc.check("colour")
    with pytest.raises(TypeError):
        _standstill_gc.check(3)


# ------------------------------------------------------------------------------ the enumeration


def test_the_enumeration_contains_new_objects():
    kept = objects_of_all_kinds(20_000)
    found = set(_standstill_gc.blocks())
    assert [thing for thing in kept if gc.is_tracked(thing) and id(thing) not in found] == []
    assert sum(map(gc.is_tracked, kept)) > 10_000
    agrees()


def test_blocks_of_all_sizes():
    # From the smallest block to one that has a segment of its own: the allocator's limits are
    # 16 KiB, 128 KiB and 16 MiB.
    kept = [(None,) * n + ([],) for size in (8, 100, 2_000, 4_000, 17_000, 300_000, 5_000_000)
            for n in range(size, size + 4)]
    found = set(_standstill_gc.blocks())
    assert all(id(thing) in found for thing in kept)
    agrees()
    del kept[::2]
    agrees()


def test_freed_blocks_are_no_objects():
    kept = objects_of_all_kinds(50_000)
    agrees()
    for step in (2, 3, 7):
        del kept[::step]
        agrees()


def in_threads(count, work):
    """Runs `work(number, wait)` in threads. Each stands in `wait`; comes back: the end of all."""
    arrived, go = threading.Barrier(count + 1), threading.Event()

    def wait():
        arrived.wait(60)
        assert go.wait(60)

    threads = [threading.Thread(target=work, args=(number, wait)) for number in range(count)]
    for thread in threads:
        thread.start()
    arrived.wait(60)

    def end():
        go.set()
        for thread in threads:
            thread.join()

    return end


def test_objects_of_many_threads():
    def work(number, wait):
        kept = objects_of_all_kinds(3_000 + number)
        wait()
        del kept

    end = in_threads(16, work)
    try:
        agrees()
    finally:
        end()
    agrees()


def test_objects_of_ended_threads():
    kept = []

    def work(number, wait):
        kept.append(objects_of_all_kinds(5_000))
        kept.append((None,) * 5_000_000 + ([],))
        wait()

    in_threads(8, work)()
    # Their pages are in the interpreter's pool now.
    found = set(_standstill_gc.blocks())
    assert all(id(thing) in found for thing in kept)
    agrees()
    for some in kept:
        if isinstance(some, list):
            del some[::2]
    agrees()
    # This thread may adopt pages of the pool.
    more = objects_of_all_kinds(50_000)
    agrees()
    del kept, more
    agrees()


def test_blocks_that_another_thread_has_freed():
    boxes, copied = [], threading.Event()
    freed = threading.Barrier(5)

    def work(number, wait):
        mine = [[i] for i in range(20_000)]
        boxes.append(mine)
        wait()
        assert copied.wait(60)
        # The thread gives up its references, so that the other one has the last.
        mine.clear()
        freed.wait(60)
        freed.wait(60)

    end = in_threads(4, work)
    copies = [list(box) for box in boxes]
    end_of_wait = threading.Thread(target=end)
    end_of_wait.start()
    copied.set()
    freed.wait(60)
    try:
        # The owners exist and stand, so they cannot take the blocks back.
        for copy in copies:
            del copy[::2]
        agrees()
        del copies, copy
        agrees()
    finally:
        freed.wait(60)
        end_of_wait.join()


def test_blocks_that_another_thread_has_freed_before_the_import():
    """Debug builds encode the links of their list."""
    out, _ = run("""
import threading
kept = []
thread = threading.Thread(target=lambda: kept.extend([] for _ in range(5_000)))
thread.start(); thread.join()
del kept[::2]
import standstill_gc
print(standstill_gc.inactive_reason())
""")
    assert out == "None\n"


def test_frozen_objects_take_no_part():
    kept = objects_of_all_kinds(1_000)
    gc.freeze()
    try:
        more = objects_of_all_kinds(1_000)
        agrees()
    finally:
        gc.unfreeze()
    agrees()
    del kept, more


def test_threads_that_run_meanwhile():
    stop = threading.Event()

    def mutate():
        kept = []
        while not stop.is_set():
            kept += objects_of_all_kinds(200)
            del kept[: len(kept) // 2]

    def come_and_go():
        while not stop.is_set():
            thread = threading.Thread(target=objects_of_all_kinds, args=(100,))
            thread.start()
            thread.join()

    threads = [threading.Thread(target=work) for work in (mutate, mutate, come_and_go)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(50):
            agrees()
    finally:
        stop.set()
        for thread in threads:
            thread.join()


@pytest.mark.parametrize("allocator", ["debug", "mimalloc_debug", "mimalloc"])
def test_other_allocators(allocator):
    out, errors = run(
        "import standstill_gc\n"
        "kept = [[i] for i in range(1000)] + [type('T', (), {})() for _ in range(1000)]\n"
        "print(standstill_gc.active(), standstill_gc._standstill_gc.check(None))",
        PYTHONMALLOC=allocator,
    )
    assert out == "True None\n" and errors == ""


def test_the_check_of_pages_covers_the_pool():
    def work(number, wait):
        kept.append(objects_of_all_kinds(5_000))
        wait()

    kept = []
    in_threads(4, work)()
    # Their pages are in the pool, and have no heap. Each is checked before it is used.
    agrees()
    assert "a page has another heap" in _standstill_gc.check("page.pool")
    del kept


# ----------------------------------------------------------- a failed check, seen from a program

# Changes one word of the interpreter's table of offsets before the package is imported.
ALTER = """
import ctypes, gc, warnings
words = (ctypes.c_uint64 * 3).in_dll(ctypes.pythonapi, "_PyRuntime")
words[{word}] += {by}
own = gc.collect
import standstill_gc
import standstill_gc as again
assert not standstill_gc.active()
standstill_gc.enable()
assert not standstill_gc.installed()
assert gc.collect is own and gc.isenabled()
a = []; a.append(a); del a
assert standstill_gc.collect() >= 1
with standstill_gc.defer():
    assert not gc.isenabled()
assert gc.isenabled()
print(standstill_gc.inactive_reason())
"""


@pytest.mark.parametrize("word, by, field", [
    (0, 1, "number 0"), (1, 1, "number 1"), (2, -1, "number 2"),
])
def test_a_table_that_disagrees_leaves_all_to_cpython(word, by, field):
    out, errors = run(ALTER.format(word=word, by=by))
    assert f"built with headers of another interpreter: {field} of debug_offsets" in out
    assert errors.count("RuntimeWarning") == 1
    assert errors.count("standstill_gc is not active, and CPython's collector stays") == 1


# Loads the extension module alone.
LOAD = """
import gc, importlib.util, pathlib, sys, types
folder = pathlib.Path(importlib.util.find_spec("standstill_gc").origin).parent
path, = folder.glob("_standstill_gc*.so")
spec = importlib.util.spec_from_file_location("_standstill_gc", path)
extension = importlib.util.module_from_spec(spec)
"""


@pytest.mark.parametrize("name", ["enumeration", "page.sanitizer"])
def test_a_failed_self_test_leaves_all_to_cpython(name):
    out, errors = run(LOAD + """
fake = types.ModuleType("standstill_gc._standstill_gc")
fake.__dict__.update(vars(extension))
fake.activate = lambda: extension.check(NAME)
sys.modules["standstill_gc._standstill_gc"] = fake
import standstill_gc
assert not standstill_gc.active() and standstill_gc.collect() >= 0
print(standstill_gc.inactive_reason())
""".replace("NAME", repr(name)))
    assert "the self-test has failed" in out
    assert errors.count("RuntimeWarning") == 1


def test_refused_memory_for_the_heap_leaves_all_to_cpython():
    out, errors = run(LOAD + REFUSE + """
refuse_more_than(4 << 20)
import standstill_gc
assert standstill_gc.collect() >= 0
print(standstill_gc.active(), standstill_gc.inactive_reason())
""")
    assert out.startswith("False ")
    assert errors.count("RuntimeWarning") == 1


def test_refused_memory_for_the_self_test_is_a_reason():
    out, _ = run(LOAD + REFUSE + """
kept = [[] for _ in range(1_500_000)]
refuse_more_than(1 << 20)
reason = extension.check(None)
refuse_nothing()
print(reason, extension.check(None))
""")
    assert out == "there is no memory for the self-test None\n"


def test_a_subinterpreter_that_is_first_makes_nothing_for_the_main_one():
    out, _ = run("""
from concurrent import interpreters
import gc
NAMES = '[kind.__name__ for kind in gc.get_objects() if isinstance(kind, type)]'
sub = interpreters.create()
sub.exec("import gc, warnings; warnings.simplefilter('ignore'); import standstill_gc")
sub.exec(f"assert 'Request' not in {NAMES}")
import standstill_gc
print(standstill_gc.active(), "Request" in eval(NAMES))
sub.close()
""")
    assert out == "True True\n"


def test_a_subinterpreter_remains_with_cpython():
    interpreters = pytest.importorskip("concurrent.interpreters")
    interpreter = interpreters.create()
    try:
        interpreter.exec(
            "import warnings, gc\n"
            "with warnings.catch_warnings(record=True) as caught:\n"
            "    warnings.simplefilter('always')\n"
            "    import standstill_gc\n"
            "assert len(caught) == 1 and 'subinterpreters' in str(caught[0].message)\n"
            "assert not standstill_gc.active()\n"
            "assert standstill_gc.collect() >= 0\n"
        )
    finally:
        interpreter.close()
    agrees()

"""What is special about CPython's objects: each test fails without the code for its case.

| case | what goes wrong without it |
|---|---|
| deferred references on stacks | functions, code and classes in use are cleared |
| deferred references of generators, coroutines and frame objects | the same, or an object has more references than its count |
| tables of counts of each thread | classes, code and globals of modules are never garbage, or die too early |
| queues of objects with counts to merge | an object that another thread has dropped is kept |
| immortal, frozen, and legacy objects | they are cleared |
| weak references and finalizers | CPython's order is broken |
| streams in memory | a collection that finds one stops the program twice |

A test of the last kind runs the same program with both collectors, and compares what it has seen.
"""

import ctypes
import gc
import io
import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig
import threading
import types
import weakref

import pytest

from standstill_gc import _standstill_gc
from support import good

THREADS = [1, 2]
IS_315 = sys.version_info >= (3, 15)
cpython_collect = gc.collect
# No other file sets the types of arguments of these function objects.
api = ctypes.PyDLL(None)


def outcome(threads=0):
    """Collects, and returns the figures. No collection is abandoned, and no count is too small."""
    figures = _standstill_gc.collect(2, threads, None)
    assert figures["ran"] and figures["abandoned"] is None, figures
    assert figures["overvisited"] == 0, figures
    return figures


def collect(threads=0):
    figures = outcome(threads)
    return figures["collected"] + figures["uncollectable"]


@pytest.fixture(autouse=True)
def only_this_collector():
    """No automatic collection, and no garbage of others."""
    was_enabled = gc.isenabled()
    gc.disable()
    gc.unfreeze()
    cpython_collect()
    collect()
    yield
    gc.unfreeze()
    cpython_collect()
    if was_enabled:
        gc.enable()


@pytest.fixture(params=THREADS)
def threads(request):
    return request.param


def define(source, **names):
    """Runs a program that nothing refers to afterwards, and returns its names."""
    names["collect"] = collect
    names["weakref"] = weakref
    names["sys"] = sys
    exec(source, names)
    return names


@pytest.fixture
def Thing():
    """A class for cycles and weak references, of one test alone.

    CPython limits the attribute names that the instances of a class share. An instance with a
    further name gets a dictionary.
    """
    class Thing:
        pass

    return Thing


def cycle(*others):
    """Makes a cycle of two objects that refers to others. Returns a weak reference to it."""
    class Half:
        pass

    one, two = Half(), Half()
    one.other, two.other, one.others = two, one, others
    return weakref.ref(one)


# ------------------------------------------------------------------- deferred references on stacks

def test_a_function_that_only_the_stack_refers_to_is_alive(threads):
    names = define("""
def callee(value=7):
    return value

def caller(threads):
    global callee
    local = callee          # LOAD_GLOBAL: a deferred reference
    alive = weakref.ref(local)
    del callee
    collect(threads)
    return alive() is local, local()
""")
    assert names["caller"](threads) == (True, 7)


def test_a_class_that_only_the_stack_refers_to_is_alive(threads):
    names = define("""
class Class:
    attribute = 7

def caller(threads):
    global Class
    local = Class
    alive = weakref.ref(local)
    del Class
    collect(threads)
    return alive() is local, local.attribute, local().attribute
""")
    assert names["caller"](threads) == (True, 7, 7)


def test_the_code_and_the_function_that_run_are_alive(threads):
    names = define("""
def function(threads):
    global function
    code, me = weakref.ref(function.__code__), weakref.ref(function)
    function.__code__ = (lambda: None).__code__
    del function
    collect(threads)
    return code() is not None, me() is not None

def call(threads):
    return function(threads)
""")
    assert names["call"](threads) == (True, True)


# A function that only the stack of a thread refers to, without a count.
CALLER = """
def callee(value=7):
    return value

def caller(is_ready, go_on, results):
    global callee
    local = callee
    alive = weakref.ref(local)
    del callee
    is_ready.set()
    go_on.wait()
    results.append((alive() is local, local()))
"""


def test_the_stack_of_another_thread_is_seen(threads):
    names = define(CALLER)
    is_ready, go_on, results = threading.Event(), threading.Event(), []
    thread = threading.Thread(target=names["caller"], args=(is_ready, go_on, results))
    thread.start()
    is_ready.wait()
    collect(threads)
    go_on.set()
    thread.join()
    assert results == [(True, 7)]


def test_a_stack_reference_of_c_code_is_seen(threads):
    # `object.__getattribute__` keeps the attribute of the class in such a reference while it calls
    # `__get__`. Classes have deferred references.
    names = define("""
class Meta(type):
    def __get__(cls, instance, owner):
        alive = weakref.ref(cls)
        del owner.attribute, cls
        collect(THREADS)
        return alive() is not None

class Owner:
    attribute = Meta("Attribute", (), {})

def get():
    return Owner().attribute
""", THREADS=threads)
    assert names["get"]() is True


# ---------------------------------------------------- deferred references of generators and frames

KEEPERS = {
    "generator": """
def keeper():
    global callee
    local = callee
    del callee
    yield
    yield local()

def start():
    it = keeper()
    next(it)
    return it

def go_on(it):
    return next(it)
""",
    "coroutine": """
class Pause:
    def __await__(self):
        yield

async def keeper():
    global callee
    local = callee
    del callee
    await Pause()
    return local()

def start():
    it = keeper()
    it.send(None)
    return it

def go_on(it):
    try:
        it.send(None)
    except StopIteration as end:
        return end.value
""",
    "asynchronous generator": """
async def keeper():
    global callee
    local = callee
    del callee
    yield
    yield local()

def step(it):
    try:
        it.__anext__().send(None)
    except StopIteration as end:
        return end.value

def start():
    it = keeper()
    step(it)
    return it

go_on = step
""",
    "frame": """
def keeper():
    global callee
    local = callee
    del callee
    return sys._getframe()

start = keeper

def go_on(frame):
    return frame.f_locals["local"]()
""",
}
CALLEE = """
def callee():
    return 7

alive = weakref.ref(callee)
"""


@pytest.mark.parametrize("kind", KEEPERS)
def test_a_function_that_only_a_frame_in_an_object_refers_to_is_alive(kind, threads):
    names = define(CALLEE + KEEPERS[kind])
    keeper = names["start"]()
    collect(threads)
    assert names["alive"]() is not None
    assert names["go_on"](keeper) == 7


@pytest.mark.parametrize("kind", KEEPERS)
def test_an_object_outside_of_all_roots_keeps_deferred_references_alive(kind, threads):
    # The keeper is in a list that only C code refers to, so it is counted, and not marked before.
    names = define(CALLEE + KEEPERS[kind])
    holder = [names["start"]()]
    api.Py_IncRef(ctypes.py_object(holder))
    address = id(holder)
    del holder
    collect(threads)
    assert names["alive"]() is not None
    holder = ctypes.cast(address, ctypes.py_object).value
    api.Py_DecRef(ctypes.py_object(holder))
    assert names["go_on"](holder.pop()) == 7


@pytest.mark.parametrize("kind", KEEPERS)
def test_a_cycle_through_a_deferred_reference_is_garbage(kind, threads):
    names = define(CALLEE + KEEPERS[kind])
    function, keeper = names["alive"](), names["start"]()
    function.keeper = keeper
    dead = weakref.ref(function)
    del function, keeper
    names.clear()
    assert collect(threads) >= 2
    assert dead() is None


@pytest.mark.parametrize("kind", KEEPERS)
def test_a_frozen_object_keeps_its_deferred_references_alive(kind, threads):
    names = define(CALLEE + KEEPERS[kind])
    keeper = names["start"]()
    function = names["alive"]()
    gc.freeze()
    unfreeze_one(function)
    del function
    collect(threads)
    assert names["alive"]() is not None
    assert names["go_on"](keeper) == 7


# A generator that refuses to be closed, because the collector closes garbage generators.
STUBBORN = """
def keeper():
    global callee
    local = callee
    del callee
    while True:
        try:
            yield local()
        except GeneratorExit:
            pass

def start():
    it = keeper()
    next(it)
    return it

go_on = next
"""


@pytest.mark.parametrize("kind", ["generator", "frame"])
def test_a_resurrected_object_keeps_the_targets_of_deferred_references(kind, threads, monkeypatch):
    # Claimed objects lose deferred counting, so the frame must own a counted reference by then.
    names = define(CALLEE + (STUBBORN if kind == "generator" else KEEPERS[kind]))
    saved = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: None)

    class Saver:
        def __del__(self):
            saved.append(self.keeper)
            saved.append(weakref.ref(self.function))

    function, keeper, saver = names["alive"](), names["start"](), Saver()
    function.saver, saver.keeper, saver.function = saver, keeper, function
    del function, keeper, saver
    go_on = names["go_on"]
    names.clear()
    collect(threads)
    keeper, alive = saved
    function = alive()
    del function.saver.function, function.saver, function
    assert alive() is not None
    assert go_on(keeper) == 7


def unfreeze_one(thing):
    bits = ctypes.c_uint8.from_address(id(thing) + HEADER["gc_bits"])
    bits.value &= ~FROZEN


# ------------------------------------------------------------------------- counts in several places

# The header of an object, and bits of `ob_gc_bits`, of free-threaded builds.
HEADER = {"gc_bits": 11, "local": 12, "shared": 16, "size": 32}
FROZEN = 1 << 3
# The two lowest bits of the shared count.
FLAGS, QUEUED = 3, 2
IMMORTAL = 0xFFFF_FFFF


def in_thread(function, *arguments):
    results = []
    thread = threading.Thread(target=lambda: results.append(function(*arguments)))
    thread.start()
    thread.join()
    return results[0]


class Worker:
    """A thread that runs functions until it is stopped, and waits in between, detached."""

    def __init__(self):
        self.calls, self.results = [], []
        self.go, self.done = threading.Semaphore(0), threading.Semaphore(0)
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        while True:
            self.go.acquire()
            call = self.calls.pop()
            if call is None:
                return
            self.results.append(call())
            del call
            self.done.release()

    def __call__(self, function):
        self.calls.append(function)
        del function
        self.go.release()
        self.done.acquire()
        return self.results.pop()

    def stop(self):
        self.calls.append(None)
        self.go.release()
        self.thread.join()


def is_queued(thing):
    """Whether the object was put into the queue of its owner, and not taken out."""
    return ctypes.c_ssize_t.from_address(id(thing) + HEADER["shared"]).value & FLAGS == QUEUED


@pytest.fixture
def worker():
    worker = Worker()
    yield worker
    worker.stop()


def counted_in_tables():
    """Objects with a unique id, and a function that makes objects with a reference to each."""
    class Class:
        pass

    module = types.ModuleType("module")
    exec("def function(): pass", module.__dict__)
    code = module.function.__code__
    return {
        "class": (Class, Class),
        "code": (code, lambda: types.FunctionType(code, {})),
        "globals": (module.__dict__, lambda: types.FunctionType(code, module.__dict__)),
    }


@pytest.mark.parametrize("kind", ["class", "code", "globals"])
def test_references_in_the_tables_of_threads_are_counted(kind, threads, worker):
    target, make = counted_in_tables()[kind]
    witness = cycle(target, make)
    users = [make() for _ in range(100)]
    users += worker(lambda: [make() for _ in range(100)])
    # Each user is in a cycle with the target.
    ring = [users, target, make, witness()]
    ring.append(ring)
    del target, make, users
    # Held by C code only, so that all of it is counted.
    api.Py_IncRef(ctypes.py_object(ring))
    address = id(ring)
    del ring
    collect(threads)
    assert witness() is not None
    ring = ctypes.cast(address, ctypes.py_object).value
    api.Py_DecRef(ctypes.py_object(ring))
    # The other thread drops half of the references, so its table is negative.
    users = ring[0]
    half = [users.pop() for _ in range(150)]
    worker(half.clear)
    del half, users, ring
    collect(threads)
    assert witness() is None


@pytest.mark.parametrize("kind", ["class", "code", "globals"])
def test_a_claim_takes_the_references_in_tables_into_the_count(kind, threads, worker):
    saved = []
    target, make = counted_in_tables()[kind]

    class Saver:
        def __del__(self):
            saved.append(self.ring)

    saver = Saver()
    users = [make() for _ in range(100)] + worker(lambda: [make() for _ in range(100)])
    ring = [target, users, make, saver]
    saver.ring = ring
    del target, make, users, saver, ring
    collect(threads)
    target, users, make, saver = saved.pop()
    del saver.ring
    # The object's own fields have all of its references now, also those that follow.
    assert 200 < sys.getrefcount(target) < 300
    users += worker(lambda: [make() for _ in range(100)])
    assert 300 < sys.getrefcount(target) < 400
    users.clear()
    collect(threads)
    assert sys.getrefcount(target) < 100


def test_the_ids_of_claimed_objects_are_used_again(threads):
    def many():
        return [id_of(type("Class", (), {})) for _ in range(1_000)]

    collect(threads)
    highest = max(many())
    for _ in range(5):
        collect(threads)
        assert max(many()) <= highest + 100


def id_of(class_):
    """The unique id of a class: the last field of `PyHeapTypeObject`."""
    number = ctypes.c_ssize_t.from_address(id(class_) + type.__basicsize__ - 8).value
    assert 0 < number < 1 << 24
    return number


@pytest.mark.parametrize("has_finalizer", [False, True])
def test_an_object_in_the_queue_of_a_blocked_thread_is_garbage_and_dies_once(
    threads, worker, has_finalizer
):
    class Class:
        pass

    if has_finalizer:
        Class.__del__ = lambda self: None
    number = 2_000

    def make():
        things = [Class() for _ in range(number)]
        for thing in things:
            thing.me = thing
        return things

    holder = worker(make)
    dead = [weakref.ref(thing) for thing in holder]
    # The worker waits: the objects stay in its queue.
    holder.clear()
    before = sys.getallocatedblocks()
    assert number <= collect(threads) < number * 3
    assert {reference() for reference in dead} == {None}
    assert before - sys.getallocatedblocks() > number * 0.9
    assert collect(threads) == 0
    worker(lambda: None)
    assert collect(threads) == 0


def test_an_object_without_a_cycle_in_the_queue_of_a_blocked_thread_dies(threads, worker):
    class Dies:
        def __del__(self):
            died.append(None)
            on.add(threading.get_ident())

    died, on, number = [], set(), 1_000
    holder = worker(lambda: [Dies() for _ in range(number)])
    # No collector knows numbers. Some of them stay in a list for the next numbers.
    numbers = worker(lambda: [float(i) for i in range(number)])
    blocks = sys.getallocatedblocks()
    numbers.clear()
    holder[0].cycle = holder[0].member = cycle()()
    member = weakref.ref(holder[0].member)
    holder.clear()
    assert died == []
    collect(threads)
    assert len(died) == number and on == {threading.get_ident()}
    assert blocks - sys.getallocatedblocks() > number * 1.5
    worker(lambda: None)
    assert len(died) == number
    collect(threads)
    assert member() is None


def test_a_live_object_in_a_queue_stays(threads, worker, Thing):
    def make():
        things = [Thing(), Thing()]
        return things, list(things)

    kept, dropped = worker(make)
    dead = [weakref.ref(thing) for thing in kept]
    # Only an object without a counted reference of another thread comes into a queue.
    dropped.clear()
    assert all(map(is_queued, kept))
    kept[0].attribute = kept[1].attribute = 7
    collect(threads)
    assert [thing.attribute for thing in kept] == [7, 7]
    # The collection has taken the queue's reference, and this is the last one.
    kept.pop()
    assert dead[1]() is None
    # The owner finds nothing in its queue.
    worker(lambda: None)
    collect(threads)
    assert kept[0].attribute == 7
    kept.pop()
    assert dead[0]() is None


def test_an_immortal_object_in_a_queue_stays_immortal(threads, worker, Thing):
    holder = worker(lambda: [Thing()])
    address = id(holder[0])
    holder.clear()
    local = ctypes.c_uint32.from_address(address + HEADER["local"])
    local.value = IMMORTAL
    collect(threads)
    worker(lambda: None)
    assert local.value == IMMORTAL


# ---------------------------------------------------------------------- immortal, frozen and legacy

def test_an_immortal_object_stays_and_keeps_its_members(threads):
    member = cycle()
    immortal = [member()]
    immortal.append(immortal)
    address = id(immortal)
    ctypes.c_uint32.from_address(address + HEADER["local"]).value = IMMORTAL
    del immortal
    collect(threads)
    immortal = ctypes.cast(address, ctypes.py_object).value
    assert member() is not None and immortal[0] is member()
    immortal.clear()
    collect(threads)
    assert member() is None


def test_frozen_objects_stay_and_keep_the_objects_they_reach(threads):
    frozen = cycle()
    gc.freeze()
    member = cycle()
    frozen().member = member()
    collect(threads)
    assert frozen() is not None and member() is not None
    gc.unfreeze()
    collect(threads)
    assert frozen() is None and member() is None


def test_live_objects_are_not_written(threads, Thing):
    things = [Thing() for _ in range(100)]
    things += [[i] for i in range(100)] + [{i: i} for i in range(100)]
    things += [type("Class", (), {}), (lambda: 1), (i for i in [1])]
    headers = [ctypes.string_at(id(thing), HEADER["size"]) for thing in things]
    cycle()
    collect(threads)
    now = [ctypes.string_at(id(thing), HEADER["size"]) for thing in things]
    for thing, old, new in zip(things, headers, now):
        assert old == new, thing


def test_legacy_finalizers_keep_the_objects_they_reach(threads):
    testcapi = pytest.importorskip("_testcapi")

    @testcapi.with_tp_del
    class Legacy:
        def __tp_del__(self):
            pass

    other = cycle()
    legacy, reached = Legacy(), cycle()
    legacy.me, legacy.reached = legacy, reached()
    address = id(legacy)
    del legacy
    figures = outcome(threads)
    assert figures["uncollectable"] >= 1 and figures["collected"] >= 2
    assert other() is None and reached() is not None
    assert [id(thing) for thing in gc.garbage] == [address]
    legacy = gc.garbage.pop()
    del legacy.me, legacy
    # A collection without legacy finalizers comes after one with them.
    collect(threads)
    assert reached() is None


# ------------------------------------------------------------- both collectors do the same in order

def with_both(program):
    """Runs a program with each collector, and returns what it says of CPython's, which is equal."""
    said = []
    cpython_collect()
    for one in (cpython_collect, collect):
        events = []
        program(one, events.append)
        said.append(events)
        cpython_collect()
    theirs, ours = said
    assert ours == theirs
    return theirs


def test_callbacks_come_before_finalizers_and_weak_references_in_the_order_of_the_version(Thing):
    def program(collect, say):
        class Finalized:
            def __del__(self):
                say("finalizer")
                say("plain: %s" % (plain() is not None))
                say("with callback: %s" % (called() is not None))
                say("inner: %s" % (self.inner() is not None))

        thing, outside = Finalized(), Thing()
        thing.me = thing
        thing.target = Thing()
        plain, called = weakref.ref(thing), weakref.ref(thing, lambda _: say("callback"))
        # Weak references that are garbage: to garbage, and to a live object.
        thing.inner = weakref.ref(thing.target, lambda _: say("never"))
        thing.outer = weakref.ref(outside, lambda _: say("never either"))
        del thing
        say(collect())
        say("then: %s" % (plain() is None))
        del outside

    events = with_both(program)
    assert events[0] == "callback" and events[1] == "finalizer"
    assert ("plain: %s" % IS_315) in events and "never" not in events


def test_a_garbage_weak_reference_calls_nothing_when_its_target_dies_meanwhile(Thing):
    testcapi = pytest.importorskip("_testcapi")

    def program(collect, say):
        # Only a container that no collector knows refers to the target, so it is no garbage.
        garbage = [Thing() for _ in range(10)]
        for one, next_ in zip(garbage, garbage[1:] + garbage[:1]):
            one.next = next_
            target = Thing()
            one.hidden = testcapi.ContainerNoGC(target)
            next_.reference = weakref.ref(target, lambda _: say("never"))
        del one, next_, target, garbage
        say(collect() >= 10)

    assert with_both(program) == [True]


def test_the_oldest_callback_of_an_object_is_called_first(Thing):
    for collects in cpython_collect, collect:
        thing, called = Thing(), []
        thing.me = thing
        kept = [weakref.ref(thing, lambda _, at=at: called.append(at)) for at in range(3)]
        del thing
        assert collects() >= 1
        assert called == [0, 1, 2] and len(kept) == 3


def test_an_object_whose_finalizer_enables_deferred_counting_is_kept():
    """The generator has the only reference, and does not count it."""
    names = define("""
def holds():
    held = shared
    yield
    yield held.text
class Thing:
    def __del__(self):
        global shared
        if enable(self):
            shared = self
            generators.append(holds())
            next(generators[0])
            del shared
def make():
    thing = Thing()
    thing.me, thing.text = thing, "text"
""", generators=[], enable=api.PyUnstable_Object_EnableDeferredRefcount)
    names["enable"].argtypes = [ctypes.py_object]
    names["make"]()
    assert outcome()["resurrected"] >= 1
    [generator] = names["generators"]
    collect()
    assert next(generator) == "text"


def test_a_finalized_object_is_looked_at_again_before_it_is_cleared():
    """A list of tasks does not count its references, and threads take tasks from it."""
    saved = []

    class Saved:
        def __del__(self):
            saved.append(self)

    thing = Saved()
    thing.me = thing
    del thing
    figures = outcome()
    assert (figures["finalized"], figures["resurrected"]) == (1, 1) and figures["recheck"] > 0
    saved.clear()
    figures = outcome()
    assert figures["collected"] >= 1
    assert (figures["finalized"], figures["resurrected"]) == (0, 0) and figures["recheck"] > 0


@pytest.mark.parametrize("kind", [io.BytesIO, io.StringIO])
def test_a_stream_in_memory_needs_no_finalizer_and_no_second_stop(kind, threads, Thing):
    """The interpreter frees such a stream without its finalizer, if its count reaches 0."""
    outcome(threads)  # pytest's garbage has finalizers
    thing, stream = Thing(), kind()
    thing.me, thing.stream = thing, stream
    are_alive = [weakref.ref(thing), weakref.ref(stream)]
    del thing, stream
    figures = outcome(threads)
    assert (figures["finalized"], figures["recheck"], figures["collected"]) == (0, 0, 2), figures
    assert [alive() for alive in are_alive] == [None, None]


@pytest.mark.parametrize("kind", [io.BytesIO, io.StringIO])
@pytest.mark.parametrize("replaced", ["by an attribute", "by a subclass"])
def test_a_stream_whose_close_is_replaced_is_finalized(kind, replaced, threads, Thing):
    closed = []

    class Stream(kind):
        def close(self):
            closed.append(type(self))
            super().close()

    def run(collect):
        if replaced == "by a subclass":
            stream = Stream()
        else:
            stream = kind()
            stream.close = lambda: closed.append(kind)
        thing = Thing()
        thing.me, thing.stream = thing, stream
        del thing, stream
        collect()
        return closed.pop(0), closed.clear()

    assert run(lambda: outcome(threads)) == run(cpython_collect)


def test_a_class_that_a_program_has_put_in_the_place_of_a_stream_is_finalized():
    assert good("""
        import _io
        class Stream(_io.BytesIO):
            __slots__ = ()
            def close(self): print("closed"); super().close()
        _io.BytesIO = Stream
        import standstill_gc
        thing = [Stream()]
        thing.append(thing)
        del thing
        standstill_gc.collect()
    """) == ["closed"]


def test_an_object_that_its_finalizer_makes_immortal_stays_immortal():
    saved = []

    class Immortal:
        def __del__(self):
            api._Py_SetImmortal(self)
            saved.append(self)

    api._Py_SetImmortal.argtypes = [ctypes.py_object]
    api._Py_SetImmortal.restype = None
    thing = Immortal()
    thing.me = thing
    del thing
    collect()
    assert sys._is_immortal(saved[0])


def test_a_callback_that_looks_and_one_that_raises(Thing):
    def program(collect, say):
        def look(reference):
            say(reference() is None)
            raise ValueError

        thing = Thing()
        thing.me = thing
        references = [weakref.ref(thing, look) for _ in range(3)]
        del thing
        hook, sys.unraisablehook = sys.unraisablehook, lambda u: say(u.exc_type.__name__)
        try:
            say(collect())
        finally:
            sys.unraisablehook = hook
        say(len(references))

    assert with_both(program).count("ValueError") == 3


def test_resurrected_objects_keep_the_objects_they_reach_and_finalizers_run_once(Thing):
    def program(collect, say):
        saved = []

        class Saver:
            def __del__(self):
                say("del")
                saved.append(self)

        saver, other = Saver(), Thing()
        saver.other, other.saver = other, saver
        lost = Thing()
        lost.saver, lost.me = saver, lost
        alive, dead = weakref.ref(other), weakref.ref(lost)
        created = []
        del saver, other, lost
        say(collect())
        say((dead() is None, saved[0].other.saver is saved[0], alive() is not None))
        created.append(weakref.ref(saved[0]))
        saved.clear()
        say(collect())
        say(created[0]() is None)

    events = with_both(program)
    assert events.count("del") == 1


def test_a_weak_reference_made_by_a_finalizer_to_garbage_is_cleared(Thing):
    def program(collect, say):
        made = []

        class Maker:
            def __del__(self):
                made.append(weakref.ref(self.other))

        maker, other = Maker(), Thing()
        maker.other, other.maker = other, maker
        del maker, other
        say(collect())
        say(made[0]() is None)

    assert with_both(program)[-1] is True


def test_an_object_that_a_finalizer_untracks_stays(Thing):
    def program(collect, say):
        class Untracks:
            def __del__(self):
                api.PyObject_GC_UnTrack(ctypes.py_object(self.other))

        one, other = Untracks(), Thing()
        one.other, other.one, other.member = other, one, Thing()
        alive, member = weakref.ref(other), weakref.ref(other.member)
        del one, other
        say(collect())
        say((alive() is None, member() is None))
        if alive() is not None:
            api.PyObject_GC_Track(ctypes.py_object(alive()))

    with_both(program)


def test_garbage_is_not_shown_to_finalizers_and_survivors_are_shown_again():
    def program(collect, say):
        saved = []

        def shows(thing):
            return any(other is thing for other in gc.get_objects())

        class Looks:
            def __del__(self):
                say((shows(self), gc.get_referrers(self)))
                saved.append(self)

        thing = Looks()
        thing.me = thing
        del thing
        say(collect())
        say((shows(saved[0]), saved[0] in gc.get_referrers(saved[0])))

    with_both(program)


def test_is_finalized_is_true_after_the_finalizer():
    def program(collect, say):
        saved = []

        class Saver:
            def __del__(self):
                saved.append(self)

        thing = Saver()
        thing.me = thing
        say(gc.is_finalized(thing))
        del thing
        collect()
        say(gc.is_finalized(saved[0]))

    assert with_both(program) == [False, True]


def test_saveall_puts_garbage_into_the_list():
    def program(collect, say):
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            one = []
            one.append(one)
            del one
            say(collect())
            say([type(thing).__name__ for thing in gc.garbage])
        finally:
            gc.set_debug(0)
            gc.garbage.clear()

    assert with_both(program)[1] == ["list"]


# --------------------------------------------------------------------------- functions of
# extensions

FOREIGN = r"""
#include <Python.h>
#include <pthread.h>

// A container whose traverse function notes threads other than the first one that calls it.
typedef struct { PyObject_HEAD PyObject *member; } Foreign;
static pthread_t first;
static int calls, others;

static void called(void) {
    if (__atomic_fetch_add(&calls, 1, __ATOMIC_SEQ_CST) == 0) first = pthread_self();
    else if (!pthread_equal(first, pthread_self()))
        __atomic_fetch_add(&others, 1, __ATOMIC_SEQ_CST);
}
static int foreign_traverse(PyObject *self, visitproc visit, void *arg) {
    called();
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(((Foreign *)self)->member);
    return 0;
}
static int foreign_clear(PyObject *self) { Py_CLEAR(((Foreign *)self)->member); return 0; }
static void foreign_dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    foreign_clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}
static int foreign_init(PyObject *self, PyObject *args, PyObject *kwds) {
    PyObject *member = Py_None;
    if (!PyArg_ParseTuple(args, "|O", &member)) return -1;
    Py_XSETREF(((Foreign *)self)->member, Py_NewRef(member));
    return 0;
}
static PyType_Slot slots[] = {{Py_tp_traverse, foreign_traverse}, {Py_tp_clear, foreign_clear},
    {Py_tp_dealloc, foreign_dealloc}, {Py_tp_init, foreign_init}, {0, NULL}};
static PyType_Spec spec = {"foreign.Foreign", sizeof(Foreign), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE, slots};

// A finalizer, and a destructor, that leave an error behind.
static void leave(const char *text) { PyErr_SetString(PyExc_ValueError, text); }
static void careless_finalize(PyObject *self) { leave("finalizer"); }
static void careless_dealloc(PyObject *self) { foreign_dealloc(self); leave("destructor"); }
static PyType_Slot of_finalizer[] = {{Py_tp_traverse, foreign_traverse},
    {Py_tp_clear, foreign_clear}, {Py_tp_dealloc, foreign_dealloc}, {Py_tp_init, foreign_init},
    {Py_tp_finalize, careless_finalize}, {0, NULL}};
static PyType_Slot of_destructor[] = {{Py_tp_traverse, foreign_traverse},
    {Py_tp_clear, foreign_clear}, {Py_tp_dealloc, careless_dealloc}, {Py_tp_init, foreign_init},
    {0, NULL}};
static PyType_Spec careless[] = {
    {"foreign.Finalizer", sizeof(Foreign), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
        of_finalizer},
    {"foreign.Destructor", sizeof(Foreign), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
        of_destructor}};

// A module with a traverse function of its own.
static int own_traverse(PyObject *self, visitproc visit, void *arg) { called(); return 0; }
static PyModuleDef_Slot of_module[] = {{Py_mod_gil, Py_MOD_GIL_NOT_USED}, {0, NULL}};
static PyModuleDef with_own = {PyModuleDef_HEAD_INIT, "own", NULL, 0, NULL, of_module, own_traverse};
static PyObject *make_module(PyObject *self, PyObject *spec) {
    return PyModule_FromDefAndSpec(&with_own, spec);
}
static PyObject *take(PyObject *self, PyObject *none) {
    PyObject *result = Py_BuildValue("ii", calls, others);
    calls = others = 0;
    return result;
}
static PyMethodDef methods[] = {{"take", take, METH_NOARGS, NULL},
    {"make_module", make_module, METH_O, NULL}, {NULL, NULL, 0, NULL}};
static int execute(PyObject *module) {
    PyType_Spec *specs[] = {&spec, &careless[0], &careless[1]};
    for (int at = 0; at < 3; at++) {
        PyObject *type = PyType_FromSpec(specs[at]);
        if (type == NULL || PyModule_AddType(module, (PyTypeObject *)type) < 0) return -1;
        Py_DECREF(type);
    }
    return 0;
}
static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, execute}, {Py_mod_gil, Py_MOD_GIL_NOT_USED},
    {0, NULL}};
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "foreign", NULL, 0, methods, module_slots};
PyMODINIT_FUNC PyInit_foreign(void) { return PyModuleDef_Init(&module); }
"""


@pytest.fixture(scope="session")
def foreign(tmp_path_factory):
    """An extension module that the package does not know."""
    directory = tmp_path_factory.mktemp("foreign")
    source, library = directory / "foreign.c", directory / "foreign.so"
    source.write_text(FOREIGN)
    headers = {sysconfig.get_path("include"), os.path.dirname(sysconfig.get_config_h_filename())}
    command = ["cc", "-shared", "-fPIC", *(f"-I{path}" for path in headers), str(source), "-o"]
    try:
        subprocess.run([*command, str(library)], check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no C compiler for an extension module: {getattr(error, 'stderr', error)}")
    from importlib import machinery, util

    loader = machinery.ExtensionFileLoader("foreign", str(library))
    module = util.module_from_spec(util.spec_from_loader("foreign", loader))
    loader.exec_module(module)
    return module


@pytest.mark.parametrize("is_garbage", [False, True])
@pytest.mark.parametrize("is_subclass", [False, True])
def test_unknown_traverse_functions_run_on_the_collecting_thread(
    foreign, is_subclass, is_garbage, Thing
):
    class Subclass(foreign.Foreign):
        pass

    class_ = Subclass if is_subclass else foreign.Foreign
    things = [class_([Thing()]) for _ in range(100_000)]
    if is_garbage:
        things.append(things)
    foreign.take()
    count = len(things)
    if is_garbage:
        del things
    figures = outcome(2)
    calls, others = foreign.take()
    assert calls >= count - 1 and others == 0
    assert figures["threads"] == 2
    if is_garbage:
        assert figures["collected"] >= 2 * count - 2


def test_unknown_traverse_functions_of_modules_run_on_the_collecting_thread(foreign):
    from importlib import machinery

    spec = machinery.ModuleSpec("own", None)
    modules = [foreign.make_module(spec) for _ in range(40_000)]
    foreign.take()
    figures = outcome(2)
    calls, others = foreign.take()
    assert calls >= len(modules) and others == 0
    assert figures["threads"] == 2


def test_a_directory_that_is_named_like_one_of_the_interpreter_is_unknown(foreign, tmp_path):
    """As setuptools names the place of what it builds."""
    program = """
import sys, sysconfig
from importlib import machinery, util
import standstill_gc
loader = machinery.ExtensionFileLoader("foreign", sys.argv[1])
foreign = util.module_from_spec(util.spec_from_loader("foreign", loader))
loader.exec_module(foreign)
things = [foreign.Foreign([]) for _ in range(100_000)]
foreign.take()
standstill_gc.collect(threads=2)
calls, others = foreign.take()
print(calls >= 100_000, others, standstill_gc.stats()["last"]["threads"])
"""
    library = pathlib.Path(foreign.__loader__.path)
    for name in ["build/lib.linux-x86_64-cpython-315t", "libpython-env/lib", "old/lib-dynload"]:
        place = tmp_path / name
        place.mkdir(parents=True)
        shutil.copy(library, place)
        result = subprocess.run(
            [sys.executable, "-c", program, str(place / library.name)],
            capture_output=True, text=True, timeout=60,
        )
        assert (result.stdout, result.stderr) == ("True 0 2\n", ""), name


@pytest.mark.parametrize("kind", ["Finalizer", "Destructor"])
def test_an_error_that_a_function_of_c_leaves_is_reported(foreign, kind, Thing, monkeypatch):
    if kind == "Destructor" and hasattr(sys, "gettotalrefcount"):
        pytest.skip("the interpreter ends the process itself")
    reports = []
    monkeypatch.setattr(sys, "unraisablehook", lambda error: reports.append(error))
    thing = Thing()
    thing.careless = getattr(foreign, kind)(thing)
    thing.other = Thing()
    del thing
    assert outcome(1)["collected"] >= 3
    [report] = reports
    assert str(report.exc_value) == kind.lower()
    assert report.err_msg == "Exception ignored in garbage collection"
    del report, reports[:]


# -------------------------------------------------------------------------------- allocators

@pytest.mark.parametrize("tracemalloc", ["0", "1"])
def test_with_the_debug_allocator(tracemalloc):
    program = """
import gc, weakref
from standstill_gc import _standstill_gc
class Thing: pass
def make():
    things = [Thing() for _ in range(1000)]
    for thing in things: thing.me = thing
    return [weakref.ref(thing) for thing in things[::2]]
gc.disable()
dead = make()
print(_standstill_gc.activate(), _standstill_gc.collect(2, 0, None)["collected"] >= 1000,
      all(reference() is None for reference in dead))
"""
    environment = os.environ | {"PYTHONMALLOC": "debug", "PYTHONTRACEMALLOC": tracemalloc}
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment, timeout=60
    )
    assert result.stdout == "None True True\n", result.stderr

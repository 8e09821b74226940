"""States of objects and threads that a program hardly ever shows to a collection.

Most tests here write to the interpreter's memory to make such a state, and undo it after the
collection. Each fails without the code for its state.
"""

import ctypes
import gc
import sys
import threading
import weakref

from support import good
from test_special_cases import (  # noqa: F401
    CALLER, HEADER, Thing, collect, cycle, define, only_this_collector, outcome, threads, with_both,
)

WORD = 8
# No other file sets the types of arguments of these function objects.
api = ctypes.PyDLL(None)


def word(address):
    return ctypes.c_size_t.from_address(address)


# ------------------------------------------------------------------------------------ thread states

# A new thread state is in the interpreter's list before it has a `qsbr`.
def test_a_thread_state_that_is_being_made_takes_part_in_no_settling():
    assert good("""
        import ctypes, os, struct
        import standstill_gc
        api, memory = ctypes.pythonapi, os.open("/proc/self/mem", os.O_RDONLY)
        api.PyInterpreterState_Get.restype = api.PyThreadState_New.restype = ctypes.c_void_p
        api.PyThreadState_New.argtypes = [ctypes.c_void_p]
        api.PyThreadState_Clear.argtypes = api.PyThreadState_Delete.argtypes = [ctypes.c_void_p]
        state = api.PyThreadState_New(api.PyInterpreterState_Get())

        def points_back(address):
            "Whether a `qsbr` may be there: its third word is the address of its thread state."
            try:
                return struct.unpack("P", os.pread(memory, 8, address + 16))[0] == state
            except (OSError, OverflowError):
                return False

        words = (ctypes.c_size_t * 4096).from_address(state)
        found = [at for at in range(4096) if words[at] % 8 == 0 and points_back(words[at])]
        assert found, "no qsbr"
        kept = [words[at] for at in found]
        for at in found: words[at] = 0
        a = []; a.append(a); del a
        print(standstill_gc._extension.collect(2, 0, None)["abandoned"])
        for at, value in zip(found, kept): words[at] = value
        api.PyThreadState_Clear(state); api.PyThreadState_Delete(state)
        print(standstill_gc.collect() >= 0)
    """) == ["None", "True"]


def test_threads_that_c_makes_come_and_go_during_collections():
    assert good("""
        import ctypes, gc, threading, time
        import standstill_gc
        standstill_gc.install()
        libc, calls = ctypes.CDLL(None), []
        def run(_):
            a = []; a.append(a)
            calls.append(1)
            return 0
        body = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(run)
        end, started = time.monotonic() + 2, []
        def threads():
            while time.monotonic() < end:
                group = [ctypes.c_ulong() for _ in range(4)]
                for one in group:
                    assert not libc.pthread_create(ctypes.byref(one), None, body, None)
                for one in group: libc.pthread_join(one, None)
                started.extend(group)
        thread = threading.Thread(target=threads); thread.start()
        count = 0
        while thread.is_alive():
            gc.collect(); count += 1
        print(len(calls) == len(started) > 0, count > 1)
    """) == ["True", "True"]


# ------------------------------------------------------------------------------------------- stacks

def frame_of(thread):
    """The address of the interpreter's frame behind the frame object of a thread."""
    frame = sys._current_frames()[thread.ident]
    while frame.f_code.co_name != "caller":
        frame = frame.f_back
    # A frame object has the object before, and then the address. The interpreter's frame has the
    # frame object in word 6, and the top of its stack in word 8.
    address = word(id(frame) + HEADER["size"] + WORD).value
    assert word(address + 6 * WORD).value == id(frame)
    top = word(address + 8 * WORD)
    assert 0 < top.value - address < 200 * WORD
    return top


def test_objects_with_deferred_references_are_kept_if_a_stack_cannot_be_read(threads):
    names = define(CALLER)
    is_ready, go_on, results = threading.Event(), threading.Event(), []
    thread = threading.Thread(target=names["caller"], args=(is_ready, go_on, results))
    thread.start()
    is_ready.wait()
    top = frame_of(thread)
    kept, top.value = top.value, 0
    try:
        found = _abandonless(threads)
    finally:
        top.value = kept
    go_on.set()
    thread.join()
    assert results == [(True, 7)]
    assert found


def _abandonless(threads):
    """Collects one cycle, and returns whether it was found: other garbage is not kept."""
    gone = cycle()
    outcome(threads)
    return gone() is None


# ------------------------------------------------------------------------------------------- counts

def held_by_c(thing):
    """Adds a reference that no frame and no object has. Returns the address."""
    api.Py_IncRef(ctypes.py_object(thing))
    return id(thing)


def given_back(address):
    thing = ctypes.cast(address, ctypes.py_object).value
    api.Py_DecRef(ctypes.py_object(thing))
    return thing


def test_an_object_in_destruction_is_outside(threads, Thing):
    thing, member = Thing(), cycle()
    thing.member, thing.me = member(), "text"
    address = held_by_c(thing)
    del thing
    count = ctypes.c_uint32.from_address(address + HEADER["local"])
    assert count.value == 1
    # No object refers to it. So it is in its destruction, before that untracks it.
    count.value = 0
    collect(threads)
    count.value = 1
    thing = given_back(address)
    assert thing.me == "text" and thing.member is member()


# ----------------------------------------------------------------------- clearing, weak references

def untrack(address):
    api.PyObject_GC_UnTrack(ctypes.c_void_p(address))


def track(address):
    api.PyObject_GC_Track(ctypes.c_void_p(address))


def outside(make):
    """An object that takes no part in collections. It dies when its last reference goes."""
    thing = make()
    untrack(id(thing))
    return thing


def test_an_object_that_the_clearing_of_another_untracks_is_not_cleared(Thing):
    def program(collect, say):
        class Signal:
            def __init__(self, other):
                self.other = other

            def __del__(self):
                calls.append(self.other)
                if len(calls) == 1:
                    untrack(self.other)

        calls, pair = [], [Thing(), Thing()]
        for thing, other in zip(pair, [id(thing) for thing in reversed(pair)]):
            thing.signal, thing.me = outside(lambda: Signal(other)), thing
        del thing, pair
        say(collect())
        # The first that is cleared untracks the other one, which stays whole.
        say(len(calls))
        if len(calls) == 1:
            track(calls[0])
            survivor = ctypes.cast(calls[0], ctypes.py_object).value
            say(survivor.me is survivor and type(survivor.signal) is Signal)
            del survivor
            collect()
            say(len(calls))

    assert with_both(program)[1:] == [1, True, 2]


def test_a_garbage_weak_reference_calls_nothing_when_an_object_outside_dies_by_clearing(Thing):
    def program(collect, say):
        thing = Thing()
        thing.target, thing.me = outside(Thing), thing
        thing.weak = weakref.ref(thing.target, lambda _: say("called"))
        alive = weakref.ref(thing.target, lambda _: say("the other one"))
        del thing
        say(collect())
        say(alive() is None)

    said = with_both(program)
    assert "called" not in said and "the other one" in said and said[-1] is True

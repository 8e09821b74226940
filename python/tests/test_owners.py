"""The collecting thread owns an object from its claim to its release.

Threads count their own objects without atomic instructions, and put objects of others into queues.
So a wrong owner loses references, destroys an object that is in use, or lets it live too long.
"""

import ctypes
import gc
import threading
import weakref

import pytest

from test_special_cases import (  # noqa: F401
    HEADER, collect, cycle, in_thread, is_queued, only_this_collector, threads, worker,
)

MERGED = 3


def owner(thing):
    return ctypes.c_size_t.from_address(id(thing)).value


def local(thing):
    return ctypes.c_uint32.from_address(id(thing) + HEADER["local"])


def shared(thing):
    return ctypes.c_ssize_t.from_address(id(thing) + HEADER["shared"])


def is_merged(thing):
    return shared(thing).value & 3 == MERGED and owner(thing) == 0 and local(thing).value == 0


@pytest.fixture
def Saved():
    """A class whose instances save themselves in their finalizer, and note the owner there."""
    class Saved:
        saved, owners, dead = [], [], []

        def __del__(self):
            Saved.owners.append(owner(self))
            Saved.saved.append(self)

    return Saved


def saved_ring(Saved):
    """Makes a cycle of two that save themselves."""
    one, two = Saved(), Saved()
    one.other, two.other = two, one


def collect_and_save(threads, Saved):
    """Collects the cycle. Its finalizers find this thread as the owner."""
    collect(threads)
    assert Saved.owners == [threading.get_ident()] * 2 and len(Saved.saved) == 2


def watch(Saved):
    """Gives each saved object an attribute that notes the object's death."""
    class Attribute:
        def __del__(self):
            Saved.dead.append(threading.get_ident())

    for one in Saved.saved:
        one.attribute = Attribute()


def break_up(Saved):
    """Drops the saved objects, which no longer refer to each other."""
    for one in Saved.saved:
        one.other = None
    del one
    Saved.saved.clear()


@pytest.mark.parametrize("maker", ["this thread", "another", "one that has ended"])
@pytest.mark.parametrize("dropper", ["this thread", "the maker", "a third"])
def test_saved_garbage_dies_once_on_any_thread(maker, dropper, threads, worker, Saved):
    def here(function):
        return function()

    make = {"this thread": here, "another": worker, "one that has ended": in_thread}[maker]
    make(lambda: saved_ring(Saved))
    collect_and_save(threads, Saved)
    watch(Saved)
    drop = {"this thread": here, "the maker": make, "a third": in_thread}[dropper]

    def count():
        for _ in range(1000):
            keep = [*Saved.saved, *Saved.saved]
            keep.clear()
    # References of both threads come and go.
    drop(count)
    count()
    drop(lambda: break_up(Saved))
    assert len(Saved.dead) == 2
    collect(threads)
    assert len(Saved.dead) == 2


def test_saved_garbage_does_not_wait_for_the_thread_that_has_collected_it(threads, worker, Saved):
    worker(lambda: saved_ring(Saved))
    # The worker sleeps afterwards, detached, and looks at no queue.
    worker(lambda: collect_and_save(threads, Saved))
    assert all(is_merged(one) for one in Saved.saved)
    watch(Saved)
    break_up(Saved)
    assert Saved.dead == [threading.get_ident()] * 2


def test_objects_in_the_list_of_garbage_have_no_owner(threads):
    cycle()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        collect(threads)
        halves = [thing for thing in gc.garbage if type(thing).__name__ == "Half"]
        assert len(halves) == 2 and all(is_merged(half) for half in halves)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()


def test_saved_garbage_outlives_the_thread_that_has_collected_it(threads, Saved):
    saved_ring(Saved)
    in_thread(collect_and_save, threads, Saved)
    watch(Saved)
    break_up(Saved)
    assert len(Saved.dead) == 2


def test_saved_garbage_is_collected_later_by_another_thread(threads, worker, Saved):
    saved_ring(Saved)
    collect_and_save(threads, Saved)
    watch(Saved)
    Saved.saved.clear()
    assert Saved.dead == []
    worker(lambda: collect(threads))
    assert Saved.dead == [worker.thread.ident] * 2


def test_objects_in_all_states_of_a_count_are_claimed(threads, worker):
    class Plain:
        def __del__(self):
            seen.append("merged" if is_merged(self) else owner(self))

    def ring():
        one = Plain()
        one.self = one
        return one

    seen, this_thread = [], threading.get_ident()
    # The owner is this thread.
    ring()
    collect(threads)
    assert seen.pop() == this_thread
    # The owner is another thread, and only that thread has counted references.
    worker(lambda: ring() and None)
    collect(threads)
    assert seen.pop() == this_thread
    # Both threads have counted references.
    one = worker(ring)
    one.again = one
    del one
    collect(threads)
    assert seen.pop() in (this_thread, "merged")
    # There is no owner: the object has been in a queue of its owner, which has merged its count.
    holder = [worker(ring)]
    one = weakref.ref(holder[0])
    holder.clear()
    assert is_queued(one())
    worker(lambda: None)
    assert is_merged(one())
    collect(threads)
    assert seen == ["merged"]


def test_an_owner_with_very_many_references_is_merged(threads):
    """The claim's reference would make the owner's part the number that marks immortal objects."""
    class Crowded:
        pass

    one = Crowded()
    one.self = one
    most, own, others = (1 << 32) - 2, local(one), shared(one)
    del one
    # From here on this thread counts no reference. The sum of both parts stays the same.
    others.value -= (most - own.value) << 2
    own.value = most
    collect(threads)
    assert not [thing for thing in gc.get_objects() if type(thing) is Crowded]

"""References that the package reads without the traverse function of the type.

A reference that is overlooked leaves garbage, and a reference that does not exist is a crash. So
each test makes a cycle through one kind of reference, and demands that it is found.
"""

import gc
import weakref

import pytest

import standstill_gc


class Probe:
    """Shows by a weak reference that it has died."""


class Plain:
    pass


class Derived(Plain):
    pass


class Slots:
    __slots__ = ("one", "held", "__weakref__")


class SlotsBelow(Slots):
    """Has a dictionary of its own, and slots of its base."""


class OfList(list):
    pass


class OfDict(dict):
    pass


def many(holder, probe):
    for number in range(40):
        setattr(holder, f"attribute_{number}", number)
    holder.held = probe


def in_dictionary(holder, probe):
    holder.held = probe
    holder.__dict__["other"] = 1


def in_a_dictionary_that_was_given(holder, probe):
    holder.__dict__ = {"held": probe}


def in_the_middle(holder, probe):
    holder.first, holder.held, holder.last = 1, probe, 2
    del holder.first


def attribute(holder, probe):
    holder.held = probe


def under(key):
    def put(holder, probe):
        holder["other"] = 1
        holder[key] = probe

    return put


def after_a_deletion(holder, probe):
    for number in range(20):
        holder[f"key {number}"] = number
    holder["held"] = probe
    for number in range(20):
        del holder[f"key {number}"]


def as_a_key(holder, probe):
    holder[probe] = 1


def last(holder, probe):
    holder.extend([None, 1, "two", probe])


HOLDERS = {
    "instance": (Plain, attribute),
    "instance with many attributes": (Plain, many),
    "instance with a deleted attribute": (Plain, in_the_middle),
    "instance whose dictionary exists": (Plain, in_dictionary),
    "instance with another dictionary": (Plain, in_a_dictionary_that_was_given),
    "instance of a derived class": (Derived, attribute),
    "slots": (Slots, attribute),
    "slots of a base": (SlotsBelow, attribute),
    "dictionary beside slots": (SlotsBelow, in_dictionary),
    "subclass of list": (OfList, last),
    "attribute of a subclass of list": (OfList, attribute),
    "subclass of dict": (OfDict, under("held")),
    "attribute of a subclass of dict": (OfDict, attribute),
    "dictionary with strings": (dict, under("held")),
    "dictionary with numbers": (dict, under(7)),
    "dictionary with deleted keys": (dict, after_a_deletion),
    "key of a dictionary": (dict, as_a_key),
    "list": (list, last),
}


@pytest.fixture(autouse=True)
def alone():
    was_enabled = gc.isenabled()
    gc.disable()
    standstill_gc.collect()
    yield
    if was_enabled:
        gc.enable()


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("title", HOLDERS)
def test_a_cycle_through(title, threads):
    make, put = HOLDERS[title]
    holder, probe = make(), Probe()
    put(holder, probe)
    probe.back = holder
    alive = weakref.ref(probe)
    # Referred to from outside: nothing is found, and nothing is lost.
    before = gc.get_referents(holder)
    assert standstill_gc.collect(threads=threads) == 0
    assert gc.get_referents(holder) == before and alive() is probe
    del probe, before
    assert standstill_gc.collect(threads=threads) == 0
    assert alive() is not None, "the holder is in use"
    del holder
    assert standstill_gc.collect(threads=threads) >= 2
    assert alive() is None


@pytest.mark.parametrize("base", [object, Plain, Slots, list, dict])
def test_a_cycle_through_the_class_of_an_instance(base):
    class Local(base):
        pass

    Local.instance = Local()
    alive = weakref.ref(Local)
    del Local
    assert standstill_gc.collect() > 0
    assert alive() is None


def test_a_tuple_and_a_dictionary_of_an_instance():
    probe, holder = Probe(), Plain()
    probe.back = ({"tuple": holder.__dict__},)
    holder.held = probe
    alive = weakref.ref(probe)
    del probe, holder
    assert standstill_gc.collect() > 0
    assert alive() is None

"""References that the package reads without the traverse function of the type.

A reference that is overlooked leaves garbage, and a reference that does not exist is a crash. So
each test makes a cycle through one kind of reference, and demands that it is found.
"""

import ctypes
import gc
import types
import weakref

import pytest

import standstill_gc


class Probe:
    """Shows by a weak reference that it has died. May be the function that makes annotations."""

    def __call__(self, form):
        return {}


class Plain:
    pass


class Derived(Plain):
    pass


class Slots:
    __slots__ = ("one", "held", "__weakref__")


class SlotsBelow(Slots):
    """Has a dictionary of its own, and slots of its base."""


class Empty:
    """All instances that the program makes of it get another class."""


class Meta(type):
    """Its instances are classes."""


class OfInt(int):
    """Has a managed dictionary and no inline values."""


class OfTuple(tuple):
    pass


class OfError(Exception):
    """Has a dictionary of its base in C."""


class OnlyDictionary:
    __slots__ = ("__dict__",)


class BothSlots:
    __slots__ = ("__dict__", "__weakref__")


class SlotsAside(Plain):
    __slots__ = ("held",)


class OfTwo(OnlyDictionary, Plain):
    pass


class OfList(list):
    pass


class OfString(str):
    """May be the name of a function, and has attributes."""


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


def of_another_class(holder, probe):
    holder.held = probe
    holder.__class__ = Empty


def of_another_class_with_dictionary(holder, probe):
    in_dictionary(holder, probe)
    holder.__class__ = Empty


def without_dictionary(holder, probe):
    holder.first = 1
    holder.__dict__ = {}
    del holder.__dict__
    holder.held = probe


def after_others(holder, probe):
    """The keys that the instances share have grown since the holder has its values."""
    holder.held = probe
    for number in range(25):
        setattr(type(holder)(), f"of_others_{number}", number)


def with_a_late_key(holder, probe):
    """The values lie in the order of the shared keys, and the holder has only the last key."""
    other = type(holder)()
    for number in range(5):
        setattr(other, f"early_{number}", number)
    other.held = None
    holder.held = probe


def in_dictionary_after_others(holder, probe):
    in_dictionary(holder, probe)
    after_others(holder, probe)


def after_clear(holder, probe):
    holder.old = 1
    holder.__dict__.clear()
    holder.held = probe


def copied(holder, probe):
    """A copy of a dictionary of an instance shares its keys."""
    source = Plain()
    source.first, source.held = 1, probe
    holder.append(source.__dict__.copy())


def that_outlives(holder, probe):
    """The values of a dictionary move when its instance dies."""
    source = Plain()
    source.first, source.held = 1, probe
    holder.append(source.__dict__)


def at_a_string_and_a_number(holder, probe):
    holder["held"] = probe
    holder[7] = 1
    del holder[7]


def under_a_string_that_is_deleted(holder, probe):
    holder["held"] = None
    del holder["held"]
    holder["held"] = probe


def among_many(holder, probe):
    """The indices of a large dictionary take two and four bytes each."""
    for number in range(70_000):
        holder[f"key {number}"] = None
    holder["held"] = probe


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


def function():
    """A function with a closure, and with globals and builtins of its own."""
    value = None
    code = (lambda: value).__code__
    return types.FunctionType(code, {"__builtins__": {}}, closure=(types.CellType(1),))


def to(name, value=lambda probe: probe):
    def put(holder, probe):
        setattr(holder, name, value(probe))

    return put


def in_a_name(name):
    def put(holder, probe):
        text = OfString("name")
        text.held = probe
        setattr(holder, name, text)

    return put


def in_a_cell(holder, probe):
    holder.__closure__[0].cell_contents = probe


def in_globals(holder, probe):
    holder.__globals__["held"] = probe


def in_builtins(holder, probe):
    holder.__builtins__["held"] = probe
    del holder.__globals__["__builtins__"]


def in_constants(holder, probe):
    holder.__code__ = holder.__code__.replace(co_consts=(None, probe))


def fresh():
    """An instance of a class whose instances share no keys yet."""
    return type("Fresh", (), {})()


HOLDERS = {
    "instance": (Plain, attribute),
    "instance with many attributes": (Plain, many),
    "instance with a deleted attribute": (Plain, in_the_middle),
    "instance whose dictionary exists": (Plain, in_dictionary),
    "instance with another dictionary": (Plain, in_a_dictionary_that_was_given),
    "instance of a derived class": (Derived, attribute),
    "instance that has another class": (Derived, of_another_class),
    "dictionary of an instance with another class": (Derived, of_another_class_with_dictionary),
    "instance whose dictionary was deleted": (Derived, without_dictionary),
    "instance that others have overtaken": (fresh, after_others),
    "dictionary that others have overtaken": (fresh, in_dictionary_after_others),
    "instance with a late key": (fresh, with_a_late_key),
    "instance whose dictionary was cleared": (Plain, after_clear),
    "class of a metaclass": (lambda: Meta("Made", (), {}), attribute),
    "number with attributes": (lambda: OfInt(10**40), attribute),
    "number with a dictionary": (lambda: OfInt(10**40), in_dictionary),
    "tuple with attributes": (lambda: OfTuple((1, "two")), attribute),
    "exception": (OfError, attribute),
    "exception with a dictionary": (OfError, in_dictionary),
    "dictionary that is a slot": (OnlyDictionary, attribute),
    "dictionary of two bases": (OfTwo, attribute),
    "dictionary and weak references that are slots": (BothSlots, attribute),
    "slot of a class with attributes": (SlotsAside, attribute),
    "attribute beside a slot of the class": (SlotsAside, many),
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
    "dictionary with a string and a number": (dict, at_a_string_and_a_number),
    "dictionary with a key twice": (dict, under_a_string_that_is_deleted),
    "large dictionary": (dict, among_many),
    "copy of the dictionary of an instance": (list, copied),
    "dictionary of an instance that is gone": (list, that_outlives),
    "key of a dictionary": (dict, as_a_key),
    "list": (list, last),
    "attribute of a function": (function, attribute),
    "default value": (function, to("__defaults__", lambda probe: (1, probe))),
    "default value of a keyword": (function, to("__kwdefaults__", lambda probe: {"a": probe})),
    "documentation": (function, to("__doc__")),
    "module of a function": (function, to("__module__")),
    "annotations": (function, to("__annotations__", lambda probe: {"a": probe})),
    "function for annotations": (function, to("__annotate__")),
    "type parameters": (function, to("__type_params__", lambda probe: (probe,))),
    "name": (function, in_a_name("__name__")),
    "qualified name": (function, in_a_name("__qualname__")),
    "closure": (function, in_a_cell),
    "globals": (function, in_globals),
    "builtins": (function, in_builtins),
    "constants": (function, in_constants),
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


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("title", HOLDERS)
def test_the_other_end_of_a_cycle_through(title, threads):
    """A reference that is reported twice hides the reference of the program."""
    make, put = HOLDERS[title]
    holder, probe = make(), Probe()
    put(holder, probe)
    probe.back = holder
    del holder
    for _ in range(2):
        assert standstill_gc.collect(threads=threads) == 0
    referents = [probe.back]
    for _ in range(3):
        referents = [inner for found in referents for inner in gc.get_referents(found)]
        if any(found is probe for found in referents):
            break
    else:
        pytest.fail("nothing leads to the probe")
    alive = weakref.ref(probe)
    del probe, referents
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


def test_instances_without_inline_values():
    """Behind such an instance lies its neighbour. It has no values there."""

    class Local:
        __slots__ = ("__weakref__",)

    Local.instances = [Local() for _ in range(300)]
    references = [weakref.ref(instance) for instance in Local.instances]
    alive = weakref.ref(Local)
    standstill_gc.collect()
    assert all(reference() is not None for reference in references)
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


NAMES = "def f(first, second): return first.third + second.fourth"


def test_the_names_of_code_outlive_it():
    """The package marks these tuples without a look at them, and collects none."""
    space = {}
    exec(NAMES, space)
    code = space["f"].__code__
    names, space["self"] = code.co_names, space
    alive = weakref.ref(space["f"])
    for _ in range(3):
        standstill_gc.collect()
        assert alive() is not None
        assert (code.co_names, code.co_varnames) == (("third", "fourth"), ("first", "second"))
    del code, space
    assert standstill_gc.collect() > 0 and alive() is None
    assert names == ("third", "fourth")


class Names(tuple):
    """Names of code that refer to other objects."""


def test_names_of_code_that_refer_to_objects():
    """The objects stay as they are. CPython finds no cycle through such names, nor does this."""
    space = {}
    exec(NAMES, space)
    code = space["f"].__code__
    names = Names(code.co_names)
    names.held = probe = Probe()
    code = code.replace(co_names=names)
    alive = weakref.ref(probe)
    del names, probe, space
    for _ in range(3):
        standstill_gc.collect()
        assert alive() is not None and code.co_names.held is alive()
    alive().back = code
    del code
    for collect in (standstill_gc.collect, gc.collect):
        collect()
        assert alive() is not None


def test_a_tuple_with_deferred_counting_is_freed():
    """Only a collector frees it."""
    number = 10**50

    def is_there():
        return any(
            type(thing) is tuple and len(thing) == 3 and thing[2] is number
            for thing in gc.get_objects())

    held = (int, str, number)
    defer = ctypes.pythonapi.PyUnstable_Object_EnableDeferredRefcount
    assert gc.is_tracked(held) and defer(ctypes.py_object(held)) == 1
    standstill_gc.collect()
    assert held[2] is number and is_there()
    del held
    assert is_there()
    standstill_gc.collect()
    assert not is_there()

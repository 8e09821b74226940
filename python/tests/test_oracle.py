"""Agreement with ``gc`` on random graphs of objects.

A graph is a list of instructions. It is built twice. One copy is collected by CPython and the other
by the package, and what can be seen afterwards must be the same: which objects are alive, which
finalizers have run, which weak references are clear and which of their callbacks have run.
"""

import gc
import os
import sys
import types
import weakref

import pytest

import standstill_gc

hypothesis = pytest.importorskip("hypothesis")
st = hypothesis.strategies

cpython = standstill_gc._cpython["collect"]
EXAMPLES = int(os.environ.get("STANDSTILL_GC_EXAMPLES", "20"))


# --------------------------------------------------------------------------------- kinds of nodes


class Base:
    """All nodes have a weak reference, `edges`, and a name."""


class Slots:
    __slots__ = ("edges", "name", "__weakref__")


class Dict(dict):
    pass


class List(list):
    pass


class Set(set):
    pass


class Final:
    """Its finalizer notes that it has run."""

    def __del__(self):
        self.world.log.append(("finalized", self.name))


class Back:
    """Its finalizer brings it back."""

    def __del__(self):
        self.world.log.append(("back", self.name))
        self.world.back.append(self)


class Breaks:
    """Its finalizer drops its references."""

    def __del__(self):
        self.world.log.append(("breaks", self.name))
        self.edges.clear()


def generator(edges):
    me = yield
    local = [edges, me]
    yield local


async def coroutine(edges):
    local = [edges]
    await Forever()
    return local


class Forever:
    def __await__(self):
        yield


def closure(edges):
    def function():
        return edges, function

    return function


def frame_of(edges):
    def inner(edges):
        return sys._getframe()

    return inner(edges)


def error_of(edges):
    try:
        raise ValueError(edges)
    except ValueError as error:
        error.me = error
        holder = Base()
        holder.error = error
        return holder


def module_of(edges):
    module = types.ModuleType("module")
    module.edges = edges
    exec("def function(): return edges\nclass Inside: pass", module.__dict__)
    return module


def class_of(edges):
    class Made:
        held = edges

        def method(self):
            return __class__

    Made.instance = Made()
    return Made


class World:
    """One copy of a graph."""

    def __init__(self):
        self.log, self.back, self.weak, self.roots = [], [], {}, []

    def node(self, name, kind):
        """A node. What refers to others from it is in the list `edges`."""
        edges = []
        if kind in ("instance", "slots", "final", "back", "breaks"):
            cls = {"instance": Base, "slots": Slots, "final": Final, "back": Back,
                   "breaks": Breaks}[kind]
            node = cls()
            node.edges, node.name = edges, name
            if kind not in ("instance", "slots"):
                node.world = self
        elif kind == "dict":
            node = Dict(edges=edges)
        elif kind == "list":
            node = List([edges])
        elif kind == "set":
            node = Set()
            node.edges = edges
        elif kind == "many":
            node = Base()
            for number in range(40):
                setattr(node, f"attribute{number}", edges)
        elif kind == "holder":
            # What cannot be the target of a weak reference hangs from an instance.
            node = Base()
            node.edges = (edges, (edges,), {"edges": edges})
        elif kind in ("generator", "coroutine"):
            node = {"generator": generator, "coroutine": coroutine}[kind](edges)
            node.send(None)
            if kind == "generator":
                node.send(None)
        else:
            node = {
                "closure": closure, "error": error_of, "module": module_of, "class": class_of,
                "frame": frame_of, "method": lambda edges: List([Base().__init__, edges]),
            }[kind](edges)
            if kind == "frame":
                holder = Base()
                holder.frame, node = node, holder
        self.watch(name, node)
        return node, edges

    def watch(self, name, node):
        self.weak[name] = weakref.ref(node)

    def seen(self):
        """What can be seen: the living, and what has run."""
        return (
            sorted(name for name, ref in self.weak.items() if ref() is not None),
            sorted(self.log),
            sorted(node.name for node in self.back),
        )


KINDS = [
    "instance", "slots", "final", "back", "breaks", "dict", "list", "set", "many", "holder",
    "generator", "coroutine", "closure", "error", "module", "class", "frame", "method",
]


def build(graph):
    """The graph in a new world. Afterwards only its roots are held from outside."""
    kinds, edges, roots, callbacks = graph
    world = World()
    nodes = [world.node(number, kind) for number, kind in enumerate(kinds)]
    for a, b in edges:
        nodes[a % len(nodes)][1].append(nodes[b % len(nodes)][0])
    for a, b in callbacks:
        target = nodes[a % len(nodes)][0]
        name = (a % len(nodes), b % len(nodes))

        def call(_, name=name):
            world.log.append(("called", name))

        ref = weakref.ref(target, call)
        if b % 3:
            # Inside of the graph: it calls only if its own node lives.
            nodes[b % len(nodes)][1].append(ref)
        else:
            world.roots.append(ref)
    world.roots.extend(nodes[root % len(nodes)][0] for root in roots)
    return world


numbers = st.integers(0, 10_000)
graphs = st.tuples(
    st.lists(st.sampled_from(KINDS), min_size=1, max_size=40),
    st.lists(st.tuples(numbers, numbers), max_size=100),
    st.lists(numbers, max_size=3),
    st.lists(st.tuples(numbers, numbers), max_size=8),
)
examples = hypothesis.settings(
    max_examples=EXAMPLES, deadline=None,
    suppress_health_check=list(hypothesis.HealthCheck), print_blob=True,
)


@pytest.fixture(autouse=True, scope="module")
def quiet():
    assert standstill_gc.active(), standstill_gc.inactive_reason()
    enabled = gc.isenabled()
    gc.disable()
    # The collections of small graphs are quicker without the objects of the test programs.
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
    if enabled:
        gc.enable()


def after(graph, collect, *, rounds=2):
    """What can be seen of a new copy after each of some collections."""
    gc.collect()
    world = build(graph)
    seen = [world.seen()]
    for _ in range(rounds):
        collect()
        seen.append(world.seen())
    world.roots.clear()
    collect()
    seen.append(world.seen())
    world.back.clear()
    collect()
    seen.append(world.seen())
    return seen


@pytest.mark.parametrize("threads", [1, 2, 4])
@hypothesis.given(graph=graphs)
@examples
def test_the_same_objects_survive_both_collectors(threads, graph):
    theirs = after(graph, cpython)
    ours = after(graph, lambda: standstill_gc.collect(threads=threads))
    assert ours == theirs


@hypothesis.given(graph=graphs)
@examples
def test_checked_mode_agrees(graph):
    theirs = after(graph, cpython)
    before = standstill_gc.stats()["checked"]
    standstill_gc.set_checked(True)
    try:
        ours = after(graph, standstill_gc.collect)
    finally:
        standstill_gc.set_checked(False)
    checked = standstill_gc.stats()["checked"]
    assert checked["wrong"] == before["wrong"]
    # CPython's own collection comes first, and its finalizers see the same graph.
    assert ours[-1] == theirs[-1]


@hypothesis.given(graph=graphs, more=st.lists(st.tuples(numbers, numbers), max_size=20))
@examples
def test_collections_of_a_graph_that_changes(graph, more):
    """Between the collections, survivors get new references."""

    def run(collect):
        gc.collect()
        world = build(graph)
        seen = []
        for a, b in more:
            collect()
            alive = [ref() for ref in world.weak.values()]
            alive = [node for node in alive if isinstance(node, (Base, Final, Back, Breaks))]
            if alive:
                source, target = alive[a % len(alive)], alive[b % len(alive)]
                if isinstance(getattr(source, "edges", None), list):
                    source.edges.append(target)
                world.roots = world.roots[1:]
                source = target = None
            del alive
            seen.append(world.seen())
        world.roots.clear()
        world.back.clear()
        collect()
        return [*seen, world.seen()]

    assert run(standstill_gc.collect) == run(cpython)


@hypothesis.given(graph=graphs)
@examples
def test_saved_garbage_is_the_same(graph):
    """With DEBUG_SAVEALL, both find the same objects of the same types, and nothing is lost."""

    def saved(collect):
        gc.collect()
        gc.collect()
        world = build(graph)
        world.roots.clear()
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            collect()
            types = sorted(
                type(thing).__name__ for thing in gc.garbage
                if isinstance(thing, (Base, Slots, Dict, List, Set, Final, Back, Breaks))
            )
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
        collect()
        return types, world.seen()[0]

    assert saved(standstill_gc.collect) == saved(cpython)


def test_the_oracle_sees_a_difference():
    """A collector that finds nothing is noticed."""
    graph = (["instance", "final"], [(0, 1), (1, 0)], [], [])
    assert after(graph, lambda: 0) != after(graph, cpython)
    assert after(graph, cpython)[1] == ([], [("finalized", 1)], [])

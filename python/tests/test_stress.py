"""Mutators of all kinds beside a collector without pause.

Each mutator makes garbage and keeps some objects, whose contents it checks. A few seconds for each
by default; ``STANDSTILL_GC_STRESS=SECONDS`` in the environment makes it hours. Each runs in an
interpreter of its own, so that a crash is one failure, and the last test runs all of them together.
"""

# All modules are imported before the mutators run. CPython 3.15 deadlocks if one thread makes an
# abstract class, as many modules do, while another one sets a method of a class, as `dataclass`
# does: each waits in a stop of the world for the lock of the other.
import asyncio
import collections
import dataclasses
import decimal
import functools
import io
import json
import os
import pickle
import random
import re
import signal
import subprocess
import sys
import threading
import time
import weakref

import pytest

SECONDS = float(os.environ.get("STANDSTILL_GC_STRESS", "1"))
MUTATORS = {}


def mutator(function):
    MUTATORS[function.__name__] = function
    return function


class Node:
    pass


class Wrong(Exception):
    """What a mutator has kept is not what it was."""


def check(truth, *what):
    if not truth:
        raise Wrong(*what)


# Each mutator is a generator function: it yields now and then, and is driven until time is up.


@mutator
def dictionaries(r):
    kept = {}
    while True:
        key, value = r.randrange(500), [r.random()]
        kept[key] = {"value": value, "again": value, "up": kept, key: (key, value)}
        if r.random() < 0.02:
            kept.clear()
        if r.random() < 0.02:
            kept = dict(kept)
        for entry in list(kept.values())[:5]:
            check(entry["value"] is entry["again"], "dictionary")
        for _ in range(10):
            garbage = {"a": {}}
            garbage["a"]["b"] = garbage
            shared = Node()
            shared.__dict__["self"] = shared
            if r.random() < 0.3:
                # The attributes move out of the instance.
                shared.__dict__ = {"self": shared, **shared.__dict__}
        yield


@mutator
def lists(r):
    kept = []
    while True:
        row = [kept]
        row.extend([row, len(kept), (row,)])
        kept.append(row)
        for _ in range(20):
            garbage = [[], []]
            garbage[0].append(garbage[1])
            garbage[1].append(garbage)
            garbage.sort(key=len)
            garbage[:] = reversed(garbage)
        if len(kept) > 300:
            del kept[r.randrange(300):]
        row = r.choice(kept) if kept else None
        check(row is None or row[1] is row and row[3][0] is row, "list")
        yield


@mutator
def instances(r):
    class Slots:
        __slots__ = ("a", "b", "__weakref__")

    kept = []
    while True:
        for _ in range(20):
            a, b = Node(), Slots()
            a.b, b.a, b.b = b, a, [a, b]
            if r.random() < 0.1:
                kept.append((a, b))
            for number in range(r.randrange(3) * 20):
                setattr(a, f"attribute{number}", b)
        for a, b in kept[::17]:
            check(a.b is b and b.a is a and b.b[0] is a, "instance")
        if len(kept) > 500:
            kept = kept[r.randrange(500):]
        yield


@mutator
def classes(r):
    kept = []
    while True:
        base = r.choice(kept) if kept and r.random() < 0.3 else object
        made = type("Made", (base,), {
            "method": lambda self: self.value, "value": len(kept), "kept": kept,
            "field": property(lambda self: self),
        })
        made.instance = made()
        check(made.instance.method() == made.value and made.instance.field is made.instance)
        if len(made.__mro__) < 6 and r.random() < 0.2:
            kept.append(made)
        for cls in kept[::7]:
            check(cls().method() == cls.value and cls in cls.__mro__[0].__mro__, "class")
        if len(kept) > 50:
            del kept[:r.randrange(50)]
        yield


@mutator
def generators(r):
    def count(holder):
        me = yield
        local = [holder, me]
        for number in range(1000):
            yield number, local
            check(local[1] is me and local[0] is holder, "generator")

    def delegates(inner):
        yield from inner

    kept = []
    while True:
        holder = Node()
        generator = count(holder)
        generator.send(None)
        generator.send(generator)
        holder.generator = generator
        if r.random() < 0.2:
            kept.append(delegates(generator))
        for generator in kept[::5]:
            number, local = next(generator, (None, None))
            check(number is None or local[0].generator is local[1], "generator")
        if len(kept) > 100:
            del kept[r.randrange(100):]
        yield


@mutator
def coroutines(r):
    class Pause:
        def __await__(self):
            yield self

    async def inner(holder, depth):
        local = [holder]
        if depth:
            await inner(holder, depth - 1)
        else:
            for _ in range(50):
                await Pause()
        check(local[0] is holder, "coroutine")
        return holder

    async def stream(holder):
        for number in range(100):
            yield number, holder

    async def reads(holder):
        async for number, same in stream(holder):
            check(same is holder, "asynchronous generator")
            await Pause()

    kept = []
    while True:
        holder = Node()
        coroutine = r.choice([lambda: inner(holder, r.randrange(5)), lambda: reads(holder)])()
        coroutine.send(None)
        holder.coroutine = coroutine
        if r.random() < 0.4:
            kept.append(coroutine)
        for coroutine in list(kept):
            try:
                coroutine.send(None)
            except StopIteration:
                kept.remove(coroutine)
        if len(kept) > 50:
            del kept[r.randrange(50):]
        yield


@mutator
def asyncio_tasks(r):
    async def child(n, queue):
        future = asyncio.get_running_loop().create_future()
        future.me = None if False else future.add_done_callback(lambda f: None)
        await asyncio.sleep(0)
        await queue.put((n, asyncio.current_task()))
        return n

    async def main():
        queue = asyncio.Queue()
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(child(n, queue)) for n in range(20)]
        check([task.result() for task in tasks] == list(range(20)), "task")
        lost = asyncio.ensure_future(asyncio.sleep(1000))
        lost.cancel()
        try:
            await lost
        except asyncio.CancelledError as error:
            error.task = lost
        check(queue.qsize() == 20, "queue")

    while True:
        with asyncio.Runner() as runner:
            for _ in range(5):
                runner.run(main())
                yield


@mutator
def exceptions(r):
    def raises(depth, local):
        if depth:
            try:
                raises(depth - 1, [local])
            except ValueError as error:
                raise KeyError(error) from error
        raise ValueError(local)

    kept = []
    while True:
        try:
            raises(r.randrange(5), Node())
        except Exception as error:
            error.me = error
            if r.random() < 0.1:
                kept.append(error)
            frame = error.__traceback__.tb_frame
            check(frame.f_code.co_name == "exceptions", "traceback")
            del frame
        try:
            raise ExceptionGroup("group", [ValueError([]), KeyError({})])
        except* ValueError as group:
            group.exceptions[0].group = group
        except* KeyError:
            pass
        for error in kept:
            check(error.me is error and error.__traceback__ is not None, "exception")
        if len(kept) > 30:
            kept.clear()
        yield


@mutator
def functions(r):
    @functools.lru_cache(maxsize=50)
    def cached(n):
        result = [n]
        result.append(result)
        return result

    def make(depth):
        local = []

        def inner(*arguments, default=local, **more):
            return local, inner, arguments

        local.append(inner)
        return functools.partial(inner, depth, local, key=inner)

    class Lazy:
        @functools.cached_property
        def me(self):
            return [self]

        @functools.singledispatchmethod
        def of(self, thing):
            return thing

    kept = []
    while True:
        partial = make(r.random())
        check(partial()[1] is partial.func and partial.func in partial()[0], "closure")
        kept.append(partial)
        lazy = Lazy()
        check(lazy.me[0] is lazy and lazy.of(3) == 3)
        lazy.method = lazy.of
        cached(r.randrange(100))
        namespace = {}
        exec("def f(x):\n  def g(): return f, x\n  return g\nk = [f, f(f)]", namespace)
        check(namespace["k"][1]()[0] is namespace["f"], "executed")
        if len(kept) > 50:
            del kept[:r.randrange(50)]
        yield


@mutator
def ctypes_structures(r):
    ctypes = pytest.importorskip("ctypes")

    class Pair(ctypes.Structure):
        pass

    Pair._fields_ = [("number", ctypes.c_int), ("next", ctypes.POINTER(Pair))]
    callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)
    kept = []
    while True:
        pair = Pair(r.randrange(1000))
        pair.next = ctypes.pointer(pair)
        check(pair.next.contents.next.contents.number == pair.number, "structure")

        def doubles(number):
            return number + holder.value

        holder = Node()
        holder.value, holder.call = 1, callback(doubles)
        check(holder.call(3) == 4, "callback")
        array = (ctypes.py_object * 5)([], holder, [pair], None, kept[-1:])
        check(array[1] is holder)
        kept.append((pair, holder, array))
        if r.random() < 0.05:
            class Local(ctypes.Structure):
                _fields_ = [("pairs", Pair * 3)]
            kept.append((Local(), holder, array))
        for pair, holder, array in kept[::10]:
            check(holder.call(1) == 2 and array[1].call(2) == 3, "kept")
        if len(kept) > 40:
            kept.clear()
        yield


@mutator
def weak_dictionaries(r):
    values, keys, living = weakref.WeakValueDictionary(), weakref.WeakKeyDictionary(), {}
    called = []
    nodes = weakref.WeakSet()
    while True:
        number, node = r.randrange(500), Node()
        node.me, node.number = node, number
        values[number], keys[node] = node, [number]
        nodes.add(node)
        if r.random() < 0.3:
            living[number] = node
        else:
            living.pop(number, None)
        proxy = weakref.proxy(node)
        check(proxy.number == number)
        weakref.finalize(node, called.append, number).atexit = False
        for number, node in list(living.items())[:10]:
            check(node.number == number and keys[node] == [number] and node in nodes, "weak")
        node = proxy = None
        if len(called) > 1000:
            called.clear()
        yield


@mutator
def finalizers(r):
    class Final:
        def __init__(self):
            self.list = [self]

        def __del__(self):
            check(self.list[0] is self, "finalizer")
            self.late = [self]
            if r.random() < 0.2:
                kept.append(self)

    kept = []
    while True:
        for _ in range(20):
            Final()
        for final in kept:
            check(final.list[0] is final and final.late[0] is final, "resurrected")
        if len(kept) > 50:
            kept.clear()
        yield


@mutator
def threads(r):
    local = threading.local()

    def work(shared, results):
        local.mine = Node()
        local.mine.me = local.mine
        shared.append(local.mine)
        for _ in range(200):
            node = Node()
            node.shared = shared
            shared.append(node)
            shared.pop(0).dropped = node
        results.append(local.mine.me is local.mine)

    while True:
        shared, results = [Node()], []
        group = [threading.Thread(target=work, args=(shared, results)) for _ in range(4)]
        for thread in group:
            thread.shared = shared
            thread.start()
        for thread in group:
            thread.join()
        check(results == [True] * 4, "thread")
        yield


@mutator
def text_and_data(r):
    @dataclasses.dataclass
    class Record:
        name: str
        others: list = dataclasses.field(default_factory=list)

    while True:
        record = Record("a" * r.randrange(50))
        record.others.append(record)
        named = collections.namedtuple("Named", "a b")([], {})
        named.a.append(named)
        ordered = collections.OrderedDict(a=1)
        ordered["me"] = ordered
        deque = collections.deque([1], maxlen=3)
        deque.append(deque)
        data = {"list": [1, 2, {"deep": [decimal.Decimal(3) is None]}], "name": record.name}
        check(json.loads(json.dumps(data)) == data, "json")
        cyclic = pickle.loads(pickle.dumps([1, deque]))
        check(cyclic[1][1] is cyclic[1], "pickle")
        buffer = io.StringIO()
        buffer.me = buffer
        for found in re.finditer("a+", "aabaa"):
            found_in = [found, record]
            found_in.append(found_in)
        yield


@mutator
def asks_the_collector(r):
    """Reads what the collector shows, and changes its settings."""
    import gc

    while True:
        node = Node()
        node.list = [node]
        check(gc.get_referents(node.list)[0] is node and gc.is_tracked(node))
        if r.random() < 0.05:
            # The other thread may have frozen everything, so that these lists are short.
            for referrer in gc.get_referrers(node.list):
                check(node.list in gc.get_referents(referrer), "referrer")
            referrer = None
            objects = gc.get_objects()
            check(isinstance(objects, list))
            del objects
        if r.random() < 0.05:
            gc.freeze()
            gc.unfreeze()
        gc.get_count()
        gc.get_stats()
        yield


# ------------------------------------------------------------------------------------- the driver


def children():
    """The processes that a thread of this process has cloned or started, and that have not ended."""
    found = []
    for task in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{task}/children") as file:
                found += map(int, file.read().split())
        except (FileNotFoundError, ProcessLookupError):
            pass
    return found


# Bytes of memory with which the mutators wait for the collector.
MUCH = 3 << 30


def resident():
    """Bytes of this process in memory."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def drive(names, seconds, threads_each=2):
    """Runs mutators beside collectors. In an interpreter of its own."""
    import gc

    import standstill_gc

    assert standstill_gc.active(), standstill_gc.inactive_reason()
    seed = int(os.environ.get("STANDSTILL_GC_SEED", "0")) or random.randrange(1, 1 << 30)
    print("seed", seed, flush=True)
    standstill_gc.enable()
    searches_in_child = "STANDSTILL_GC_CHILD_FROM" in os.environ
    if searches_in_child:
        # So a collection is due soon after the last one.
        gc.set_threshold(2_000, 0)
    end = time.monotonic() + seconds
    errors, steps, unraisable = [], dict.fromkeys(names, 0), []

    def searched():
        """The collections that a child has searched for."""
        return sum(1 for it in standstill_gc._extension.records()[0] if it["child"])

    def goes_on():
        """Until the time is over, and on a busy machine until a child has ended."""
        late = time.monotonic() - end
        return not errors and (late < 0 or searches_in_child and late < 60 and not searched())

    sys.unraisablehook = lambda error: unraisable.append(repr(error.exc_value))

    # All threads that collect are busy with explicit collections, which hold no other thread up. So
    # the mutators wait if the machine is so slow that memory grows.
    has_much = threading.Event()

    def watches():
        while goes_on():
            (has_much.set if resident() > MUCH else has_much.clear)()
            time.sleep(0.05)
        has_much.clear()

    def mutates(name, number):
        generator = MUTATORS[name](random.Random(f"{seed} {name} {number}"))
        try:
            while goes_on() or not (steps[name] or errors):
                while has_much.is_set() and steps[name] and not errors:
                    time.sleep(0.05)
                next(generator)
                steps[name] += 1
        except BaseException:
            import traceback

            errors.append(f"{name}: {traceback.format_exc()}")
        finally:
            generator.close()

    def collects(options):
        while time.monotonic() < end and not errors:
            if options is None:
                found = gc.collect(r.randrange(3))
            else:
                found = standstill_gc.collect(threads=options)
            if not found:
                # Another thread collects.
                time.sleep(0.001)

    def kills():
        """Some children that search, at any time."""
        r = random.Random(seed)
        while goes_on():
            time.sleep(r.random() * 0.05)
            for child in children():
                if r.random() < 0.01:
                    try:
                        os.kill(child, signal.SIGKILL)
                    except ProcessLookupError:
                        pass

    r = random.Random(seed)
    group = [
        threading.Thread(target=mutates, args=(name, n))
        for name in names for n in range(threads_each)
    ]
    if searches_in_child:
        # A thread that collects would end each child.
        group.append(threading.Thread(target=kills))
    else:
        group += [threading.Thread(target=collects, args=(o,)) for o in (None, 1, 2)]
    group.append(threading.Thread(target=watches))
    for thread in group:
        thread.start()
    for thread in group:
        thread.join()
    check(not errors, *errors)
    check(not unraisable, *unraisable[:3])
    check(all(steps.values()), "a mutator did nothing", steps)
    done = standstill_gc.stats()["collections"]
    check(done >= 1, "no collection", done)
    children_done = searched()
    check(bool(children_done) == searches_in_child, "children", children_done)
    standstill_gc.uninstall()
    gc.disable()
    # The second finds what finalizers have brought back.
    found = [standstill_gc.collect() for _ in range(3)]
    left = gc.collect()
    print("steps", sum(steps.values()), "collections", done, "in children",
          children_done, "left for CPython", left)
    check(left < 2000, "garbage was left", left, found)


def in_a_new_interpreter(*names, seconds=SECONDS, **environment):
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-W", "error", __file__, str(seconds), *names],
        capture_output=True, text=True, timeout=seconds * 3 + 120, env=os.environ | environment,
    )
    assert done.returncode == 0, (done.returncode, done.stdout, done.stderr[-4000:])
    return done.stdout


@pytest.mark.parametrize("name", MUTATORS)
def test_one_kind(name):
    in_a_new_interpreter(name)


def test_all_kinds():
    in_a_new_interpreter(*MUTATORS, seconds=2 * SECONDS)


# All kinds at once leave a child no time: it would take too long.
@pytest.mark.parametrize("name", MUTATORS)
def test_one_kind_beside_children_that_search(name):
    in_a_new_interpreter(name, STANDSTILL_GC_CHILD_FROM="1")


def test_a_wrong_object_is_noticed():
    """The driver fails if a mutator does."""
    with pytest.raises(AssertionError, match="Wrong: on purpose"):
        in_a_new_interpreter("fails", seconds=0.2)


def fails(r):
    # In its first step: the driver need not reach a second one.
    check(False, "on purpose")
    yield


if __name__ == "__main__":
    MUTATORS["fails"] = fails
    drive(sys.argv[2:], float(sys.argv[1]))

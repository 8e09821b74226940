"""The promises of ``gc``, and those of the package.

Where CPython makes the promise, the test runs with both collectors, so that it cannot promise
something else.
"""

import atexit
import contextlib
import gc
import os
import subprocess
import sys
import textwrap
import threading
import time
import weakref

import pytest

import standstill_gc

cpython = standstill_gc._cpython["collect"]
both = pytest.mark.parametrize(
    "collect", [cpython, standstill_gc.collect], ids=["cpython", "standstill"]
)
DEADLINE = 120


def run(code, *, arguments=(), options=(), **environment):
    """Runs a program in a new interpreter, and returns what it has written and its exit code."""
    done = subprocess.run(
        [sys.executable, *options, "-c", textwrap.dedent(code), *arguments],
        capture_output=True, text=True, timeout=DEADLINE, env=os.environ | environment,
    )
    return done


def good(code, **more):
    """The output of a program that must end well, without a word on its standard error."""
    done = run(code, **more)
    assert (done.returncode, done.stderr) == (0, ""), (done.returncode, done.stderr, done.stdout)
    return done.stdout.split()


class Node:
    pass


def cycles(n, make=Node):
    for _ in range(n):
        node = make()
        node.self = node


def near(result, n):
    """Whether a result is `n`, or more by what the interpreter and pytest leave now and then."""
    return n <= result <= n + 300


@pytest.fixture(autouse=True)
def quiet():
    """No automatic collection, and nothing left of other tests."""
    assert standstill_gc.active(), standstill_gc.inactive_reason()
    standstill_gc.uninstall()
    enabled = gc.isenabled()
    gc.disable()
    gc.collect()
    threshold = gc.get_threshold()
    yield
    standstill_gc.uninstall()
    standstill_gc.set_checked(False)
    gc.set_debug(0)
    gc.unfreeze()
    gc.garbage.clear()
    gc.callbacks.clear()
    gc.set_threshold(*threshold)
    if enabled:
        gc.enable()


@contextlib.contextmanager
def unraisable():
    """The unraisable errors, as texts."""
    seen, hook = [], sys.unraisablehook
    sys.unraisablehook = lambda error: seen.append(
        (type(error.exc_value).__name__, str(error.exc_value), error.err_msg,
         getattr(error.object, "__name__", type(error.object).__name__))
    )
    try:
        yield seen
    finally:
        sys.unraisablehook = hook


# ------------------------------------------------------------------------------------- results


@both
def test_collect_returns_the_number_of_unreachable_objects(collect):
    cycles(1000)
    assert near(collect(), 1000)
    assert near(collect(), 0)


@both
@pytest.mark.parametrize("generation", [0, 1, 2])
def test_each_generation_is_full(collect, generation):
    old = Node()
    old.self = old
    gc.collect()
    gc.collect()
    gone = weakref.ref(old)
    del old
    assert collect(generation) >= 1
    assert gone() is None


@both
@pytest.mark.parametrize("generation", [-1, 3])
def test_other_generations_are_errors(collect, generation):
    with pytest.raises(ValueError):
        collect(generation)


@both
def test_generations_are_numbers(collect):
    with pytest.raises(TypeError):
        collect("0")


@pytest.mark.parametrize("threads, error", [
    (0, ValueError), (-1, ValueError), ("2", TypeError), (1.5, TypeError), ([], TypeError),
])
def test_bad_numbers_of_threads(threads, error):
    with pytest.raises(error):
        standstill_gc.collect(threads=threads)
    with pytest.raises(error):
        standstill_gc.install(threads=threads)
    assert not standstill_gc.installed()
    # The next collection works.
    cycles(3)
    assert standstill_gc.collect() >= 3


@pytest.mark.parametrize("threads", [1, 2, 3, 1000, None])
def test_numbers_of_threads(threads):
    cycles(1000)
    assert near(standstill_gc.collect(threads=threads), 1000)
    most = os.cpu_count() if threads is None else threads
    assert 1 <= standstill_gc.stats()["last"]["threads"] <= most


def test_threads_is_a_keyword():
    with pytest.raises(TypeError):
        standstill_gc.collect(2, 1)


# ----------------------------------------------------------------------------------- callbacks


@both
def test_callbacks_have_dictionaries_of_start_and_stop(collect):
    calls = []
    callback = lambda phase, info: calls.append((phase, dict(info)))
    gc.callbacks.append(callback)
    cycles(1000)
    collect(1)
    gc.callbacks.remove(callback)
    cpython()
    (first, start), (second, stop) = calls
    assert (first, second) == ("start", "stop")
    assert (start["generation"], start["collected"], start["uncollectable"]) == (1, 0, 0)
    assert (stop["generation"], stop["collected"], stop["uncollectable"]) == (1, stop["collected"], 0)
    assert near(stop["collected"], 1000)
    expected = {"generation", "collected", "uncollectable"}
    if sys.version_info >= (3, 15):
        expected |= {"candidates", "duration"}
        assert start["candidates"] == 0 and start["duration"] == 0
        assert stop["candidates"] > 1000 and stop["duration"] > 0
    assert set(start) == set(stop) == expected


@both
def test_callbacks_run_for_collections_without_garbage(collect):
    phases = []
    gc.callbacks.append(lambda phase, info: phases.append(phase))
    collect()
    assert phases == ["start", "stop"]


@both
def test_a_callback_that_raises_is_reported_and_the_others_run(collect):
    def fails(phase, info):
        raise ZeroDivisionError(phase)

    phases = []
    gc.callbacks.extend([fails, lambda phase, info: phases.append(phase)])
    cycles(2)
    with unraisable() as seen:
        assert collect() >= 2
    assert phases == ["start", "stop"]
    assert [(name, text) for name, text, *_ in seen] == [
        ("ZeroDivisionError", "start"), ("ZeroDivisionError", "stop"),
    ]


def test_the_report_of_a_callback_is_cpythons():
    def fails(phase, info):
        raise ZeroDivisionError(phase)

    gc.callbacks.append(fails)
    with unraisable() as theirs:
        cpython()
    with unraisable() as ours:
        standstill_gc.collect()
    assert [report[:2] for report in theirs] == [report[:2] for report in ours]
    assert [report[3] for report in theirs] == [report[3] for report in ours]
    assert [" at 0x" in str(report[2]) for report in ours] == [
        " at 0x" in str(report[2]) for report in theirs]


@both
def test_a_callback_may_collect(collect):
    results = []
    gc.callbacks.append(lambda phase, info: results.append(collect()))
    cycles(1000)
    assert near(collect(), 1000)
    assert results == [0, 0]


# ---------------------------------------------------------------------------- garbage and debug


@both
def test_saveall_keeps_garbage(collect):
    gc.set_debug(gc.DEBUG_SAVEALL)
    cycles(1000)
    collect()
    nodes = [thing for thing in gc.garbage if type(thing) is Node]
    assert len(nodes) == 1000 and near(len(gc.garbage), 1000)
    assert all(thing.self is thing for thing in nodes)
    gc.set_debug(0)
    gc.garbage.clear()
    nodes.clear()
    assert near(collect(), 1000)


@both
def test_saveall_returns_what_it_has_found(collect):
    gc.set_debug(gc.DEBUG_SAVEALL)
    cycles(1000)
    before = gc.get_stats()[2]
    result = collect()
    after = gc.get_stats()[2]
    assert near(result, 1000)
    assert after["collected"] + after["uncollectable"] \
        - before["collected"] - before["uncollectable"] == result


def test_saveall_counts_as_cpython():
    figures = {}
    for collect in (cpython, standstill_gc.collect):
        gc.set_debug(gc.DEBUG_SAVEALL)
        cycles(1000)
        infos = []
        gc.callbacks.append(lambda phase, info: infos.append(dict(info)))
        collect()
        gc.callbacks.clear()
        figures[collect] = [
            near(infos[-1][key], 1000) for key in ("collected", "uncollectable")
        ]
        gc.set_debug(0)
        gc.garbage.clear()
        gc.collect()
    assert figures[cpython] == figures[standstill_gc.collect]


def test_debug_stats_writes_to_stderr():
    for which in ("gc", "standstill_gc"):
        done = run(f"""
            import gc, standstill_gc
            gc.disable(); gc.collect()
            gc.set_debug(gc.DEBUG_STATS)
            a = []; a.append(a); del a
            {which}.collect()
            gc.set_debug(0)
        """)
        assert done.returncode == 0
        assert "gc: collecting generation 2..." in done.stderr, done.stderr
        assert "gc: done, 1 unreachable, 0 uncollectable," in done.stderr, done.stderr


def test_debug_collectable_lists_the_garbage():
    lines = {}
    for which in ("gc", "standstill_gc"):
        done = run(f"""
            import gc, standstill_gc
            gc.disable(); gc.collect()
            a = []; a.append(a); del a
            gc.set_debug(gc.DEBUG_COLLECTABLE)
            {which}.collect()
            gc.set_debug(0)
        """)
        assert done.returncode == 0
        lines[which] = [line.split(" 0x")[0] for line in done.stderr.splitlines()]
    assert lines["gc"] == ["gc: collectable <list"]
    assert lines["standstill_gc"] == lines["gc"]


@both
def test_frozen_objects_stay(collect):
    frozen = Node()
    frozen.self, gone = frozen, weakref.ref(frozen)
    gc.freeze()
    count = gc.get_freeze_count()
    assert count > 1000
    del frozen
    cycles(1000)
    assert near(collect(), 1000)
    assert gone() is not None
    assert gc.get_freeze_count() == count
    gc.unfreeze()
    assert collect() >= 1
    assert gone() is None


@both
def test_what_frozen_objects_refer_to_stays(collect):
    holder = Node()
    gc.freeze()
    holder.young = young = Node()
    young.self, alive = young, weakref.ref(young)
    del young
    collect()
    assert alive() is holder.young


# ---------------------------------------------------------------------------------- finalizers


@both
def test_a_finalizer_that_raises_is_reported(collect):
    class Bad:
        def __del__(self):
            raise KeyError("bad")

    cycles(3, Bad)
    with unraisable() as seen:
        assert collect() >= 3
    assert [report[:2] for report in seen] == [("KeyError", "'bad'")] * 3
    with unraisable() as theirs:
        cycles(1, Bad)
        cpython()
    assert theirs[0][3] == seen[0][3]


@both
def test_a_collection_inside_a_finalizer_does_nothing(collect):
    results = []

    class Nested:
        def __del__(self):
            cycles(1000)
            results.append(collect())

    cycles(1, Nested)
    assert near(collect(), 1)
    assert results == [0]
    assert near(collect(), 1000)


@both
def test_finalizers_run_once(collect):
    runs = []

    class Again:
        def __del__(self):
            runs.append(self)

    cycles(1, Again)
    collect()
    (again,) = runs
    assert gc.is_finalized(again)
    assert again.self is again
    runs.clear()
    gone = weakref.ref(again)
    del again
    assert collect() >= 1
    assert runs == [] and gone() is None


@both
def test_a_resurrected_graph_stays_whole(collect):
    kept = []

    class Back:
        def __del__(self):
            kept.append(self)

    root = Back()
    root.list = [Node() for _ in range(100)]
    for node in root.list:
        node.root = root
    del node, root
    assert near(collect(), 0)
    assert len(kept) == 1 and all(node.root is kept[0] for node in kept[0].list)
    kept.clear()
    assert collect() > 100


@both
def test_weak_references_are_cleared_and_call(collect):
    log = []

    class Final:
        def __del__(self):
            log.append(("finalizer", self.weak() is None))

    outside = []
    for _ in range(3):
        final = Final()
        final.self = final
        final.weak = weakref.ref(final, lambda _: log.append("inside"))
        outside.append(weakref.ref(final, lambda ref: log.append(("callback", ref()))))
    del final
    collect()
    assert all(ref() is None for ref in outside)
    # The weak references inside of the garbage do not call.
    assert "inside" not in log
    assert log.count(("callback", None)) == 3
    finalizers = [entry for entry in log if entry[0] == "finalizer"]
    assert len(finalizers) == 3
    test_weak_references_are_cleared_and_call.logs.append(log)
    if len(test_weak_references_are_cleared_and_call.logs) == 2:
        first, second = test_weak_references_are_cleared_and_call.logs
        assert first == second


test_weak_references_are_cleared_and_call.logs = []


@both
def test_generators_and_coroutines_are_closed(collect):
    closed = []

    def generator(holder):
        try:
            yield
        finally:
            closed.append("generator")

    async def coroutine(holder):
        try:
            await Waits()
        finally:
            closed.append("coroutine")

    class Waits:
        def __await__(self):
            yield

    for make in (generator, coroutine):
        holder = Node()
        holder.it = make(holder)
        holder.it.send(None)
        del holder
    assert collect() >= 4
    assert sorted(closed) == ["coroutine", "generator"]


# ---------------------------------------------------------------------------------- statistics


@both
def test_get_stats_grows(collect):
    before = gc.get_stats()
    cycles(1000)
    result = collect(1)
    after = gc.get_stats()
    assert after[1]["collections"] == before[1]["collections"] + 1
    assert after[1]["collected"] == before[1]["collected"] + result
    assert near(result, 1000)
    assert after[1]["uncollectable"] == before[1]["uncollectable"]
    assert after[0] == before[0] and after[2]["collected"] == before[2]["collected"]


def test_stats():
    standstill_gc.collect()
    before = standstill_gc.stats()
    cycles(1000)
    standstill_gc.collect(threads=1)
    after = standstill_gc.stats()
    assert after["collections"] == before["collections"] + 1
    assert after["collected"] == before["collected"] + after["last"]["collected"]
    pauses = after["pauses"]
    assert 0 < pauses["p50"] <= pauses["p90"] <= pauses["p99"] <= pauses["p999"] <= pauses["max"]
    assert pauses["max"] <= pauses["total"]
    assert pauses["count"] >= after["collections"]
    phases, last = after["phases"], after["last"]
    assert set(phases) == {"stop", "find", "recheck", "clear"}
    assert all(seconds >= 0 for seconds in phases.values())
    assert near(last["collected"], 1000) and last["unreachable"] == last["collected"]
    assert 0 < last["find"] <= last["duration"]


def test_stats_while_others_collect():
    end, errors = time.monotonic() + 1, []

    def collects():
        while time.monotonic() < end:
            standstill_gc.collect()

    def asks():
        try:
            while time.monotonic() < end:
                standstill_gc.stats()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=f) for f in (collects, asks, asks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


# ------------------------------------------------------------------------- automatic collections


def wait_for(condition, seconds=20):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.005)


def collections():
    return standstill_gc.stats()["collections"]


def test_automatic_collections_free_garbage():
    standstill_gc.enable()
    cycles(10)
    node = Node()
    node.self, gone = node, weakref.ref(node)
    del node

    def more():
        cycles(1000)
        return gone() is None

    wait_for(more)


def test_automatic_collections_run_on_the_thread_of_the_package():
    names = set()

    class Final:
        def __del__(self):
            names.add(threading.current_thread().name)

    standstill_gc.enable()

    def more():
        cycles(1000, Final)
        return names

    wait_for(more)
    standstill_gc.disable()
    assert names == {"standstill_gc"}


def test_without_a_threshold_no_automatic_collection_runs():
    gc.set_threshold(0)
    standstill_gc.enable()
    before = collections()
    cycles(100_000)
    time.sleep(0.1)
    assert collections() == before
    gc.set_threshold(500)
    wait_for(lambda: collections() > before)


def test_a_high_threshold_delays_automatic_collections():
    gc.set_threshold(1_000_000)
    standstill_gc.enable()
    before = collections()
    cycles(50_000)
    time.sleep(0.1)
    assert collections() == before


def test_disable_stops_automatic_collections():
    standstill_gc.enable()
    standstill_gc.disable()
    time.sleep(0.1)
    before = collections()
    cycles(100_000)
    time.sleep(0.2)
    assert collections() == before
    assert near(gc.collect(), 100_000)


def test_enable_and_disable_through_gc():
    standstill_gc.install()
    assert not gc.isenabled()  # As before.
    gc.enable()
    assert gc.isenabled() and standstill_gc.isenabled()
    assert not standstill_gc._cpython["isenabled"]()
    gc.disable()
    assert not gc.isenabled() and not standstill_gc.isenabled()


@pytest.mark.parametrize("enabled", [False, True])
def test_install_keeps_the_state_and_uninstall_gives_it_back(enabled):
    functions = gc.collect, gc.enable, gc.disable, gc.isenabled
    (gc.enable if enabled else gc.disable)()
    standstill_gc.install()
    assert gc.isenabled() == enabled
    assert gc.collect is standstill_gc.collect
    standstill_gc.install()  # Nothing happens.
    standstill_gc.uninstall()
    assert gc.isenabled() == enabled
    assert (gc.collect, gc.enable, gc.disable, gc.isenabled) == functions
    standstill_gc.uninstall()  # Nothing happens.
    assert gc.isenabled() == enabled
    assert not [t for t in threading.enumerate() if t.name == "standstill_gc"]


def test_install_and_uninstall_by_many_threads():
    def flips():
        for _ in range(20):
            standstill_gc.install()
            cycles(10)
            gc.collect()
            standstill_gc.uninstall()

    threads = [threading.Thread(target=flips) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not standstill_gc.installed()
    assert gc.collect is cpython
    wait_for(lambda: not [t for t in threading.enumerate() if t.name == "standstill_gc"])


def test_defer():
    standstill_gc.enable()
    cycles(100_000)
    with standstill_gc.defer():
        wait_for(lambda: not gc.get_count() or True)
        time.sleep(0.1)  # One that has begun may end.
        before = collections()
        with standstill_gc.defer():
            cycles(100_000)
        time.sleep(0.1)
        assert collections() == before
        assert standstill_gc.isenabled()
        assert standstill_gc.collect() >= 100_000  # Explicit ones run.
        cycles(100_000)
        before = collections()
    wait_for(lambda: collections() > before)


def test_defer_ends_with_an_exception():
    standstill_gc.enable()
    with pytest.raises(KeyError):
        with standstill_gc.defer(), standstill_gc.defer():
            raise KeyError
    before = collections()
    cycles(100_000)
    wait_for(lambda: collections() > before)


@pytest.mark.parametrize("enabled", [False, True])
def test_defer_without_install(enabled):
    (gc.enable if enabled else gc.disable)()
    with standstill_gc.defer():
        assert not gc.isenabled()
    assert gc.isenabled() == enabled


def test_defer_in_many_threads():
    standstill_gc.enable()

    def defers():
        for _ in range(200):
            with standstill_gc.defer():
                cycles(10)

    threads = [threading.Thread(target=defers) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    before = collections()
    cycles(100_000)
    wait_for(lambda: collections() > before)


def test_a_finalizer_of_an_automatic_collection_may_use_the_package():
    out = good("""
        import standstill_gc, gc, threading, time
        done = threading.Event()
        class Final:
            def __del__(self):
                if not done.is_set():
                    with standstill_gc.defer():
                        standstill_gc.install()
                        standstill_gc.uninstall()
                    done.set()
        def cycles(make):
            for _ in range(1000):
                a = make(); a.a = a
        standstill_gc.enable()
        while not done.is_set():
            cycles(Final)
        for _ in range(200):
            if not standstill_gc.installed(): break
            time.sleep(.01)
        print(standstill_gc.installed(), gc.collect.__module__)
    """)
    assert out == ["False", "gc"]


def test_uninstall_while_a_finalizer_defers():
    out = good("""
        import standstill_gc, gc, threading, time
        inside, go = threading.Event(), threading.Event()
        class Final:
            def __del__(self):
                if not inside.is_set():
                    inside.set()
                    go.wait()
                    with standstill_gc.defer():
                        pass
        standstill_gc.enable()
        while not inside.is_set():
            for _ in range(1000):
                a = Final(); a.a = a
        threading.Timer(.2, go.set).start()
        standstill_gc.uninstall()
        print(gc.collect.__module__)
    """)
    assert out == ["gc"]


def test_warnings_as_errors_do_not_end_automatic_collections():
    out = good("""
        import standstill_gc, time, warnings, sys
        warnings.simplefilter("error")
        real, left = standstill_gc._extension, [3]
        class Fails:
            def __getattr__(self, name): return getattr(real, name)
            def collect(self, *arguments):
                outcome = real.collect(*arguments)
                if left[0]:
                    left[0] -= 1
                    outcome["abandoned"] = f"reason {left[0]}"
                return outcome
        sys.unraisablehook = lambda error: print("reported")
        standstill_gc._extension = Fails()
        standstill_gc.enable()
        class Node: pass
        end = time.monotonic() + 30
        before = standstill_gc.stats()["collections"]
        while standstill_gc.stats()["collections"] <= before and time.monotonic() < end:
            for _ in range(1000):
                a = Node(); a.a = a
        print(standstill_gc.stats()["collections"] > before)
    """)
    assert out == ["reported"] * 3 + ["True"]


def test_an_abandoned_collection_is_cpythons():
    done = run("""
        import standstill_gc, gc
        gc.disable(); gc.collect()
        real = standstill_gc._extension
        class Fails:
            def __getattr__(self, name): return getattr(real, name)
            def collect(self, *arguments):
                return {"abandoned": "no memory", "ran": False}
        standstill_gc._extension = Fails()
        a = []; a.append(a); del a
        print(standstill_gc.collect() >= 1, standstill_gc.collect() >= 0)
        print(gc.get_stats()[2]["collected"] > 0)
    """)
    assert done.stdout.split() == ["True"] * 3
    assert done.stderr.count("RuntimeWarning") == 1
    assert "no memory" in done.stderr


# ------------------------------------------------------------------------------------ threads


def test_many_threads_collect_at_once():
    results, per_thread, rounds = [], 500, 20

    def collects():
        for _ in range(rounds):
            cycles(per_thread)
            results.append(standstill_gc.collect())

    threads = [threading.Thread(target=collects) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    results.append(standstill_gc.collect())
    # Objects of the threads themselves may be garbage too.
    assert 4 * per_thread * rounds <= sum(results) <= 4 * per_thread * rounds + 1000


def test_both_collectors_at_once():
    results, end = [], time.monotonic() + 1

    def collects(collect):
        while time.monotonic() < end:
            cycles(100)
            results.append(collect())

    threads = [threading.Thread(target=collects, args=(c,)) for c in (cpython, standstill_gc.collect) * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    results.append(cpython())
    assert 100 * (len(results) - 1) <= sum(results) <= 100 * len(results) + 1000


# ---------------------------------------------------------------------------------------- fork

FORK = """
    import gc, os, sys, threading, time, warnings
    warnings.simplefilter("ignore", DeprecationWarning)
    import standstill_gc
    class Node: pass
    def cycles(n, make=Node):
        for _ in range(n):
            a = make(); a.a = a
    def child():
        "In the child: explicit and automatic collections work."
        gc.collect()
        cycles(1000)
        assert gc.collect() >= 1000 or standstill_gc.installed()
        if standstill_gc.installed() and gc.isenabled():
            before = standstill_gc.stats()["collections"]
            end = time.monotonic() + 20
            while standstill_gc.stats()["collections"] == before:
                assert time.monotonic() < end
                cycles(1000)
    def fork(then=child):
        pid = os.fork()
        if not pid:
            code = 1
            try:
                then(); code = 0
            except BaseException:
                import traceback; traceback.print_exc()
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
"""


def forks(code):
    return good(textwrap.dedent(FORK) + textwrap.dedent(code))


def test_fork_without_install():
    assert forks("""
        gc.disable(); standstill_gc.collect()
        def then():
            cycles(1000)
            assert 1000 <= standstill_gc.collect() < 1300
        fork(then)
        cycles(1000)
        assert 1000 <= standstill_gc.collect() < 1300
        print("parent")
    """) == ["parent"]


def test_fork_in_the_main_thread():
    assert forks("""
        standstill_gc.enable()
        for _ in range(5):
            cycles(20_000); fork(); child()
        fork(fork)
        print("parent")
    """) == ["parent"]


def test_fork_in_a_thread():
    assert forks("""
        standstill_gc.enable()
        cycles(20_000)
        threads = [threading.Thread(target=fork) for _ in range(4)]
        for t in threads: t.start()
        for t in threads: t.join()
        child()
        print("parent")
    """) == ["parent"]


def test_fork_during_collections():
    assert forks("""
        standstill_gc.install()
        over = threading.Event()
        class Slow:
            def __del__(self): time.sleep(0)
        def collects():
            while not over.is_set():
                cycles(500); cycles(50, Slow)
                standstill_gc.collect()
        t = threading.Thread(target=collects); t.start()
        def then():
            cycles(1000)
            standstill_gc.collect()
            assert standstill_gc.collect() < 1000
        for _ in range(40): fork(then)
        over.set(); t.join()
        print("parent")
    """) == ["parent"]


def test_fork_while_a_finalizer_of_another_thread_runs():
    assert forks("""
        inside, go = threading.Event(), threading.Event()
        class Waits:
            def __del__(self):
                inside.set(); go.wait()
        def collects():
            cycles(1, Waits); standstill_gc.collect()
        gc.disable()
        t = threading.Thread(target=collects); t.start(); inside.wait()
        assert standstill_gc.collect() == 0      # It runs already.
        def then():
            standstill_gc.collect()
            cycles(1000)
            assert 1000 <= standstill_gc.collect() < 1300, "the flag of the lost collection is set"
        fork(then)
        go.set(); t.join()
        cycles(1000)
        assert 1000 <= standstill_gc.collect() < 1300
        print("parent")
    """) == ["parent"]


@pytest.mark.parametrize("collect", ["standstill_gc", "gc"])
def test_fork_in_a_finalizer(collect):
    assert forks(f"""
        gc.disable(); gc.collect(); standstill_gc.collect()
        pids = []
        class Forks:
            def __del__(self): pids.append(os.fork())
        cycles(1, Forks); cycles(20_000)
        found = {collect}.collect()
        # Both processes end the collection.
        cycles(1000)
        again = {collect}.collect()
        if not pids[0]:
            os._exit(0 if 20_001 <= found < 20_300 and 1000 <= again < 1300 else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pids[0], 0)[1]) == 0
        print(20_001 <= found < 20_300, 1000 <= again < 1300)
    """) == ["True", "True"]


def test_fork_in_a_finalizer_of_an_automatic_collection():
    assert forks("""
        done = []
        class Forks:
            def __del__(self):
                if not done:
                    done.append(0)
                    fork(lambda: None)
                    done.append(1)
        standstill_gc.enable()
        end = time.monotonic() + 20
        while len(done) < 2:
            assert time.monotonic() < end
            cycles(1000, Forks)
        child()
        print("parent")
    """) == ["parent"]


def test_fork_while_another_thread_defers():
    assert forks("""
        standstill_gc.enable()
        inside, go = threading.Event(), threading.Event()
        def defers():
            with standstill_gc.defer():
                inside.set(); go.wait()
        t = threading.Thread(target=defers); t.start(); inside.wait()
        fork()               # The other thread does not exist in the child.
        go.set(); t.join()
        def deferred():
            with standstill_gc.defer():
                before = standstill_gc.stats()["collections"]
                def then():
                    cycles(50_000); time.sleep(.1)
                    assert standstill_gc.stats()["collections"] == before
                fork(then)
        time.sleep(.1)
        deferred()
        child()
        print("parent")
    """) == ["parent"]


def test_multiprocessing_by_fork():
    assert forks("""
        import multiprocessing
        standstill_gc.enable()
        def work(n):
            cycles(n); return n
        with multiprocessing.get_context("fork").Pool(2) as pool:
            print(sum(pool.map(work, [5000] * 8)))
    """) == ["40000"]


# ---------------------------------------------------------------------------------------- exit

EXIT = """
    import atexit, gc, os, sys, threading, time
    import standstill_gc
    class Node: pass
    def cycles(n, make=Node):
        for _ in range(n):
            a = make(); a.a = a
"""


def exits(code):
    return good(textwrap.dedent(EXIT) + textwrap.dedent(code))


def test_exit_during_collections_of_a_daemon():
    for _ in range(5):
        assert exits("""
            def collects():
                while True:
                    cycles(1000); standstill_gc.collect()
            for _ in range(2): threading.Thread(target=collects, daemon=True).start()
            time.sleep(.05)
            print("end")
        """) == ["end"]


def test_exit_while_automatic_collections_run():
    for _ in range(5):
        assert exits("""
            standstill_gc.enable()
            live = [[] for _ in range(100_000)]
            def makes():
                while True: cycles(1000)
            threading.Thread(target=makes, daemon=True).start()
            time.sleep(.05)
            print("end")
        """) == ["end"]


def test_exit_code_and_exceptions_stay():
    done = run(textwrap.dedent(EXIT) + "standstill_gc.enable(); cycles(100_000); sys.exit(3)")
    assert (done.returncode, done.stderr) == (3, "")
    done = run(textwrap.dedent(EXIT) + "standstill_gc.enable(); cycles(100_000); 1 / 0")
    assert done.returncode == 1 and "ZeroDivisionError" in done.stderr


def test_exit_in_a_finalizer_of_an_automatic_collection():
    done = run(textwrap.dedent(EXIT) + textwrap.dedent("""
        class Exits:
            def __del__(self):
                os._exit(9)
        standstill_gc.enable()
        while True: cycles(1000, Exits)
    """))
    assert done.returncode == 9


def test_system_exit_in_a_finalizer_is_reported():
    assert exits("""
        seen = []
        sys.unraisablehook = lambda error: seen.append(type(error.exc_value).__name__)
        class Exits:
            def __del__(self):
                sys.exit(9)
        gc.disable(); cycles(1, Exits); standstill_gc.collect()
        print(*seen)
    """) == ["SystemExit"]


def test_order_of_functions_for_exit():
    assert exits("""
        # Registered after the import: it runs first, with the package's collector.
        atexit.register(lambda: print("late", gc.collect.__module__, gc.isenabled()))
        standstill_gc.enable()
    """) == ["late", "standstill_gc", "True"]
    assert good("""
        import atexit, gc
        # Registered before the import: it runs last, with CPython's.
        atexit.register(lambda: print("early", gc.collect.__module__, gc.isenabled()))
        import standstill_gc
        standstill_gc.enable()
        atexit.register(lambda: print("late", gc.collect.__module__, gc.isenabled()))
    """) == ["late", "standstill_gc", "True", "early", "gc", "True"]


def test_a_collection_in_a_function_for_exit():
    assert exits("""
        gc.disable()
        def last():
            gc.collect()
            cycles(1000)
            print(1000 <= standstill_gc.collect() < 1300)
        atexit.register(last)
        standstill_gc.install()
    """) == ["True"]


def test_finalizers_run_at_exit():
    assert exits("""
        class Final:
            def __del__(self): print("finalized")
        gc.disable()
        cycles(1, Final)
        standstill_gc.install()
    """) == ["finalized"]


def test_objects_of_the_package_are_gone_after_exit_of_threads():
    before = threading.active_count()
    for _ in range(3):
        standstill_gc.install()
        standstill_gc.uninstall()
    assert threading.active_count() == before


# ------------------------------------------------------------------------------- inactive package


INACTIVE = """
    import sys, warnings, gc
    sys.modules["standstill_gc._standstill_gc"] = None     # Its import fails.
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        import standstill_gc
    assert len(seen) == 1 and seen[0].category is RuntimeWarning, seen
    assert not standstill_gc.active() and standstill_gc.inactive_reason()
    assert standstill_gc.inactive_reason() in str(seen[0].message)
    own = gc.collect
"""


def test_an_inactive_package_leaves_all_to_cpython():
    assert good(textwrap.dedent(INACTIVE) + textwrap.dedent("""
        standstill_gc.disable(); assert not gc.isenabled()
        standstill_gc.enable(); assert gc.isenabled() and standstill_gc.isenabled()
        standstill_gc.install(); assert gc.collect is own and not standstill_gc.installed()
        with standstill_gc.defer(): assert not gc.isenabled()
        assert gc.isenabled()
        gc.disable(); gc.collect()
        a = []; a.append(a); del a
        assert standstill_gc.collect() >= 1
        assert standstill_gc.stats()["collections"] == 0
        standstill_gc.set_checked(True); standstill_gc.collect()
        standstill_gc.uninstall()
        import os
        pid = os.fork()
        if not pid: os._exit(gc.collect() != 0)
        assert os.waitpid(pid, 0)[1] == 0
        print("end")
    """)) == ["end"]


def test_bad_arguments_are_errors_in_an_inactive_package():
    assert good(textwrap.dedent(INACTIVE) + textwrap.dedent("""
        for bad in (0, -1):
            for f in (standstill_gc.collect, standstill_gc.install):
                try: f(threads=bad)
                except ValueError: print("ValueError")
    """)) == ["ValueError"] * 4


def test_a_subinterpreter_remains_with_cpython():
    pytest.importorskip("concurrent.interpreters")
    assert good("""
        import standstill_gc, gc
        from concurrent import interpreters
        standstill_gc.enable()
        interpreter = interpreters.create()
        interpreter.exec('''if True:
            import warnings
            with warnings.catch_warnings(record=True) as seen:
                warnings.simplefilter("always")
                import standstill_gc, gc
            assert not standstill_gc.active()
            assert "subinterpreters" in str(seen[0].message), seen
            gc.disable(); gc.collect()
            standstill_gc.enable()
            a = []; a.append(a); del a
            assert standstill_gc.collect() >= 1
            print("inside", flush=True)
        ''')
        class Node: pass
        for _ in range(100_000):
            a = Node(); a.a = a
        gc.collect()
        interpreter.close()
        gc.collect()
        print("end")
    """) == ["inside", "end"]


# ---------------------------------------------------------------------------------- checked mode


def test_checked_mode_compares():
    standstill_gc.set_checked(True)
    before = standstill_gc.stats()["checked"]
    cycles(1000)
    assert near(standstill_gc.collect(), 1000)
    after = standstill_gc.stats()["checked"]
    assert after["compared"] == before["compared"] + 1
    assert after["wrong"] == before["wrong"] and after["missed"] == before["missed"]
    assert gc.garbage == [] and gc.get_debug() == 0


def test_checked_mode_reports_a_difference_and_clears_nothing():
    done = run("""
        import standstill_gc, gc, weakref
        gc.disable(); gc.collect()
        standstill_gc.set_checked(True)
        standstill_gc._expected = lambda generation: []       # CPython finds nothing.
        class Node: pass
        node = Node(); node.node = node
        alive = weakref.ref(node)
        del node
        standstill_gc.collect()
        print(alive() is not None, standstill_gc.stats()["checked"]["wrong"] >= 1)
    """)
    assert done.stdout.split() == ["True", "True"], done
    assert "the Node at 0x" in done.stderr and "Nothing is cleared" in done.stderr


def test_checked_mode_by_the_environment():
    assert good(
        """
        import standstill_gc, gc
        gc.disable(); gc.collect()
        a = []; a.append(a); del a
        print(standstill_gc.collect() >= 1, standstill_gc.stats()["checked"]["compared"])
        """, STANDSTILL_GC_CHECKED="1",
    ) == ["True", "1"]


# ------------------------------------------------------------------------ python -m standstill_gc


def program(path, *arguments, options=()):
    return subprocess.run(
        [sys.executable, "-m", "standstill_gc", *options, *arguments],
        capture_output=True, text=True, timeout=DEADLINE, cwd=path,
    )


SCRIPT = """
import gc, sys
print(sys.argv, __name__, __file__, __spec__, sys.modules["__main__"].__dict__ is globals())
print(gc.collect.__module__ if len(sys.argv) < 9 else "")
import neighbour
"""


def test_a_script_runs_as_without_the_package(tmp_path):
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "script.py").write_text(SCRIPT.replace("gc.collect.__module__", "1"))
    (tmp_path / "inner" / "neighbour.py").write_text("print('neighbour')")
    arguments = ["inner/script.py", "a", "--stats", "-m"]
    with_package = program(tmp_path, *arguments)
    without = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, cwd=tmp_path
    )
    assert with_package.stderr == without.stderr == ""
    # CPython makes the file's path absolute.
    assert with_package.stdout.replace("inner/script.py inner", str(tmp_path)) \
        .replace("__main__ inner/", f"__main__ {tmp_path}/inner/") == without.stdout


def test_the_collector_is_installed_in_a_script(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "neighbour.py").write_text("")
    assert program(tmp_path, "script.py").stdout.split()[-1] == "standstill_gc"


@pytest.mark.parametrize("end, code", [
    ("", 0), ("raise SystemExit(5)", 5), ("raise SystemExit('text')", 1), ("1 / 0", 1),
    ("import os; os._exit(6)", 6),
])
def test_exit_codes_of_a_script(tmp_path, end, code):
    (tmp_path / "script.py").write_text(end)
    assert program(tmp_path, "script.py").returncode == code


def test_the_traceback_of_a_script_has_no_frames_of_the_package(tmp_path):
    (tmp_path / "script.py").write_text("def f():\n    1 / 0\nf()\n")
    ours = program(tmp_path, "script.py").stderr
    assert "ZeroDivisionError" in ours and "standstill" not in ours
    assert ours.count("File ") == 2


def test_a_module_runs(tmp_path):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    (tmp_path / "package" / "module.py").write_text(
        "import sys\nprint(__name__, __package__, sys.argv[1:], sys.argv[0][-9:])")
    ours = program(tmp_path, "-m", "package.module", "x", "-y")
    assert ours.stdout == "__main__ package ['x', '-y'] module.py\n", ours
    missing = program(tmp_path, "-m", "no_such_module")
    assert missing.returncode == 1 and "No module named no_such_module" in missing.stderr


def test_code_runs(tmp_path):
    ours = program(tmp_path, "-c", "import sys; print(__name__, sys.argv)", "x")
    assert ours.stdout == "__main__ ['-c', 'x']\n"


@pytest.mark.parametrize("arguments", [
    [], ["--threads", "0", "x.py"], ["--threads", "two", "x.py"], ["--unknown", "x.py"],
    ["-m", "-c", "x"],
])
def test_bad_options_are_errors(tmp_path, arguments):
    done = program(tmp_path, *arguments)
    assert done.returncode == 2 and "usage:" in done.stderr


def test_a_missing_script_is_an_error(tmp_path):
    done = program(tmp_path, "missing.py")
    assert done.returncode != 0 and "missing.py" in done.stderr and "Traceback" not in done.stderr


def test_statistics_at_exit(tmp_path):
    (tmp_path / "script.py").write_text(
        "import gc, atexit\natexit.register(print, 'mine')\na = []; a.append(a); del a\ngc.collect()")
    done = program(tmp_path, "--stats", "script.py")
    assert done.stdout == "mine\n"
    assert "collections" in done.stderr and "pauses: median" in done.stderr
    done = program(tmp_path, "--stats", "--checked", "--threads", "1", "script.py")
    assert "checked: " in done.stderr


def test_pickles_of_a_script(tmp_path):
    (tmp_path / "script.py").write_text(
        "import pickle\nclass A: pass\nprint(type(pickle.loads(pickle.dumps(A()))) is A)")
    assert program(tmp_path, "script.py").stdout == "True\n"

"""Automatic collections, and the state of the package."""

import gc
import os
import re
import threading
import time
import weakref

import pytest

import standstill_gc
from support import Node, cpython, cycles, good, near, quiet, run  # noqa: F401


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
    wait_for(lambda: standstill_gc.stats()["last"])
    assert standstill_gc.stats()["last"]["automatic"] is True


def test_automatic_collections_run_on_the_thread_of_the_package():
    threads = set()

    class Final:
        def __del__(self):
            threads.add(threading.get_ident())

    standstill_gc.enable()

    def more():
        cycles(1000, Final)
        return threads

    wait_for(more)
    standstill_gc.disable()
    assert len(threads) == 1 and threading.get_ident() not in threads
    # Programs that wait for all of their threads do not wait for this one.
    assert threading.enumerate() == [threading.main_thread()]


def test_a_thread_that_waits_for_an_automatic_collection_collects_next():
    """Another automatic collection is due each time."""
    gc.set_threshold(1_000, 0)
    for _ in range(5):
        begun, end = threading.Event(), threading.Event()

        class Final:
            def __del__(self):
                begun.set()
                assert end.wait(20)

        standstill_gc.enable()
        cycles(1, Final)
        cycles(5_000)
        assert begun.wait(20)
        threading.Timer(0.1, end.set).start()
        cycles(5_000)
        assert standstill_gc.collect() >= 5_000
        standstill_gc.disable()


def test_the_threads_of_automatic_collections_may_change():
    gc.set_threshold(10_000, 0)
    kept = [[] for _ in range(400_000)]
    standstill_gc.enable()
    for threads in (1, 2, 1):
        standstill_gc.install(threads=threads)
        standstill_gc.install()
        done = collections()

        def more():
            cycles(20_000)
            # The first one may have begun before the change.
            return collections() > done + 2

        wait_for(more)
        assert standstill_gc.stats()["last"]["threads"] == threads
    del kept


def wakes():
    """How often each thread of this process has slept and gone on."""
    result = {}
    for thread in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{thread}/status") as file:
            result[thread] = int(re.search("^voluntary_ctxt_switches:(.*)", file.read(), re.M)[1])
    return result


@pytest.mark.parametrize("disabled", [True, False])
def test_the_thread_sleeps_long_while_there_is_nothing_to_do(disabled):
    before = wakes()
    standstill_gc.enable()
    if disabled:
        standstill_gc.disable()
    made = []
    wait_for(lambda: made.extend(wakes().keys() - before.keys()) or made)
    [thread] = made
    # In the first second it may wake more often.
    time.sleep(1)
    began, first = time.monotonic(), wakes()[thread]
    time.sleep(2)
    number, took = wakes()[thread] - first, time.monotonic() - began
    assert 0 < number <= 10 + took / (0.5 if disabled else 0.02), (number, took)


def test_the_thread_is_woken():
    """Otherwise it looks 0.9 seconds later. The system may delay some of the runs."""
    def run():
        standstill_gc.enable()
        standstill_gc.disable()
        time.sleep(0.1)  # now it is asleep
        began = time.monotonic()
        if changes == "enabled":
            before = collections()
            standstill_gc.enable()
            while collections() == before:
                cycles(1_000)
        else:
            standstill_gc.uninstall()
        took = time.monotonic() - began
        standstill_gc.uninstall()
        return took

    for changes in "enabled", "uninstalled":
        assert min(run() for _ in range(5)) < 0.5, changes


def test_without_a_threshold_no_automatic_collection_runs():
    gc.set_threshold(0)
    standstill_gc.enable()
    before = collections()
    cycles(100_000)
    time.sleep(0.1)
    assert collections() == before
    gc.set_threshold(500, 0)
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
                if left[0]:
                    left[0] -= 1
                    return {"abandoned": f"reason {left[0]}", "ran": False}
                return real.collect(*arguments)
        sys.unraisablehook = lambda error: print("reported")
        standstill_gc._extension = Fails()
        standstill_gc.enable()
        standstill_gc.set_threshold(700, 0)
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

    collectors = (cpython, standstill_gc.collect) * 2
    threads = [threading.Thread(target=collects, args=(c,)) for c in collectors]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    results.append(cpython())
    assert 100 * (len(results) - 1) <= sum(results) <= 100 * len(results) + 1000


# ------------------------------------------------------------- on a thread of the program

FINAL = """
import gc, sys, threading, time
import standstill_gc
threads, here = set(), threading.get_ident()
class Final:
    def __del__(self): threads.add(threading.get_ident())
def cycles(n):
    for _ in range(n):
        a = Final(); a.a = a
def wait_for(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
gc.set_threshold(1_000, 0)
"""


@pytest.mark.parametrize("where", ["main", "program"])
def test_automatic_collections_run_on_the_thread_that_makes_garbage(where):
    assert good(FINAL + f"""
standstill_gc.install(where={where!r})
wait_for(lambda: cycles(1_000) or standstill_gc.stats()["collections"] > 3)
gc.disable()
print(threads == {{here}}, standstill_gc.stats()["last"]["automatic"])
""") == ["True", "True"]


def test_automatic_collections_run_on_the_main_thread():
    assert good(FINAL + """
standstill_gc.install(where="main")
stop = False
def work():
    while not stop: cycles(100)
others = [threading.Thread(target=work) for _ in range(2)]
for other in others: other.start()
wait_for(lambda: time.sleep(0.001) or standstill_gc.stats()["collections"] > 3)
gc.disable()
stop = True
for other in others: other.join()
print(threads == {here})
""") == ["True"]


def test_automatic_collections_run_while_the_main_thread_waits():
    assert good(FINAL + """
standstill_gc.install(where="program")
def work():
    # The main thread may run the first ones, before it waits.
    wait_for(lambda: cycles(1_000) or threading.get_ident() in threads)
    print("collected")
other = threading.Thread(target=work)
other.start()
other.join()
""") == ["collected"]


def test_the_place_of_automatic_collections_may_change():
    assert good(FINAL + """
standstill_gc.enable()
for where in ("main", "thread", "program", "main", "thread"):
    standstill_gc.install(where=where)
    standstill_gc.install()
    done = standstill_gc.stats()["collections"]
    # The first one may have begun before the change.
    wait_for(lambda: cycles(1_000) or standstill_gc.stats()["collections"] > done + 1)
    gc.disable()
    threads.clear()
    gc.collect(); threads.clear()
    gc.enable()
    done = standstill_gc.stats()["collections"]
    wait_for(lambda: cycles(1_000) or standstill_gc.stats()["collections"] > done)
    gc.disable()
    print((threads == {here}) == (where != "thread"))
    gc.collect()
    gc.enable()
try:
    standstill_gc.install(where="nowhere")
except ValueError:
    print("ValueError")
""") == ["True"] * 5 + ["ValueError"]


def test_a_request_to_a_thread_that_waits_ends_with_the_installation():
    """The main thread waits, so no pending call of it is made."""
    assert good(FINAL + """
standstill_gc.install(where="main")
def work():
    cycles(100_000)
    # Now a call is pending.
    time.sleep(0.1)
    standstill_gc.uninstall()
    print("uninstalled")
    standstill_gc.install(where="thread")
    wait_for(lambda: cycles(1_000) or threads - {here, threading.get_ident()})
    print("collected")
other = threading.Thread(target=work)
other.start()
other.join()
""") == ["uninstalled", "collected"]


@pytest.mark.parametrize("error", ["KeyboardInterrupt", "TimeoutError"])
def test_an_exception_for_the_program_leaves_the_collection(error):
    """For example from the handler of a signal, which runs during the collection."""
    assert good(FINAL + f"""
real = standstill_gc._extension
class Interrupted:
    def __getattr__(self, name): return getattr(real, name)
    def collect(self, *arguments):
        standstill_gc._extension = real
        raise {error}
standstill_gc._extension = Interrupted()
try:
    standstill_gc.install(where="main")
    while True: cycles(1_000)
except {error}:
    print("arrived")
wait_for(lambda: cycles(1_000) or standstill_gc.stats()["collections"] > 1)
""") == ["arrived"]


def test_near_the_recursion_limit_a_collection_waits():
    assert good(FINAL + """
standstill_gc.install(where="main")
def deep():
    try:
        deep()
    except RecursionError:
        # Here no function of Python can be called.
        for n in range(100_000):
            a = Final(); a.a = a
sys.setrecursionlimit(300)
deep()
wait_for(lambda: cycles(1_000) or standstill_gc.stats()["collections"])
print(threads == {here})
""") == ["True"]


def test_automatic_collections_run_on_the_main_thread_of_a_child():
    assert good("""
import warnings
warnings.simplefilter("ignore")
""" + FINAL + """
import os
standstill_gc.install(where="main")
wait_for(lambda: cycles(1_000) or standstill_gc.stats()["collections"])
child = os.fork()
done = standstill_gc.stats()["collections"]
wait_for(lambda: cycles(1_000) or standstill_gc.stats()["collections"] > done + 1)
if child:
    assert os.waitpid(child, 0)[1] == 0
    print(threads == {here})
else:
    os._exit(threads != {here})
""") == ["True"]

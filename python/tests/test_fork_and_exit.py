"""Forks and exits of the interpreter, at bad moments."""

import os
import pathlib
import subprocess
import sys
import sysconfig
import textwrap
import threading

import pytest

import standstill_gc
from support import good, quiet, run  # noqa: F401


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


def test_claimed_objects_are_ordinary_in_the_child_of_another_thread():
    """CPython's collector would call the callback of a live object there."""
    assert forks("""
        import weakref
        saved, called = [], []
        inside, go = threading.Event(), threading.Event()
        class Saved:
            def __del__(self):
                saved.append(self); inside.set(); go.wait()
        def collects():
            cycles(1, Saved); standstill_gc.collect()
        gc.disable()
        t = threading.Thread(target=collects, daemon=True); t.start(); inside.wait()
        weak = weakref.ref(saved[0], lambda _: called.append("callback"))
        assert saved[0] not in gc.get_objects()
        def then():
            assert saved[0] in gc.get_objects()
            standstill_gc._cpython["collect"]()
            assert weak() is saved[0] and not called
            standstill_gc.collect()
            assert weak() is saved[0] and not called
        fork(then)
        go.set(); t.join()
        assert weak() is saved[0] and saved[0] in gc.get_objects()
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


# -------------------------------------------------------------------- an interpreter begins anew

# Runs a program in one interpreter after the other.
EMBEDS = r"""
#include <Python.h>
int main(int count, char **arguments) {
    for (int round = 0; round < 3; round++) {
        Py_InitializeEx(0);
        if (PyRun_SimpleString(arguments[1]) || Py_FinalizeEx()) return 1;
    }
    return 0;
}
"""


def test_an_interpreter_that_is_initialized_again(tmp_path):
    """The package works in the first one, and says in the others why it does not."""
    library = pathlib.Path(sys.base_prefix, "lib", sysconfig.get_config_var("LIBRARY"))
    if not library.exists():
        pytest.skip(f"there is no {library} to embed")
    source, program = tmp_path / "embeds.c", tmp_path / "embeds"
    source.write_text(EMBEDS)
    headers = {sysconfig.get_path("include"), os.path.dirname(sysconfig.get_config_h_filename())}
    command = [
        "cc", *(f"-I{path}" for path in headers), str(source), "-o", str(program), "-rdynamic",
        "-Wl,--whole-archive", str(library), "-Wl,--no-whole-archive", "-lpthread",
        *sysconfig.get_config_var("LIBS").split(), *sysconfig.get_config_var("SYSLIBS").split(),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"an interpreter cannot be embedded: {done.stderr}")
    code = textwrap.dedent(f"""
        import gc, sys
        sys.path.append({str(pathlib.Path(standstill_gc.__file__).parents[1])!r})
        import warnings
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            import standstill_gc
        standstill_gc.enable()
        class Node: pass
        for _ in range(200_000):
            node = Node(); node.node = node
        gc.collect()
        for warning in caught:
            print(str(warning.message).rpartition(": ")[2])
        print(standstill_gc.active(), gc.collect is standstill_gc.collect, gc.collect(), flush=True)
    """)
    done = subprocess.run(
        [program, code], capture_output=True, text=True, timeout=100,
        env=os.environ | {"PYTHONHOME": sys.base_prefix},
    )
    refused = ["it was active before the interpreter was initialized again", "False False 0"]
    assert (done.returncode, done.stderr) == (0, ""), done
    assert done.stdout.splitlines() == ["True True 0", *refused, *refused]

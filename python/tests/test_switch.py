"""The switch keeps its promises when exceptions, forks and imports come at bad moments."""

import asyncio
import gc
import textwrap
import threading

import pytest

import standstill_gc
from support import good, interrupted, quiet  # noqa: F401

BEGIN = """
    import contextlib, ctypes, gc, importlib, os, sys, threading, time, warnings
    warnings.simplefilter("ignore", DeprecationWarning)
    import standstill_gc
    own = gc.collect, gc.enable, gc.disable, gc.isenabled
    class Node: pass
    def cycles(n, make=Node):
        for _ in range(n):
            a = make(); a.a = a
    def wait_for(condition, seconds=20):
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, "it did not happen in time"
            time.sleep(.005)
    begun = []
    gc.callbacks.append(lambda phase, info: begun.append(phase))
    def are_automatic(run=True):
        "Whether automatic collections run."
        time.sleep(.05)                  # One that has begun ends.
        before, end = len(begun), time.monotonic() + (20 if run else .3)
        while len(begun) == before and time.monotonic() < end:
            cycles(1000); time.sleep(.001)
        return len(begun) > before
    def agrees():
        "Whether the state is one state."
        theirs = gc.collect, gc.enable, gc.disable, gc.isenabled
        ours = (standstill_gc.collect, standstill_gc.enable, standstill_gc.disable,
                standstill_gc.isenabled)
        return theirs == (ours if standstill_gc.installed() else own)
    # The threads of large collections stay.
    live = [[] for _ in range(100_000)]
    standstill_gc.collect()
    standstill_gc.install(); standstill_gc.uninstall()
    del live
    def threads(): return len(os.listdir("/proc/self/task"))
    gc.set_threshold(500, 0)
"""


def runs(code):
    return good(textwrap.dedent(BEGIN) + textwrap.dedent(code))


# ----------------------------------------------------------------------- exceptions that arrive

# Each raises an exception in the package's thread while it waits.
WAYS = {
    "another thread": """
        def throws():
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(package), ctypes.py_object(ZeroDivisionError))
    """,
    "a profile function": """
        def throws():
            threading.setprofile_all_threads(profiles)
        def profiles(*_):
            if threading.get_ident() == package: raise ZeroDivisionError
    """,
    "sys.monitoring": """
        def throws():
            sys.monitoring.use_tool_id(3, "test")
            sys.monitoring.register_callback(3, sys.monitoring.events.CALL, calls)
            sys.monitoring.set_events(3, sys.monitoring.events.CALL)
        def calls(*_):
            global has_thrown
            if threading.get_ident() == package and not has_thrown:
                has_thrown = True
                raise ZeroDivisionError
        has_thrown = False
    """,
}


@pytest.mark.parametrize("way", WAYS)
def test_an_exception_does_not_end_the_packages_thread(way):
    assert runs(textwrap.dedent(WAYS[way]) + textwrap.dedent("""
        errors, package = [], 0
        sys.unraisablehook = lambda error: errors.append(error.exc_type)
        class Tells:
            def __del__(self):
                global package
                if threading.current_thread() is not threading.main_thread():
                    package = threading.get_ident()
        standstill_gc.enable()
        while not package: cycles(1000, Tells)
        gc.set_threshold(0)
        time.sleep(.1)
        throws()
        time.sleep(1.2)
        gc.set_threshold(500, 0)
        wait_for(lambda: errors or cycles(1000))
        print(set(errors) == {ZeroDivisionError}, are_automatic())
    """)) == ["True", "True"]


# Each begins and ends with the package not installed, and with automatic collections.
CHANGES = {
    "install": "standstill_gc.install()",
    "enable": "standstill_gc.enable()",
    "uninstall": "standstill_gc.uninstall()",
    "defer": "with standstill_gc.defer(), standstill_gc.defer(): pass",
}


@pytest.mark.parametrize("installed", [False, True])
@pytest.mark.parametrize("change", CHANGES)
def test_an_exception_between_two_instructions_leaves_one_state(change, installed):
    assert runs(f"""
        file = standstill_gc.__file__
        class Interrupt(BaseException): pass
        def change():
            {CHANGES[change]}
        def interrupted_at(number):
            "Whether the instruction with this number exists. It raises an exception."
            count = 0
            def trace(frame, event, arg):
                nonlocal count
                if frame.f_code.co_filename != file:
                    return None
                frame.f_trace_opcodes = True
                count += 1
                if count == number: raise Interrupt
                return trace
            sys.settrace(trace)
            try: change()
            except Interrupt: return True
            finally: sys.settrace(None)
            return False
        before, number = threads(), 1
        while True:
            if {installed}: standstill_gc.enable()
            is_interrupted = interrupted_at(number)
            assert agrees(), number
            standstill_gc.uninstall()
            assert gc.isenabled() and agrees(), number
            if not is_interrupted: break
            number += 1
        wait_for(lambda: threads() <= before)
        standstill_gc.enable()
        print(number > 2, are_automatic())
    """) == ["True", "True"]


def test_exceptions_of_another_thread_in_install_and_uninstall():
    interrupted("""
import os
own = gc.collect, gc.enable, gc.disable, gc.isenabled

def threads():
    return len(os.listdir("/proc/self/task"))

def work():
    standstill_gc.install()
    standstill_gc.uninstall()

def check():
    theirs = gc.collect, gc.enable, gc.disable, gc.isenabled
    ours = (standstill_gc.collect, standstill_gc.enable, standstill_gc.disable,
            standstill_gc.isenabled)
    assert theirs == (ours if standstill_gc.installed() else own)
    standstill_gc.uninstall()
    assert gc.isenabled() and gc.collect is own[0]

live = [[] for _ in range(100_000)]
standstill_gc.collect()                # The threads of large collections stay.
work()
before = threads()
interrupts(work, 300, check)
end = time.monotonic() + 20
while threads() > before:
    assert time.monotonic() < end, (threads(), before)
    time.sleep(0.01)
print("done")
""")


# ------------------------------------------------------------------------------------- defer

def test_other_threads_end_blocks():
    assert runs("""
        standstill_gc.enable()
        def block():
            with standstill_gc.defer():
                yield
        def ends(blocks):
            barrier.wait()
            for b in blocks: b.close()
        barrier = threading.Barrier(4)
        for _ in range(50):
            blocks = [block() for _ in range(400)]
            for b in blocks: next(b)
            enders = [threading.Thread(target=ends, args=(blocks[at::4],)) for at in range(4)]
            for t in enders: t.start()
            for t in enders: t.join()
        print(are_automatic())
        standstill_gc.uninstall()
        print(gc.isenabled())
    """) == ["True", "True"]


@pytest.mark.parametrize("installed", [False, True])
@pytest.mark.parametrize("call", [
    "standstill_gc.enable", "standstill_gc.install", "standstill_gc.uninstall",
])
def test_no_automatic_collection_runs_in_a_block_that_calls(call, installed):
    assert runs(f"""
        if {installed}: standstill_gc.enable()
        with standstill_gc.defer():
            {call}()
            print(are_automatic(False), standstill_gc.isenabled())
            with standstill_gc.defer():
                pass
            print(are_automatic(False))
        print(are_automatic())
    """) == ["False", "True", "False", "True"]


@pytest.mark.parametrize("installed", [False, True])
def test_the_wish_in_a_block_counts_after_it(installed):
    assert runs(f"""
        (standstill_gc.enable if {installed} else gc.enable)()
        with standstill_gc.defer():
            standstill_gc.disable()
            assert not standstill_gc.isenabled()
        assert not gc.isenabled()
        with standstill_gc.defer():
            standstill_gc._extension.set_enabled(True)
            assert standstill_gc.isenabled() and not are_automatic(False)
        print(gc.isenabled(), are_automatic())
        assert standstill_gc.installed() == {installed}
    """) == ["True", "True"]


def test_a_block_ends_with_its_object():
    block = standstill_gc.defer()
    gc.enable()
    block.__enter__()
    with pytest.raises(RuntimeError):
        block.__enter__()
    assert not gc.isenabled()
    del block
    assert gc.isenabled()


def test_defer_decorates_coroutines_and_generators():
    """The block lasts until the body ends."""
    inside = []

    @standstill_gc.defer()
    async def coroutine():
        await asyncio.sleep(0)
        inside.append(gc.isenabled())

    @standstill_gc.defer()
    def generator():
        yield
        inside.append(gc.isenabled())

    @standstill_gc.defer()
    async def both():
        yield
        inside.append(gc.isenabled())

    async def main():
        await coroutine()
        async for _ in both():
            pass

    gc.enable()
    asyncio.run(main())
    list(generator())
    assert inside == [False] * 3 and gc.isenabled()


def test_defer_is_a_decorator():
    inside = []

    @standstill_gc.defer()
    def deferred(depth):
        inside.append(gc.isenabled())
        if depth:
            deferred(depth - 1)
        inside.append(gc.isenabled())

    gc.enable()
    deferred(2)
    assert inside == [False] * 6 and gc.isenabled()


def test_a_block_begun_while_another_thread_has_one():
    inside, go = threading.Event(), threading.Event()

    def defers():
        with standstill_gc.defer():
            inside.set()
            go.wait()

    gc.enable()
    thread = threading.Thread(target=defers)
    thread.start()
    inside.wait()
    with standstill_gc.defer():
        go.set()
        thread.join()
        assert not gc.isenabled()
    assert gc.isenabled()


# ------------------------------------------------------------------------------------- forks

@pytest.mark.parametrize("installed", [False, True])
def test_blocks_of_other_threads_are_over_in_the_child(installed):
    assert runs(f"""
        if {installed}: standstill_gc.enable()
        inside, go, blocks = threading.Event(), threading.Event(), []
        def block():
            with standstill_gc.defer():
                yield
        def defers():
            blocks.append(block()); next(blocks[0])
            with standstill_gc.defer():
                inside.set(); go.wait()
        def child(own):
            pid = os.fork()
            if not pid:
                code = 1
                try:
                    assert are_automatic(not own) == (not own)
                    with standstill_gc.defer():
                        blocks[0].close()          # It is over here.
                        assert not are_automatic(False)
                    if not own: assert gc.isenabled()
                    code = 7
                except BaseException:
                    import traceback; traceback.print_exc()
                finally: os._exit(code)
            print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        t = threading.Thread(target=defers); t.start(); inside.wait()
        child(own=False)
        with standstill_gc.defer(): child(own=True)
        go.set(); t.join()
        assert not are_automatic(False)
        blocks[0].close()
        print(are_automatic())
    """) == ["7", "7", "True"]


@pytest.mark.parametrize("what", ["fork", "install", "raise"])
def test_an_audit_hook_in_install_may(what):
    assert runs(f"""
        pids, is_on = [], True
        def hook(event, arguments):
            global is_on
            if event == "_thread.start_joinable_thread" and is_on:
                is_on = False
                if "{what}" == "fork": pids.append(os.fork())
                elif "{what}" == "install": standstill_gc.install()
                else: raise ZeroDivisionError
        sys.addaudithook(hook)
        before = threads()
        try: standstill_gc.install()
        except ZeroDivisionError:
            assert agrees() and not standstill_gc.installed() and threads() == before
            standstill_gc.install()
        assert agrees() and standstill_gc.installed() and not is_on
        good = are_automatic()
        if pids == [0]: os._exit(7 if good else 1)
        if pids: assert os.waitstatus_to_exitcode(os.waitpid(pids[0], 0)[1]) == 7
        print(good)
    """) == ["True"]


# ------------------------------------------------------------------------------------ imports

AGAIN = {
    "reload": "importlib.reload(standstill_gc)",
    "import": "del sys.modules['standstill_gc']; import standstill_gc",
}


@pytest.mark.parametrize("installed", [False, True])
@pytest.mark.parametrize("again", AGAIN)
def test_another_import_finds_the_functions_of_cpython(again, installed):
    assert runs(f"""
        if {installed}: standstill_gc.enable()
        for _ in range(3):
            {AGAIN[again]}
        assert standstill_gc.installed() == {installed} and agrees()
        cycles(1000)
        gc.disable()
        gc.collect()
        cycles(1000)
        assert 1000 <= gc.collect() < 1300
        standstill_gc.enable()
        assert agrees() and are_automatic()
        wait_for(lambda: standstill_gc.stats()["collections"] > 0 or cycles(1000))
        pid = os.fork()
        if not pid:
            os._exit(7 if standstill_gc.installed() and agrees() and are_automatic() else 1)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        standstill_gc.uninstall()
        assert agrees() and gc.isenabled() and not standstill_gc.installed()
        standstill_gc.enable()
        print(agrees())
    """) == ["7", "True"]

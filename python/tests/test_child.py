"""Automatic collections whose search runs in a child process."""

import gc
import os
import signal
import textwrap
import time
import warnings

import weakref

import pytest

import standstill_gc
from support import Node, cycles, good, near, quiet, run, unraisable  # noqa: F401
from test_automatic import wait_for
from test_stress import children


def state(process):
    try:
        with open(f"/proc/{process}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "none"


def stop(process):
    """Whether the process stands still now. It may have ended."""
    try:
        os.kill(process, signal.SIGSTOP)
    except ProcessLookupError:
        return False
    wait_for(lambda: state(process) in "TZXnone")
    return state(process) == "T"


class Stopped:
    """A child that searches, and stands still in the block."""

    def __enter__(self):
        """Makes garbage until there is one."""
        # Many objects, so that it does not end before it is stopped.
        self.kept = [[n] for n in range(300_000)]
        gc.collect()
        standstill_gc.install(child_from=1)
        gc.enable()
        end = time.monotonic() + 30
        while True:
            assert time.monotonic() < end, "no child"
            cycles(3_000)
            for process in filter(stop, children()):
                self.process = process
                return self

    def goes_on(self):
        if self.process is not None:
            os.kill(self.process, signal.SIGCONT)
            self.process = None

    def __exit__(self, *error):
        if self.process is not None and state(self.process) == "T":
            self.goes_on()


def last():
    return standstill_gc.stats()["last"]


def searched_by_child():
    return sum(1 for record in standstill_gc._extension.records()[0] if record["child"])


def test_a_child_finds_the_garbage_and_only_that():
    class Linked:
        pass

    # Other attributes of `Node` would change what other tests count.
    kept = [Linked() for _ in range(1000)]
    for a, b in zip(kept, kept[1:]):
        a.next, b.last = b, a
    node = Node()
    node.self, gone, called = node, weakref.ref(node), []
    callback = weakref.ref(node, lambda _: called.append(1))
    standstill_gc.install(child_from=1)
    gc.enable()
    del node

    def more():
        cycles(1000)
        return gone() is None and searched_by_child()

    wait_for(more)
    gc.disable()
    record = next(r for r in standstill_gc._extension.records()[0] if r["child"])
    child = record["child"]
    assert record["automatic"] and record["no_child"] is None
    assert child["took"] > 0 and child["parts"] >= 1
    assert child["proposed"] >= record["collected"] > 0
    # That of the clone, and one for each part.
    assert len(record["pauses"]) >= 1 + child["parts"]
    assert called == [1] and callback() is None
    assert all(a.next is b and b.last is a for a, b in zip(kept, kept[1:]))


def test_finalizers_run_and_may_bring_objects_back():
    back = []

    class Back:
        def __del__(self):
            back.append(self)

    standstill_gc.install(child_from=1)
    gc.enable()

    def more():
        cycles(1000, Back)
        return len(back) >= 1000 and searched_by_child()

    wait_for(more)
    gc.disable()
    assert all(node.self is node for node in back)


def test_functions_and_what_they_hold_wait_for_a_search_in_a_stop():
    gone = []

    def garbage():
        space = {"held": Node()}
        exec("def function(): return held", space)
        gone.append(weakref.ref(space["function"]))
        gone.append(weakref.ref(space["held"]))

    with Stopped() as child:
        # Garbage since the clone is none of this child's.
        child.goes_on()
        wait_for(lambda: last() and last()["child"])
        garbage()
        before = searched_by_child()

        def more():
            cycles(5_000)
            return searched_by_child() >= before + 2

        wait_for(more)
        gc.disable()
        assert all(it() is not None for it in gone)
        gc.collect()
        assert all(it() is None for it in gone)


def test_much_that_is_left_makes_the_next_search_one_in_a_stop():
    standstill_gc.install(child_from=1)
    gc.enable()
    gone = []

    def more():
        for _ in range(100):
            space = {"held": [[] for _ in range(100)]}
            exec("def function(): return held", space)
            gone.append(weakref.ref(space["function"]))
        return searched_by_child() and gone[0]() is None

    wait_for(more)


def test_a_deferred_reference_that_is_stored_since_the_clone_keeps_its_target():
    """No count shows it."""
    global target
    space = {}
    exec("def function(): return function", space)
    space["more"] = [{"up": space}]
    function = weakref.ref(space["function"])

    def holds():
        # A load of a global variable does not count.
        it = target
        yield
        yield it() is it and it.__globals__["more"][0]["up"] is it.__globals__

    with Stopped() as child:
        # Both collectors end the deferred counting of garbage that they find, so none may have.
        child.goes_on()
        wait_for(lambda: last() and last()["child"])
        generators = []
        del space
        before = searched_by_child()
        stopped = None
        while stopped is None:
            cycles(3_000)
            stopped = next(filter(stop, children()), None)
        for _ in range(10):
            target = function()
            generators.append(holds())
            next(generators[-1])
        del target
        os.kill(stopped, signal.SIGCONT)
        wait_for(lambda: searched_by_child() > before)
        gc.disable()
        assert all(next(it) for it in generators)
        generators.clear()
        gc.collect()
        assert function() is None


@pytest.mark.parametrize("by", ["collect", "disable", "defer", "uninstall"])
def test_nobody_waits_for_a_child(by):
    with Stopped() as child:
        begun = time.monotonic()
        if by == "collect":
            gc.collect()
            assert last()["child"] is None
        elif by == "disable":
            gc.disable()
        elif by == "uninstall":
            standstill_gc.uninstall()
        else:
            with standstill_gc.defer():
                wait_for(lambda: state(child.process) in "ZXnone")
        wait_for(lambda: state(child.process) in "ZXnone")
        assert time.monotonic() - begun < 2
        if by == "defer":
            # It is due at once, and searches in a stop.
            records = len(standstill_gc._extension.records()[0])
            wait_for(lambda: len(standstill_gc._extension.records()[0]) > records)
            record = standstill_gc._extension.records()[0][records]
            assert record["child"] is None and record["no_child"] is None
            assert record["automatic"] and record["collected"] > 0


def test_a_child_that_is_killed_costs_a_search_in_a_stop():
    with Stopped() as child:
        collected = standstill_gc.stats()["collected"]
        os.kill(child.process, signal.SIGKILL)
        child.process = None
        wait_for(lambda: last() and last()["no_child"])
        assert "signal 9" in last()["no_child"] and last()["child"] is None
        assert standstill_gc.stats()["collected"] > collected


def test_a_heap_that_outgrows_its_child_is_searched_in_a_stop():
    for _ in range(5):
        with Stopped() as child:
            begun, more, ended = len(standstill_gc._extension.records()[0]), [], []
            # In all records, because the last one is soon that of the next collection.
            while not ended:
                more.extend([] for _ in range(1000))
                assert len(more) < 10_000_000
                if len(more) > 2_000_000:
                    # On a busy machine the package's thread may not have looked yet.
                    time.sleep(0.01)
                records = standstill_gc._extension.records()[0][begun:]
                ended = [it for it in records if it["no_child"] or it["child"]]
            if ended[0]["child"] is None:
                assert "grown" in ended[0]["no_child"]
                assert state(child.process) in "ZXnone"
                return
        # It was stopped when it had proposed already.
        standstill_gc.uninstall()
    pytest.fail("no child was stopped in time")


def test_a_fork_of_the_program_while_a_child_searches():
    with Stopped() as child:
        with warnings.catch_warnings():
            # 3.15 warns, because the process has threads.
            warnings.simplefilter("ignore", DeprecationWarning)
            process = os.fork()
        if not process:
            # The collector is a new one here.
            node = Node()
            node.self, gone = node, weakref.ref(node)
            del node
            gc.collect()
            ok = gone() is None and standstill_gc.installed()
            cycles(10)
            ok = ok and near(gc.collect(), 10)
            os._exit(0 if ok else 1)
        assert os.waitpid(process, 0)[1] == 0
        assert state(child.process) == "T"
        child.goes_on()
        wait_for(lambda: searched_by_child())


def test_the_program_ends_while_a_child_searches():
    written = good(
        """
        import os, signal, sys, time
        sys.path.insert(0, sys.argv[1])
        import support, test_child
        child = test_child.Stopped().__enter__()
        print(child.process)
        """,
        arguments=[os.path.dirname(__file__)],
    )
    wait_for(lambda: state(int(written[0])) in "ZXnone")


def test_wait_for_any_process_does_not_see_it():
    with Stopped():
        with pytest.raises(ChildProcessError):
            os.waitpid(-1, os.WNOHANG)


def test_checked_mode_compares_what_a_child_has_found():
    standstill_gc.set_checked(True)
    before = standstill_gc.stats()["checked"]
    standstill_gc.install(child_from=1)
    gc.enable()

    def more():
        cycles(1000)
        return searched_by_child() >= 3

    wait_for(more)
    standstill_gc.uninstall()
    checked = standstill_gc.stats()["checked"]
    assert checked["compared"] >= before["compared"] + 3
    assert checked["wrong"] == before["wrong"]


def test_small_heaps_and_other_places_have_no_child():
    for options in [{"child_from": 10_000_000}, {"child_from": 0}, {"child_from": 1, "where": "main"}]:
        standstill_gc._extension.forget_records()
        standstill_gc.install(**options)
        gc.enable()

        def more():
            cycles(1000)
            return standstill_gc.stats()["collections"] >= 3

        wait_for(more)
        standstill_gc.uninstall()
        assert searched_by_child() == 0


def test_the_environment_and_the_command_line():
    code = """
        import gc, sys, standstill_gc
        class Node: pass
        kept = [[] for _ in range(100_000)]
        while not (last := standstill_gc.stats()["last"]) or not last["child"]:
            for _ in range(1000):
                node = Node()
                node.self = node
        print(bool(last["child"]))
    """
    assert good("import standstill_gc; standstill_gc.enable()\n" + "import textwrap\n"
                f"exec(textwrap.dedent({code!r}))", STANDSTILL_GC_CHILD_FROM="1") == ["True"]
    done = run("", options=["-m", "standstill_gc", "--child-from", "1", "-c",
                            textwrap.dedent(code)])
    assert (done.returncode, done.stdout) == (0, "True\n"), done
    done = run("", options=["-m", "standstill_gc", "--child-from", "-1"], STANDSTILL_GC_CHILD_FROM="")
    assert done.returncode == 2 and "must not be negative" in done.stderr
    done = run("import standstill_gc", STANDSTILL_GC_CHILD_FROM="many")
    assert done.returncode == 0 and "which is no number of objects" in done.stderr, done
    for wrong, error in [(-1, ValueError), ("1", TypeError)]:
        with pytest.raises(error):
            standstill_gc.install(child_from=wrong)

"""A package that is not active, and the checked mode."""

import gc
import textwrap

import pytest

import standstill_gc
from support import cycles, good, near, quiet, run  # noqa: F401


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


CHECKED = """
    import standstill_gc, gc, sys, weakref
    gc.disable(); gc.collect()
    standstill_gc.set_checked(True)
    class Node:
        def __del__(self): finalized.append(1)
    finalized = []
    def make():
        node = Node(); node.node = node
        return weakref.ref(node)
    def wrong(): return standstill_gc.stats()["checked"]["wrong"]
    by_cpython = standstill_gc._expected
"""


def test_checked_mode_keeps_and_reports_objects_that_cpython_has_not_found_twice():
    done = run(textwrap.dedent(CHECKED) + textwrap.dedent("""
        standstill_gc._expected = lambda generation: []
        alive = make()
        for _ in range(2):
            print("collect", file=sys.stderr)
            standstill_gc.collect()
            # Other garbage may be wrong too: for example functions that were made at the start.
            print(alive() is not None, finalized, min(wrong(), 1))
        standstill_gc._expected = by_cpython
        standstill_gc.collect()
        print(alive() is None, finalized, min(wrong(), 1))
    """))
    [first, second, third] = done.stdout.splitlines()
    assert first == "True [] 0" and second == "True [] 1" and third == "True [1] 1", done
    before, after = done.stderr.split("collect\n")[1:]
    assert before == "" and "the Node at 0x" in after and "is kept" in after


def test_checked_mode_clears_objects_that_both_have_found_beside_new_garbage():
    """Another thread, or a finalizer, makes garbage between the two searches."""
    assert good(textwrap.dedent(CHECKED) + textwrap.dedent("""
        made = []
        def expected(generation):
            found = by_cpython(generation)
            made.append(make())
            return found
        standstill_gc._expected = expected
        for _ in range(4):
            made.append(make())
            assert standstill_gc.collect() >= 1
            # All but the newest, which only the second search has found.
            assert [weak() is None for weak in made] == [True] * (len(made) - 1) + [False]
        print(wrong(), len(gc.garbage))
    """)) == ["0", "0"]


def test_checked_mode_keeps_a_function_that_deferred_references_keep():
    """References to a function of a module are not counted. A search that ends must leave it so."""
    assert good(textwrap.dedent(CHECKED) + textwrap.dedent("""
        space = {}
        exec("def function(): pass", space)
        weak = weakref.ref(space.pop("function"))
        # An immortal object would show nothing.
        assert gc.is_tracked(weak())
        standstill_gc._expected = lambda generation: []
        standstill_gc.collect()
        print(weak() is not None)
        standstill_gc._expected = by_cpython
        standstill_gc.collect()
        print(weak() is None, wrong())
    """)) == ["True", "True", "0"]


def test_checked_mode_does_not_take_a_new_object_for_a_suspect():
    """The garbage of one collection has the address of other garbage in the collection before."""
    assert good(textwrap.dedent(CHECKED) + textwrap.dedent("""
        addresses = []
        def function():
            space = {}
            exec("def function(): pass", space)
            return id(space.pop("function"))
        def expected(generation):
            found = by_cpython(generation)
            addresses.append({function() for _ in range(1000)})
            return found
        standstill_gc._expected = expected
        for _ in range(5):
            standstill_gc.collect()
        print(any(map(set.intersection, addresses, addresses[1:])), wrong())
    """)) == ["True", "0"]


def test_nothing_is_collected_while_another_thread_checks(monkeypatch):
    """That thread has set ``gc.DEBUG_SAVEALL``."""
    cycles(10)
    monkeypatch.setitem(standstill_gc._checking, "by", object())
    assert standstill_gc.collect() == 0
    monkeypatch.undo()
    assert near(standstill_gc.collect(), 10)


def test_checked_mode_by_the_environment():
    assert good(
        """
        import standstill_gc, gc
        gc.disable(); gc.collect()
        a = []; a.append(a); del a
        print(standstill_gc.collect() >= 1, standstill_gc.stats()["checked"]["compared"])
        """, STANDSTILL_GC_CHECKED="1",
    ) == ["True", "1"]


def test_the_reason_if_there_is_no_extension_for_the_interpreter(monkeypatch):
    error = ImportError("cannot import")
    assert standstill_gc._why_missing(error) == "cannot import"
    monkeypatch.setattr("importlib.machinery.EXTENSION_SUFFIXES", [".other.so"])
    why = standstill_gc._why_missing(error)
    assert "has no extension module for this interpreter" in why and "; it has _stand" in why

"""``suite.py`` reports each way in which a run of CPython's tests may fail, by its exit status.

Each test here writes a file of tests, and has the suite run it.
"""

import importlib.util
import pathlib
import textwrap

import pytest

if importlib.util.find_spec("test.libregrtest") is None:
    pytest.skip("this interpreter has no tests of CPython", allow_module_level=True)

HEAD = """
import ctypes, gc, os, sys, time, unittest
class Tests(unittest.TestCase):
    def test_good(self):
        gc.collect(); gc.collect()
"""


@pytest.fixture
def suite(monkeypatch):
    path = pathlib.Path(__file__).resolve().parent.parent / "suite.py"
    spec = importlib.util.spec_from_file_location("suite", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "EXPECTED", {})
    return module


@pytest.fixture
def outcome(suite, tmp_path, capfd):
    """Runs the suite with one file of tests. Comes back: its exit status, and what it says."""
    def run(more="", *options, name="test_made"):
        (tmp_path / f"{name}.py").write_text(HEAD + textwrap.indent(textwrap.dedent(more), "    "))
        with pytest.raises(SystemExit) as end:
            suite.main(["--testdir", str(tmp_path), "--timeout", "60", *options, name])
        lines = capfd.readouterr().out.splitlines()
        return int(end.value.code), [line for line in lines if line.startswith(("--", "!!!!"))]

    return run


def faults(lines):
    return [line for line in lines if line.startswith("!!!!")]


BAD = "def test_bad(self): self.assertTrue(False)"


def test_a_run_without_faults(outcome):
    status, lines = outcome()
    assert (status, faults(lines)) == (0, [])
    assert "1 files, 1 tests" in lines[-1] and lines[-1].endswith("0 faults")


def test_a_test_that_fails(outcome):
    status, lines = outcome(BAD)
    assert (status, faults(lines)) == (1, ["!!!! test_made test_bad failed"])


def test_an_error_in_a_test(outcome):
    status, lines = outcome("def test_bad(self): missing")
    assert (status, faults(lines)) == (1, ["!!!! test_made test_bad failed"])


@pytest.mark.parametrize("reason", ["why", "chance: why"])
def test_an_expected_failure(outcome, suite, reason):
    suite.EXPECTED[("test_made", "test_bad")] = ("3.14 3.15", reason)
    status, lines = outcome(BAD)
    assert (status, faults(lines)) == (0, [])
    assert f"-- fails, as expected: test_made test_bad: {reason}" in lines


def test_a_failure_that_another_version_expects(outcome, suite):
    suite.EXPECTED[("test_made", "test_bad")] = ("3.1", "why")
    status, lines = outcome(BAD)
    assert (status, faults(lines)) == (1, ["!!!! test_made test_bad failed"])


def test_an_expected_failure_that_passes(outcome, suite):
    suite.EXPECTED[("test_made", "test_good")] = ("3.14 3.15", "why")
    status, lines = outcome()
    fault = "!!!! test_made test_good has not failed, though it is expected to fail"
    assert (status, faults(lines)) == (1, [fault])


def test_a_failure_by_chance_that_passes(outcome, suite):
    suite.EXPECTED[("test_made", "test_good")] = ("3.14 3.15", "chance: why")
    status, lines = outcome()
    assert (status, faults(lines)) == (0, [])


@pytest.mark.parametrize("end", ["os.abort()", "ctypes.string_at(0)", "os._exit(3)", "os._exit(0)"])
def test_a_worker_that_crashes_or_ends(outcome, end):
    status, lines = outcome(f"def test_bad(self): {end}")
    assert status == 1 and "!!!! test_made failed outside of its tests" in lines


def test_the_time_limit(outcome):
    status, lines = outcome("def test_bad(self): time.sleep(60)", "--timeout", "3")
    assert status == 1 and "!!!! test_made failed outside of its tests" in lines


def test_a_file_that_cannot_be_imported(outcome):
    status, lines = outcome("import no_such_module")
    assert status == 1 and faults(lines)


def test_a_file_that_does_not_exist(outcome, suite, tmp_path, capfd):
    with pytest.raises(SystemExit) as end:
        suite.main(["--testdir", str(tmp_path), "test_missing"])
    assert end.value.code == 1 and "!!!! test_missing failed" in capfd.readouterr().out


def test_a_run_in_which_the_package_has_collected_nothing(outcome, suite, monkeypatch):
    monkeypatch.setattr(suite, "SITECUSTOMIZE", "# {notes}")
    status, lines = outcome()
    assert (status, faults(lines)) == (1, ["!!!! 0 collections of this package in 1 files"])


def test_a_process_in_which_the_package_is_not_active(outcome, suite, monkeypatch):
    change = "if standstill_gc.active():"
    assert change in suite.SITECUSTOMIZE
    inactive = "standstill_gc._reason = 'a reason'\n" + change
    monkeypatch.setattr(suite, "SITECUSTOMIZE", suite.SITECUSTOMIZE.replace(change, inactive))
    status, lines = outcome()
    assert status == 1 and "!!!! inactive a reason" in lines


def test_a_suite_that_does_not_run(outcome, suite, monkeypatch):
    monkeypatch.setattr(suite, "SITECUSTOMIZE", "import os; os._exit(5) # {notes}")
    status, lines = outcome()
    assert status == 1
    assert {"!!!! the suite did not end", "!!!! the suite has ended with status 5"} <= set(lines)

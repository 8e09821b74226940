"""``python -m standstill_gc``: programs run as without the package."""

import subprocess
import sys

import pytest

from support import DEADLINE


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
    assert with_package.stdout == without.stdout


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
        "import gc, atexit\natexit.register(print, 'mine')\na = []; a.append(a); del a\n"
        "gc.collect()")
    done = program(tmp_path, "--stats", "script.py")
    assert done.stdout == "mine\n"
    assert "collections" in done.stderr and "pauses: median" in done.stderr
    done = program(tmp_path, "--stats", "--checked", "--threads", "1", "script.py")
    assert "checked: " in done.stderr


def test_pickles_of_a_script(tmp_path):
    (tmp_path / "script.py").write_text(
        "import pickle\nclass A: pass\nprint(type(pickle.loads(pickle.dumps(A()))) is A)")
    assert program(tmp_path, "script.py").stdout == "True\n"


SHOWS = """
import sys
print(sys.argv, sys.path[0], __name__, __spec__, globals().get("__file__"), sorted(globals()))
print(type(__loader__), __builtins__, sys.modules["__main__"].__dict__ is globals())
"""
ENDS = {
    "end": "", "exit": "sys.exit(5)", "text": "sys.exit('text')", "error": "def f(): 1 / 0\nf()",
    "interrupt": "def f(): raise KeyboardInterrupt\nf()",
    "signal": "import os, signal; os.kill(os.getpid(), signal.SIGINT)\nwhile True: pass",
    "hook": "sys.excepthook = lambda *error: print(error[0], error[2].tb_lineno)\n1 / 0",
}


@pytest.mark.parametrize("options", [(), ("-P",), ("-W", "error")], ids=" ".join)
@pytest.mark.parametrize("way", ["script", "code", "stdin"])
@pytest.mark.parametrize("end", ENDS)
def test_both_ways_to_run_a_program_are_equal(tmp_path, way, end, options):
    (tmp_path / "inner").mkdir()
    code = SHOWS + ENDS[end] + "\n"
    (tmp_path / "inner" / "script.py").write_text(code)
    program = {"script": ["inner/script.py"], "code": ["-c", code], "stdin": ["-"]}[way]
    theirs, ours = (
        subprocess.run(
            [sys.executable, *options, *more, *program, "a", "-m"], capture_output=True, text=True,
            timeout=DEADLINE, cwd=tmp_path, input=code,
        )
        for more in ([], ["-m", "standstill_gc"])
    )
    assert (ours.returncode, ours.stdout) == (theirs.returncode, theirs.stdout)
    # The interpreter shows lines of code that it was given as text, and programs cannot.
    if way == "script":
        assert ours.stderr == theirs.stderr
    assert "standstill" not in ours.stderr

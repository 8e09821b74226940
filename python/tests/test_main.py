"""``python -m standstill_gc``: programs run as without the package."""

import os
import pathlib
import py_compile
import subprocess
import sys
import venv
import zipapp

import pytest

import standstill_gc
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


FAILS = "def f():\n    1 / 0\nf()\n"


@pytest.mark.parametrize("frozen", ["on", "off"])
@pytest.mark.parametrize("arguments", [["script.py"], ["-m", "script"], ["-c", FAILS]])
def test_a_traceback_is_that_of_the_program_without_the_package(tmp_path, arguments, frozen):
    (tmp_path / "script.py").write_text(FAILS)
    ours, plain = (
        subprocess.run(
            [sys.executable, "-X", f"frozen_modules={frozen}", *package, *arguments],
            capture_output=True, text=True, timeout=DEADLINE, cwd=tmp_path,
        ).stderr
        for package in (["-m", "standstill_gc"], [])
    )
    assert "ZeroDivisionError" in ours and ours == plain


def test_a_module_runs(tmp_path):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    (tmp_path / "package" / "module.py").write_text(
        "import sys\nprint(__name__, __package__, sys.argv[1:], sys.argv[0][-9:])")
    ours = program(tmp_path, "-m", "package.module", "x", "-y")
    assert ours.stdout == "__main__ package ['x', '-y'] module.py\n", ours
    missing = program(tmp_path, "-m", "no_such_module")
    assert missing.returncode == 1 and "No module named no_such_module" in missing.stderr


@pytest.mark.parametrize("way", ["-mneighbour", "-cprint('neighbour')"])
def test_an_option_and_its_value_in_one_word(tmp_path, way):
    (tmp_path / "neighbour.py").write_text("print('neighbour')")
    for options in [[], ["--threads", "2"]]:
        done = program(tmp_path, way, "-mx", options=options)
        assert (done.stdout, done.stderr) == ("neighbour\n", "")


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
    plain = subprocess.run(
        [sys.executable, "missing.py"], capture_output=True, text=True, cwd=tmp_path
    )
    assert (done.returncode, done.stderr) == (plain.returncode, plain.stderr)


def test_statistics_at_exit(tmp_path):
    (tmp_path / "script.py").write_text(
        "import gc, atexit\natexit.register(print, 'mine')\na = []; a.append(a); del a\n"
        "gc.collect()")
    done = program(tmp_path, "--stats", "script.py")
    assert done.stdout == "mine\n"
    assert "collections" in done.stderr and "pauses: median" in done.stderr
    done = program(tmp_path, "--stats", "--checked", "--threads", "1", "script.py")
    assert "checked: " in done.stderr


def test_statistics_name_the_collections_that_they_are_of(tmp_path):
    (tmp_path / "script.py").write_text("import gc\nfor _ in range(1_005): gc.collect()")
    done = program(tmp_path, "--stats", "script.py")
    assert done.stderr.startswith("standstill_gc: the last 1000 collections, "), done


def test_the_version(tmp_path):
    done = program(tmp_path, "--version")
    assert done.stdout == f"standstill-gc {standstill_gc.__version__}\n"


def test_the_main_module_of_a_module_lives_as_long_as_the_process(tmp_path):
    (tmp_path / "late.py").write_text("""
import atexit, pickle, sys, threading, time
class Thing: pass
def works(): print(len(pickle.dumps(Thing())) > 0, sys.argv[1:])
def late():
    time.sleep(.3); works()
threading.Thread(target=late).start()
atexit.register(works)
""")
    done = program(tmp_path, "-m", "late", "a")
    assert (done.stdout, done.stderr) == ("True ['a']\n" * 2, "")


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


# ----------------------------------------- programs of several files, and interpreters with options

@pytest.fixture(scope="module")
def isolated(tmp_path_factory):
    """An interpreter that finds the package without `PYTHONPATH`."""
    place = tmp_path_factory.mktemp("environment")
    venv.create(place, with_pip=False)
    packages, = place.glob("lib/python*/site-packages")
    (packages / "standstill_gc").symlink_to(pathlib.Path(standstill_gc.__file__).parent)
    return place / "bin" / "python"


APPLICATION = """
import sys
print(sys.argv, sys.path, __name__, __package__, __spec__ and (__spec__.name, __spec__.origin))
print(globals().get("__file__"), sorted(globals()), type(__loader__))
print(sys.modules["__main__"].__dict__ is globals(), sys.flags.isolated, sys.flags.safe_path)
"""


def application(folder, what, code):
    """Makes a program of several files, and returns its path from the folder."""
    code = APPLICATION + code + "\n"
    if what in ("script.py", "script.pyc"):
        (folder / "script.py").write_text(code)
        py_compile.compile(folder / "script.py", folder / "script.pyc", "script.py")
        return what
    inner = folder / "application"
    inner.mkdir()
    (inner / "__main__.py").write_text(code.replace("import sys", "import neighbour, sys", 1))
    (inner / "neighbour.py").write_text("print('neighbour', __name__)")
    if what == "zip file":
        zipapp.create_archive(inner, folder / "application.zip")
        return "application.zip"
    if what == "zipapp":
        zipapp.create_archive(inner, folder / "zipapp", "/usr/bin/env python")
        return "zipapp"
    return "application/" if what == "directory/" else "application"


WHATS = ["script.py", "script.pyc", "directory", "directory/", "zip file", "zipapp"]


@pytest.mark.parametrize("options, safe_path", [
    ((), ""), ((), "1"), (("-I",), ""), (("-P",), ""),
], ids=["", "PYTHONSAFEPATH", "-I", "-P"])
@pytest.mark.parametrize("what", WHATS)
@pytest.mark.parametrize("end", ["end", "error"])
def test_applications_run_as_without_the_package(
    tmp_path, isolated, what, options, safe_path, end
):
    environment = {name: os.environ[name] for name in os.environ if name != "PYTHONPATH"}
    path = application(tmp_path, what, ENDS[end])
    theirs, ours = (
        subprocess.run(
            [isolated, *options, *more, path, "a", "-m"], capture_output=True, text=True,
            timeout=DEADLINE, cwd=tmp_path, env=environment | {"PYTHONSAFEPATH": safe_path},
        )
        for more in ([], ["-m", "standstill_gc"])
    )
    assert (ours.returncode, ours.stdout) == (theirs.returncode, theirs.stdout)
    assert "neighbour" in ours.stdout or what.startswith("script")
    assert ours.stderr == theirs.stderr


@pytest.mark.parametrize("options", [(), ("-I",), ("-P",)], ids=" ".join)
def test_the_collector_is_installed_with_options(tmp_path, isolated, options):
    (tmp_path / "script.py").write_text("import gc; print(gc.collect.__module__)")
    environment = {name: os.environ[name] for name in os.environ if name != "PYTHONPATH"}
    done = subprocess.run(
        [isolated, *options, "-m", "standstill_gc", "script.py"], capture_output=True, text=True,
        timeout=DEADLINE, cwd=tmp_path, env=environment,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "standstill_gc\n", "")


@pytest.mark.parametrize("what", ["directory", "zip file"])
def test_an_application_without_a_main_module_is_an_error(tmp_path, what):
    path = application(tmp_path, what, "")
    if what == "directory":
        (tmp_path / "application" / "__main__.py").unlink()
    else:
        with zipapp.zipfile.ZipFile(tmp_path / path, "w") as file:
            file.writestr("other.py", "")
    theirs = subprocess.run([sys.executable, path], capture_output=True, text=True, cwd=tmp_path)
    ours = program(tmp_path, path)
    assert (ours.returncode, ours.stderr) == (theirs.returncode, theirs.stderr)
    assert "can't find '__main__' module" in ours.stderr

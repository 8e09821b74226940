"""The type stubs say what the package has."""

import ast
import inspect
import pathlib
import subprocess
import sys

import pytest

import standstill_gc

PLACE = pathlib.Path(standstill_gc.__file__).parent
STUB = ast.parse((PLACE / "__init__.pyi").read_text())


def names_of_the_stub():
    for statement in STUB.body:
        if isinstance(statement, ast.FunctionDef):
            yield statement.name
        elif isinstance(statement, ast.ImportFrom) and statement.module == "gc":
            yield from (alias.asname for alias in statement.names)


def test_the_package_is_marked_as_typed():
    assert (PLACE / "py.typed").exists()


def test_names():
    assert sorted(names_of_the_stub()) == sorted(standstill_gc.__all__)
    assert all(hasattr(standstill_gc, name) for name in standstill_gc.__all__)
    public = {name for name in vars(standstill_gc) if not name.startswith("_")}
    # The submodules that other tests have imported are no names of the interface.
    assert public - {"bench"} == set(standstill_gc.__all__)


@pytest.mark.parametrize(
    "function", [s for s in STUB.body if isinstance(s, ast.FunctionDef)], ids=lambda f: f.name
)
def test_signatures(function):
    def shape(signature):
        return [(p.name, p.kind, p.default) for p in signature.parameters.values()]

    defined = ast.FunctionDef(
        name=function.name, args=function.args, body=[ast.Pass()], decorator_list=[],
        type_params=[])
    for argument in [*function.args.args, *function.args.kwonlyargs]:
        argument.annotation = None
    namespace = {}
    module = ast.fix_missing_locations(ast.Module([defined], []))
    exec(compile(module, "stub", "exec"), namespace)
    ours = inspect.signature(getattr(standstill_gc, function.name))
    assert shape(ours) == shape(inspect.signature(namespace[function.name]))


def test_keys_of_statistics():
    keys = {
        s.name: {f.target.id for f in s.body if isinstance(f, ast.AnnAssign)}
        for s in STUB.body if isinstance(s, ast.ClassDef)
    }
    standstill_gc.collect()
    stats = standstill_gc.stats()
    assert set(stats) == keys["_Stats"]
    assert set(stats["pauses"]) == keys["_Pauses"]
    assert set(stats["phases"]) == keys["_Phases"]
    assert set(stats["last"]) == keys["_Collection"]
    assert set(stats["checked"]) == keys["_Checked"]


def test_stubtest():
    pytest.importorskip("mypy")
    done = subprocess.run(
        [sys.executable, "-m", "mypy.stubtest", "standstill_gc", "--ignore-missing-stub"],
        capture_output=True, text=True, timeout=300, cwd="/",
    )
    assert done.returncode == 0, done.stdout + done.stderr

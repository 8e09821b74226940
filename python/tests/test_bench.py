"""The benchmark runs, and its table and picture say what it has measured."""

import json
import pathlib
import subprocess
import sys
import xml.etree.ElementTree

import pytest

import standstill_gc.bench as bench


NAMES = ["small-1000", "pairs", "lists", "program", "service"]


def run(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "standstill_gc.bench", *arguments],
        capture_output=True, text=True, timeout=300,
    )


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    place = tmp_path_factory.mktemp("bench")
    done = run(
        "--quick", "--threads", "1,2", "--json", place / "figures.json", "--svg",
        place / "picture.svg", "--markdown", place / "table.md",
        *[word for name in NAMES for word in ("--only", name)],
    )
    # No progress bar without a terminal.
    assert (done.returncode, done.stderr) == (0, ""), done
    return place, done.stdout


def test_the_figures(files):
    place, _ = files
    report = json.loads((place / "figures.json").read_text())
    assert [case["name"] for case in report["cases"]] == NAMES
    for case in report["cases"]:
        assert list(case["rows"]) == ["gc.collect", "1 thread", "2 threads"]
        for row in case["rows"].values():
            assert 0 < row["min"] <= row["median"] <= row["max"]
    pairs = report["cases"][1]["rows"]
    assert all(0 < row["stopped"] <= row["median"] for row in pairs.values())
    assert pairs["1 thread"]["stopped"] < pairs["1 thread"]["median"]
    freed = {case["name"]: case.get("freed") for case in report["cases"]}
    assert 0 < freed.pop("pairs") < pairs["gc.collect"]["median"]
    assert set(freed.values()) == {None}
    alone = {case["name"]: case.get("alone", {}) for case in report["cases"]}
    assert list(alone["lists"]) == list(alone["small-1000"]) == ["1 thread", "2 threads"]
    assert all(seconds > 0 for case in alone.values() for seconds in case.values())
    assert list(report["hashed"]) == ["1 thread", "2 threads"]
    assert all(seconds > 0 for seconds in report["hashed"].values())


def test_the_table(files):
    place, output = files
    text = (place / "table.md").read_text()
    assert text.strip() == output.strip()
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert {line.count("|") for line in rows} == {8}
    for title in ("lists, held", "garbage: pairs, stopped", "latency p99.9", "whole run"):
        assert any(title in row for row in rows)


@pytest.mark.parametrize("name", ["sympy", "django", "pydantic"])
def test_a_heap_of_a_real_program(name):
    pytest.importorskip(name)
    done = run("--quick", "--threads", "1,2", "--only", name, "--json", "-")
    assert done.returncode == 0, done
    (case,) = json.loads(done.stdout)["cases"]
    assert case["kind"] == "held" and case["objects"] > 50_000


def test_an_application_of_django():
    pytest.importorskip("django")
    done = run("--quick", "--threads", "2", "--only", "web", "--json", "-")
    assert done.returncode == 0, done
    (case,) = json.loads(done.stdout)["cases"]
    # The number of requests depends on the speed of the machine.
    assert case["kind"] == "service" and case["objects"] > 50_000 and case["requests"] > 0
    for row in case["rows"].values():
        latencies = list(row["latency"].values())
        assert latencies == sorted(latencies) and latencies[0] > 0


def test_the_picture(files):
    place, _ = files
    root = xml.etree.ElementTree.parse(place / "picture.svg").getroot()
    width = float(root.get("width"))
    boxes = root.findall("{http://www.w3.org/2000/svg}rect")[1:]
    assert len(boxes) > 10
    assert all(float(b.get("x")) + float(b.get("width")) <= width for b in boxes)
    texts = " ".join(t.text for t in root.findall("{http://www.w3.org/2000/svg}text"))
    assert "p99.9" in texts and "lists, held" in texts


def test_a_picture_of_saved_figures(files):
    place, _ = files
    again = place / "again.svg"
    done = run("--from", place / "figures.json", "--svg", again)
    assert done.returncode == 0, done
    assert again.read_text() == (place / "picture.svg").read_text()


@pytest.mark.parametrize("arguments", [
    ["--threads", "0"], ["--threads", "x"], ["--only", "unknown"], ["more"],
])
def test_bad_options_are_errors(arguments):
    assert run(*arguments).returncode == 2


class Terminal:
    def __init__(self):
        self.written = ""

    def isatty(self):
        return True

    def write(self, text):
        self.written += text

    def flush(self):
        pass


def test_the_progress_bar():
    terminal = Terminal()
    bar = bench._Bar(4, terminal)
    bar.show(0, "first")
    bar.show(2, "third")
    assert "[" + "." * 30 + "]   0 %  first" in terminal.written
    assert "[" + "#" * 15 + "." * 15 + "]  50 %  third" in terminal.written
    bar.end()
    assert terminal.written.endswith("\r")


def test_it_runs_in_the_directory_of_the_sources():
    """As the README says: with ``-P``, the sources without an extension are not imported."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "standstill_gc.bench", "--quick", "--only", "small-1000"],
        capture_output=True, text=True, timeout=300,
        cwd=pathlib.Path(__file__).resolve().parent.parent,
    )
    assert (done.returncode, done.stderr) == (0, ""), done


def test_a_collection_that_was_left_to_cpython_is_an_error():
    assert bench._timed(bench.standstill_gc.collect)[1] > 0
    with pytest.raises(SystemExit, match="left to CPython"):
        # Another function than the one that the benchmark measures.
        bench._timed(lambda: bench._cpython())

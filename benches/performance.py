#!/usr/bin/env python3
"""Makes docs/performance.md, and the charts beside it, from what benches/all.sh has measured.

    python3 benches/performance.py FOLDER [PAGE]

The page's own words are in benches/performance.in.md; a line `{{name}}` stands for the file `name`
of the folder, `{{run}}` for the version and the machine, `{{goals}}` for the table of goals, which
is computed here. Missing figures are named as such.
"""

import json
import pathlib
import re
import shutil
import statistics
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
THREADS = (1, 2, 4, 16, 64)
# The figures of the independent harness, by the first words of the row. It ran the same workloads
# on another processor, with an earlier version.
HARNESS = {
    "W2: cycle churn, T = 1": "1.26–1.5",
    "W2: throughput, T = 2": "1.15–1.24",
    "W2: throughput, T = 4": "0.43",
    "W2: throughput, T = 64": "0.24",
    "W4 tree, counts alone: touched": "0.8–1.7",
    "W4 graph, counts alone: first": "0.35",
    "W4 tree, two workers": "0.54–0.69",
    "W4 graph, two workers": "0.56–0.68",
    "W5 garbage": "1.3–2.6",
    "W5, two workers": "1.3",
    "W7 handed over, T = 1": "1.3–1.4",
    "W7 hot object, T = 1": "1.44",
    "W7 hot object, T = 2": "1.78",
    "W7 hot object, T = 4": "2.0",
    "graph of 10^7": "1.95",
    "sympy, Vec: held, one worker, beside CPython": "0.98",
    "django, Vec: held, one worker, beside CPython": "1.02",
    "sympy, Vec: held, two workers": "0.72–0.77",
    "django, Vec: held, two workers": "0.72–0.77",
    "array of 1,000,000": "1.81",
    "array of 4,000,000": "6.60",
    "first weak reference to each of 100,000": "137",
    "first weak reference to each of 3,000,000": "254",
    "garbage with a weak reference": "2.5",
    "allocate and drop objects of 160 kB": "27",
    "memory of 955": "68",
    "at the peak of a collection, all live, 1": "80",
    "at the peak of a collection, all garbage, 1": "82",
    "young collection asked for every 20 ms, beside 64 busy threads; the same": "1500",
    "attach to a heap, and drop the mutator": "2000–9000",
    "detach and attach, of a heap": "13.4",
}


def read_lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def median(values):
    values = [value for value in values if value is not None]
    return statistics.median(values) if values else None


def ratio(a, b):
    return a / b if a is not None and b else None


class Versus:
    """The medians of benches/versus."""

    def __init__(self, path):
        self.lines = [line for line in read_lines(path) if line["outcome"] == "ok"]

    def median(self, workload, contestant, threads=1, figure=None):
        """In nanoseconds a unit; or `figure` of a line."""
        figure = figure or (lambda line: line["ns"])
        wanted = (workload, contestant, threads)
        lines = (line for line in self.lines if (line["workload"], line["contestant"], line["threads"]) == wanted)
        return median(figure(line) for line in lines)


def fact(name):
    return lambda line: line["facts"][name] / line["n"] if name in line["facts"] else None


def throughput(line):
    return line["threads"] * line["n"] / line["wall_s"]


def cell(page, row, column, section=""):
    """The first number in a column of the table row that begins with `row`, after the heading
    `section`; if there is one."""
    text = page.read_text() if page.exists() else ""
    _, _, text = text.partition(section) if section else ("", "", text)
    found = re.search(rf"^\| {re.escape(row)} \|.*$", text, flags=re.M)
    number = found and re.search(r"[\d.]+", found[0].split("|")[column])
    return float(number[0]) if number else None


class Goals:
    """The table of goals."""

    def __init__(self):
        self.rows = ["| work | goal | measured | harness | |", "|---|---|---:|---:|---|"]

    def row(self, what, goal, value, at_most=True):
        known = [figure for name, figure in HARNESS.items() if re.match(rf"{re.escape(name)}\b", what)]
        harness = known[0] if known else ""
        if value is None:
            self.rows.append(f"| {what} | {goal} | not measured | {harness} | |")
            return
        limit = float(re.search(r"[\d.]+", goal)[0])
        met = "reached" if (value <= limit if at_most else value >= limit) else "**missed**"
        self.rows.append(f"| {what} | {goal} | {value:.2f} | {harness} | {met} |")

    def versus(self, folder):
        v = Versus(folder / "results.jsonl")
        ours = lambda *args, **figure: v.median(args[0], "standstill", *args[1:], **figure)
        hint = lambda workload: v.median(workload, "standstill-hint")
        arena = lambda workload, **figure: v.median(workload, "gc-arena", **figure)

        def beside_arc(what, workload, goal, name="standstill"):
            for t in THREADS:
                self.row(f"{what}, T = {t}", goal, ratio(v.median(workload, name, t), v.median(workload, "Arc", t)))

        beside_arc("W1 allocate and drop", "W1", "≤ 0.5 x Arc")
        for what, name in [("W2", "standstill"), ("W2 with GcVec", "standstill-gcvec")]:
            churn = lambda t, **figure: v.median("W2", name, t, **figure)
            alone = v.median("W2", "rust-cc")
            self.row(f"{what}: cycle churn, T = 1", "≤ 1.0 x rust-cc", ratio(churn(1), alone))
            for t in THREADS[1:]:
                least = 1.7 if t == 2 else 1.5
                value = ratio(churn(t, figure=throughput), churn(1, figure=throughput))
                self.row(f"{what}: throughput, T = {t}", f"≥ {least} x that of T = 1", value, at_most=False)
        self.row("W3 GCBench with parent links", "≤ 1.0 x gc-arena", ratio(ours("W3"), arena("W3")))
        pauses = [
            ("tree", "W4t", 0.8),
            ("tree, edge buffers in random order", "W4tr", 0.8),
            ("graph", "W4g", 0.25),
            ("graph, edge buffers in allocation order", "W4ga", 0.25),
            ("graph, edge buffers in random order", "W4gr", 0.25),
        ]
        for what, workload, goal in pauses:
            for when, figure in [("first", fact("first_ns")), ("idle", fact("idle_ns")), ("touched", None)]:
                value = ratio(ours(workload, figure=figure), arena(workload, figure=figure))
                self.row(f"W4 {what}, counts alone: {when}", f"≤ {goal} x gc-arena", value)
        for what, workload, goal in [("tree", "W4t", 0.8), ("graph", "W4g", 0.25)]:
            for when, figure in [("first", fact("first_ns")), ("idle", fact("idle_ns")), ("touched", None)]:
                value = v.median(workload, "standstill-gcvec", figure=figure)
                value = ratio(value, arena(workload, figure=figure))
                self.row(f"W4 {what} with GcVec: {when}", f"≤ {goal} x gc-arena", value)
        self.row("W4 tree, root named: touched", "≤ 1.0 x gc-arena", ratio(hint("W4t"), arena("W4t")))
        self.row("W4 graph, root named: touched", "≤ 0.25 x gc-arena", ratio(hint("W4g"), arena("W4g")))
        self.row("W4 tree, two workers", "≤ 0.55 x one", ratio(ours("W4t", 2), ours("W4t")))
        self.row("W4 graph, two workers", "≤ 0.55 x one", ratio(ours("W4g", 2), ours("W4g")))
        self.row("W5 garbage", "≤ 1.0 x gc-arena", ratio(ours("W5"), arena("W5")))
        self.row("W5 with GcVec: garbage", "≤ 1.0 x gc-arena", ratio(v.median("W5", "standstill-gcvec"), arena("W5")))
        self.row("W5, two workers", "≤ 0.7 x one", ratio(ours("W5", 2), ours("W5")))
        stopped = ours("W5", figure=fact("stopped_ns"))
        self.row("W5, the stopped part", "≤ 0.4 x gc-arena", ratio(stopped, arena("W5")))
        beside_arc("W6 shared graph", "W6", "≤ 2 x Arc")
        beside_arc("W7 own object", "W7own", "≤ 0.15 x Arc")
        beside_arc("W7 handed over", "W7over", "≤ 0.2 x Arc")
        beside_arc("W7 hot object", "W7hot", "≤ 1.5 x Arc")
        beside_arc("W7 hot object, SharedGc", "W7hot", "≤ 1.05 x Arc", "standstill-shared")

    def growth(self, folder):
        held = lambda n: median(
            line["value"]
            for line in read_lines(folder / "growth.jsonl")
            if (line["shape"], line["n"], line["workers"], line["what"]) == ("random", n, 1, "held")
        )
        self.row("graph of 10^7 objects, an object", "≤ 1.3 x of 10^6", ratio(held(10**7), held(10**6)))

    def heaps(self, folder):
        page = folder / "heaps.md"
        text = page.read_text() if page.exists() else ""
        # The goals are for the free-threaded CPython: one with a GIL is slower.
        beside = re.search(r"^\| CPython [^|]*free-threaded \|", text, flags=re.M)
        for heap in re.findall(r"^## (.+): [\d,]+ objects", text, flags=re.M):
            for layout in ("Vec", "Vec, root named", "inline", "inline, root named"):
                of = lambda workers, column: cell(page, f"{layout} | {workers}", column, f"## {heap}:")
                held = f"{heap}, {layout}: held"
                self.row(f"{held}, one worker", "≤ 3 x the ideal mark", of(1, 5))
                one, two = (of(1, 6), of(2, 6)) if beside else (None, None)
                self.row(f"{held}, one worker, beside CPython", "≤ 0.5 x CPython", one)
                self.row(f"{held}, two workers", "≤ 0.35 x CPython", two)

    def stops(self, folder):
        previous = ""
        for line in read_lines(folder / "stops.jsonl"):
            name, unit, goal = line["name"], line["unit"], line["goal"]
            if goal is not None:
                what = f"{previous}; {name}" if name.startswith("the same") else name
                self.row(what, f"≤ {goal:g} {unit}", median(line["values"]))
            previous = previous if name.startswith("the same") else name

    def load(self, folder):
        value = cell(folder / "load.md", "1", 5, "Building")
        self.row("building 4 million objects, T = 1", "≤ 15 ns an object in the collector", value)


def goals(folder):
    table = Goals()
    for part in (table.versus, table.growth, table.heaps, table.stops, table.load):
        part(folder)
    return "\n".join(table.rows)


def run(folder):
    """The version and the machine of the figures."""
    version = (folder / "version").read_text().strip() if (folder / "version").exists() else "unknown"
    stops = (folder / "stops.md").read_text() if (folder / "stops.md").exists() else ""
    machine = re.search(r"^(.+); \d+ rounds\.$", stops, flags=re.M)
    return f"Version {version}; {machine[1] if machine else 'unknown machine'}."


def main():
    folder = pathlib.Path(sys.argv[1])
    page = pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else ROOT / "docs" / "performance.md"
    charts = page.parent / "performance"
    shutil.rmtree(charts, ignore_errors=True)
    charts.mkdir(parents=True)
    for chart in sorted(folder.glob("*.svg")):
        shutil.copy(chart, charts)

    def included(match):
        name = match[1]
        if name in ("goals", "run"):
            return globals()[name](folder)
        if not (folder / name).exists():
            return f"({name} was not measured.)"
        if name.endswith(".svg"):
            return f"![{name.removesuffix('.svg')}](performance/{name})"
        # Headings one or two levels below the page's own.
        return re.sub(r"^(#+) ", r"##\1 ", (folder / name).read_text().strip(), flags=re.M)

    text = (ROOT / "benches" / "performance.in.md").read_text()
    page.write_text(re.sub(r"^\{\{(.+)\}\}$", included, text, flags=re.M))


if __name__ == "__main__":
    main()

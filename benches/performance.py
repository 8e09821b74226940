#!/usr/bin/env python3
"""Makes docs/performance.md, and the charts beside it, from what benches/all.sh has measured.

    python3 benches/performance.py FOLDER

The page's own words are in benches/performance.in.md; a line `{{name}}` stands for the file `name` of the folder, `{{goals}}`
for the table of goals, which is computed here.
"""

import json
import pathlib
import re
import shutil
import statistics
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent


class Versus:
    """The medians of benches/versus."""

    def __init__(self, path):
        self.lines = [json.loads(line) for line in path.read_text().splitlines()]

    def values(self, workload, contestant, threads, fact=None):
        for line in self.lines:
            here = (line["workload"], line["contestant"], line["threads"])
            if here == (workload, contestant, threads) and line["outcome"] == "ok" and line["ns"] is not None:
                yield line["ns"] if fact is None else dict(line["facts"])[fact] / line["n"]

    def median(self, *args, **kwargs):
        values = list(self.values(*args, **kwargs))
        return statistics.median(values) if values else None

    def best_rival(self, workload, threads=1):
        names = {line["contestant"] for line in self.lines}
        names -= {"standstill", "standstill-hint", "Arc"}
        medians = (self.median(workload, name, threads) for name in names)
        return min(filter(None, medians), default=None)


def cell(page, row, column, section=""):
    """The first number in a column of the table row that begins with `row`, after the heading `section`; if there is one."""
    text = page.read_text()
    found = re.search(rf"^\| {re.escape(row)} \|.*$", text[text.index(section) :], flags=re.M)
    number = found and re.search(r"[\d.]+", found[0].split("|")[column])
    return float(number[0]) if number else None


def goals(folder):
    v = Versus(folder / "results.jsonl")
    ours = lambda workload, threads=1, **fact: v.median(workload, "standstill", threads, **fact)
    hint = lambda workload, threads=1: v.median(workload, "standstill-hint", threads)
    arc = lambda workload, threads=1: v.median(workload, "Arc", threads)
    arena = lambda workload: v.median(workload, "gc-arena", 1)
    rows = []

    def row(what, goal, value, at_most=True):
        if value is None:
            rows.append(f"| {what} | {goal} | not measured | |")
            return
        met = value <= float(re.search(r"[\d.]+", goal)[0]) if at_most else value >= float(re.search(r"[\d.]+", goal)[0])
        rows.append(f"| {what} | {goal} | {value:.2f} | {'reached' if met else '**missed**'} |")

    def ratio(a, b):
        return a / b if a is not None and b else None

    for t in (1, 2, 4):
        row(f"W1 allocate and drop, T = {t}", "≤ 0.5 x Arc", ratio(ours("W1", t), arc("W1", t)))
    row("W2 cycle churn, T = 1", "≤ 0.75 x rust-cc", ratio(ours("W2"), v.median("W2", "rust-cc", 1)))
    # Core nanoseconds: twice the throughput is the same figure.
    row("W2 throughput, T = 2", "≥ 1.7 x that of T = 1", ratio(2 * (ours("W2") or 0), ours("W2", 2)), at_most=False)
    row("W3 GCBench with parent links", "≤ 1.0 x gc-arena", ratio(ours("W3"), arena("W3")))
    row("W4 tree, counts alone", "≤ 1.3 x gc-arena", ratio(ours("W4t"), arena("W4t")))
    row("W4 tree, root named", "≤ 1.0 x gc-arena", ratio(hint("W4t"), arena("W4t")))
    row("W4 graph, counts alone", "≤ 0.25 x gc-arena", ratio(ours("W4g"), arena("W4g")))
    row("W4 graph, root named", "≤ 0.25 x gc-arena", ratio(hint("W4g"), arena("W4g")))
    row("W4 tree, two workers", "≤ 0.6 x one", ratio(ours("W4t", 2), ours("W4t")))
    row("W4 graph, two workers", "≤ 0.6 x one", ratio(ours("W4g", 2), ours("W4g")))
    row("W5 garbage", "≤ 0.75 x gc-arena", ratio(ours("W5"), arena("W5")))
    row("W5, the stopped part", "≤ 0.4 x gc-arena", ratio(ours("W5", fact="stopped_ns"), arena("W5")))
    for t in (1, 2, 4):
        row(f"W6 shared graph, T = {t}", "≤ 2 x Arc", ratio(ours("W6", t), arc("W6", t)))
    for t in (1, 2, 4):
        row(f"W7 own object, T = {t}", "≤ 0.15 x Arc", ratio(ours("W7own", t), arc("W7own", t)))
    for t in (1, 2, 4):
        row(f"W7 hot object, T = {t}", "≤ 1.3 x Arc", ratio(ours("W7hot", t), arc("W7hot", t)))
    for heap in re.findall(r"^## (.+): [\d,]+ objects", (folder / "heaps.md").read_text(), flags=re.M):
        for layout in ("Vec", "Vec, root named", "inline", "inline, root named"):
            of = lambda column: cell(folder / "heaps.md", f"{layout} | 1", column, f"## {heap}:")
            row(f"{heap}, {layout}: held", "≤ 3 x the ideal mark", of(5))
            row("the same", "≤ 0.25 x CPython", of(6))
    stops = lambda name: cell(folder / "stops.md", name, 2)
    row("young, 10^4 new beside 10^7 old", "≤ 1 ms", stops("the same: from start to end"))
    row("building 4 million objects, T = 1", "≤ 15 ns an object in the collector", cell(folder / "load.md", "1", 5, "Building"))
    row("stop and resume with 1,000 detached threads, the coordinator", "≤ 2 us", stops("stop and resume, 1,000 threads detached"))
    row("the same, of a heap", "≤ 2 us", stops("the same, of a heap"))
    row("stop and resume with one running thread", "≤ 5 us", stops("the same stop and resume, of a heap"))
    row("attach and detach, the coordinator", "≤ 13 ns", stops("attach and detach"))
    row("the same, of a heap", "≤ 13 ns", stops("detach and attach, of a heap"))
    row("memory at the peak, all live", "≤ 75 bytes an object", stops("at the peak of a collection, all live, 1 worker"))
    row("memory at the peak, all garbage", "≤ 75 bytes an object", stops("at the peak of a collection, all garbage, 1 worker"))
    return "\n".join(["| work | goal | measured | |", "|---|---|---:|---|", *rows])


def main():
    folder = pathlib.Path(sys.argv[1])
    charts = ROOT / "docs" / "performance"
    shutil.rmtree(charts, ignore_errors=True)
    charts.mkdir()
    for chart in sorted(folder.glob("*.svg")):
        shutil.copy(chart, charts)

    def included(match):
        name = match[1]
        if name == "goals":
            return goals(folder)
        if name.endswith(".svg"):
            assert (charts / name).exists(), f"{name} is missing in {folder}"
            return f"![{name.removesuffix('.svg')}](performance/{name})"
        # Headings one or two levels below the page's own.
        return re.sub(r"^(#+) ", r"##\1 ", (folder / name).read_text().strip(), flags=re.M)

    text = (ROOT / "benches" / "performance.in.md").read_text()
    page = re.sub(r"^\{\{(.+)\}\}$", included, text, flags=re.M)
    (ROOT / "docs" / "performance.md").write_text(page)


if __name__ == "__main__":
    main()

"""Counts the instructions that a collection takes for each object. Unlike times they repeat.

    python python/instructions.py [KIND...]     lists, instances, tuples, graph (default: all);
                                                pairs, closures, finalizers: garbage

It needs valgrind, and an interpreter with the package installed. Each count comes from a process of
its own, in which the collector of its column collects ROUNDS times, on one thread.
"""

import re
import shutil
import subprocess
import sys

OBJECTS, ROUNDS = 100_000, 2
HELD = ["lists", "instances", "tuples", "graph"]
GARBAGE = ["pairs", "closures", "finalizers"]
# Functions that are entered once for each collection.
ENTRIES = {"gc.collect": "gc_collect_main", "standstill": "*interface*collect*"}

PROGRAM = f"""
import gc, sys
from standstill_gc import bench
import standstill_gc
kind, name = sys.argv[1:]
make = getattr(bench, kind)
collect = bench._cpython if name == "gc.collect" else lambda: standstill_gc.collect(threads=1)
gc.disable()
held = make({OBJECTS})
for _ in range({ROUNDS}):
    collect()
    if kind in {GARBAGE}:
        make({OBJECTS})
"""


def instructions(kind, name):
    """Instructions for each object."""
    done = subprocess.run(
        ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", "--collect-atstart=no",
         f"--toggle-collect={ENTRIES[name]}", sys.executable, "-c", PROGRAM, kind, name],
        capture_output=True, text=True,
    )
    counted = re.search(r"Collected : (\d+)", done.stderr)
    if done.returncode or not counted or counted[1] == "0":
        raise SystemExit(f"{kind}, {name}: nothing was counted\n{done.stderr}")
    return int(counted[1]) / OBJECTS / ROUNDS


def main(kinds):
    unknown = set(kinds) - {*HELD, *GARBAGE}
    if unknown:
        raise SystemExit(f"unknown: {', '.join(sorted(unknown))}\n\n{__doc__}")
    if not shutil.which("valgrind"):
        raise SystemExit("there is no valgrind: apt-get install -y valgrind")
    print("| instructions for each object | gc.collect | standstill | |")
    print("|---|--:|--:|--:|")
    for kind in kinds or [*HELD, *GARBAGE]:
        theirs, ours = (instructions(kind, name) for name in ENTRIES)
        print(f"| {kind} | {theirs:.0f} | {ours:.0f} | {ours / theirs:.2f} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])

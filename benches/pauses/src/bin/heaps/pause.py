"""Builds a graph of lists and times gc.collect(): with everything held, and with everything dropped.

Arguments: the graph's file (see graph.rs), and how many collections to time with everything held. Prints a line of
JSON. Automatic collections are off throughout.
"""

import array
import gc
import json
import sys
import time


def read(path):
    """Where each node's edges begin, and the edges' targets."""
    numbers = array.array("I")
    with open(path, "rb") as file:
        numbers.frombytes(file.read())
    if sys.byteorder == "big":
        numbers.byteswap()
    nodes = numbers[0]
    return numbers[2 : nodes + 3], numbers[nodes + 3 :]


def build(offsets, targets):
    """A list for each node, which holds the lists of its targets; the root's list holds them all."""
    nodes = [[] for _ in range(len(offsets) - 1)]
    for node, start, end in zip(nodes, offsets, offsets[1:]):
        node.extend([nodes[target] for target in targets[start:end]])
    return nodes[0]


def lists():
    """How many lists there are."""
    return sum(type(thing) is list for thing in gc.get_objects())


def measure(path, collections):
    clock = time.perf_counter_ns
    held, failed = [], []
    gc.disable()
    gc.collect()
    offsets, targets = read(path)
    before = lists()
    root = build(offsets, targets)
    nodes = len(offsets) - 1
    if lists() - before != nodes:
        failed.append(f"{lists() - before} lists for {nodes} nodes")

    gc.collect()
    for _ in range(collections):
        begun = clock()
        found = gc.collect()
        held.append((clock() - begun) / 1e6)
        if found:
            failed.append(f"{found} objects were garbage while everything was held")

    begun = clock()
    del root
    counted = clock()
    gc.collect()
    ended = clock()
    if lists() != before:
        failed.append(f"{lists() - before} lists are left")
    return {
        "held_ms": held,
        "dropped_ms": (ended - begun) / 1e6,
        "dropped_collecting_ms": (ended - counted) / 1e6,
        "failed": failed,
    }


print(json.dumps(measure(sys.argv[1], int(sys.argv[2]))))

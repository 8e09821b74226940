"""Threads that make garbage without a pause: how much memory it takes, and how long a thread waits.

    python python/outrun.py [KIND...] [--seconds 6] [--threads 2 4]    finalizers, pairs, closures

It needs an interpreter with the package installed. Each row is two processes, one for each
collector, with automatic collections and 200,000 live lists. The memory is the peak of the resident
set in the last second. The wait is the longest time that 100 cycles have taken in any thread.
"""

import argparse
import os
import subprocess
import sys

LIVE = 200_000


class Node:
    pass


class Final:
    def __del__(self):
        pass


def finalizers():
    one = Final()
    one.self = one


def pairs():
    one, two = Node(), Node()
    one.other, two.other = two, one


def closures():
    def function():
        return function


KINDS = {function.__name__: function for function in (finalizers, pairs, closures)}


def resident():
    """Bytes of this process in memory."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def run(kind, threads, seconds, is_ours):
    """Prints the memory and the wait."""
    import threading
    import time

    live = [[] for _ in range(LIVE)]
    if is_ours:
        import standstill_gc
        standstill_gc.enable()
    make, end, waits = KINDS[kind], time.monotonic() + seconds, []

    def work():
        longest = 0.0
        while (begun := time.monotonic()) < end:
            for _ in range(100):
                make()
            longest = max(longest, time.monotonic() - begun)
        waits.append(longest)

    group = [threading.Thread(target=work) for _ in range(threads)]
    for thread in group:
        thread.start()
    peak = 0
    while (now := time.monotonic()) < end:
        if now > end - 1:
            peak = max(peak, resident())
        time.sleep(0.01)
    for thread in group:
        thread.join()
    assert len(live) == LIVE
    print(peak, max(waits))
    sys.stdout.flush()
    # The garbage that is left would be cleared at the exit.
    os._exit(0)


def measure(*arguments):
    # Without this folder on the path, which has the package's source.
    command = [sys.executable, "-P", __file__, "--run", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode or done.stderr:
        raise SystemExit(f"{command} ended with {done.returncode}\n{done.stderr}")
    memory, wait = done.stdout.split()
    return f"{int(memory) / 1e6:.0f} MB, {float(wait) * 1e3:.0f} ms"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=", ".join(KINDS))
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--threads", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--run", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        kind, threads, seconds, is_ours = options.run
        return run(kind, int(threads), float(seconds), is_ours == "True")
    if unknown := set(options.kinds) - KINDS.keys():
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    print("| cycles | threads | gc | standstill_gc |")
    print("|---|--:|--:|--:|")
    for threads in options.threads:
        for kind in options.kinds or KINDS:
            row = [measure(kind, threads, options.seconds, is_ours) for is_ours in (False, True)]
            print(f"| {kind} | {threads} | {row[0]} | {row[1]} |", flush=True)


if __name__ == "__main__":
    main()

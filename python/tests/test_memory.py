"""Memory is equal before and after many collections."""

import os
import subprocess
import sys
import textwrap

import pytest

ROUNDS = int(os.environ.get("STANDSTILL_GC_ROUNDS", "25"))

PROGRAM = """
    import ctypes, gc, os, sys, threading, weakref
    import standstill_gc
    gc.disable()
    gc.collect()
    rounds = int(sys.argv[1])

    class Node: pass
    class Final:
        def __del__(self): pass

    def garbage(n):
        for _ in range(n):
            a = Node(); a.me = a; a.list = [a]
            def f(): return f
            b = Final(); b.b = b; b.weak = weakref.ref(b, print)
        type("Made", (), {})

    def resident():
        # The C library gives back what it can.
        ctypes.CDLL(None).malloc_trim(0)
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def measure():
        for _ in range(3): collect()
        return resident(), sys.getallocatedblocks(), len(gc.get_objects())

    def many():
        for _ in range(rounds):
            step()
            collect()

    collect = standstill_gc.collect
"""

END = """
    for _ in range(3): many()
    before = measure()
    many()
    middle = measure()
    many()
    after = measure()
    print(*before, *middle, *after)
"""


def measure(step, *, rounds=ROUNDS, setup=""):
    done = subprocess.run(
        [sys.executable, "-c",
         textwrap.dedent(PROGRAM) + textwrap.dedent(setup) + textwrap.dedent(step)
         + textwrap.dedent(END), str(rounds)],
        capture_output=True, text=True, timeout=600,
    )
    assert (done.returncode, done.stderr) == (0, ""), done
    numbers = list(map(int, done.stdout.split()))
    return numbers[:3], numbers[3:6], numbers[6:]


STEPS = {
    "nothing": "def step(): pass",
    "garbage": "def step(): garbage(1000)",
    "threads": """
        def step():
            group = [threading.Thread(target=garbage, args=(300,)) for _ in range(3)]
            for thread in group: thread.start()
            for thread in group: thread.join()
    """,
    "live objects that change": """
        live = []
        def step():
            live.append([Node() for _ in range(2000)])
            if len(live) > 5: del live[0]
    """,
    "collections on many threads": """
        def step():
            def work():
                garbage(200); standstill_gc.collect()
            group = [threading.Thread(target=work) for _ in range(3)]
            for thread in group: thread.start()
            for thread in group: thread.join()
    """,
    "install and uninstall": """
        def step():
            standstill_gc.install(); garbage(300); standstill_gc.uninstall()
    """,
    "checked mode": """
        standstill_gc.set_checked(True)
        def step(): garbage(100)
    """,
    "callbacks and debug flags": """
        gc.callbacks.append(lambda phase, info: garbage(1))
        def step():
            gc.set_debug(gc.DEBUG_SAVEALL); garbage(100); collect()
            gc.set_debug(0); gc.garbage.clear()
    """,
    "forks": """
        import warnings; warnings.simplefilter("ignore")
        def step():
            garbage(300)
            pid = os.fork()
            if not pid:
                garbage(100); collect(); os._exit(0)
            assert os.waitpid(pid, 0)[1] == 0
    """,
}

# What the allocators keep or give back as they like: pages that are not full, and the C library's.
NOISE = 3 << 20


@pytest.mark.parametrize("name", STEPS)
def test_memory_is_equal(name):
    before, middle, after = measure(STEPS[name])
    grown = min(after[0] - middle[0], middle[0] - before[0])
    assert grown < NOISE, f"resident memory grew by {grown} bytes in each of two parts"
    assert after[2] - middle[2] < 50 or middle[2] - before[2] < 50, "objects are left"
    if name != "threads":
        # The allocator counts frees on pages of ended threads when it uses these again.
        assert after[1] - middle[1] < 500 or middle[1] - before[1] < 500, "blocks are left"


def test_one_reference_too_many_is_noticed():
    """The measure sees a leak of some objects for each collection."""
    before, middle, after = measure(
        STEPS["garbage"], setup="leak = []\ncollect = lambda: "
        "(standstill_gc.collect(), leak.append([Node() for _ in range(10)]))\n")
    assert middle[2] - before[2] >= 10 * ROUNDS and after[2] - middle[2] >= 10 * ROUNDS


# Threads of a program that live shortly, and leave garbage on pages of ended threads.
SHORT_THREADS = """
    import gc, sys, threading
    if sys.argv[1] == "package":
        import standstill_gc
        standstill_gc.enable()
        assert standstill_gc.installed()

    def work():
        a = [[i] for i in range(50)]
        a.append(a)

    def many(count):
        for _ in range(count // 10):
            group = [threading.Thread(target=work) for _ in range(10)]
            for thread in group: thread.start()
            for thread in group: thread.join()

    many(1000)
    gc.collect()
    many(10_000)
    gc.collect()
    with open("/proc/self/status") as file:
        print(*(line.split()[1] for line in file if line.startswith(("VmHWM", "VmRSS"))))
"""


def test_ten_thousand_short_threads_take_no_more_memory_than_with_cpython():
    most, now = {}, {}
    for which in ("cpython", "package"):
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(SHORT_THREADS), which],
            capture_output=True, text=True, timeout=600,
        )
        assert (done.returncode, done.stderr) == (0, ""), done
        most[which], now[which] = (int(number) << 10 for number in done.stdout.split())
    # With the package more collections run, and less garbage lies there.
    assert now["package"] < now["cpython"] + NOISE, now
    assert most["package"] < most["cpython"] + 2 * NOISE, most

"""What the tests of the interface share."""


import contextlib
import gc
import os
import signal
import subprocess
import sys
import textwrap

import pytest

import standstill_gc

cpython = standstill_gc._cpython["collect"]
both = pytest.mark.parametrize(
    "collect", [cpython, standstill_gc.collect], ids=["cpython", "standstill"]
)
DEADLINE = 120

# A shell starts a job in the background with SIGINT ignored, and each child would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def run(code, *, arguments=(), options=(), **environment):
    """Runs a program in a new interpreter, and returns what it has written and its exit code."""
    done = subprocess.run(
        [sys.executable, *options, "-c", textwrap.dedent(code), *arguments],
        capture_output=True, text=True, timeout=DEADLINE, env=os.environ | environment,
    )
    return done


def good(code, **more):
    """The output of a program that must end well, without a word on its standard error."""
    done = run(code, **more)
    assert (done.returncode, done.stderr) == (0, ""), (done.returncode, done.stderr, done.stdout)
    return done.stdout.split()


# The system gives the process this many bytes more, and refuses others.
REFUSE = """
import re, resource
def refuse_more_than(size):
    with open("/proc/self/status") as file:
        has = int(re.search(r"VmSize:\\s+(\\d+)", file.read())[1]) << 10
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (has + size, most))
def refuse_nothing():
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
"""


class Node:
    pass


def cycles(n, make=Node):
    for _ in range(n):
        node = make()
        node.self = node


def near(result, n):
    """Whether a result is `n`, or more by what the interpreter and pytest leave now and then."""
    return n <= result <= n + 300


@pytest.fixture(autouse=True)
def quiet():
    """No automatic collection, and nothing left of other tests."""
    assert standstill_gc.active(), standstill_gc.inactive_reason()
    standstill_gc.uninstall()
    # There are 1,000 records at most. After that, their number stands still.
    standstill_gc._extension.forget_records()
    enabled = gc.isenabled()
    gc.disable()
    gc.collect()
    threshold = gc.get_threshold()
    # So automatic collections depend on the number of new objects alone.
    gc.set_threshold(threshold[0], 0)
    yield
    standstill_gc.uninstall()
    standstill_gc.set_checked(False)
    gc.set_debug(0)
    gc.unfreeze()
    gc.garbage.clear()
    gc.callbacks.clear()
    gc.set_threshold(*threshold)
    if enabled:
        gc.enable()


@contextlib.contextmanager
def unraisable():
    """The unraisable errors, as texts."""
    seen, hook = [], sys.unraisablehook
    sys.unraisablehook = lambda error: seen.append(
        (type(error.exc_value).__name__, str(error.exc_value), error.err_msg,
         getattr(error.object, "__name__", type(error.object).__name__))
    )
    try:
        yield seen
    finally:
        sys.unraisablehook = hook


# Begins a program with exceptions that another thread raises.
INTERRUPTED = """
import ctypes, gc, random, sys, threading, time
import standstill_gc

class Interrupt(BaseException):
    pass

def interrupts(work, count, check=lambda: None):
    \"\"\"Runs `work` again and again on a thread, which receives `count` exceptions.
    Calls `check` after each.\"\"\"
    received, rounds, wanted = [], [0], True
    def run():
        while wanted:
            try:
                while wanted:
                    rounds[0] += 1
                    work()
            except Interrupt:
                check()
                received.append(1)
    thread = threading.Thread(target=run)
    thread.start()
    # An exception before its `try` would end the thread.
    while not rounds[0]:
        time.sleep(0.001)
    for _ in range(count):
        before = len(received)
        raised = ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(thread.ident), ctypes.py_object(Interrupt))
        assert raised == 1
        # One that arrives in a callback of the interpreter is lost.
        end = time.monotonic() + 1.0
        while len(received) == before and time.monotonic() < end:
            pass
        # The next one shall not meet the handler of this one.
        begun = rounds[0]
        while rounds[0] == begun:
            assert thread.is_alive()
        # It arrives somewhere in the work.
        end = time.perf_counter() + random.random() * 2e-4
        while time.perf_counter() < end:
            pass
    assert len(received) > count / 2, len(received)
    wanted = False
    thread.join()
"""


def interrupted(code):
    """Such a program must write "done"."""
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED + code], capture_output=True, text=True, timeout=200,
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done

"""Threads that make garbage faster than a collection clears it are held up."""

import pathlib
import subprocess
import sys

from support import good, quiet  # noqa: F401

# Two threads that outrun the thread of the package, until `over` is set.
PROGRAM = """
import gc, os, signal, sys, threading, time
import standstill_gc
class Final:
    def __del__(self): pass
over, live = threading.Event(), [[i] for i in range(100_000)]
def work(make=Final):
    while not over.is_set():
        for _ in range(100):
            a = make(); a.a = a
def held(): return standstill_gc.stats()["held_up"]["count"]
def wait_for(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(.005)
def start(number=2, work=work):
    threads = [threading.Thread(target=work, daemon=True) for _ in range(number)]
    for thread in threads: thread.start()
    return threads
standstill_gc.enable()
"""


MEMORY = """
def rss():
    with open("/proc/self/statm") as file: return int(file.read().split()[1]) * 4 // 1024
threads, most = start(), 0
end = time.monotonic() + 6
while time.monotonic() < end:
    most = max(most, rss()); time.sleep(.01)
over.set()
for thread in threads: thread.join()
print(held() > 0, most)
"""


def test_memory_stays_bounded():
    # Other programs on the machine may delay the collecting thread. So one run of three is enough.
    runs = (good(PROGRAM + MEMORY) for _ in range(3))
    assert any(held == "True" and int(most) < 1500 for held, most in runs)


def test_a_finalizer_may_need_a_lock_of_a_thread_that_is_held_up():
    out = good(PROGRAM + """
lock, runs = threading.Lock(), [0]
class Locks:
    def __del__(self):
        with lock: runs[0] += 1
def locks():
    while not over.is_set():
        with lock:
            for _ in range(100):
                a = Locks(); a.a = a
threads = start() + start(2, locks)
wait_for(lambda: held() > 10 and runs[0] > 10_000)
over.set()
for thread in threads: thread.join(60)
print(any(thread.is_alive() for thread in threads))
""")
    assert out == ["False"]


def test_signals_arrive_in_a_thread_that_is_held_up():
    out = good(PROGRAM + """
main = threading.get_ident()
def interrupt():
    wait_for(lambda: held() > 5)
    signal.pthread_kill(main, signal.SIGINT)
# No exception: one that is raised in a callback of the interpreter ends there.
signal.signal(signal.SIGINT, lambda *_: (print("interrupted"), over.set()))
start()
threading.Thread(target=interrupt, daemon=True).start()
work()
""")
    assert out == ["interrupted"]


def test_disable_ends_the_pauses_and_uninstall_too():
    out = good(PROGRAM + """
for end, begin in ((gc.disable, gc.enable),
                   (standstill_gc.uninstall, standstill_gc.enable)):
    over.clear()
    before, threads = held(), start()
    wait_for(lambda: held() > before + 3)
    end()
    time.sleep(.3)
    before = held()
    time.sleep(.3)
    print(held() - before)
    over.set()
    for thread in threads: thread.join()
    begin()
""")
    assert out == ["0", "0"]


def test_no_thread_is_held_up_while_a_thread_defers():
    out = good(PROGRAM + """
threads = start()
wait_for(lambda: held() > 3)
with standstill_gc.defer():
    time.sleep(.3)
    before = held()
    time.sleep(.3)
    print(held() - before)
    over.set()
for thread in threads: thread.join()
""")
    assert out == ["0"]


def test_fork_and_exit_while_threads_are_held_up():
    out = good(PROGRAM + """
import warnings; warnings.simplefilter("ignore")
start()
wait_for(lambda: held() > 3)
for _ in range(5):
    child = os.fork()
    if not child:
        for _ in range(100):
            for _ in range(100):
                a = Final(); a.a = a
        os._exit(7 if gc.collect() >= 0 else 1)
    status = os.waitpid(child, 0)[1]
    assert os.waitstatus_to_exitcode(status) == 7, status
print("end")
# The threads are daemons, and go on until the interpreter ends.
""")
    assert out == ["end"]


def test_a_collection_that_the_program_requests_holds_other_threads_up():
    out = good(PROGRAM + """
# No automatic collection begins.
gc.set_threshold(0)
threads = start()
for _ in range(10):
    gc.collect()
    if held(): break
print(held() > 0, standstill_gc.stats()["last"]["automatic"], flush=True)
os._exit(0)
""")
    assert out == ["True", "False"]


def test_a_collection_holds_no_thread_up_while_automatic_ones_are_disabled():
    out = good(PROGRAM + """
gc.disable()
threads = start()
for _ in range(3):
    time.sleep(.05)
    gc.collect()
print(held(), flush=True)
os._exit(0)
""")
    assert out == ["0"]


def test_a_thread_that_makes_little_garbage_is_not_held_up():
    out = good(PROGRAM + """
over.set()
for _ in range(200):
    for _ in range(100):
        a = Final(); a.a = a
    time.sleep(.001)
gc.collect()
print(held())
""")
    assert out == ["0"]


def test_the_measuring_program_works():
    program = pathlib.Path(__file__).parents[1] / "outrun.py"
    done = subprocess.run(
        [sys.executable, program, "pairs", "--seconds", "0.2", "--threads", "1"],
        capture_output=True, text=True, timeout=60, check=True,
    )
    [*_, row] = done.stdout.splitlines()
    assert row.startswith("| pairs | 1 | ") and row.count(" MB, ") == 2, done.stdout
    done = subprocess.run([sys.executable, program, "unknown"], capture_output=True, text=True)
    assert done.returncode == 2 and "unknown: unknown" in done.stderr

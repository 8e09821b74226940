"""What ``support.py`` gives to the other tests."""

import os
import pathlib
import signal
import sys

import pytest

import standstill_gc
from support import good, quiet  # noqa: F401

HERE = str(pathlib.Path(__file__).parent)


@pytest.mark.parametrize("time", ["first", "second"])
def test_no_collection_of_another_test_is_in_the_statistics(time):
    assert standstill_gc.stats()["collections"] == 0
    standstill_gc.collect()
    assert standstill_gc.stats()["collections"] == 1


def test_signals_interrupt_the_programs_of_tests_in_a_background_job():
    assert good("""
        import signal
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        import support
        child = support.run("import os, signal; os.kill(os.getpid(), signal.SIGINT)")
        print(child.returncode, "KeyboardInterrupt" in child.stderr)
    """, PYTHONPATH=os.pathsep.join([HERE, *sys.path])) == [str(-signal.SIGINT), "True"]

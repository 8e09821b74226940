"""Runs files of CPython's own test suite while this package collects.

    python python/suite.py               the files that CI runs: minutes
    python python/suite.py --all         all files of the lists below
    python python/suite.py test_gc ...   these files

`python` is an interpreter, or a virtual environment, that has this package and CPython's package
`test`. In each process of the suite a `sitecustomize` module installs the package: `gc.collect` and
automatic collections are then this package's. A process with `-I`, `-E` or `-S` does not read it,
and subinterpreters remain with CPython's collector.

The run fails if

- a test fails that is not in `EXPECTED`, or a file ends in another way than by its tests: a crash,
  the time limit;
- a test of `EXPECTED` passes, unless it depends on chance;
- the package is not active in a process, or made fewer collections than there are files.
"""

import argparse
import os
import pathlib
import re
import subprocess
import sys
import sysconfig
import tempfile
import xml.etree.ElementTree

# These take less than three minutes together.
QUICK = """
    test_gc test_weakref test_generators test_coroutines test_asyncgen test_finalization
    test_thread test_weakset test_frame test_copy test_tuple test_fork1 test_functools test_super
""".split()

FURTHER = """
    test_threading test_threading_local test_free_threading test_ctypes test_sqlite3 test_pickle
    test_descr test_class test_dict test_list test_collections test_exceptions test_contextlib
    test_queue test_sys test_types test_typing test_dataclasses test_enum test_inspect
    test_traceback test_code test_itertools test_xml_etree test_json test_logging test_context
    test_interpreters test_concurrent_futures test_asyncio test_io test_sched test_memoryview
    test_import test_zipimport test_os test_subprocess
""".split()

TUPLES = "a tuple whose items take no part in collections stays tracked: its memory is not written"

# Tests that fail, by file and name; the versions of CPython; the reason. "chance: " in front of the
# reason: the test passes now and then.
EXPECTED = {
    ("test_tuple", "test_track_literals"): ("3.14 3.15", TUPLES),
    ("test_tuple", "test_track_dynamic"): ("3.14 3.15", TUPLES),
    ("test_gc", "test_indirect_calls_with_gc_disabled"): (
        "3.14 3.15",
        "chance: it waits for an automatic collection that CPython begins where a thread allocates; "
        "the package's thread begins it at another time",
    ),
    ("test_threading", "test_clear_threads_states_after_fork"): (
        "3.14 3.15",
        "chance: the child of a fork is to have one thread, and this package begins another there",
    ),
}

HAS_THREAD_SANITIZER = "thread-sanitizer" in (sysconfig.get_config_var("CONFIG_ARGS") or "")
if HAS_THREAD_SANITIZER:
    EXPECTED["test_os", "test_fork"] = (
        "3.14 3.15",
        "chance: the child of a fork begins a thread of this package, and ThreadSanitizer ends it if "
        "a thread of the parent had the same number",
    )

# Files after which something is different, with ThreadSanitizer: also without this package.
ALTERED = {"test_threading": "the objects of threads with other sizes of stacks stay"}

# Writes one line for each process that ends as Python programs do.
SITECUSTOMIZE = """
import atexit, os, sys, warnings
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import standstill_gc
if standstill_gc.active():
    standstill_gc.install()
    def record(pid=os.getpid()):
        if os.getpid() == pid:
            write("active", standstill_gc.stats()["collections"])
    atexit.register(record)
def write(*words):
    with open(os.path.join({notes!r}, str(os.getpid())), "a", encoding="utf-8") as file:
        print(*words, file=file)
reason = standstill_gc.inactive_reason()
if reason is not None and not reason.startswith("subinterpreters"):
    write("inactive", reason)
"""


def failures_of(report):
    """The file and the name of each test that failed, by the suite's report in JUnit's format."""
    found = set()
    for case in xml.etree.ElementTree.parse(report).iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            # test.test_tuple.TupleTest.test_track_literals, and for a subtest more behind it
            words = case.get("name").split()[0].split(".")
            file = next((word for word in words if word.startswith("test_")), words[0])
            found.add((file, words[-1]))
    return found


def failed_files(output):
    """The files that the suite's summary names as failed, without the folders around them."""
    names = set()
    for block in re.findall(r"^\d+ tests? failed[^\n]*:\n((?: +\S.*\n)+)", output, re.MULTILINE):
        names |= {word.split(".")[0] for word in block.split()}
    for name in re.findall(r"\] (\S+) (?:failed|crashed|timed out|worker non-zero)", output):
        names.add(name.split(".")[0])
    return names


def summary(files, report, output, notes, status):
    """Prints the result, and returns whether it is as expected."""
    version = "%d.%d" % sys.version_info[:2]
    failures = failures_of(report) if report.exists() else set()
    unexplained = failed_files(output) - {file for file, _ in failures}
    lines = [line for note in notes.iterdir() for line in note.read_text().splitlines()]
    inactive = sorted({line for line in lines if line.startswith("inactive")})
    counts = [int(line.split()[1]) for line in lines if line.startswith("active")]
    faults = list(inactive)
    for file, name in sorted(failures):
        versions, why = EXPECTED.get((file, name), ("", ""))
        if version in versions.split():
            print(f"-- fails, as expected: {file} {name}: {why}")
        else:
            faults.append(f"{file} {name} failed")
    if HAS_THREAD_SANITIZER:
        altered = set(re.findall(r"\] (\S+) failed \(env changed\)", output))
        for file in sorted(unexplained & altered & ALTERED.keys()):
            print(f"-- alters its environment, as expected: {file}: {ALTERED[file]}")
            unexplained.remove(file)
    faults += [f"{file} failed outside of its tests" for file in sorted(unexplained)]
    for (file, name), (versions, why) in EXPECTED.items():
        if version in versions.split() and file in files and (file, name) not in failures:
            if why.startswith("chance: "):
                print(f"-- passes, as it does now and then: {file} {name}")
            else:
                faults.append(f"{file} {name} has not failed, though it is expected to fail")
    if sum(counts) < len(files):
        faults.append(f"{sum(counts)} collections of this package in {len(files)} files")
    total = re.search(r"Total tests: run=([\d,]+)", output)
    if total is None:
        faults.append("the suite did not end")
    if status and not failures and not unexplained:
        faults.append(f"the suite has ended with status {status}")
    tests = total[1] if total else "?"
    print(f"-- CPython {version}: {len(files)} files, {tests} tests, {sum(counts)} collections of "
          f"this package in {len(counts)} processes, {len(faults)} faults")
    for fault in faults:
        print(f"!!!! {fault}")
    return not faults


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("files", nargs="*", help="files of the suite, without .py")
    parser.add_argument("--all", action="store_true", help="all files of the lists")
    parser.add_argument("--timeout", default="600", help="seconds that a file may take")
    parser.add_argument("--jobs", default="1", help="files that run at once")
    parser.add_argument("--testdir", help="the folder of the files, if they are not CPython's")
    options = parser.parse_args(arguments)
    files = options.files or (QUICK + FURTHER if options.all else QUICK)
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        notes, report = folder / "notes", folder / "report.xml"
        notes.mkdir()
        (folder / "sitecustomize.py").write_text(SITECUSTOMIZE.format(notes=str(notes)))
        # A test may start the interpreter from which the virtual environment was made.
        packages = sysconfig.get_path("platlib")
        paths = [str(folder), packages, *filter(None, [os.environ.get("PYTHONPATH")])]
        suite = subprocess.Popen(
            [sys.executable, "-m", "test", f"-j{options.jobs}", "-W", "--timeout", options.timeout,
             "--junit-xml", str(report), "--tempdir", str(folder),
             *(["--testdir", options.testdir] if options.testdir else []), *files],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)}, cwd=folder,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
        )
        output = []
        with suite:
            for line in suite.stdout:
                print(line, end="", flush=True)
                output.append(line)
        status = suite.returncode
        sys.exit(not summary(files, report, "".join(output), notes, status))


if __name__ == "__main__":
    main()

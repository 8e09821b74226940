"""Runs a program with the collector installed.

    python -m standstill_gc [options] script.py [arguments]
    python -m standstill_gc [options] -m module [arguments]
    python -m standstill_gc [options] -c code [arguments]
    python -m standstill_gc [options] - [arguments]

The program runs as it would without ``-m standstill_gc``: with its own ``sys.argv``, ``sys.path``,
``__main__`` and exit code.
"""

import argparse
import atexit
import builtins
import io
import linecache
import os
import pkgutil
import runpy
import sys
import types
from importlib.machinery import BuiltinImporter, SourceFileLoader, SourcelessFileLoader

import standstill_gc


def _split(arguments):
    """`-mNAME` and `-cCODE` as two words."""
    is_value = False
    for at, word in enumerate(arguments):
        if word[:2] in ("-m", "-c"):
            rest = arguments[at + 1:]
            return [*arguments[:at], word[:2], *([word[2:]] if word[2:] else []), *rest]
        if not is_value and not word.startswith("--"):
            break
        is_value = word in ("--threads", "--child-from")
    return arguments


def _arguments(arguments):
    parser = argparse.ArgumentParser(
        prog="python -m standstill_gc",
        usage="%(prog)s [--stats] [--checked] [--threads N] [--child-from N] (script.py | -m module | -c code | -) ...",
        description="Run a program whose garbage is collected in parallel.",
        allow_abbrev=False,
    )
    parser.add_argument("--stats", action="store_true", help="write statistics to stderr at exit")
    parser.add_argument(
        "--checked", action="store_true",
        help="compare each result with that of CPython's collector, before anything is cleared",
    )
    parser.add_argument("--threads", type=int, help="the most threads of automatic collections")
    parser.add_argument(
        "--child-from", type=int, metavar="N",
        help="automatic collections search in a child process from N live objects on; 0: never",
    )
    parser.add_argument(
        "--version", action="version", version=f"standstill-gc {standstill_gc.__version__}",
    )
    parser.add_argument("-m", dest="module", action="store_true", help="run a module")
    parser.add_argument("-c", dest="code", action="store_true", help="run code")
    parser.add_argument("program", nargs=argparse.REMAINDER, help="the program and its arguments")
    options = parser.parse_args(_split(sys.argv[1:] if arguments is None else arguments))
    if not options.program:
        parser.error("a script, a module or code is missing")
    if options.module and options.code:
        parser.error("-m and -c exclude each other")
    if options.threads is not None and options.threads < 1:
        parser.error("the number of threads must be positive")
    if options.child_from is not None and options.child_from < 0:
        parser.error("the number of objects must not be negative")
    return options


def _report():
    stats = standstill_gc.stats()
    pauses, phases = stats["pauses"], stats["phases"]

    def milliseconds(seconds):
        return f"{seconds * 1e3:.2f} ms"

    made = sum(generation["collections"] for generation in standstill_gc.get_stats())
    last = "the last " if made > stats["collections"] == 1_000 else ""
    lines = [
        f"standstill_gc: {last}{stats['collections']} collections, {stats['collected']} objects"
        f" collected, {stats['uncollectable']} uncollectable",
        "  pauses: " + ", ".join(
            f"{name} {milliseconds(pauses[key])}"
            for name, key in (("median", "p50"), ("p90", "p90"), ("p99", "p99"), ("max", "max"))
        ) + f"; {pauses['count']} stops, {milliseconds(pauses['total'])} in all",
        "  phases: " + ", ".join(f"{name} {milliseconds(phases[name])}" for name in phases),
    ]
    held_up = stats["held_up"]
    if held_up and held_up["count"]:
        lines.append(
            f"  held up: {held_up['count']} times, {milliseconds(held_up['total'])} in all,"
            f" {milliseconds(held_up['max'])} at most"
        )
    if not standstill_gc.active():
        lines.append(f"  not active: {standstill_gc.inactive_reason()}")
    if stats["checked"] and stats["checked"]["compared"]:
        lines.append("  checked: " + ", ".join(f"{n} {k}" for k, n in stats["checked"].items()))
    print("\n".join(lines), file=sys.stderr, flush=True)


def _main_module(loader=BuiltinImporter):
    """A new `__main__`, in place of this one."""
    module = types.ModuleType("__main__")
    module.__builtins__, module.__loader__ = builtins, loader
    sys.modules["__main__"] = module
    return module


def _run_script(path):
    if not os.path.exists(path):
        print(f"{sys.executable}: can't open file {os.path.abspath(path)!r}: "
              "[Errno 2] No such file or directory", file=sys.stderr)
        sys.exit(2)
    if pkgutil.get_importer(path) is not None:
        # A directory, or a zip file: also one that does not begin as such, as `zipapp` makes them.
        if not sys.flags.safe_path:
            del sys.path[0]
        sys.path.insert(0, os.path.join(os.getcwd(), path))
        _main_module()
        # The interpreter calls this too.
        runpy._run_module_as_main("__main__", alter_argv=False)
        return
    if not os.path.isfile(path):
        # A pipe, for example, which can be read once.
        runpy.run_path(path, run_name="__main__")
        return
    if not sys.flags.safe_path:
        sys.path[0] = os.path.dirname(os.path.realpath(path))
    path = os.path.abspath(path)
    with io.open_code(path) as file:
        code, kind = pkgutil.read_code(file), SourcelessFileLoader
    if code is None:
        with io.open_code(path) as file:
            code, kind = compile(file.read(), path, "exec", dont_inherit=True), SourceFileLoader
    module = _main_module(kind("__main__", path))
    module.__file__ = path
    if sys.version_info < (3, 15):
        module.__cached__ = None
    exec(code, module.__dict__)


def _run_code(code, name="<string>"):
    if not sys.flags.safe_path:
        sys.path[0] = ""
    compiled, module = compile(code, name, "exec", dont_inherit=True), _main_module()
    if name == "<stdin>":
        module.__file__ = name
        if sys.version_info < (3, 15):
            module.__cached__ = None
    else:
        # The interpreter calls this too: tracebacks show the lines.
        linecache._register_code(compiled, code, name)
    exec(compiled, module.__dict__)


def main(arguments=None):
    """Runs the program that the arguments name."""
    options = _arguments(arguments)
    if options.checked:
        standstill_gc.set_checked(True)
    standstill_gc.install(threads=options.threads, child_from=options.child_from)
    if options.stats:
        # It runs after the program's own functions for exit, and before this package's.
        atexit.register(_report)
    what, rest = options.program[0], options.program[1:]
    sys.argv[:] = ["-m" if options.module else "-c" if options.code else what, *rest]
    try:
        if options.module:
            _main_module()
            # The interpreter calls this too.
            runpy._run_module_as_main(what)
        elif options.code:
            _run_code(what)
        elif what == "-":
            _run_code(sys.stdin.buffer.read(), "<stdin>")
        else:
            _run_script(what)
    except SystemExit:
        raise
    except BaseException:
        sys.excepthook = _without_own_frames(sys.excepthook)
        raise


def _without_own_frames(hook):
    """A hook that passes an exception to another one, without the frames of this file."""
    # The interpreter contains `runpy`, or has it in a file (`-X frozen_modules=off`, debug builds).
    own = (__file__, runpy._run_module_as_main.__code__.co_filename)

    def excepthook(kind, error, trace):
        sys.excepthook, passed = hook, False
        while trace is not None:
            code = trace.tb_frame.f_code
            # Without this package, modules and directories run below this function of `runpy` too.
            is_of_program = passed and code.co_name == "_run_module_as_main"
            if code.co_filename not in own or is_of_program:
                break
            passed = passed or code.co_filename == __file__
            trace = trace.tb_next
        hook(kind, error.with_traceback(trace), trace)

    return excepthook


if __name__ == "__main__":
    main()

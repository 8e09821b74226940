#!/usr/bin/env python3
"""The tables of hostile uses: no public function without a row, and the pages made of them.

    ci/states.py            fails if a public function has no row in tests/states/expected.tsv, if a
                            row calls no existing function, or if docs/generated/states.md or
                            docs/generated/pointers.md is stale
    ci/states.py --write    writes the two pages
"""

import re
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "tests/states/expected.tsv"
PAGE = ROOT / "docs/generated/states.md"
POINTERS = ROOT / "capi/tests/pointers/expected.tsv"
POINTERS_PAGE = ROOT / "docs/generated/pointers.md"

# Types and functions without a row, with the reason.
EXEMPT = {
    "Live": "a proof for custom object models: reading it works everywhere",
    "Stopped": "as Live",
    "ClaimRef": "as Live",
    "DeadObject": "as Live",
    "ModelHeap": "the face for custom object models, whose one trait is `unsafe`: `tests/model.rs`, `tests/model_parity.rs` and `tests/model_states.rs` are its tables",
    "ModelMutator": "as `ModelHeap`",
    "ModelDetached": "as `ModelHeap`",
    "ModelFork": "as `ModelHeap`",
    "ModelDetachedFork": "as `ModelHeap`",
    "ForkLocks": "as `ModelHeap`",
    "StoppedWorld": "as `ModelHeap`",
    "StoppedCollection": "as `ModelHeap`: `tests/model_seam.rs` is its table",
    "Reserved": "an address map, which only the library makes",
    "Segments": "as `Reserved`",
    "CurrentMutator": "as `ModelHeap`",
    "UnlentMutator": "as `ModelHeap`",
    "ListedMemory": "as `ModelHeap`: `tests/model_lists` is its table",
    "ObjectList": "as `ListedMemory`",
    "ObjectFlags": "as `Live`",
    "Tracer::is_in_heap": "as `ModelHeap`",
    "Tracer::skips_leaves": "as `ModelHeap`",
    "Check": "the conformance kit, which makes its own heaps and threads: `tests/model_check` is its table",
    "Journal": "as `Check`",
    "Abilities": "as `Check`: a constant",
    "Rule": "as `Check`: an answer",
    "model_check::check": "as `Check`",
    "Obj": "only `unsafe` code makes one, and promises the right state then: `tests/dynamic.rs` is its table",
    "Head": "as `Obj`",
    "Dying": "as `Obj`",
    "Visitor": "as `Obj`",
    "World": "as `ModelHeap`",
    "HeapBuilder::build_with": "as `ModelHeap`",
    "Tracer: Drop": "only the library makes a `Tracer`, and ends it",
    "Heap::try_on_unraisable": "hidden: `Heap::on_unraisable` with an error where memory is refused, for the C library",
    "Heap::try_on_misuse": "as `Heap::try_on_unraisable`",
    "Heap::prepare_fork_with": "`Heap::prepare_fork` calls it",
    "Heap::try_on_slow_stop": "as `Heap::try_on_unraisable`",
    "Services::try_add_callback": "as `Heap::try_on_unraisable`",
    "Services::try_set_debug_sink": "as `Heap::try_on_unraisable`",
    "Services::try_set_audit_hook": "as `Heap::try_on_unraisable`",
    "Builtin::try_get": "as `Heap::try_on_unraisable`",
}

# The names of the columns of the two tables, and their meanings.
TYPED = {
    "attached": "attached to the heap of the objects that are used: the control",
    "elsewhere": "attached to another heap",
    "unattached": "without a mutator",
    "detached": "in the closure of `Mutator::detach`",
    "traverse": "in `Trace::traverse`, the world being stopped",
    "hook": "in a hook of a thread that is parked for another one's collection",
    "helping": "in `Trace::traverse`, as a parked thread that helps another one's collection",
    "traversing": "attached, while a `TraversalGuard` of the thread lives",
    "finalize": "in `Trace::finalize`",
    "destructor": "in a destructor, the last reference having been dropped",
    "collected": "in a destructor that a collection calls",
    "clear": "in `Trace::clear`",
    "callback": "in the callback of a weak reference",
    "stopped": "between `Mutator::prepare_fork` and `Fork::parent`: the thread holds a stop",
    "gone": "the last handle and mutator of the objects' heap are gone, references are left; attached elsewhere",
}
COORDINATOR = {
    "attached": "the participant is attached: the control",
    "elsewhere": "it is detached, and its thread attached to another coordinator",
    "unregistered": "the thread has no participant",
    "detached": "it is detached",
    "traversing": "a `TraversalGuard` of the thread lives",
    "hook": "it is parked, and its thread is in a callback for slow stops",
    "no safepoint": "a `NoSafepoint` of the participant lives",
    "stopped": "it holds a stop",
    "suspending": "it keeps another thread suspended",
    "forking": "between `prepare_fork` and `ForkGuard::parent`",
    "leaked stop": "its `WorldStopped` was leaked",
}

INTRO = """\
# Hostile uses of the typed face

This page lists every public function that safe Rust can call, in every state of the calling thread.
Each cell is a test (`cargo test --test states`), which runs on fresh heaps, one process for each
function. Afterwards the heaps are verified, collected, and must be empty, with every object
destroyed exactly once. No cell crashes the process, hangs, or silently returns a wrong result.

`ci/states.py` makes this page from `tests/states/expected.tsv`, and fails if a public function has
no row. `unsafe` functions have contracts that forbid the wrong states, and no row;
[pointers.md](pointers.md) has the C functions over them, with wrong pointers. Also without rows:
{exempt}.

| in a cell | means |
|---|---|
| ok | it does its normal work |
| none | it returns `None`, `false`, or does nothing, as its documentation says |
| later | it is deferred until the thread or the heap is ready for it |
| refused | there is no `&Mutator` to call it with: `Mutator::with_current` returns `None` |
| – | the type system prevents the call |
| E*n*, P*n* | an error, a panic: see [the texts](#the-texts) |

A reference is dropped *later* if the thread is not attached to the heap, or is already destroying
another object. In a closed heap the object is destroyed at once, on the thread that drops the last
reference. Handlers of dynamic objects need a mutator, and are not called in such a heap: references
that a dynamic object holds stay. In destructors, finalizers and callbacks, a function that takes
`&mut Mutator` or `Mutator` is called with a mutator from a thread-local, the only way in safe Rust.
Such a mutator is lent to a caller up the stack, and does not park: its safepoints do nothing.
"""


def public_types(text):
    return re.findall(r"^\s*pub (?:struct|enum|union) (\w+)", text, re.M)


def without_tests(text):
    """The source without test modules and comments."""
    text = re.sub(r"\n#\[cfg\(all\(test[^\n]*\n(?:pub\S* )?mod \w+ \{.*?\n\}", "", text, flags=re.S)
    return re.sub(r"//.*", "", text)


def implemented(head):
    """What an `impl` line is for: (type, trait or None)."""
    head = re.sub(r"\bwhere\b.*", "", head, flags=re.S).replace("->", "  ")
    head = re.sub(r"^\s*(?:unsafe )?impl", "", head)
    depth, flat = 0, ""
    for char in head:
        depth += (char == "<") - (char == ">")
        if depth == 0 and char != ">":
            flat += char
    trait, _, type_ = flat.rpartition(" for ")
    return type_.strip().split("::")[-1], trait.strip() or None


TOKEN = re.compile(
    r"[{}]"
    r"|^[ ]*(?:unsafe )?impl\b[^{;]*"
    r"|^[ ]*pub (?P<how>(?:const |unsafe |extern \"C\" )*)fn (?P<name>\w+)",
    re.M,
)
# Traits whose hand-written implementations do something worth a row.
TRAITS = {"Drop", "Clone", "Deref", "DerefMut", "Default"}


def public_functions():
    """Everything that safe Rust can call: `Type::function`, `module::function`, `Type: Trait`."""
    texts = {path: without_tests(path.read_text()) for path in sorted((ROOT / "src").rglob("*.rs"))}
    types = {name for text in texts.values() for name in public_types(text)}
    found = set()
    for path, text in texts.items():
        module = path.parent.name if path.parent.name in ("dynamic", "safepoint", "gc_module") else None
        depth, blocks = 0, []
        for token in TOKEN.finditer(text):
            what = token.group(0)
            if what == "{":
                depth += 1
            elif what == "}":
                depth -= 1
                while blocks and blocks[-1][0] > depth:
                    blocks.pop()
            elif token.group("name") is None:
                type_, trait = implemented(what)
                blocks.append((depth + 1, type_))
                if trait in TRAITS and type_ in types:
                    found.add(f"{type_}: {trait}")
            elif "unsafe" not in token.group("how"):
                type_ = blocks[-1][1] if blocks and blocks[-1][0] == depth else None
                if type_ in types:
                    found.add(f"{type_}::{token.group('name')}")
                elif type_ is None and depth == 0 and module:
                    found.add(f"{module}::{token.group('name')}")
    return {name for name in found if name not in EXEMPT and re.split(r"::|:", name)[0] not in EXEMPT}


# Words that no outcome may contain: the process died, or the heaps were wrong afterwards.
WRONG = re.compile(r"^(crash|broken)|; .*(not destroyed|left in the heap|unsound|threads left|ignored failure)")


def rows():
    """The table: {function: {state: outcome}}, in its order."""
    table = {}
    for line in TABLE.read_text().splitlines():
        if not line.startswith("#"):
            function, state, outcome = line.split("\t", 2)
            # Immortal objects stay.
            if WRONG.search(outcome) and not function.endswith("::immortalize"):
                raise SystemExit(f"{function}, {state}: this must not happen: {outcome}")
            table.setdefault(function, {})[state] = outcome
    return table


def base(name):
    """The function that a row calls: what follows a comma says in which case."""
    return name.split(", ")[0]


class Texts:
    """The texts of errors and panics, by number."""

    def __init__(self):
        self.numbers = {}

    def of(self, kind, text):
        return f"{kind}{self.numbers.setdefault((kind, text), len([k for k in self.numbers if k[0] == kind]) + 1)}"


def short(outcome, texts):
    """A cell of the page."""
    if outcome.startswith("refused"):
        return "refused"
    if outcome.startswith("impossible"):
        return "–"
    if outcome.startswith("deferred"):
        return "later"
    if outcome.startswith("error: "):
        return texts.of("E", outcome.removeprefix("error: "))
    if outcome.startswith("panic: "):
        return texts.of("P", outcome.removeprefix("panic: "))
    if outcome in ("None", "ok: None", "ok: false", "ok: none") or outcome.startswith("None;"):
        return "none"
    if re.match(r"ok\b", outcome):
        return "ok"
    raise SystemExit(f"what is this outcome? {outcome}")


def cells(row, columns, texts):
    found = [short(row.get(state, row["*"]), texts) for state in columns]
    # If the outcome is `none` in every callable state, `none` is the function's result, and no
    # refusal.
    if found[0] == "none":
        found = ["ok" if cell == "none" else cell for cell in found]
    return found


NEWLINE = "\n"


def table_of(functions, table, columns, texts):
    lines = [f"| | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    alike, handled = [], []
    for name in functions:
        found = cells(table[name], columns, texts)
        code, _, case = name.partition(", ")
        shown = f"`{code}`{', ' + case if case else ''}"
        if set(found) == {"ok"}:
            alike.append(shown)
        elif set(found[:-1]) == {"ok"} and found[-1] == "–":
            handled.append(shown)
        else:
            lines.append(f"| {shown} | {' | '.join(found)} |")
    text = "\n".join(lines) + "\n" if len(lines) > 2 else ""
    for names, where in [(alike, "in every state"), (handled, "wherever there is a heap, that is, everywhere but in *gone*")]:
        if names:
            text += f"{NEWLINE if text else ''}*ok* {where}: {'; '.join(names)}.\n"
    return text


def page(table):
    texts = Texts()
    mine = [n for n in table if is_coordinators(n)]
    theirs = [n for n in table if not is_coordinators(n)]
    reasons = "; ".join(
        f"`{name}` ({why})" for name, why in EXEMPT.items() if not why.startswith("as ")
    )
    others = ", ".join(f"`{name}`" for name, why in EXEMPT.items() if why.startswith("as "))
    out = [INTRO.format(exempt=f"{reasons}, and with it {others}")]
    out.append("## The states\n\n| state | the thread is |\n|---|---|")
    out[-1] += "".join(f"\n| {state} | {text} |" for state, text in TYPED.items()) + "\n"
    groups = {}
    for name in theirs:
        groups.setdefault(re.split(r"::|:", name)[0], []).append(name)
    for group, names in groups.items():
        out.append(f"## {group}\n\n" + table_of(names, table, list(TYPED), texts))
    out.append(
        "## The coordinator\n\nBy itself, without a heap. Its states are those of a participant's thread.\n\n"
        "| state | means |\n|---|---|"
        + "".join(f"\n| {state} | {text} |" for state, text in COORDINATOR.items())
        + "\n\n"
        + table_of(mine, table, list(COORDINATOR), texts)
    )
    listed = "".join(
        f"\n| {kind}{number} | {text.replace('|', chr(92) + '|')} |"
        for (kind, text), number in sorted(
            texts.numbers.items(), key=lambda item: (item[0][0], item[1])
        )
    )
    out.append("## The texts\n\n| | |\n|---|---|" + listed + "\n")
    return "\n".join(out)


OF_COORDINATOR = {
    "Coordinator", "Config", "Participant", "NoSafepoint", "WorldStopped", "Suspended", "ForkGuard", "Ended", "ThreadId",
}


def is_coordinators(name):
    return re.split(r"::|:", name)[0] in OF_COORDINATOR


# --------------------------------------------------------------------------- wrong pointers, from C

# The arguments of a parameter, by the columns of the page.
FOREIGN = ["zeroed", "random", "stack", "interior", "unmapped", "another heap's"]
SORTS = ["an instance", "a number", "a tuple", "a string", "a module", "a type", "the type of types",
         "a weak reference", "None"]

POINTERS_INTRO = """\
# Wrong pointers, in checked mode

This page lists every exported function of the C ABI, called with wrong pointers for each of its
parameters in turn. Each call is made in a process of its own (`cargo test -p standstill-capi --test
pointers`), which reads the functions and their parameters from the header: a new function is
covered when it is declared. No call ends in a crash, a deadlock, or an unreported wrong result.
`ci/states.py` makes this page from `capi/tests/pointers/expected.tsv`.

Checked mode (`STANDSTILL_CHECKED=1`, or `checked` in the options of a heap) looks up every object
and every type that is passed in, traverse handlers included. Without it, the caller must keep the
contract of the header.

| column | arguments |
|---|---|
| null | NULL |
| foreign | in turn: a zeroed block of memory, one of arbitrary bytes, one on the stack, the inside of an object, an unmapped address, an object of another heap |
| freed | an object or a type without references; a heap that was given up; a saved thread state that was restored |
| other sorts | a living object of each sort: an instance of a class, a number, a tuple, a string, a module, a type, the type of types, a weak reference, None |

| in a cell | means |
|---|---|
| a code | an error with it, and the function's failure value |
| a code in italics | a report of misuse with it, and the failure value if the function has one |
| ok | no mistake, or none that can be detected; or the function returns NULL, 0 or -1 for such an argument, as the header says |
| *sort*: ok | that sort is correct |

Wrong arguments that cannot be distinguished from correct ones are not tried: a text without an end,
a description with wrong addresses in it, an address that is no function, a result's address that
leads elsewhere. An opaque argument of the program may be any address. An exported function that is
not here takes no pointer.

| function | parameter | null | foreign | freed | other sorts |
|---|---|---|---|---|---|
"""


def coded(outcome):
    """The result of a call, for a cell."""
    codes = re.findall(r"(misuse|error) (\w+)", outcome)
    codes = [(kind, code) for kind, code in codes if code != "Custom"]
    return ", ".join(f"*{code}*" if kind == "misuse" else code for kind, code in codes) or "ok"


def joined(found):
    """The outcomes of several values in one cell: {value: outcome}."""
    if not found:
        return "–"
    often = Counter(found.values()).most_common()
    if len(often) == 1:
        return often[0][0]
    rest = [(o, [v for v, outcome in found.items() if outcome == o]) for o, _ in often[1:]]
    odd = "; ".join(f"{', '.join(values)}: {outcome}" for outcome, values in rest)
    return f"{often[0][0]}; {odd}"


def pointers_page():
    lines = {}
    for line in POINTERS.read_text().splitlines():
        if not line.startswith("#"):
            function, parameter, given, outcome = line.split("\t", 3)
            if "crash" in outcome:
                raise SystemExit(f"{function} crashes: {outcome}")
            if parameter:
                lines.setdefault((function, parameter), {})[given] = coded(outcome)
    text = POINTERS_INTRO
    for (function, parameter), found in lines.items():
        columns = [["null"], FOREIGN, ["freed"], SORTS]
        row = [joined({v: found[v] for v in column if v in found}) for column in columns]
        text += f"| `{function}` | {parameter} | {' | '.join(row)} |\n"
    return text, len({function for function, _ in lines}), sum(map(len, lines.values()))


def main():
    table = rows()
    called = {base(name) for name in table}
    functions = public_functions()
    missing = sorted(functions - called)
    for name in missing:
        print(f"{name} is public, and no row of {TABLE.relative_to(ROOT)} calls it", file=sys.stderr)
    # Rows of derived functions are allowed; rows of removed functions are not.
    gone = sorted(name for name in called - functions if "::" in name and name.split(": ")[-1] != "Trace::clear")
    for name in gone:
        print(f"{name} has a row, and is no public function", file=sys.stderr)
    pointers, takers, calls = pointers_page()
    stale = False
    for path, text in [(PAGE, page(table)), (POINTERS_PAGE, pointers)]:
        if "--write" in sys.argv[1:]:
            path.write_text(text)
        if not path.exists() or path.read_text() != text:
            print(f"{path.relative_to(ROOT)} is stale: run ci/states.py --write", file=sys.stderr)
            stale = True
    if missing or gone or stale:
        sys.exit(1)
    outcomes = sum(len(COORDINATOR if is_coordinators(name) else TYPED) for name in table)
    print(f"{len(functions)} public functions, {len(table)} rows, {outcomes} cells")
    print(f"{takers} exported functions that take pointers, {calls} wrong ones")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""The tables of hostile uses: no public function without a row, and no outcome that must not happen.

Fails if a public function has no row in tests/states/expected.tsv, if a row calls no existing
function, or if the outcome of a row there, or in capi/tests/pointers/expected.tsv, is a crash or a
damaged heap. The tests `states` and `pointers` compare the outcomes with the tables.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "tests/states/expected.tsv"
POINTERS = ROOT / "capi/tests/pointers/expected.tsv"

# Types and functions without a row, with the reason.
EXEMPT = {
    "Live": "a proof for custom object models: reading it works everywhere",
    "Stopped": "as Live",
    "ClaimRef": "as Live",
    "DeadObject": "as Live",
    "ModelHeap": "the face for custom object models, whose one trait is `unsafe`: `tests/model.rs`, `tests/model_parity.rs` and `tests/model_states.rs` are its tables",
    "ModelMutator": "as `ModelHeap`",
    "ModelDetached": "as `ModelHeap`",
    "ModelAttached": "as `ModelHeap`",
    "ThreadSlots": "private: `the_mutator_ends_with_its_thread` of `tests/ambient.rs` is its test",
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
    "Census": "data without a heap",
    "AllocationSites": "as `Census`",
    "Message": "hidden: the format of a profile, for the package `heap`",
    "Mutator::allocation_sites": "only with the feature `stacks`: `tests/sites.rs` is its table",
    "HeapBuilder::late_stacks": "as `Mutator::allocation_sites`: `tests/late_stacks.rs`",
    "HeapBuilder::sample_allocations": "as `Mutator::allocation_sites`",
    "HeapGraph": "as `Census`",
    "Dominators": "as `Census`",
    "LeakWatch": "as `Census`",
    "TypeNames": "as `Census`",
    "PhaseTimes": "as `Census`",
    "Surveyed": "as `Census`, for the time of a call",
    "Tracer::field": "as `ModelHeap`",
    "Tracer::external": "as `ModelHeap`",
    "Tracer::outer_field": "as `ModelHeap`",
    "Tracer::is_in_heap": "as `ModelHeap`",
    "Tracer::skips_leaves": "as `ModelHeap`",
    "Obj": "only `unsafe` code makes one, and promises the right state then: `tests/dynamic.rs` is its table",
    "Head": "as `Obj`",
    "Dying": "as `Obj`",
    "Visitor": "as `Obj`",
    "World": "as `ModelHeap`",
    "HeapBuilder::build_with": "as `ModelHeap`",
    "Tracer: Drop": "only the library makes a `Tracer`, and ends it",
    "DetachedFork: Drop": "`DetachedFork::parent` does nothing else",
    "Heap::try_on_unraisable": "hidden: `Heap::on_unraisable` with an error where memory is refused, for the C library",
    "Heap::try_stats": "as `Heap::try_on_unraisable`",
    "StopError::fault": "hidden: the error as the C library reports it",
    "Coordinator::try_with_config": "as `Heap::try_on_unraisable`",
    "Coordinator::try_on_slow_stop": "as `Heap::try_on_unraisable`",
    "Coordinator::try_register": "as `Heap::try_on_unraisable`",
    "Heap::try_threads": "as `Heap::try_on_unraisable`",
    "Mutator::try_census": "as `Heap::try_on_unraisable`",
    "Mutator::try_graph": "as `Heap::try_on_unraisable`",
    "Mutator::try_snapshot": "as `Heap::try_on_unraisable`",
    "Mutator::try_graph_with_labels": "as `Heap::try_on_unraisable`",
    "Heap::try_on_misuse": "as `Heap::try_on_unraisable`",
    "Heap::prepare_fork_with": "`Heap::prepare_fork` calls it",
    "Heap::try_on_slow_stop": "as `Heap::try_on_unraisable`",
    "Services::try_add_callback": "as `Heap::try_on_unraisable`",
    "Services::try_set_debug_sink": "as `Heap::try_on_unraisable`",
    "Services::try_set_audit_hook": "as `Heap::try_on_unraisable`",
    "Builtin::try_get": "as `Heap::try_on_unraisable`",
}
# The names by which the rows call types of the model's face.
ALIASES = {"ModelFork": "Fork", "ModelDetachedFork": "DetachedFork", "ModelDeparture": "Departure"}


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
    types = {ALIASES.get(name, name) for text in texts.values() for name in public_types(text)}
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
                type_ = ALIASES.get(type_, type_)
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


def pointers():
    """The number of the rows of wrong pointers."""
    lines = [line for line in POINTERS.read_text().splitlines() if not line.startswith("#")]
    for line in lines:
        if "crash" in line.split("\t", 3)[3]:
            raise SystemExit(f"this must not happen: {line}")
    return len(lines)


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
    if missing or gone:
        sys.exit(1)
    print(f"{len(functions)} public functions, {len(table)} rows; {pointers()} calls with wrong pointers")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Makes docs/generated/conformance.md: each row of the conformance table with the tests that show it.

The rows are in ci/conformance-rows.tsv: id, section, item, note. A note has the reason why a row is
shown in part only ("partly: ...") or not at all ("n/a: ..."). A row is *shown* if it has a test.
The name of a test begins with the ids of its rows: s_055_track_twice_is_reported, s_172_to_174_...,
u_33_u_35_..., d_01_..., g_74_....

With --check nothing is written: fails if a row has no test, a test no row, or the page is stale.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
ROWS = ROOT / "ci/conformance-rows.tsv"
PAGE = ROOT / "docs/generated/conformance.md"

SECTIONS = {
    "A": "Types and flags",
    "B": "Type readiness and inheritance",
    "C": "Allocation",
    "D": "Tracking and untracking",
    "E": "Deallocation",
    "F": "Queries",
    "G": "visitproc, traverseproc, inquiry",
    "H": "Py_VISIT",
    "I": "Heap types visit their type; delegation",
    "J": "Managed dictionary",
    "K": "Only owned references; weak references not visited",
    "L": "Traversal limitation and traversal-safe functions",
    "M": "DuringGC functions",
    "N": "Stop the world; one attached thread",
    "O": "Collect, enable, disable, query",
    "P": "Visiting all objects",
    "Q": "Older names and removed macros",
    "decisions": "Where the versions disagree",
    "services": "Services, finalizers, weak references",
    "scenarios": "Scenarios",
}

# A test's name, up to where its words begin: letters and numbers of rows, "to" and "and" between
# them.
IDS = re.compile(r"^(?:r_)?([sudg])_(\d+)((?:_(?:to|and|[sudg]|\d+))*)(?:_|$)")
RUST = re.compile(r"#\[test\]\s*(?:#\[[^\]]*\]\s*)*(?:pub(?:\([a-z]+\))?\s+)?fn\s+(\w+)")
C = re.compile(r"\bTEST(?:_AS)?\(\s*(\w+)")


def ids_of(name):
    """The ids that a test's name begins with; none for an ordinary name."""
    match = IDS.match(name)
    if not match:
        return []
    letter, first, rest = match.groups()
    found = [(letter, int(first))]
    upto = False
    for word in rest.split("_"):
        if word == "to":
            upto = True
        elif word in ("s", "u", "d", "g"):
            letter = word
        elif word.isdigit():
            number = int(word)
            if upto:
                found += [(letter, between) for between in range(found[-1][1] + 1, number)]
            found.append((letter, number))
            upto = False
    return found


def tests():
    """(name, file, kind) of every test that names a row."""
    found = []
    for folder in (ROOT / "tests", ROOT / "capi/tests", ROOT / "src", ROOT / "capi/src"):
        for path in sorted(folder.rglob("*.rs")):
            text = path.read_text(encoding="utf-8")
            # What is not a plain function is made by a macro of the file: names in it count when
            # they look like a test's.
            names = RUST.findall(text) + re.findall(r"^\s*fn\s+([sudg]_\d+_\w+)\s*\(", text, re.MULTILINE)
            found += [(name, path, "Rust") for name in dict.fromkeys(names)]
            # Trials of a harness of its own.
            found += [(name, path, "Rust") for name in re.findall(r'Trial::test\(\s*"([sudg]_\d+_\w+)"', text)]
    conformance = ROOT / "capi/tests/conformance"
    for path in sorted(conformance.glob("*.c")):
        found += [(name, path, "C") for name in dict.fromkeys(C.findall(path.read_text(encoding="utf-8")))]
    for folder, kind in (("accepted", "C, compiles"), ("refused", "C, does not compile")):
        found += [(path.stem, path, kind) for path in sorted((conformance / folder).glob("*.c"))]
    found += [(path.stem, path, "Rust, does not compile") for path in sorted((ROOT / "derive/tests/ui").glob("*.rs"))]
    return found


def rows():
    found = {}
    for line in ROWS.read_text(encoding="utf-8").splitlines():
        if not line or line.startswith("#"):
            continue
        row, section, item, note = (line.split("\t") + ["", "", ""])[:4]
        letter, number = row.split("-")
        key = (letter.lower(), int(number))
        assert key not in found, f"{row} is there twice"
        found[key] = (row, section, item, note)
    return found


def link(name, path):
    return f"[{name}](../../{path.relative_to(ROOT).as_posix()})"


def main():
    check = sys.argv[1:] == ["--check"]
    if sys.argv[1:] == ["--tests"]:
        table = rows()
        for name, _, _ in tests():
            for key in ids_of(name):
                print(table[key][0], name, sep="\t")
        return 0
    if sys.argv[1:] and not check:
        sys.exit(__doc__)
    table = rows()
    shown = {key: [] for key in table}
    complaints = []
    for name, path, kind in tests():
        for key in ids_of(name):
            if key not in table:
                complaints.append(f"{name}: no row {key[0].upper()}-{key[1]}")
            else:
                shown[key].append((name, path, kind))

    lines = []
    counts = {"shown": 0, "partly": 0, "not applicable": 0, "missing": 0}
    section = None
    for key, (row, in_section, item, note) in table.items():
        if in_section != section:
            section = in_section
            lines += ["", f"## {SECTIONS[section]}", "", "| id | item | state | tests |", "|---|---|---|---|"]
        if note.startswith("n/a:") and not shown[key]:
            state, counted = f"not applicable: {note[4:].strip()}", "not applicable"
        elif not shown[key]:
            state, counted = "**missing**", "missing"
            complaints.append(f"{row}: no test")
        elif note.startswith("partly:"):
            state, counted = f"partly: {note[7:].strip()}", "partly"
        else:
            state, counted = "shown", "shown"
        counts[counted] += 1
        named = "<br>".join(f"{link(name, path)} ({kind})" for name, path, kind in shown[key])
        lines.append(f"| {row} | {item.replace('|', chr(92) + '|')} | {state} | {named} |")
    head = [
        "# Conformance",
        "",
        "Made by `ci/conformance.py` from `ci/conformance-rows.tsv` and the names of the tests; do not edit. Each row is a",
        "requirement: S from CPython's page on supporting cyclic garbage collection, D where its versions disagree, U a further",
        "expectation of the page's users, G a scenario of CPython's own tests. A row is *shown* if a test has its name.",
        "",
        ", ".join(f"{count} {state}" for state, count in counts.items() if count) + ".",
    ]
    page = "\n".join(head + lines) + "\n"
    if check:
        if not PAGE.exists() or PAGE.read_text(encoding="utf-8") != page:
            complaints.append("docs/generated/conformance.md is stale: run ci/conformance.py")
    else:
        PAGE.write_text(page, encoding="utf-8")
    for complaint in complaints:
        print(complaint, file=sys.stderr)
    print(", ".join(f"{count} {state}" for state, count in counts.items()))
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())

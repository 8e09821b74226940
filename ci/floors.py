#!/usr/bin/env python3
"""The floors of src/: a folder imports from its own floor or a lower one, and no file exceeds 800 lines.

The sources of the Python package (python/) have no floors; the limit of lines holds there too.

Files of one folder may know each other. The system layer, src/base/system, is the only place with
a `cfg` of the platform. The layout of docs/architecture.md has a line for each folder, with its
floor, and the `mod.rs` of a folder says what each of its files is.

Comments, documentation and test modules do not count. An exception that nothing needs is an error.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SRC = ROOT / "src"
PAGE = ROOT / "docs" / "architecture.md"

# Lowest first. Folders of one floor do not import from each other.
FLOORS = [
    ["base"],
    ["report"],
    ["safepoint", "memory", "object"],
    ["heap"],
    ["collect", "managed"],
    ["verify"],
    ["model"],
    ["diagnose"],
    ["typed"],
    ["dynamic", "gc_module"],
]

# Lines of a file.
LONGEST = 800

# package: the files that may name it.
PACKAGES = {
    "backtrace": ["base/stack"],
    "crossbeam_utils": ["heap/helpers", "collect/mark", "safepoint/mod", "safepoint/participant", "safepoint/record"],
    "libc": ["base/system/apple", "base/system/interrupt", "base/system/linux", "base/system/process", "base/system/signals", "base/system/unix"],
    "loom": ["base/model_sync"],
    "metrics": ["report/recorder"],
    "parking_lot": ["base/sync", "typed/trace_std"],
    "probe": ["report/probes"],
    "rayon": ["heap/workers"],
    "rustix": ["base/system/linux", "base/system/other_unix", "base/system/unix"],
    "shuttle": ["base/model_sync"],
    "tracing": ["report/event"],
    "windows_sys": ["base/system/windows"],
}

# The system layer: the only folder with a `cfg` of the platform. Tests count too. `miri` is a
# platform outside tests.
SYSTEM = "base/system/"
PLATFORM = r"\b(target_(?:os|family|vendor|env|arch|pointer_width|endian)|unix|windows)\b"
# file: (the words that it may use, why).
PLATFORM_EXCEPTIONS = {
    "capi/src/lib.rs": ({"unix"}, "refuses other systems"),
}


def code(path):
    """The text of a file without comments and before its tests."""
    text = path.read_text()
    text = re.split(r"^#\[cfg\(all\(test, not\(any\(loom, shuttle\)\)\)\)\]$(?!\nmod \w+;)", text, maxsplit=1, flags=re.M)[0]
    return re.sub(r"//.*", "", text)


def platform_words(path):
    """The words of the platform in the `cfg`s of a file."""
    text = re.sub(r"//.*", "", path.read_text())
    found = set()
    for start in re.finditer(r"\bcfg(?:_attr)?!?\s*\(", text):
        depth, end = 1, start.end()
        while depth:
            depth += {"(": 1, ")": -1}.get(text[end], 0)
            end += 1
        found.update(re.findall(PLATFORM, re.sub(r'"[^"]*"', "", text[start.end() : end])))
    if re.search(r"\bcfg!?\([^\n]*\bmiri\b", code(path)) and path.name != "tests.rs":
        found.add("miri")
    return found


def name_of(path):
    return str(path.relative_to(SRC).with_suffix(""))


FILES = {name_of(path): path for path in sorted(SRC.rglob("*.rs")) if path.name not in ("lib.rs", "tests.rs") and "tests" not in path.parts}


def flatten(tree, prefix=()):
    """The paths of a `use` tree."""
    head, brace, rest = tree.partition("{")
    here = prefix + tuple(part.strip() for part in head.split("::") if part.strip())
    if not brace:
        yield here
        return
    depth, part = 0, ""
    for char in rest[: rest.rindex("}")] + ",":
        depth += (char == "{") - (char == "}")
        if char == "," and depth == 0:
            if part.strip():
                yield from flatten(part, here)
            part = ""
        else:
            part += char


def exports():
    """The names that lib.rs exports, with their paths."""
    found = {}
    for tree in re.findall(r"pub use ([^;]+);", code(SRC / "lib.rs")):
        for path in flatten(tree):
            found[path[-1]] = path
    return found


def file_of(path, exported):
    """The file that a path of modules and items lies in."""
    if path and path[0] in exported:
        path = exported[path[0]] + path[1:]
    for length in (3, 2, 1):
        name = "/".join(path[:length])
        if len(path) >= length:
            for candidate in (name, f"{name}/mod"):
                if candidate in FILES:
                    return candidate
    return None


def imports(name, exported):
    """The files that a file imports from."""
    text = code(FILES[name])
    folder = tuple(name.removesuffix("/mod").split("/"))
    parent = folder[:-1]
    # The `$crate` of a macro is no import: the macro's user has it.
    trees = re.findall(r"(?<!\$)\bcrate::(\{.*?\};|\w+(?:::\w+)*(?:::\{[^;]*\})?)", text, flags=re.S)
    paths = [path for tree in trees for path in flatten(tree.rstrip(";"))]
    paths += [parent + path for tree in re.findall(r"(?<![\w:])super::(\w+(?:::\w+)*(?:::\{[^;]*\})?)", text, flags=re.S) for path in flatten(tree)]
    found = {file_of(path, exported) for path in paths}
    return {to for to in found if to and to != name}


def layout():
    """The folders in the layout of docs/architecture.md, each with its floor."""
    page = PAGE.read_text()
    lines = page[page.index("```text\nbase/") + len("```text\n") :].partition("```")[0].splitlines()
    return [tuple(line.split()[:2]) for line in lines if line and not line.startswith(" ")]


def main():
    exported = exports()
    floor = {folder: number for number, folders in enumerate(FLOORS) for folder in folders}
    edges = {name: imports(name, exported) for name in FILES}
    failures = []
    for name, targets in edges.items():
        folder = name.split("/")[0]
        if folder not in floor:
            failures.append(f"src/{name}.rs: the folder {folder} is not in the table of ci/floors.py")
            continue
        for to in sorted(targets):
            other = to.split("/")[0]
            if other == folder or floor.get(other, -1) < floor[folder]:
                continue
            failures.append(f"src/{name}.rs (floor {floor[folder]}) imports from src/{to}.rs (floor {floor.get(other)})")
        for package, allowed in PACKAGES.items():
            if re.search(rf"(?<!\w){package}::", code(FILES[name])) and name not in allowed:
                failures.append(f"src/{name}.rs: names the package {package}, which belongs to {', '.join(allowed)}")
    excused = set()
    for folder in (SRC, ROOT / "capi" / "src", ROOT / "derive" / "src"):
        for path in sorted(folder.rglob("*.rs")):
            file = str(path.relative_to(ROOT))
            if file.startswith(f"src/{SYSTEM}"):
                continue
            words = platform_words(path)
            allowed, _ = PLATFORM_EXCEPTIONS.get(file, (set(), ""))
            if words & allowed:
                excused.add(file)
            if words - allowed:
                failures.append(f"{file}: a cfg of {', '.join(sorted(words - allowed))}, which belongs to src/{SYSTEM}")
    for file in PLATFORM_EXCEPTIONS.keys() - excused:
        failures.append(f"{file} needs no exception for a cfg of the platform any more")
    for path in sorted([*FILES.values(), *(ROOT / "python/src").rglob("*.rs")]):
        lines = len(path.read_text().splitlines())
        if lines > LONGEST:
            failures.append(f"{path.relative_to(ROOT)} has {lines} lines, more than {LONGEST}")
    listed, present = set(layout()), {(f"{folder}/", str(number)) for folder, number in floor.items()}
    if listed != present:
        failures.append(f"the layout in docs/architecture.md has {sorted(listed)}, and ci/floors.py {sorted(present)}")
    if failures:
        sys.exit("\n".join(failures))
    print("no folder of src/ imports upwards")


main()

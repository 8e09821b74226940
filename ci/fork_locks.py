#!/usr/bin/env python3
"""Checks that docs/fork.md names every lock of the library: each field and static that is a mutex, a
read-write lock, a once-cell or a condition variable."""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
KINDS = r"(?:Fork|Static|Py)?(?:Mutex|Setting|RwLock|Condvar|OnceLock|OnceBox|LazyLock|Once)\b"
LOCK = re.compile(rf"^\s*(?:pub(?:\([a-z ]+\))? )?(?:static )?(?:struct )?(\w+)(?:: |\(|<\w+>\()[^=;(]*\b{KINDS}")
TESTS = re.compile(r"^(#\[cfg\(.*test.*\)\]\n)+(pub(\(crate\))? )?mod \w+ \{", re.M)
# These files implement the locks themselves.
LEFT_OUT = ("src/base/sync.rs", "src/base/model_sync.rs", "src/base/shared.rs", "src/safepoint/lock.rs")


def locks():
    for folder in ("src", "capi/src", "python/src"):
        for path in sorted((ROOT / folder).rglob("*.rs")):
            name = path.relative_to(ROOT).as_posix()
            if name.startswith(LEFT_OUT) or path.name == "tests.rs" or "tests" in path.parts:
                continue
            text = TESTS.split(path.read_text(), maxsplit=1)[0]
            for line in text.splitlines():
                found = LOCK.match(line)
                if found and not line.lstrip().startswith(("//", "fn ", "use ", "let ", "impl")) and "Guard<" not in line and not re.search(r"&(?!'static)", line) and found[1] != "Self":
                    yield name, found[1]


def main():
    page = (ROOT / "docs/fork.md").read_text()
    rows = {tuple(re.findall(r"`([^`]+)`", cells[1] + cells[2])) for line in page.splitlines()
            if len(cells := line.split("|")) > 3 and "`" in cells[1]}
    named = {(row[0], name) for row in rows if row for name in row[1:]}
    found = set(locks())
    wrong = [f"{file}: {name} is not in the table of docs/fork.md" for file, name in sorted(found - named)]
    wrong += [f"docs/fork.md: {file} has no lock {name}" for file, name in sorted(named - found)]
    sys.exit("\n".join(wrong) if wrong else 0)


if __name__ == "__main__":
    main()

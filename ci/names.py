#!/usr/bin/env python3
"""Names of src/: one word has one meaning.

    ci/names.py            fails if a type name is defined twice, or if a verb names functions in
                           several modules

The Python package (python/) is a crate of its own: its names are not compared.
"""

import re
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# Verbs that had several meanings. Each may name a function in one module.
VERBS = {"hold", "keep", "leave", "allow_collections", "settle", "look", "note", "bury", "end"}


def code(path):
    """The text of a file without comments and test modules."""
    text = re.sub(r"//.*", "", path.read_text())
    return re.split(r"^#\[cfg\((?:any\()?all\(test\b[^\n]*\]\n(?:pub\S* )?mod \w+ \{", text, maxsplit=1, flags=re.M)[0]


def main():
    types, verbs = defaultdict(list), defaultdict(list)
    for path in sorted((ROOT / "src").rglob("*.rs")):
        if path.stem == "tests" or "tests" in path.parts:
            continue
        text = code(path)
        name = str(path.relative_to(ROOT))
        for found in re.findall(r"^ *(?:pub(?:\([\w: ]+\))? )?(?:struct|enum|union|trait) (\w+)", text, re.M):
            types[found].append(name)
        for found in re.findall(r"^(?:pub(?:\([\w: ]+\))? )?type (\w+)", text, re.M):
            types[found].append(name)
        for found in re.findall(r"\bfn (\w+)", text):
            if found in VERBS and name not in verbs[found]:
                verbs[found].append(name)
    twice = {name: files for name, files in types.items() if len(files) > 1}
    several = {verb: files for verb, files in verbs.items() if len(files) > 1}
    failures = [f"type {name}: {', '.join(files)}" for name, files in sorted(twice.items())]
    failures += [f"fn {verb}: {', '.join(files)}" for verb, files in sorted(several.items())]
    if failures:
        sys.exit("\n".join(failures))
    print(f"{len(types)} type names, each defined once")


main()

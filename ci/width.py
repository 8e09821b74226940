#!/usr/bin/env python3
"""No line is longer than 100 columns.

Exceptions: generated pages and recorded output; tables, headings and links of Markdown; lines of
code with a string literal, which rustfmt does not divide; lines without a space to divide them at.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COLUMNS = 100
# The header as it was before 0.1.0. It does not change: `capi/tests/older_header.rs` compiles it.
FROZEN = "capi/tests/older/standstill.h"
KINDS = {".rs", ".md", ".sh", ".bash", ".py", ".toml", ".h"}
COMMENT = {".rs": "//", ".h": ("/*", "*", "//"), ".c": ("/*", "*", "//"), ".md": "", ".toml": "#"}


def is_excused(kind, line):
    text = line.strip()
    if kind == ".md":
        return text.startswith(("|", "#", "[", "![", "<")) or "](" in text or " " not in text
    comment = COMMENT.get(kind, "#")
    if not text.startswith(comment):
        return '"' in text or "'" in text or text.startswith("|")
    words = text.removeprefix("//!").removeprefix("///").removeprefix("//").strip()
    return words.startswith("|") or " " not in words or re.match(r"\[[^\]]+\]: ", words)


def main():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    failures = []
    for name in listed.stdout.split():
        path = ROOT / name
        if path.suffix not in KINDS or name.startswith(
            ("docs/generated/", "docs/performance", "python/docs/")
        ):
            continue
        if name == FROZEN:
            continue
        fenced = False
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if line.lstrip(" /!").startswith("```"):
                fenced = not fenced
            if len(line) > COLUMNS and not fenced and not is_excused(path.suffix, line):
                failures.append(f"{name}:{number}: {len(line)} columns")
    if failures:
        sys.exit("\n".join(failures + [f"{len(failures)} lines are longer than {COLUMNS} columns"]))
    print(f"no line is longer than {COLUMNS} columns")


main()

#!/usr/bin/env python3
"""Weakens the protocols, one ordering or check at a time, and shows which model fails.

    ci/mutations.py --check         the table fits the code: every text occurs once, every model
                                    exists, every ordering is in the table
    ci/mutations.py --all           every mutation
    ci/mutations.py ID...           these
    ci/mutations.py --survey ID...  prints the model that fails first, without the table (no ID: for
                                    all mutations)
    ci/mutations.py --thorough      with the others: runs explained mutations against every model,
                                    and not only against those that catch another mutation of the
                                    same file

The table is loom_tests/mutations.toml. All its mutations are woven into one copy of the tree, each
behind a switch. The copy is built once, and an environment variable selects the mutation of a run.
Nothing outside the target folder is written.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import time
import tomllib
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "loom_tests" / "mutations.toml"
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target" / "loom"))
# A model that takes longer under a mutation than this is taken for one that never ends.
SECONDS = 60

SWITCH = """
#[cfg(all(test, loom))]
mod mutation {
    static ON: std::sync::LazyLock<Vec<usize>> = std::sync::LazyLock::new(|| {
        std::env::var("MUTATIONS").map_or(Vec::new(), |ids| ids.split(',').map(|id| id.parse().unwrap()).collect())
    });
    pub(crate) fn on(id: usize) -> bool {
        ON.contains(&id)
    }
}
#[cfg(not(all(test, loom)))]
mod mutation {
    pub(crate) const fn on(_: usize) -> bool {
        false
    }
}
"""


@dataclass
class Row:
    """One row of the table."""

    file: str
    number: int
    id: str
    within: str = ""
    replace: str = ""
    by: str = ""
    models: list = field(default_factory=list)
    green: str = ""
    also: list = field(default_factory=list)
    start: int = 0
    end: int = 0


class Stale(Exception):
    """The table does not fit the code."""


def read_table():
    """The rows, and the files that no model looks at."""
    table = tomllib.loads(TABLE.read_text())
    unseen = table.pop("unseen", {})
    rows = []
    for file, entries in table.items():
        for entry in entries:
            unknown = entry.keys() - {"id", "in", "replace", "by", "models", "green", "also", "what"}
            if unknown:
                raise Stale(f"{entry.get('id')}: what is {unknown}?")
            within = entry.get("in", "")
            rows.append(
                Row(
                    file=file,
                    number=len(rows) + 1,
                    id=entry["id"],
                    within=within,
                    replace=entry.get("replace", within),
                    by=entry.get("by", ""),
                    models=entry.get("models", []),
                    green=entry.get("green", ""),
                    also=entry.get("also", []),
                )
            )
    return rows, unseen


def bare(text):
    """The text without white space, and without commas before a closing bracket: as rustfmt may write it in any width.
    Second: the place in `text` of each character that is left."""
    places = [at for at, char in enumerate(text) if not char.isspace()]
    places = [
        at
        for at, after in zip(places, places[1:] + [None])
        if text[at] != "," or after is None or text[after] not in ")]}"
    ]
    return "".join(text[at] for at in places), places


def place(rows):
    """Finds the place of each row in its file. White space does not matter."""
    problems = []
    texts, bared = {}, {}
    for row in rows:
        if row.file not in texts:
            texts[row.file] = (ROOT / row.file).read_text()
            bared[row.file] = bare(texts[row.file])
        if not row.within:
            continue
        text, places = bared[row.file]
        within, replace = (bare(words)[0].rstrip(",") for words in (row.within, row.replace))
        if text.count(within) != 1:
            problems.append(f"{row.id}: its text is in {row.file} {text.count(within)} times, not once")
        elif within.count(replace) != 1:
            problems.append(f"{row.id}: the replaced text is in its text {within.count(replace)} times")
        else:
            first = text.index(within) + within.index(replace)
            row.start = places[first]
            row.end = places[first + len(replace) - 1] + 1
            row.replace = texts[row.file][row.start : row.end]
    return texts, problems


def models():
    """The names of all models."""
    return {
        f"{file.stem}::{name}"
        for file in sorted((ROOT / "loom_tests").glob("*.rs"))
        for name in re.findall(r"#\[test\]\s*fn (loom_\w+)\(", file.read_text())
    }


def orderings(text):
    """Where the code that models can see orders memory: offset and token."""
    text = text.split("\nmod tests {")[0]
    for found in re.finditer(r"Ordering::(Acquire|Release|AcqRel|SeqCst)\b", text):
        line = text[text.rfind("\n", 0, found.start()) + 1 : found.start()]
        if "//" not in line:
            yield found.start(), found.group()


def line_of(text, offset):
    return text.count("\n", 0, offset) + 1


def function_of(text, offset):
    """The function that an offset is in."""
    names = re.findall(r"\bfn (\w+)", text[:offset])
    return names[-1] if names else ""


def check(rows, unseen):
    """Everything about the table that can be told without running it."""
    texts, problems = place(rows)
    known, ids = models(), set()
    for row in rows:
        if row.id in ids:
            problems.append(f"{row.id}: there are two of it")
        ids.add(row.id)
        if bool(row.models) == bool(row.green):
            problems.append(f"{row.id}: models that fail, or why they stay green; one of the two")
        problems += [f"{row.id}: there is no model {name}" for name in row.models if name not in known]
        problems += [f"{row.id}: there is no mutation {id}" for id in row.also if id not in {r.id for r in rows}]
        if not row.within and not row.also:
            problems.append(f"{row.id}: it changes nothing")
    for path in sorted((ROOT / "src").rglob("*.rs")):
        file = path.relative_to(ROOT).as_posix()
        if file in unseen or file in ("src/base/sync.rs", "src/base/model_sync.rs") or path.name == "tests.rs":
            continue
        text = texts.get(file, path.read_text())
        mine = [row for row in rows if row.file == file and row.within]
        for offset, token in orderings(text):
            touching = [row for row in mine if changes(row, offset, token)]
            # Each half of `AcqRel`; `SeqCst` without its place in the one order, and without any
            # order.
            wanted = 2 if token in ("Ordering::AcqRel", "Ordering::SeqCst") else 1
            if len(touching) < wanted:
                at = f"{file}:{line_of(text, offset)} ({function_of(text, offset)})"
                problems.append(f"{at}: {token} is weakened by {len(touching)} rows, not {wanted}")
    pages = "".join(
        line for file in (ROOT / "loom_tests").glob("*.rs") for line in file.read_text().splitlines(True) if line.startswith("//!")
    )
    for name in sorted(known):
        if not re.search(rf"`(\w+::)?(loom_)?{name.split('::loom_')[1]}`", pages):
            problems.append(f"{name}: which transitions does it take? no page of loom_tests/ says so")
    for file in unseen:
        if not (ROOT / file).exists():
            problems.append(f"{file}: not there any more")
    for file, group in nested(rows).items():
        problems += [f"{a.id} and {b.id} overlap in {file}" for a, b in group]
    if problems:
        raise Stale("\n".join(problems))
    return texts


def changes(row, offset, token):
    """Whether a row is a change of the ordering at an offset, and of little else."""
    if not row.start <= offset < row.end:
        return False
    # Within what differs between the two texts.
    head = len(os.path.commonprefix([row.replace, row.by]))
    tail = len(os.path.commonprefix([row.replace[head:][::-1], row.by[head:][::-1]]))
    return row.start + head < offset + len(token) and offset < row.end - tail


def nested(rows):
    """Rows of which one is neither inside nor outside of the other."""
    problems = {}
    for a in rows:
        for b in rows:
            if a.file == b.file and a.within and b.within and a.start < b.start < a.end < b.end:
                problems.setdefault(a.file, []).append((a, b))
    return problems


def weave(text, rows, start=0, end=None):
    """The text between two offsets, with each row's change behind its switch."""
    end = len(text) if end is None else end
    out, at = [], start
    todo = sorted((r for r in rows if r.within), key=lambda r: (r.start, -r.end))
    while todo:
        outer = todo[0]
        same = [r for r in todo if (r.start, r.end) == (outer.start, outer.end)]
        inside = [r for r in todo if r not in same and r.start < outer.end]
        todo = [r for r in todo if r not in same and r not in inside]
        original = weave(text, inside, outer.start, outer.end)
        choice = "".join(f"if crate::mutation::on({r.number}) {{ {r.by} }} else " for r in same)
        switched = f"{choice}{{ {original} }}"
        is_statement = outer.replace.rstrip()[-1] in ";}"
        out += [text[at : outer.start], switched if is_statement else f"({switched})"]
        at = outer.end
    out.append(text[at:end])
    return "".join(out)


def build(rows, texts):
    """Builds the copy with all mutations in it; comes back: the test program."""
    tree = TARGET / "mutations"
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT, capture_output=True, check=True
    )
    wanted = {name for name in listed.stdout.decode().split("\0") if name and (ROOT / name).is_file()}
    for old in tree.rglob("*"):
        if old.is_file() and old.relative_to(tree).as_posix() not in wanted:
            old.unlink()
    for name in wanted:
        content = (ROOT / name).read_bytes()
        mine = [row for row in rows if row.file == name]
        if mine:
            content = weave(texts[name], mine).encode()
        if name == "src/lib.rs":
            text = content.decode()
            first = re.search(r"^(?!//!|\s*$|#!\[)", text, re.M).start()
            content = f"{text[:first]}#![allow(warnings)]\n{text[first:]}{SWITCH}".encode()
        copy = tree / name
        if not copy.exists() or copy.read_bytes() != content:
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(content)
    flags = f"{os.environ.get('RUSTFLAGS', '')} --cfg loom".strip()
    command = ["cargo", "test", "--quiet", "--release", "-p", "standstill", "--lib", "--no-run"]
    command += ["--message-format=json", "--target-dir", str(TARGET)]
    # The library alone is built quickly; what it needs is what the models were built with.
    # Less optimised, the models overflow the small stacks of loom's threads.
    quick = {"opt-level": "2", "debug": "0", "codegen-units": "64"}
    command += [f"--config=profile.release.package.standstill.{key}={value}" for key, value in quick.items()]
    env = os.environ | {"RUSTFLAGS": flags, "CARGO_INCREMENTAL": "1"}
    begun = time.monotonic()
    pipe = subprocess.PIPE
    built = subprocess.run(command, cwd=tree, env=env, stdout=pipe, text=True, check=False)
    messages = [json.loads(line) for line in built.stdout.splitlines() if line.startswith("{")]
    if built.returncode != 0:
        for message in messages:
            if message.get("reason") == "compiler-message":
                print(message["message"]["rendered"], file=sys.stderr)
        raise Stale("the mutated copy does not compile")
    print(f"built in {time.monotonic() - begun:.0f} s", flush=True)
    programs = [m["executable"] for m in messages if m.get("executable") and m["target"]["name"] == "standstill"]
    return programs[-1]


def run(program, model, row=None, every=None):
    """Runs one model; comes back: whether it failed, and the seconds that took. Without a mutation
    time is no failure, because other work may share the machine."""
    env = dict(os.environ)
    env.pop("MUTATIONS", None)
    if row:
        numbers = [row.number] if row.within else []
        numbers += [other.number for other in every if other.id in row.also]
        env["MUTATIONS"] = ",".join(map(str, numbers))
    begun = time.monotonic()
    try:
        result = subprocess.run(
            [program, "--exact", f"loom_tests::{model}"], env=env, capture_output=True, text=True,
            timeout=SECONDS if row else None
        )
        failed = result.returncode != 0
        if not failed and "1 passed" not in result.stdout:
            raise Stale(f"the model {model} was not run")
    except subprocess.TimeoutExpired:
        failed = True
    return failed, time.monotonic() - begun


def seeing(row, rows):
    """The models that catch another mutation of the same file: these must stay green."""
    return sorted({name for other in rows if other.file == row.file for name in other.models})


def try_all(chosen, rows, texts, thorough):
    """Runs the mutations. Returns whether all is as the table says."""
    program, whole = build(rows, texts), True
    asked = {
        row.id: row.models or (sorted(models()) if thorough else seeing(row, rows))
        for row in chosen
    }
    for name in sorted({name for names in asked.values() for name in names}):
        if run(program, name)[0]:
            print(f"{name} fails without any mutation", flush=True)
            whole = False
    counts = Counter()
    for row in chosen:
        begun = time.monotonic()
        if row.green:
            failing = [name for name in asked[row.id] if run(program, name, row, rows)[0]]
            fits = not failing
            verdict = "green, as explained" if fits else f"NOT GREEN: {', '.join(failing)}"
        else:
            failing = [name for name in row.models if run(program, name, row, rows)[0]]
            fits = failing == row.models
            missing = [name for name in row.models if name not in failing]
            verdict = ", ".join(failing) if fits else f"NOT CAUGHT by {', '.join(missing)}"
        whole &= fits
        counts["amiss" if not fits else "explained" if row.green else "caught"] += 1
        print(f"{row.id}: {verdict} ({time.monotonic() - begun:.1f} s)", flush=True)
    print(f"{len(chosen)} mutations: " + ", ".join(f"{counts[name]} {name}" for name in ("caught", "explained", "amiss")))
    return whole


def survey(chosen, rows, texts):
    """Runs the mutations against one model after the other, and tells the first that fails."""
    program, caught = build(rows, texts), Counter()
    every = [name for name in sorted(models()) if not run(program, name)[0]]
    for row in chosen:
        # Who has caught most is asked first.
        for name in sorted(every, key=lambda name: -caught[name]):
            failed, seconds = run(program, name, row, rows)
            if failed:
                caught[name] += 1
                print(f"{row.id}: {name} ({seconds:.2f} s)", flush=True)
                break
        else:
            print(f"{row.id}: GREEN", flush=True)


def main():
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--survey", action="store_true")
    parser.add_argument("--thorough", action="store_true")
    parser.add_argument("id", nargs="*")
    asked = parser.parse_args()
    rows, unseen = read_table()
    if asked.survey:
        texts, problems = place(rows)
        if problems:
            raise Stale("\n".join(problems))
        survey([row for row in rows if not asked.id or row.id in asked.id], rows, texts)
        return True
    texts = check(rows, unseen)
    print(f"the table fits the code: {len(rows)} mutations, {len(models())} models")
    if asked.all:
        chosen = rows
    else:
        chosen = [row for row in rows if row.id in asked.id]
        strangers = set(asked.id) - {row.id for row in rows}
        if strangers:
            raise Stale(f"there is no mutation {', '.join(sorted(strangers))}")
    if not chosen:
        return True
    return try_all(chosen, rows, texts, asked.thorough)


if __name__ == "__main__":
    try:
        sys.exit(0 if main() else 1)
    except Stale as stale:
        sys.exit(str(stale))

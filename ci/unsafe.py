#!/usr/bin/env python3
"""The inventory of unsafe code: the rule that each block relies on, and the tests of each rule.

    ci/unsafe.py            fails if a block, an implementation or an attribute has no `SAFETY:`
                            comment that leads to a rule, if an unsafe function has no `# Safety`
                            section, or if a rule of ci/unsafe-rules.toml is not stated in its file
                            or names a missing test
    ci/unsafe.py --page     prints the inventory as a page of Markdown
    ci/unsafe.py --map      prints for each folder the unsafe blocks outside tests and the files
                            with any

The first two check the map: each `lib.rs` denies unsafe code. The `mod` line of
a file with unsafe code allows it. A file without any forbids it, and one with unsafe code only in
tests forbids it outside tests.

A comment leads to a rule by naming it ("rule *counted*", "rules *counted* and *typed*"), by "the
caller" in an unsafe function (the block then relies on the function's `# Safety` section), by "as
above" (the comment before it in the file), or by "as in `f`" and "as for `f`" (the comments in the
function `f` of that file, or its `# Safety` section).

The Python package (python/) has no such rules: its unsafe code relies on CPython's. clippy demands a
`SAFETY:` comment for each of its blocks (ci/python.sh).
"""

import argparse
import re
import sys
import tomllib
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RULES = ROOT / "ci/unsafe-rules.toml"
TREES = ("src", "capi/src", "derive/src", "model_check/src")
CALLER = "caller"


class Stale(Exception):
    """Code and rules do not fit each other."""


@dataclass
class Function:
    name: str
    start: int
    end: int
    unsafe: bool
    trait: str | None
    safety: str | None


@dataclass
class Site:
    """Something that is unsafe, and the comment that says why it may be."""

    kind: str
    start: int
    line: int
    place: str
    function: Function | None
    module: str | None
    comment: "Comment | None" = None
    rules: set = field(default_factory=set)


@dataclass
class Comment:
    """A `SAFETY:` comment: its words, the line that it begins on, and the line after it."""

    line: int
    after: int
    text: str
    function: Function | None = None


def masked(text):
    """The text with what is in comments, strings and characters blanked out."""
    token = re.compile(
        r"//[^\n]*|/\*"
        r"|\b(?:br|cr|r)(#*)\"(?:.|\n)*?\"\1"
        r"|\b[bc]?\"(?:\\(?:.|\n)|[^\"\\])*\"|\"(?:\\(?:.|\n)|[^\"\\])*\""
        r"|\bb?'(?:\\(?:x..|u\{[^}]*\}|.)|[^'\\\n])'|'(?:\\(?:x..|u\{[^}]*\}|.)|[^'\\\n])'"
    )
    out, at = [], 0
    while found := token.search(text, at):
        end = found.end()
        if found.group() == "/*":
            end = text.index("*/", end) + 2
        out += [text[at : found.start()], re.sub(r"[^\n]", " ", text[found.start() : end])]
        at = end
    return "".join(out + [text[at:]])


def closing(code, start):
    """The offset after the bracket that closes the one at an offset."""
    depth = 0
    for found in re.compile(r"[(){}\[\]]").finditer(code, start):
        depth += 1 if found.group() in "({[" else -1
        if depth == 0:
            return found.end()
    raise Stale(f"a bracket is not closed: {code[start : start + 60]}")


def body(code, start):
    """The span of a function's or an item's braces, or where it ends without."""
    depth = 0
    for found in re.compile(r"[()\[\]{};]").finditer(code, start):
        if found.group() in "([":
            depth += 1
        elif found.group() in ")]":
            depth -= 1
        elif depth == 0:
            return found.start(), closing(code, found.start()) if found.group() == "{" else found.end()
    return start, start


class Source:
    """One file: its functions, its unsafe sites and its `SAFETY:` comments."""

    def __init__(self, path, text=None):
        self.name = path.relative_to(ROOT).as_posix()
        self.text = path.read_text() if text is None else text
        self.code = masked(self.text)
        self.lines = self.text.splitlines()
        self.starts = [0] + [m.end() for m in re.finditer("\n", self.text)]
        self.owners = self.find_owners()
        self.modules = self.find_modules()
        self.functions = self.find_functions()
        self.comments = self.find_comments()
        self.sites = self.find_sites()

    def line(self, offset):
        """The line of an offset, from 0."""
        low, high = 0, len(self.starts)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.starts[middle] <= offset else (low, middle)
        return low

    def find_owners(self):
        """Implementations, traits and macros: span, name, and the trait whose methods they are."""
        owners = []
        for found in re.finditer(r"^[ \t]*(?:pub(?:\([^)]*\))? )?(?:unsafe )?(impl|trait)\b", self.code, re.M):
            open_, end = body(self.code, found.end())
            head = " ".join(self.code[found.end() : open_].split())
            if found.group(1) == "impl":
                # Without the parameters of the implementation, and without bounds.
                if head.startswith("<"):
                    depth = 0
                    for at, letter in enumerate(head):
                        depth += (letter == "<") - (letter == ">" and head[at - 1] not in "-=")
                        if depth == 0:
                            head = head[at + 1 :].strip()
                            break
                head = re.split(r" where\b", head)[0]
                trait, _, owner = head.rpartition(" for ")
                trait = re.match(r"[\w:!]*", trait).group().split("::")[-1] or None
                found_name = re.match(r"(?:dyn )?(?:\w+::)*(\w+)", owner.strip())
                name = found_name.group(1) if found_name else re.split("<", owner.strip())[0]
            else:
                name = trait = re.match(r"\w+", head).group()
            owners.append((found.start(), end, name, trait))
        for found in re.finditer(r"\bmacro_rules!\s+(\w+)", self.code):
            _, end = body(self.code, found.end())
            owners.append((found.start(), end, f"{found.group(1)}!", None))
        return owners

    def find_modules(self):
        """Spans and names of modules that tests alone are built with."""
        modules = [(0, len(self.code), "tests")] if self.name.endswith("/tests.rs") else []
        head = r"#\[cfg\((?:test|all\(test)\b[^\n]*\n(?:\s*#\[[^\n]*\n)*\s*(?:pub(?:\([^)]*\))? )?mod (\w+) \{"
        for found in re.finditer(head, self.code):
            modules.append((found.start(), closing(self.code, found.end() - 1), found.group(1)))
        return modules

    def find_functions(self):
        functions = []
        head = r"((?:\b(?:unsafe|const|async|safe|extern)\s+)*)\bfn\s+(\$?\w+)"
        for found in re.finditer(head, self.code):
            _, end = body(self.code, found.end())
            owner = self.owner(found.start())
            unsafe = "unsafe" in found.group(1)
            safety = self.safety_section(self.line(found.start())) if unsafe else None
            name, type_ = found.group(2), owner and owner[3]
            functions.append(Function(name, found.start(), end, unsafe, type_, safety))
        return functions

    def safety_section(self, line):
        """The first sentence of the `# Safety` section above a line."""
        docs, at = [], line - 1
        while at >= 0 and re.match(r"\s*(///|//|#\[|[\w(].*\)\]$|\)\]$)", self.lines[at]):
            if found := re.match(r"\s*/// ?(.*)", self.lines[at]):
                docs.insert(0, found.group(1))
            at -= 1
        if "# Safety" not in docs:
            return None
        section = docs[docs.index("# Safety") + 1 :]
        words = " ".join(re.split(r" # | \n", " ".join(section) + "\n")[0].split())
        return first_sentence(words)

    def owner(self, offset):
        found = [owner for owner in self.owners if owner[0] <= offset < owner[1]]
        return max(found) if found else None

    def function(self, offset):
        found = [f for f in self.functions if f.start <= offset < f.end]
        return max(found, key=lambda f: f.start) if found else None

    def place(self, offset):
        """What the page calls the place of an offset."""
        owner, function = self.owner(offset), self.function(offset)
        if owner and function and function.start < owner[0]:
            return f"{function.name}: {owner[2]}"
        names = [name for name in (owner and owner[2], function and function.name) if name]
        return "::".join(names)

    def find_comments(self):
        comments, at = [], 0
        while at < len(self.lines):
            if (found := re.search(r"// SAFETY: ?(.*)", self.lines[at])) is None:
                at += 1
                continue
            begin, words = at, [found.group(1)]
            own = self.lines[at].lstrip().startswith("//")
            at += 1
            while own and at < len(self.lines) and (more := re.match(r"\s*//(?![/!]) ?(?!SAFETY:)(.*)", self.lines[at])):
                words.append(more.group(1))
                at += 1
            text = " ".join(" ".join(words).split())
            comments.append(Comment(begin, at, text, self.function(self.starts[begin])))
        return comments

    def find_sites(self):
        sites = []
        kinds = r"\bunsafe\s*(?:(\{)|(impl\b)|(extern\b(?=\s*\{)))|#!?\[(unsafe)\("
        for found in re.finditer(kinds, self.code):
            kind = next(k for k, g in zip(("block", "impl", "extern", "attribute"), found.groups()) if g)
            start = found.start()
            module = next((name for begin, end, name in self.modules if begin <= start < end), None)
            function = self.function(start)
            if kind == "attribute":
                item = re.compile(r"\b(?:fn|static)\s+(\$?\w+)").search(self.code, start)
                owner = self.owner(start)
                place = "::".join(name for name in (owner and owner[2], item.group(1)) if name)
            elif kind == "impl":
                head = " ".join(self.code[start : body(self.code, start)[0]].split())
                place = re.sub(r"^unsafe impl(<[^>]*>)? ", "", head).split(" where")[0].strip()
            else:
                place = self.place(start)
            site = Site(kind, start, self.line(start), place, function, module)
            site.comment = self.comment_of(start)
            sites.append(site)
        return sites

    def comment_of(self, offset):
        """The comment that stands before the statement, or what encloses it in the statement, at an offset."""
        ends = {comment.after: comment for comment in self.comments}
        first = next((c for c in self.comments if c.line == self.line(offset) + 1), None)
        if first and self.code[: self.starts[first.line]].endswith("unsafe {\n"):
            return first
        at = offset
        while True:
            begin, stop = self.begin_of(at)
            line = self.line(begin)
            # Between there and here; or behind it, on its line.
            after = self.line(offset) + 1
            inside = [
                c for c in self.comments if self.line(at) >= c.line >= line and c.after <= after
            ]
            if inside:
                return inside[-1]
            if self.line(begin) in ends:
                return ends[self.line(begin)]
            if stop is None or self.code[stop] in ";}":
                return None
            if self.code[stop] == "{" and not re.search(r"(=>|=|else|\||\bmatch [^;{}]*|\)|\w)\s*$", self.code[:stop]):
                return None
            if self.code[stop] == "{" and self.opens_function(stop):
                return None
            at = stop

    def opens_function(self, offset):
        around = (f for f in self.functions if f.start < offset < f.end)
        return any(body(self.code, f.start)[0] == offset for f in around)

    def begin_of(self, offset):
        """Where the expression that an offset lies in begins, attributes included, and the offset of what stands before it."""
        depth, at = 0, offset - 1
        while at >= 0:
            letter = self.code[at]
            if letter in ")]}":
                if letter == "}" and depth == 0:
                    break
                depth += 1
            elif letter in "([{":
                if depth == 0:
                    break
                depth -= 1
            elif depth == 0 and (letter == ";" or letter == ","):
                break
            at -= 1
        begin = re.compile(r"\S").search(self.code, at + 1).start()
        return begin, at if at >= 0 else None


def first_sentence(text):
    found = re.match(r"(.*?[.:])(?= [A-Z`(\[]|$)", text)
    return (found.group(1) if found else text).strip()


WORD = r"\*[a-z]+\*"
CITATION = rf"rules? ({WORD}(?:, {WORD})*(?:,? and {WORD})?)"


def cited(text):
    """The rules that a text names."""
    found = re.findall(rf"\b{CITATION}", text, re.I)
    return {word for group in found for word in re.findall(r"\*(\w+)\*", group)}


class Resolver:
    """Finds the rules that a comment leads to."""

    def __init__(self, sources):
        # What a trait's method asks for, its implementations may rely on.
        self.traits = {
            (function.trait, function.name): function.safety
            for source in sources
            for function in source.functions
            if function.safety and function.trait
        }

    def asks(self, function):
        return function.safety or self.traits.get((function.trait, function.name))

    def rules(self, source, comment, seen=()):
        """The rules, `CALLER` among them; a `Stale` says why there are none."""
        if comment.line in seen:
            return set()
        seen = (*seen, comment.line)
        found, function = cited(comment.text), comment.function
        if re.search(r"\bthe caller\b", comment.text) and function and function.unsafe:
            if self.asks(function):
                found.add(CALLER)
            elif not found:
                raise Stale(f"`{function.name}` has no `# Safety` section that says what its caller does")
        if re.search(r"\bas (above|before)\b", comment.text) and not found:
            before = [c for c in source.comments if c.line < comment.line]
            if not before:
                raise Stale("there is no comment above")
            found |= self.rules(source, before[-1], seen)
        for name in re.findall(r"\b[Aa]s (?:in|for|of) `(\w+)`", comment.text):
            named = [f for f in source.functions if f.name == name]
            if not named and not found:
                raise Stale(f"there is no function `{name}` in the file")
            comments = [c for c in source.comments if c.function and c.function.name == name]
            if not found and not comments and not any(self.asks(f) for f in named):
                raise Stale(f"`{name}` has neither such a comment nor a `# Safety` section")
            for f in named:
                if f.unsafe and self.asks(f) and re.search(f"as for `{name}`", comment.text, re.I):
                    found.add(CALLER)
            if CALLER not in found and not cited(comment.text):
                for other in comments:
                    found |= self.rules(source, other, seen)
        if not found:
            raise Stale("it names no rule")
        return found


def read():
    return [Source(path) for tree in TREES for path in sorted((ROOT / tree).rglob("*.rs"))]


# Where the lint `unsafe_code` reports something. `export!` defines unsafe functions.
LINTED = re.compile(
    r"\bunsafe\s*(?:\{|impl\b|trait\b|extern\b\s*\{|(?:extern\b\s*)?fn\s+\$?\w)|#!?\[unsafe\(|\bexport! "
)
FORBID = "#![forbid(unsafe_code)]"
FORBID_OUTSIDE_TESTS = "#![cfg_attr(not(test), forbid(unsafe_code))]"
ALLOW = "#[allow(unsafe_code)]"


def unsafe_in(source):
    """Whether a file has unsafe code outside tests, and whether it has any in tests."""
    found = [in_test(source, found.start()) for found in LINTED.finditer(source.code)]
    return False in found, True in found


def in_test(source, offset):
    return any(begin <= offset < end for begin, end, _ in source.modules)


def module_lines(sources):
    """The files of the modules that are declared in other files: whether their `mod` line allows unsafe code."""
    allowed, by_name = {}, {source.name: source for source in sources}
    line = r"((?:^[ \t]*#\[[^\n]*\n)*)^[ \t]*(?:pub(?:\([^)]*\))? )?mod (\w+);"
    for source in sources:
        path = Path(source.name)
        folder = path.parent if path.stem in ("lib", "mod") else path.with_suffix("")
        for found in re.finditer(line, source.code, re.M):
            for name in (f"{folder}/{found.group(2)}.rs", f"{folder}/{found.group(2)}/mod.rs"):
                if name in by_name:
                    allowed[name] = source.name, ALLOW in found.group(1)
    return allowed


def check_map(sources):
    """Comes back: where the map of unsafe code is wrong."""
    problems, lines = [], module_lines(sources)
    unsafe = {source.name: unsafe_in(source) for source in sources}
    for source in sources:
        outside, tests = unsafe[source.name]
        problems += check_inner_allows(source)
        if source.name.endswith("/lib.rs"):
            if "#![deny(unsafe_code)]" not in source.code and FORBID not in source.code:
                problems.append(f"{source.name}: lacks #![deny(unsafe_code)]")
            continue
        # The whole file is a test module.
        if any(begin == 0 for begin, _, _ in source.modules):
            outside, tests = tests, False
        # A `forbid` holds for the test module beside the file, too.
        tests |= any(unsafe.get(source.name.removesuffix(".rs") + "/tests.rs", ()))
        parent, allowed = lines[source.name]
        if outside != allowed:
            what = "does not need" if allowed else "lacks"
            problems.append(f"{parent}: the line of {source.name} {what} {ALLOW}")
        needed = None if outside else FORBID_OUTSIDE_TESTS if tests else FORBID
        if source.name.endswith("/mod.rs"):
            # `forbid` here would apply to the folder's other files too.
            folder = source.name.removesuffix("mod.rs")
            if any(any(unsafe[name]) for name in unsafe if name.startswith(folder)):
                needed = None
        for forbid in (FORBID, FORBID_OUTSIDE_TESTS):
            if (forbid == needed) != bool(re.search(f"^{re.escape(forbid)}$", source.code, re.M)):
                what = "lacks" if forbid == needed else "must not have"
                problems.append(f"{source.name}: {what} {forbid}")
    return problems


def check_inner_allows(source):
    """Each `allow` inside a file stands at a test module with unsafe code, in a file that has no other."""
    for found in re.finditer(re.escape(ALLOW), source.code):
        item = re.compile(r"(?:\s*#\[[^\n]*\n)*\s*(?:pub(?:\([^)]*\))? )?mod \w+( \{|;)").match(source.code, found.end())
        at = f"{source.name}:{source.line(found.start()) + 1}: {ALLOW}"
        if item is None:
            yield f"{at} belongs to a module"
        elif item.group(1) == " {":
            end = closing(source.code, item.end() - 1)
            if unsafe_in(source)[0] or not LINTED.search(source.code, item.end(), end):
                yield f"{at} is not needed"


def show_map(sources):
    folders = {}
    for source in sources:
        blocks = sum(site.kind == "block" and not in_test(source, site.start) for site in source.sites)
        entry = blocks, *unsafe_in(source), FORBID in source.code
        folders.setdefault(str(Path(source.name).parent), []).append(entry)
    row = "{:18} {:>6} {:>5} {:>11} {:>14} {:>7}"
    print(row.format("folder", "blocks", "files", "with unsafe", "only in tests", "forbid"))
    total = [0] * 5
    for folder, files in sorted(folders.items()):
        numbers = (
            sum(blocks for blocks, *_ in files),
            len(files),
            sum(outside or tests for _, outside, tests, _ in files),
            sum(tests and not outside for _, outside, tests, _ in files),
            sum(forbid for *_, forbid in files),
        )
        total = [a + b for a, b in zip(total, numbers)]
        print(row.format(folder, *numbers))
    print(row.format("all", *total))


def resolve(sources, known):
    """Gives each site its rules; comes back: what is amiss."""
    problems, resolver = [], Resolver(sources)
    for source in sources:
        for site in source.sites:
            at = f"{source.name}:{site.line + 1}: unsafe {site.kind} in `{site.place}`"
            if site.comment is None:
                problems.append(f"{at}: no `SAFETY:` comment")
                continue
            try:
                site.rules = resolver.rules(source, site.comment)
            except Stale as stale:
                problems.append(f"{at}: {stale}: \"{site.comment.text}\"")
            for word in sorted(site.rules - known - {CALLER}):
                problems.append(f"{at}: there is no rule {word}")
    return problems


def statement(rule):
    """What a rule says, in the file that keeps it, without the links."""
    text = re.sub(r"(?m)^//!? ?", "", (ROOT / rule["file"]).read_text())
    found = re.search(rf"^\* \*\*{rule['word']}\*\*: ((?:.+\n(?!\* |\n))*.+)", text, re.M)
    if found is None:
        raise Stale(f"rule {rule['word']} is not stated in {rule['file']}")
    words = " ".join(found.group(1).split())
    return re.sub(r"\[(`[^`]*`|[^\]]*)\](\([^)]*\))?", r"\1", words)


def check_evidence(rule):
    """Names that do not exist, and what is missing."""
    problems, word = [], rule["word"]
    for model in rule.get("models", []):
        file, _, name = model.partition("::")
        path = ROOT / f"loom_tests/{file}.rs"
        if not path.exists() or (name and f"fn {name}(" not in path.read_text()):
            problems.append(f"rule {word}: there is no model {model}")
    for entry in rule.get("tests", []) + rule.get("runs", []):
        file, _, name = entry.partition("::")
        path = ROOT / file
        if not path.exists() or (name and not re.search(rf"\bfn {name}\b", path.read_text())):
            problems.append(f"rule {word}: there is no {entry}")
    if not rule.get("tests"):
        problems.append(f"rule {word}: no test")
    if bool(rule.get("models")) == bool(rule.get("no_model")):
        problems.append(f"rule {word}: models, or why there is none; one of the two")
    return problems


def cell(text):
    return text.replace("|", "\\|")


def listed(rules, order):
    return ", ".join(sorted(rules, key=lambda word: order.index(word) if word in order else len(order)))


def shown(comment):
    """The comment's words, less the rules in front, which have a column of their own."""
    text = re.sub(rf"^{CITATION}(?:[:.;,] ?|$)", "", comment.text).strip()
    return cell(text[:1].lower() + text[1:] if text[:2] != text[:2].upper() else text).rstrip(".")


def evidence(rule):
    models = ", ".join(f"`{name}`" for name in rule.get("models", []))
    model = f"- models: {models}" if models else f"- no model: {rule['no_model']}"
    tests = ", ".join(f"`{name}`" for name in rule["tests"])
    runs = ", ".join(f"`{name}`" for name in rule.get("runs", []))
    return [f"- tests: {tests}", model] + ([f"- runs: {runs}"] if runs else [])


def page(sources, rules, left):
    order = [rule["word"] for rule in rules]
    blocks = Counter(site.kind for source in sources for site in source.sites)
    functions = sum(f.unsafe for source in sources for f in source.functions)
    sites = [site for source in sources for site in source.sites]
    relying = Counter(word for site in sites for word in site.rules)
    in_tests = sum(bool(site.module) for source in sources for site in source.sites)
    lines = [
        "# Unsafe code",
        "",
        "Made by `ci/unsafe.py --page`. Every use of `unsafe` in `src/`, `capi/src/` and `derive/src/`, with the rule that it relies",
        "on. Each has a `SAFETY:` comment, and the script fails if one does not lead to a rule, or a rule names a test that does",
        "not exist (`ci/unsafe.sh`). The script cannot decide whether a comment is true: that is for readers, and for the tests of",
        "the rule.",
        "",
        f"{blocks['block']} blocks, {blocks['impl']} implementations, {functions} functions, {blocks['attribute']} attributes and",
        f"{blocks['extern']} foreign declaration; {in_tests} of them in tests. *Caller*: the block relies on the contract of the enclosing",
        "function, its `# Safety` section. The second table of each file has the section's first sentence. The functions that",
        "`export!` defines in `capi/src/` are unsafe too, and rely on rule *argument*.",
        "",
        "## Rules",
        "",
        "Each is stated in the file that keeps it. A block may rely on several.",
        "",
    ]
    for rule in rules:
        words, uses = statement(rule), relying[rule["word"]]
        lines += [f"### {rule['word']}", "", words[:1].upper() + words[1:], ""]
        lines += [f"- stated in `{rule['file']}`; {uses} places rely on it", *evidence(rule), ""]
    lines += [
        f"*Caller*: {relying[CALLER]} places rely on the contract of the enclosing function, and so on the rules that its callers name.",
        "",
        "## Counts",
        "",
        "| file | blocks | implementations | functions | of all these, in tests | rules |",
        "|---|---|---|---|---|---|",
    ]
    for source in sources:
        kinds = Counter(site.kind for site in source.sites)
        unsafe = [f for f in source.functions if f.unsafe]
        if not kinds and not unsafe:
            continue
        test = sum(bool(site.module) for site in source.sites)
        test += sum(in_module(source, f) is not None for f in unsafe)
        used = listed({word for site in source.sites for word in site.rules} - {CALLER}, order)
        numbers = (kinds["block"], kinds["impl"], len(unsafe), test)
        lines.append(f"| `{source.name}` | {' | '.join(str(n or '') for n in numbers)} | {used} |")
    lines += ["", "## Reviewed blocks that stay", ""]
    lines += [f"- {entry['what']}: {entry['why']}" for entry in left]
    lines.append("")
    resolver = Resolver(sources)
    for source in sources:
        unsafe = [f for f in source.functions if f.unsafe and not in_module(source, f)]
        if not source.sites and not unsafe:
            continue
        lines += [f"## `{source.name}`", ""]
        lines += places(source, order) + asked(source, resolver, unsafe)
    return "\n".join(lines).rstrip() + "\n"


def in_module(source, function):
    at = function.start
    return next((name for begin, end, name in source.modules if begin <= at < end), None)


def places(source, order):
    rows, tests = {}, {}
    for site in source.sites:
        if site.module:
            count, rules = tests.get(site.module, (0, set()))
            tests[site.module] = count + 1, rules | site.rules
            continue
        place = f"`{site.place}`" if site.kind in ("block", "attribute") else f"`{site.kind} {site.place}`".replace(" `", "`")
        key = place, listed(site.rules, order), shown(site.comment)
        rows[key] = rows.get(key, 0) + 1
    lines = []
    if rows or tests:
        lines = ["| in | rules | because |", "|---|---|---|"]
    for (place, rules, words), count in rows.items():
        lines.append(f"| {place}{f' ({count} times)' if count > 1 else ''} | {rules} | {words} |")
    for module, (count, rules) in tests.items():
        lines.append(f"| in tests: `{module}` | {listed(rules, order)} | {count} places |")
    return lines + [""] if lines else []


def asked(source, resolver, unsafe):
    if not unsafe:
        return []
    known = [(source.place(f.start), resolver.asks(f)) for f in unsafe]
    lines = []
    if any(words for _, words in known):
        lines += ["| function | contract |", "|---|---|"]
        for place, words in known:
            if words:
                words = re.sub(r"\[(`[^`]*`|[^\]]*)\](\([^)]*\))?", r"\1", words)
                lines.append(f"| `{place}` | {cell(words).rstrip('.:')} |")
        lines.append("")
    silent = [f"`{place}`" for place, words in known if not words]
    if silent:
        lines += [f"Without a section, since only tables or their neighbours call them: {', '.join(dict.fromkeys(silent))}.", ""]
    return lines


def main():
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--page", action="store_true")
    parser.add_argument("--map", action="store_true")
    asked_for = parser.parse_args()
    table = tomllib.loads(RULES.read_text())
    rules, sources = table["rule"], read()
    if asked_for.map:
        return show_map(sources)
    problems = check_map(sources)
    problems += resolve(sources, {rule["word"] for rule in rules})
    for rule in rules:
        problems += check_evidence(rule)
        if not any(rule["word"] in site.rules for source in sources for site in source.sites):
            problems.append(f"rule {rule['word']}: nothing relies on it")
    if problems:
        raise Stale("\n".join(problems))
    if asked_for.page:
        return print(page(sources, rules, table["left"]), end="")
    count = sum(len(source.sites) for source in sources)
    print(f"{count} unsafe places, {len(rules)} rules: each place leads to a rule, each rule to a test")


if __name__ == "__main__":
    try:
        main()
    except Stale as stale:
        sys.exit(str(stale))

"""Measures this collector beside CPython's, in the same process, alternately.

    python -m standstill_gc.bench [--quick] [--json FILE] [--svg FILE] [--markdown FILE]

Each case runs in an interpreter of its own. It builds a heap, and then each collector collects it
in turn, so that changes of the machine's speed concern both alike.
"""

import argparse
import gc
import hashlib
import importlib.util
import io
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import threading
import time

import standstill_gc

# CPython's own: the package is imported here, and not installed.
_cpython = gc.collect

# -------------------------------------------------------------------------------------- heaps


class Node:
    """An instance with attributes."""


class Final:
    """An instance with a finalizer."""

    def __del__(self):
        pass


def lists(n):
    return [[] for _ in range(n)]


def instances(n):
    held = []
    for number in range(n):
        node = Node()
        node.number, node.held = number, held
        held.append(node)
    return held


def tuples(n):
    """A tree of tuples, with a list at each leaf."""

    def tree(depth):
        return (tree(depth - 1), tree(depth - 1)) if depth else [None]

    return tree(max(1, n.bit_length() - 2))


def graph(n):
    """A random graph of instances, each with a list of three others."""
    r = random.Random(1)
    nodes = [Node() for _ in range(n // 2)]
    for node in nodes:
        node.edges = [nodes[r.randrange(len(nodes))] for _ in range(3)]
    return nodes


def pairs(n):
    for _ in range(n // 2):
        a, b = Node(), Node()
        a.other, b.other = b, a


def closures(n):
    def make():
        def function():
            return function

    for _ in range(n // 3):
        make()


def finalizers(n):
    for _ in range(n // 2):
        a, b = Final(), Final()
        a.other, b.other = b, a


# The same objects without cycles, in a list that is their only holder.


def chains(n, kind=Node):
    held = []
    for _ in range(n // 2):
        a, b = kind(), kind()
        a.other, b.other = b, None
        held.append(a)
    return held


def plain_closures(n):
    def make():
        other = None

        def function():
            return other

        return function

    return [make() for _ in range(n // 3)]


def chains_with_finalizers(n):
    return chains(n, Final)


# Heaps of real programs. Each needs the package of its name, and is left out without it.


def sympy(n):
    """Formulas, beside the package with its caches."""
    from sympy import exp, expand, integrate, sin, symbols

    x, y = symbols("x y")
    held = [integrate(sin(x) * exp(x * k), x) for k in range(1, 6)]
    return held + [expand((x + y + k) ** 20) for k in range(max(1, n // 20_000))]


def django(n):
    """Rows of a table as objects of the ORM, beside the package with its applications."""
    from django.conf import settings

    contrib = ("auth", "contenttypes", "admin", "sessions", "messages")
    settings.configure(
        INSTALLED_APPS=[f"django.contrib.{name}" for name in contrib],
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
        DEFAULT_AUTO_FIELD="django.db.models.AutoField",
    )
    import django
    django.setup()
    from django.contrib.auth.models import User
    from django.core.management import call_command

    call_command("migrate", verbosity=0)
    User.objects.bulk_create(User(username=f"user {k}") for k in range(1000))
    return [list(User.objects.all()) for _ in range(max(1, n // 15_000))]


def pydantic(n):
    """Models with models inside, as a service keeps them."""
    from pydantic import BaseModel

    class Part(BaseModel):
        number: int
        tags: list[str]

    class Whole(BaseModel):
        name: str
        parts: list[Part]
        by_name: dict[str, Part]

    return [
        Whole(
            name=str(k), parts=[Part(number=k, tags=["a", "b"]) for k in range(5)],
            by_name={"one": Part(number=1, tags=[])},
        )
        for k in range(max(1, n // 30))
    ]


# Services. Each returns a function that serves the request with a number, and keeps its heap.


def documents(n):
    """Parses documents: trees with references to parents, which are garbage afterwards."""
    live = instances(n)

    def request(number):
        root = Node()
        root.children = []
        for child in range(60):
            node = Node()
            node.parent, node.fields = root, {"name": f"field {child}", "value": [child] * 3}
            root.children.append(node)
        answer = ",".join(node.fields["name"] for node in root.children)
        return len(answer) + live[number % len(live)].number

    return request


def web(n):
    """An application of Django: URLs, a form that is validated, a template. It keeps rows of a
    table. The forms are garbage: each has cycles with its fields."""
    users = django(n)
    from django import forms
    from django.conf import settings
    from django.core.handlers.wsgi import WSGIHandler
    from django.http import HttpResponse
    from django.template import Context, Engine
    from django.urls import path

    class Profile(forms.Form):
        name, address = forms.CharField(), forms.CharField(required=False)
        age, email = forms.IntegerField(min_value=18), forms.EmailField()

    page = Engine().from_string("""
        <h1>{{ user.username }}</h1><form>{{ form.as_p }}</form>
        {% for user in others %}<li>{{ user.username }} {{ user.email|default:"-" }}{% endfor %}
    """)

    def edit(request, number):
        of_all = users[number % len(users)]
        user, form = of_all[number % len(of_all)], Profile(request.POST)
        form.is_valid()
        return HttpResponse(page.render(Context({"user": user, "form": form, "others": of_all[:20]})))

    settings.ROOT_URLCONF = (path("users/<int:number>/", edit),)
    application = WSGIHandler()
    body = b"name=a+name&address=&age=17&email=someone@example.org"

    def request(number):
        status = []
        response = application({
            "REQUEST_METHOD": "POST", "PATH_INFO": f"/users/{number}/", "wsgi.url_scheme": "http",
            "SERVER_NAME": "localhost", "SERVER_PORT": "80", "wsgi.errors": sys.stderr,
            "CONTENT_TYPE": "application/x-www-form-urlencoded",
            "CONTENT_LENGTH": str(len(body)), "wsgi.input": io.BytesIO(body),
        }, lambda line, headers: status.append(line))
        text = b"".join(response)
        response.close()
        if status != ["200 OK"]:
            raise SystemExit(f"Django answers {status}: {text[:1000]}")
        return len(text)

    return request


# -------------------------------------------------------------------------------------- cases


def _name(threads):
    return f"{threads} thread" + "s" * (threads > 1)


def _ways(threads):
    """The collectors that are compared, by name."""
    ways = {"gc.collect": _cpython}
    for n in threads:
        ways[_name(n)] = lambda n=n: standstill_gc.collect(threads=n)
    return ways


def _last():
    """The record of the last collection, or None."""
    return standstill_gc.stats()["last"]


def _timed(collect):
    before = _last()
    begin = time.perf_counter()
    collect()
    seconds = time.perf_counter() - begin
    if collect is _cpython:
        return seconds, seconds
    last = _last()
    if last is None or last == before:
        raise SystemExit("a collection was left to CPython's collector")
    return seconds, sum(last["pauses"])


def _alternate(ways, prepare, rounds, progress):
    """Seconds of each way, in rounds; each round changes the order."""
    times = {name: [] for name in ways}
    stops = {name: [] for name in ways}
    order = list(ways)
    for turn in range(rounds):
        order.append(order.pop(0))
        for name in order:
            prepare()
            seconds, stopped = _timed(ways[name])
            times[name].append(seconds)
            stops[name].append(stopped)
        progress((turn + 1) / rounds)
    return times, stops


def _result(kind, title, objects, times, stops=None):
    rows = {}
    for name, seconds in times.items():
        rows[name] = {
            "median": statistics.median(seconds), "min": min(seconds), "max": max(seconds),
        }
        if stops:
            rows[name]["stopped"] = statistics.median(stops[name])
    return {"kind": kind, "title": title, "objects": objects, "rows": rows}


def _alone(threads, rounds):
    """Median seconds of this package before CPython's collector has run in the process.

    CPython's collector leaves less work for the next collection, of either collector: it stops to
    track tuples without collected items, and adds the counts that threads keep in tables.
    """
    medians = {}
    for name, collect in _ways(threads).items():
        if collect is not _cpython:
            collect()
            medians[name] = statistics.median(_timed(collect)[0] for _ in range(rounds))
    return medians


def held(title, build, n, rounds):
    def case(threads, scale, progress):
        keep = build(max(1000, int(n * scale)) if n > 50_000 else n)
        alone = _alone(threads, rounds)
        for _ in range(3):
            _cpython()
        objects = len(gc.get_objects())
        times, _ = _alternate(_ways(threads), lambda: None, rounds, progress)
        del keep
        kind = "held" if n > 50_000 else "small"
        return _result(kind, title, objects, times) | {"alone": alone}

    return case


def _freed(make, size):
    """Seconds in which the interpreter frees objects by their counts, without a collector."""
    held = make(size)
    begin = time.perf_counter()
    held.clear()
    return time.perf_counter() - begin


def garbage(title, make, without_cycles, n, rounds):
    def case(threads, scale, progress):
        size = int(n * scale)
        for _ in range(3):
            _cpython()
        times, stops = _alternate(_ways(threads), lambda: make(size), rounds, progress)
        result = _result("garbage", title, size, times, stops)
        freed = [_freed(without_cycles, size) for _ in range(rounds)]
        return result | {"freed": statistics.median(freed)}

    return case


def _gaps_of(work, count, collected):
    """Seconds, and the longest waits of a thread that works."""
    gaps, last = [], time.perf_counter()
    begin = last
    for number in range(count):
        work(number)
        if number & 31 == 0:
            now = time.perf_counter()
            gaps.append((now - last, now - begin))
            last = now
    collected.append((time.perf_counter() - begin, gaps))


def program(title, n, rounds):
    """A program that keeps objects and makes garbage, with automatic collections."""

    def case(threads, scale, progress):
        live = instances(int(n * scale))
        count = int(n * scale) * 2
        for _ in range(3):
            _cpython()

        def work(_):
            a, b = Node(), Node()
            a.other, b.other = b, a

        def run():
            gc.enable()
            collected = []
            thread = threading.Thread(target=_gaps_of, args=(work, count, collected))
            thread.start()
            thread.join()
            gc.disable()
            return collected[0]

        walls, longest, lines = _series(threads, rounds, progress, run)
        del live
        result = _result("program", title, int(n * scale), longest)
        for name, seconds in walls.items():
            result["rows"][name]["wall"] = statistics.median(seconds)
        result["gaps"] = lines
        return result

    return case


def _series(threads, rounds, progress, run):
    """Runs a program in turns, with CPython's automatic collections and with this package's."""
    names = {"gc.collect": None, **{_name(n): n for n in threads}}
    walls = {name: [] for name in names}
    longest = {name: [] for name in names}
    lines = {}
    for turn in range(rounds):
        for name, n in names.items():
            if n is not None:
                standstill_gc.install(threads=n)
            wall, gaps = run()
            standstill_gc.uninstall()
            gc.disable()
            _cpython()
            walls[name].append(wall)
            longest[name].append(max(gap for gap, _ in gaps))
            if turn == 0:
                lines[name] = [(at, gap) for gap, at in gaps if gap > 0.001]
        progress((turn + 1) / rounds)
    return walls, longest, lines


PERCENTILES = (50, 90, 99, 99.9)


def service(title, build, n, load, seconds, rounds):
    """Requests that arrive at fixed times, served by two threads beside a large live heap. `load`
    is the time that one thread would be busy, as a share.

    A latency is the time from the planned arrival to the end of the request, so that a request that
    waits for a collection counts with its wait.
    """

    def case(threads, scale, progress):
        request = build(int(n * scale))
        for number in range(500):
            request(number)
        for _ in range(3):
            _cpython()
        objects = len(gc.get_objects())
        begin = time.perf_counter()
        for number in range(500):
            request(number)
        interval = (time.perf_counter() - begin) / 500 / load
        count = int(seconds / interval)

        def run():
            gc.enable()
            latencies, lock, begin = [], threading.Lock(), time.perf_counter()
            numbers = iter(range(count))

            def serve():
                mine = []
                while True:
                    with lock:
                        number = next(numbers, None)
                    if number is None:
                        break
                    arrival = begin + number * interval
                    while (wait := arrival - time.perf_counter()) > 0:
                        time.sleep(wait)
                    request(number)
                    mine.append((time.perf_counter() - arrival, arrival - begin))
                with lock:
                    latencies.extend(mine)

            group = [threading.Thread(target=serve) for _ in range(2)]
            for thread in group:
                thread.start()
            for thread in group:
                thread.join()
            gc.disable()
            return time.perf_counter() - begin, latencies

        all_latencies = {}

        def keeping():
            wall, latencies = run()
            all_latencies.setdefault(len(all_latencies), [gap for gap, _ in latencies])
            return wall, latencies

        _, longest, _ = _series(threads, rounds, progress, keeping)
        result = _result("service", title, objects, longest)
        for place, (name, row) in enumerate(result["rows"].items()):
            series = [sorted(all_latencies[turn * len(longest) + place]) for turn in range(rounds)]
            row["latency"] = {
                f"p{p:g}": statistics.median(
                    s[min(len(s) - 1, int(p / 100 * len(s)))] for s in series)
                for p in PERCENTILES
            }
        result["requests"] = count
        return result

    return case


MILLION = 1_000_000


def cases(quick):
    rounds = 3 if quick else 7
    scale = 0.1 if quick else 1.0
    seconds, seconds_of_django = (1.5, 1.5) if quick else (5, 10)
    real = {"sympy": "formulas of SymPy", "django": "Django with rows of a table",
            "pydantic": "models of pydantic"}
    builders = {"sympy": sympy, "django": django, "pydantic": pydantic}
    return scale, {
        "lists": held("lists, held", lists, MILLION, rounds),
        "instances": held("instances, held", instances, MILLION, rounds),
        "tuples": held("tree of tuples, held", tuples, MILLION, rounds),
        "graph": held("random graph, held", graph, MILLION, rounds),
        **{name: held(f"{title}, held", builders[name], MILLION, rounds)
           for name, title in real.items() if importlib.util.find_spec(name)},
        "pairs": garbage("garbage: pairs", pairs, chains, MILLION, rounds),
        "closures": garbage(
            "garbage: closures", closures, plain_closures, MILLION, rounds),
        "finalizers": garbage(
            "garbage: with `__del__`", finalizers, chains_with_finalizers, MILLION // 2, rounds),
        "small-1000": held("small: 1,000 lists", lists, 1_000, rounds * 7),
        "small-10000": held("small: 10,000 instances", instances, 10_000, rounds * 7),
        "small-50000": held("small: 50,000 instances", instances, 50_000, rounds * 7),
        "program": program("program with automatic collections", 400_000, min(rounds, 5)),
        "service": service(
            "service, 2 threads", documents, 500_000, 1 / 3, seconds, min(rounds, 3)),
        **({"web": service("service of Django, 2 threads", web, MILLION, 2 / 3,
                           seconds_of_django, min(rounds, 3))}
           if importlib.util.find_spec("django") else {}),
    }


def _child(name, threads, quick):
    """Runs one case, and writes its progress and result as lines of JSON."""
    gc.disable()
    scale, all_cases = cases(quick)

    def progress(share):
        print(json.dumps({"progress": share}), flush=True)

    progress(0.0)
    result = all_cases[name](threads, scale, progress)
    print(json.dumps({"result": result | {"name": name}}), flush=True)


# -------------------------------------------------------------------------------------- the parent


def _hash(threads):
    """Seconds in which so many threads hash 32 MiB, each a part of its own."""
    part = bytes((32 << 20) // threads)
    group = [threading.Thread(target=hashlib.sha256, args=(part,)) for _ in range(threads)]
    begin = time.perf_counter()
    for thread in group:
        thread.start()
    for thread in group:
        thread.join()
    return time.perf_counter() - begin


class _Bar:
    """A progress bar on a terminal. On anything else: nothing."""

    def __init__(self, total, stream=sys.stderr):
        self.total, self.stream, self.shown = total, stream, stream.isatty()

    def show(self, done, name):
        if self.shown:
            width = 30
            full = int(width * done / self.total)
            bar = "#" * full + "." * (width - full)
            self.stream.write(f"\r[{bar}] {100 * done / self.total:3.0f} %  {name:<16}")
            self.stream.flush()

    def end(self):
        if self.shown:
            self.stream.write("\r" + " " * 60 + "\r")
            self.stream.flush()


def _run(name, threads, quick, progress):
    # `-P`: the child does not search the current directory for modules either.
    safe = ["-P"] if sys.flags.safe_path else []
    command = [sys.executable, *safe, "-m", "standstill_gc.bench", "--child", name]
    command += ["--threads", ",".join(map(str, threads))] + ["--quick"] * quick
    result = None
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            message = json.loads(line)
            progress(message.get("progress", 1.0))
            result = message.get("result", result)
    if process.returncode or result is None:
        raise SystemExit(f"the case {name} ended with code {process.returncode}")
    return result


def _milliseconds(seconds):
    text = f"{seconds * 1e3:.1f}" if seconds >= 0.01 else f"{seconds * 1e3:.2f}"
    return text


_KINDS = {
    "held": "Pauses with live objects only", "garbage": "Garbage, found and freed, in total",
    "small": "Heaps of at most 50,000 more objects than the interpreter has at its start",
    "program": "Longest waits of a program's thread", "service": "Latency of a service, p99.9",
}


def summary(report):
    """The ratios to CPython's collector, as a list in Markdown: a range for each kind of case."""
    lines = []
    for kind, title in _KINDS.items():
        of_kind = [case["rows"] for case in report["cases"] if case["kind"] == kind]
        parts = []
        for name in [name for name in (of_kind[0] if of_kind else ()) if name != "gc.collect"]:
            value = lambda row: row["latency"]["p99.9"] if kind == "service" else row["median"]
            ratios = sorted(value(rows[name]) / value(rows["gc.collect"]) for rows in of_kind)
            low, high = f"{ratios[0]:.2f}", f"{ratios[-1]:.2f}"
            parts.append(f"{low if low == high else f'{low} to {high}'} with {name}")
        if parts:
            lines.append(f"- {title}: {', '.join(parts)}.")
    return "As a share of CPython's, medians:\n\n" + "\n".join(lines) + "\n"


def table(report):
    """The report as a table in Markdown."""
    names = list(report["cases"][0]["rows"])
    lines = [
        f"{report['interpreter']}; {report['machine']}; {report['date']}. Milliseconds: median "
        "(minimum to maximum). A ratio below 1 is in favour of this package.", "",
        "| | objects | " + " | ".join(
            name if name == "gc.collect" else f"{name} | ratio" for name in names) + " |",
        "|---|--:|" + "--:|" * (2 * len(names) - 1),
    ]
    for case in report["cases"]:
        rows = [(case["title"], {n: r for n, r in case["rows"].items()}, "median")]
        if case["kind"] == "garbage":
            rows = [(case["title"] + ", in total", case["rows"], "median"),
                    (case["title"] + ", stopped", case["rows"], "stopped")]
        elif case["kind"] == "program":
            rows = [(case["title"] + ": longest wait of its thread", case["rows"], "median"),
                    (case["title"] + ": whole run", case["rows"], "wall")]
        elif case["kind"] == "service":
            rows = [
                (f"{case['title']}: latency {p}", {
                    n: {p: r["latency"][p]} for n, r in case["rows"].items()}, p)
                for p in ("p50", "p99", "p99.9")
            ]
        for title, row, key in rows:
            base = row["gc.collect"][key]
            cells = [title, f"{case['objects']:,}"]
            for name in names:
                cell = _milliseconds(row[name][key])
                if key == "median":
                    low, high = _milliseconds(row[name]["min"]), _milliseconds(row[name]["max"])
                    cell += f" ({low} to {high})"
                cells.append(cell)
                if name != "gc.collect":
                    cells.append(f"{row[name][key] / base:.2f}")
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def text(report):
    """All of a report, in Markdown."""
    return summary(report) + "\n" + table(report)


# -------------------------------------------------------------------------------------- the picture

_COLOURS = ("#9aa0a6", "#7fb3d5", "#1f6fb2", "#123f66")


def _escape(text):
    return text.replace("&", "&amp;").replace("<", "&lt;").replace("`", "")


class _Picture:
    def __init__(self, width):
        self.width, self.parts = width, []

    def text(self, x, y, text, size=12, anchor="start", weight="normal", colour="#202124"):
        self.parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" '
            f'font-weight="{weight}" fill="{colour}">{_escape(text)}</text>')

    def box(self, x, y, width, height, colour, title):
        self.parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 0.5):.1f}" height="{height:.1f}" '
            f'fill="{colour}"><title>{_escape(title)}</title></rect>')

    def line(self, x1, y1, x2, y2, colour="#dadce0", width=1):
        self.parts.append(
            f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" '
            f'stroke-width="{width}"/>')

    def svg(self, height):
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{self.width}" height="{height:.0f}" '
            f'viewBox="0 0 {self.width} {height:.0f}" font-family="sans-serif">\n'
            f'<rect width="100%" height="100%" fill="white"/>\n' + "\n".join(self.parts)
            + "\n</svg>\n")


def picture(report):
    """The report as a picture: pauses of each case, waits of a program, latencies of a service."""
    left, width = 230, 860
    p = _Picture(width)
    names = list(report["cases"][0]["rows"])
    colours = dict(zip(names, (_COLOURS[0], *_COLOURS[4 - len(names):]) if len(names) <= 4
                       else (_COLOURS * len(names))))
    p.text(20, 28, "Pauses of CPython's collector and of standstill-gc", 17, weight="bold")
    p.text(20, 47, f"{report['interpreter']}; {report['machine']}; {report['date']}", 11,
           colour="#5f6368")
    x = 20
    for name in names:
        p.box(x, 58, 12, 12, colours[name], name)
        label = "gc.collect (CPython)" if name == "gc.collect" else f"standstill-gc, {name}"
        p.text(x + 17, 69, label)
        x += 30 + 7.0 * len(label)
    y = 100

    def bars(title, rows, y):
        """Rows: (title, {name: seconds})."""
        if not rows:
            return y
        p.text(20, y, title, 13, weight="bold")
        y += 12
        most = max(max(row.values()) for _, row in rows)
        room = width - left - 90
        for label, row in rows:
            p.text(left - 8, y + 7 * len(row) + 3, label, 11, "end")
            for name in names:
                seconds = row[name]
                length = room * seconds / most
                text = f"{_milliseconds(seconds)} ms"
                p.box(left, y, length, 12, colours[name], f"{name}: {text}")
                p.text(left + length + 5, y + 10, text, 10, colour="#5f6368")
                y += 14
            y += 8
        return y + 18

    of = lambda kind: [case for case in report["cases"] if case["kind"] == kind]
    y = bars("Live objects only: the pause", [
        (c["title"], {n: c["rows"][n]["median"] for n in names}) for c in of("held")], y)
    y = bars("Garbage: all of gc.collect; of standstill-gc the time in which threads stand", [
        (c["title"].removeprefix("garbage: "), {n: c["rows"][n]["stopped"] for n in names})
        for c in of("garbage")], y)
    for case in of("program"):
        p.text(20, y, "Waits of a program's thread beside "
               f"{case['objects']:,} live objects (first run of each)", 13, weight="bold")
        y += 14
        lines = {name: case["gaps"][name] for name in names}
        end = max([at for each in lines.values() for at, _ in each] + [0.001])
        most = max([gap for each in lines.values() for _, gap in each] + [0.001])
        for name in names:
            p.line(left, y + 60, width - 90, y + 60)
            p.text(left - 8, y + 52, name, 11, "end")
            p.text(width - 85, y + 14, f"{_milliseconds(most)} ms", 10, colour="#5f6368")
            p.line(left, y + 10, width - 90, y + 10, "#f1f3f4")
            for at, gap in lines[name]:
                x, height = left + (width - 90 - left) * at / end, 50 * gap / most
                p.box(x - 1, y + 60 - height, 2, height, colours[name], f"{gap * 1e3:.1f} ms")
            y += 66
        p.text(left, y + 6, "0 s", 10, "middle", colour="#5f6368")
        p.text(width - 90, y + 6, f"{end:.1f} s", 10, "middle", colour="#5f6368")
        y += 36
    for case in of("service"):
        y = bars(f"Latency of a {case['title']}, beside {case['objects']:,} live objects", [
            (percentile, {n: case["rows"][n]["latency"][percentile] for n in names})
            for percentile in next(iter(case["rows"].values()))["latency"]], y)
    return p.svg(y)


def _machine():
    model = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo") as file:
            line = next(line for line in file if line.startswith("model name"))
        model = line.split(":")[1].strip()
    except (OSError, StopIteration):
        pass
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{model}, {cores} cores"


def _threads(text):
    threads = sorted({int(part) for part in text.split(",")})
    if not threads or threads[0] < 1:
        raise ValueError(text)
    return threads


def main(arguments=None):
    cores = os.cpu_count() or 1
    parser = argparse.ArgumentParser(
        prog="python -m standstill_gc.bench",
        description="Measure this collector beside CPython's, in the same process.",
    )
    _, names = cases(False)
    parser.add_argument("--quick", action="store_true", help="a tenth of the objects, fewer rounds")
    parser.add_argument("--threads", type=_threads, default=sorted({1, min(2, cores), cores}),
                        help="numbers of threads, separated by commas")
    parser.add_argument("--only", action="append", choices=list(names), metavar="CASE",
                        help=f"only this case; may be repeated: {', '.join(names)}")
    parser.add_argument("--json", help="write the figures to this file; - for the output")
    parser.add_argument("--svg", help="write a picture to this file")
    parser.add_argument("--markdown", help="write the table to this file")
    parser.add_argument("--from", dest="source", help="take the figures from this file of --json")
    parser.add_argument("--child", choices=list(names), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if not standstill_gc.active():
        raise SystemExit(f"standstill_gc is not active: {standstill_gc.inactive_reason()}")
    if options.child:
        _child(options.child, options.threads, options.quick)
        return
    if options.source:
        with open(options.source) as file:
            report = json.load(file)
    else:
        chosen = options.only or list(names)
        bar = _Bar(len(chosen))
        results = []
        hashes = {_name(n): [] for n in options.threads}
        for done, name in enumerate(chosen):
            for _ in range(5):
                for n, seconds in zip(options.threads, hashes.values()):
                    seconds.append(_hash(n))
            results.append(_run(name, options.threads, options.quick,
                                lambda share: bar.show(done + share, name)))
        bar.end()
        report = {
            "interpreter": f"CPython {platform.python_version()} (free-threaded)",
            "version": standstill_gc.__version__, "machine": _machine(),
            "date": time.strftime("%Y-%m-%d"), "quick": options.quick, "cases": results,
            "hashed": {name: statistics.median(seconds) for name, seconds in hashes.items()},
        }
    for path, content in (
        (options.json, lambda: json.dumps(report, indent=1) + "\n"),
        (options.svg, lambda: picture(report)),
        (options.markdown, lambda: text(report)),
    ):
        if path == "-":
            sys.stdout.write(content())
        elif path:
            with open(path, "w") as file:
                file.write(content())
    if options.json != "-":
        print(text(report))


if __name__ == "__main__":
    main()

"""Packages with extensions in C and Rust, where wheels for free-threaded builds exist: imported,
used, and collected beside CPython's collector (checked mode)."""

import importlib.util

import pytest

from support import run

USES = {
    "numpy": """
        import numpy
        class Holder: pass
        def use():
            for n in range(200):
                holder = Holder()
                holder.array = numpy.arange(n + 1)
                # (Arrays and functions of numpy take no part in collections.)
                holder.objects = numpy.array([[n], None], dtype=object)
                holder.view = holder.array[::2]
                holder.function = numpy.frompyfunc(lambda a, b: (a, b), 2, 1)
                holder.itself = holder
            return numpy.linalg.norm(numpy.ones((30, 30)))
        kept = [numpy.array([{n: n}, (n, [n])], dtype=object) for n in range(2000)]
        """,
    "pydantic": """
        import pydantic
        def use():
            class Node(pydantic.BaseModel):
                name: str
                children: list["Node"] = []
                parent: object = None
            for n in range(100):
                node = Node(name=str(n), children=[Node(name="child")])
                node.children[0].parent = node
            return Node.model_validate(node.model_dump(exclude={"children"})).model_dump_json()
        kept = []
        """,
    "django": """
        import django
        from django.conf import settings
        settings.configure(TEMPLATES=[{"BACKEND": "django.template.backends.django.DjangoTemplates"}])
        django.setup()
        from django.template import Context, Template
        def use():
            for n in range(50):
                context = Context({"names": [str(n)] * 5})
                context.itself = context
                text = Template("{% for n in names %}{{ n }}{% endfor %}").render(context)
            return text
        kept = [Template("{{ a }} and {{ b }}") for _ in range(300)]
        """,
    "sympy": """
        import sympy
        def use():
            x, y = sympy.symbols("x y")
            held = [sympy.integrate(sympy.sin(n * x) * sympy.cos(x), x) for n in range(1, 4)]
            held.append(held)
            return sympy.expand((x + y) ** 12).subs(y, 1)
        kept = [sympy.symbols(f"a{n}") for n in range(500)]
        """,
    # Half of the greenlets wait for ever, in cycles, which no collector finds on 3.14. Each has a
    # function that only its frame keeps, and an argument that it borrows from the frame below.
    "greenlet": """
        import greenlet
        class Task: pass
        def wait(task):
            greenlet.getcurrent().parent.switch()
            return task.name
        def started(name):
            task = Task()
            names = {"wait": wait, "task": task}
            task.name, task.names = name, names
            exec("def run(): local = task; return wait(local)", names)
            task.greenlet = greenlet.greenlet(names.pop("run"))
            task.greenlet.switch()
            return task
        def use():
            tasks = [started(n) for n in range(200)]
            return [task.greenlet.switch() for task in tasks[::2]]
        kept = [started(n) for n in range(200)]
        """,
}


@pytest.mark.parametrize("package", USES)
@pytest.mark.parametrize("threads", [1, 2])
def test_a_package_is_imported_used_and_collected(package, threads):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    done = run(f"""
        import gc, sys, textwrap, warnings
        warnings.simplefilter("ignore")
        import standstill_gc
        gc.disable()
        exec(textwrap.dedent({USES[package]!r}), globals())
        before = use()
        standstill_gc.set_checked(True)
        found = [standstill_gc.collect(threads={threads}) for _ in range(3)]
        for _ in range(3):
            assert str(use()) == str(before)
            found.append(standstill_gc.collect(threads={threads}))
        checked = standstill_gc.stats()["checked"]
        assert checked["compared"] >= 6 and checked["missed"] == checked["wrong"] == 0, checked
        assert found[0] > 0 and found[3] > 0, found
        standstill_gc.set_checked(False)
        use()
        assert standstill_gc.collect(threads={threads}) > 0 and gc.collect() == 0
        assert standstill_gc.stats()["last"]["abandoned"] is None
        if {package!r} == "greenlet":
            assert [task.greenlet.switch() for task in kept] == list(range(200))
        print("well")
    """)
    assert done.stdout.strip() == "well", done

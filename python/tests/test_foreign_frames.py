"""Extension modules whose traverse functions show references that are not counted (CPython 3.15)."""

import ctypes
import gc
import os
import subprocess
import sys
import sysconfig
import weakref
from importlib import machinery, util

import pytest

import standstill_gc
from support import good, quiet  # noqa: F401

pytestmark = pytest.mark.skipif(
    sys.version_info < (3, 15), reason="3.14 has no functions for such references"
)

HOLDER = r"""
#define Py_BUILD_CORE_MODULE 1
#include <Python.h>
#include "pycore_gc.h"
#include "pycore_interpframe.h"
#include "pycore_stackref.h"

// An object with a frame of one stack reference, which is not counted.
typedef struct {
    PyObject_HEAD PyObject *owned; _PyStackRef *single; _PyInterpreterFrame *frame;
} Holder;

static int holder_traverse(PyObject *op, visitproc visit, void *arg) {
    Holder *self = (Holder *)op;
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(self->owned);
    if (self->frame == NULL) return 0;
    if (self->single != NULL) {
        _Py_VISIT_STACKREF(*self->single);
        return 0;
    }
    return _PyGC_VisitFrameStack(self->frame, visit, arg);
}
static int holder_clear(PyObject *op) { Py_CLEAR(((Holder *)op)->owned); return 0; }
static void holder_dealloc(PyObject *op) {
    Holder *self = (Holder *)op;
    PyTypeObject *type = Py_TYPE(op);
    if (PyObject_CallFinalizerFromDealloc(op) < 0) return;
    PyObject_GC_UnTrack(op);
    holder_clear(op);
    if (self->frame != NULL) PyStackRef_CLOSE(self->frame->localsplus[0]);
    PyMem_Free(self->frame);
    type->tp_free(op);
    Py_DECREF(type);
}
static int holder_init(PyObject *op, PyObject *args, PyObject *kwds) {
    Holder *self = (Holder *)op;
    PyObject *shown, *owned;
    int whole;
    if (!PyArg_ParseTuple(args, "OOp", &shown, &owned, &whole)) return -1;
    self->owned = Py_NewRef(owned);
    self->frame = PyMem_Calloc(1, sizeof(_PyInterpreterFrame) + sizeof(_PyStackRef));
    self->frame->localsplus[0] = PyStackRef_FromPyObjectBorrow(shown);
    self->frame->localsplus[1] = PyStackRef_NULL;
    self->frame->stackpointer = self->frame->localsplus + 2;
    self->single = whole ? NULL : self->frame->localsplus;
    return 0;
}
static PyObject *shown(PyObject *op, PyObject *none) {
    return PyStackRef_AsPyObjectNew(((Holder *)op)->frame->localsplus[0]);
}
static PyMethodDef methods[] = {{"shown", shown, METH_NOARGS, NULL}, {NULL, NULL, 0, NULL}};
static PyType_Slot slots[] = {{Py_tp_traverse, holder_traverse}, {Py_tp_clear, holder_clear},
    {Py_tp_dealloc, holder_dealloc}, {Py_tp_init, holder_init}, {Py_tp_methods, methods},
    {0, NULL}};
static PyType_Spec spec = {"holder.Holder", sizeof(Holder), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE, slots};
static int execute(PyObject *module) {
    PyObject *type = PyType_FromSpec(&spec);
    int result = type == NULL ? -1 : PyModule_AddType(module, (PyTypeObject *)type);
    Py_XDECREF(type);
    return result;
}
static PyModuleDef_Slot of_module[] = {{Py_mod_exec, execute}, {Py_mod_gil, Py_MOD_GIL_NOT_USED},
    {0, NULL}};
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "holder", NULL, 0, NULL, of_module};
PyMODINIT_FUNC PyInit_holder(void) { return PyModuleDef_Init(&module); }
"""

# A type with a base in the other library, and a traverse function that calls the base's.
DERIVED = r"""
#include <Python.h>
static PyTypeObject *base;
static int traverse(PyObject *op, visitproc visit, void *arg) {
    return base->tp_traverse(op, visit, arg);
}
static PyType_Slot slots[] = {{Py_tp_traverse, traverse}, {0, NULL}};
static PyType_Spec spec = {"derived.Derived", 0, 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, slots};
static PyObject *derive(PyObject *self, PyObject *type) {
    base = (PyTypeObject *)Py_NewRef(type);
    return PyType_FromSpecWithBases(&spec, type);
}
static PyMethodDef methods[] = {{"derive", derive, METH_O, NULL}, {NULL, NULL, 0, NULL}};
static PyModuleDef_Slot of_module[] = {{Py_mod_gil, Py_MOD_GIL_NOT_USED}, {0, NULL}};
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "derived", NULL, 0, methods, of_module};
PyMODINIT_FUNC PyInit_derived(void) { return PyModuleDef_Init(&module); }
"""

# The library calls the function in a way that the package cannot follow.
UNKNOWN = HOLDER + "char *inside = (char *)&_PyGC_VisitStackRef + 1;"


def built(directory, name, text, *options):
    source, library = directory / f"{name}.c", directory / f"{name}.so"
    source.write_text(text)
    includes = {sysconfig.get_path("include"), os.path.dirname(sysconfig.get_config_h_filename())}
    includes |= {os.path.join(path, "internal") for path in includes}
    command = ["cc", "-O1", "-shared", "-fPIC", *(f"-I{path}" for path in includes), *options]
    try:
        subprocess.run(
            [*command, str(source), "-o", str(library)], check=True, capture_output=True, text=True
        )
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no C compiler for an extension module: {getattr(error, 'stderr', error)}")
    return library


def loaded(name, library):
    loader = machinery.ExtensionFileLoader(name, str(library))
    module = util.module_from_spec(util.spec_from_loader(name, loader))
    loader.exec_module(module)
    return module


LINKED = {
    "default": [],
    "bound at the start": ["-Wl,-z,relro,-z,now"],
    "bound at calls": ["-Wl,-z,lazy"],
    "without stubs": ["-fno-plt"],
    "never read-only": ["-Wl,-z,norelro"],
}


@pytest.fixture(scope="session", params=LINKED)
def holder(request, tmp_path_factory):
    # The package has collected before the library is loaded.
    standstill_gc.collect()
    directory = tmp_path_factory.mktemp("holder")
    return loaded("holder", built(directory, "holder", HOLDER, *LINKED[request.param]))


@pytest.fixture(params=["own", "of Python", "of another library"])
def class_(request, holder, tmp_path):
    if request.param == "of Python":
        return type("Subclass", (holder.Holder,), {})
    if request.param == "of another library":
        return loaded("derived", built(tmp_path, "derived", DERIVED)).derive(holder.Holder)
    return holder.Holder


class Thing:
    pass


hold, drop = ctypes.pythonapi.Py_IncRef, ctypes.pythonapi.Py_DecRef
hold.argtypes = drop.argtypes = [ctypes.py_object]


@pytest.mark.parametrize("whole", [False, True])
def test_a_reference_that_is_not_counted_is_not_subtracted(class_, whole):
    thing = Thing()
    thing.holder = class_(thing, None, whole)
    # A reference that only C has: it keeps the thing alive.
    hold(thing)
    seen = weakref.ref(thing)
    del thing
    standstill_gc.collect()
    standstill_gc.collect()
    thing = seen()
    assert thing is not None and thing.holder.shown() is thing
    drop(thing)
    del thing
    assert seen() is None


@pytest.mark.parametrize("whole", [False, True])
def test_counted_references_beside_it_are_subtracted(class_, whole):
    thing = Thing()
    thing.holder = class_(thing, thing, whole)
    seen = weakref.ref(thing)
    del thing
    assert standstill_gc.collect() >= 2
    assert seen() is None


def function():
    namespace = {}
    exec("def shown(): return [1]", namespace)
    return namespace.pop("shown")


# The interpreter defers the counting of references to these. A class refers to itself.
DEFERRED = {"class": lambda: type("Shown", (), {}), "function": function}


@pytest.mark.parametrize("make", DEFERRED)
@pytest.mark.parametrize("whole", [False, True])
def test_an_object_that_only_such_a_reference_keeps(class_, whole, make):
    thing = Thing()
    shown = DEFERRED[make]()
    thing.holder = class_(shown, thing, whole)
    seen = weakref.ref(shown)
    del shown
    standstill_gc.collect()
    assert seen() is thing.holder.shown()
    saved = []

    class Finalizer:
        def __del__(self):
            saved.append(self.thing)

    thing.finalizer = Finalizer()
    thing.finalizer.thing = thing
    del thing
    standstill_gc.collect()
    # The finalizer has saved all of it.
    [thing] = saved
    assert seen() is thing.holder.shown() and thing.holder.shown()() is not None
    standstill_gc.collect()
    assert seen() is thing.holder.shown()
    del saved[:], thing
    standstill_gc.collect()
    standstill_gc.collect()
    assert seen() is None


def test_both_collectors_agree_about_such_references(class_):
    standstill_gc.set_checked(True)
    before = standstill_gc.stats()["checked"]
    kept = []
    for _ in range(3):
        for at in range(10):
            thing = Thing()
            thing.holder = class_(thing, thing if at % 2 else None, at % 3 == 0)
            kept.append(thing if at % 4 else None)
        del thing
        standstill_gc.collect()
    after = standstill_gc.stats()["checked"]
    assert after["compared"] == before["compared"] + 3
    assert after["wrong"] == before["wrong"]


def test_other_visitors_see_such_references(holder):
    thing = Thing()
    one = holder.Holder(thing, None, False)
    standstill_gc.collect()
    assert thing in gc.get_referents(one) and one in gc.get_referrers(thing)


def test_if_a_library_cannot_be_followed_cpython_collects(tmp_path):
    library = built(tmp_path, "holder", UNKNOWN)
    assert good(f"""
        import ctypes, gc, sys, warnings, weakref
        from importlib import machinery, util
        import standstill_gc
        loader = machinery.ExtensionFileLoader("holder", {str(library)!r})
        holder = util.module_from_spec(util.spec_from_loader("holder", loader))
        loader.exec_module(holder)
        class Thing: pass
        thing = Thing()
        thing.holder = holder.Holder(thing, None, False)
        seen = weakref.ref(thing)
        hold = ctypes.pythonapi.Py_IncRef
        hold.argtypes = [ctypes.py_object]
        hold(thing)
        del thing
        garbage = Thing()
        garbage.itself = garbage
        freed = weakref.ref(garbage)
        del garbage
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            standstill_gc.collect()
            standstill_gc.collect()
        print(len(caught), "unknown" in str(caught[0].message), seen() is None, freed() is None)
    """) == ["1", "True", "False", "True"]

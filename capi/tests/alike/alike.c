/* One program for two libraries: it uses names of CPython's page alone, and says what happens. `ci/alike.sh` builds it with this
 * library and with whatever CPython is installed, and compares what they say.
 */
#ifdef WITH_CPYTHON
#define PY_SSIZE_T_CLEAN
#include <Python.h>
/* Before 3.15 a traverse handler had no other way. */
#if PY_VERSION_HEX < 0x030f0000
#define PyModule_GetState_DuringGC PyModule_GetState
#endif
#else
#include <standstill.h>
#endif

#include <stddef.h>
#include <stdio.h>

static int deallocs, finalizers, clears, traversals;

static void say(const char *what, long value)
{
    printf("%s: %ld\n", what, value);
}

/* ---- a static type with two members ---- */

typedef struct {
    PyObject_HEAD
    PyObject *a, *b;
} Pair;

static int pair_traverse(PyObject *self, visitproc visit, void *arg)
{
    traversals++;
    Py_VISIT(((Pair *)self)->a);
    Py_VISIT(((Pair *)self)->b);
    return 0;
}

static int pair_clear(PyObject *self)
{
    clears++;
    Py_CLEAR(((Pair *)self)->a);
    Py_CLEAR(((Pair *)self)->b);
    return 0;
}

static void pair_dealloc(PyObject *self)
{
    deallocs++;
    PyObject_GC_UnTrack(self);
    Py_CLEAR(((Pair *)self)->a);
    Py_CLEAR(((Pair *)self)->b);
    Py_TYPE(self)->tp_free(self);
}

static PyTypeObject Pair_Type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "alike.Pair",
    .tp_basicsize = sizeof(Pair),
    .tp_dealloc = pair_dealloc,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE,
    .tp_traverse = pair_traverse,
    .tp_clear = pair_clear,
};

/* A child that inherits all three. */
static PyTypeObject Child_Type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "alike.Child",
    .tp_basicsize = sizeof(Pair),
    .tp_dealloc = pair_dealloc,
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_base = &Pair_Type,
};

/* A child with a handler of its own, and no clear handler. */
static PyTypeObject Own_Type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "alike.Own",
    .tp_basicsize = sizeof(Pair),
    .tp_dealloc = pair_dealloc,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_base = &Pair_Type,
    .tp_traverse = pair_traverse,
};

/* The flag without a handler. */
static PyTypeObject Bad_Type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "alike.Bad",
    .tp_basicsize = sizeof(Pair),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
};

static Pair *pair(PyTypeObject *type)
{
    return (Pair *)type->tp_alloc(type, 0);
}

static void set(PyObject **member, PyObject *value)
{
    PyObject *old = *member;
    Py_XINCREF(value);
    *member = value;
    Py_XDECREF(old);
}

static void forget(void)
{
    deallocs = finalizers = clears = traversals = 0;
}

static void readiness(void)
{
    printf("-- readiness\n");
    say("ready", PyType_Ready(&Pair_Type));
    say("ready again", PyType_Ready(&Pair_Type));
    say("child", PyType_Ready(&Child_Type));
    say("child has the flag", (Child_Type.tp_flags & Py_TPFLAGS_HAVE_GC) != 0);
    say("child has its base's handlers", Child_Type.tp_traverse == pair_traverse && Child_Type.tp_clear == pair_clear);
    say("own", PyType_Ready(&Own_Type));
    say("own has no clear handler", Own_Type.tp_clear == NULL);
    say("bad", PyType_Ready(&Bad_Type));
    say("an error is set", PyErr_Occurred() != NULL);
    PyErr_Clear();
    say("tp_alloc is the generic one", Pair_Type.tp_alloc == PyType_GenericAlloc);
    say("tp_free is that for containers", Pair_Type.tp_free == PyObject_GC_Del);
    say("subtype", PyType_IsSubtype(&Child_Type, &Pair_Type));
    say("no subtype", PyType_IsSubtype(&Pair_Type, &Child_Type));
    say("feature", PyType_HasFeature(&Pair_Type, Py_TPFLAGS_HAVE_GC) != 0);
}

static void cycles(PyTypeObject *type)
{
    Pair *a = pair(type), *b = pair(type);
    printf("-- cycles of %s\n", type->tp_name);
    forget();
    say("count", (long)Py_REFCNT((PyObject *)a));
    say("container", PyObject_IS_GC((PyObject *)a));
    say("tracked by the allocator", PyObject_GC_IsTracked((PyObject *)a));
    say("members are null", a->a == NULL && a->b == NULL);
    set(&a->a, (PyObject *)b);
    set(&b->a, (PyObject *)a);
    set(&b->b, (PyObject *)b);
    Py_DECREF(b);
    say("held: collected", (long)PyGC_Collect());
    say("held: traversed", traversals > 0);
    Py_DECREF(a);
    say("not freed by counts", deallocs);
    say("collected", (long)PyGC_Collect());
    say("deallocated", deallocs);
    say("collected again", (long)PyGC_Collect());
}

static void tracking(void)
{
    Pair *a;
    printf("-- tracking\n");
    forget();
    a = PyObject_GC_New(Pair, &Pair_Type);
    a->a = a->b = NULL;
    say("tracked at first", PyObject_GC_IsTracked((PyObject *)a));
    set(&a->a, (PyObject *)a);
    PyObject_GC_Track((PyObject *)a);
    say("tracked", PyObject_GC_IsTracked((PyObject *)a));
    PyObject_GC_UnTrack(a);
    PyObject_GC_UnTrack(a);
    say("untracked", PyObject_GC_IsTracked((PyObject *)a));
    Py_INCREF(a);
    Py_DECREF(a);
    say("untracked: collected", (long)PyGC_Collect());
    say("untracked: deallocated", deallocs);
    PyObject_GC_Track((PyObject *)a);
    Py_DECREF(a);
    say("tracked again: collected", (long)PyGC_Collect());
    say("tracked again: deallocated", deallocs);
}

static void switches(void)
{
    Pair *a = pair(&Pair_Type);
    printf("-- switches\n");
    forget();
    set(&a->a, (PyObject *)a);
    Py_DECREF(a);
    say("enabled", PyGC_IsEnabled());
    say("disable", PyGC_Disable());
    say("disable again", PyGC_Disable());
    say("enabled now", PyGC_IsEnabled());
    say("enable", PyGC_Enable());
    say("enable again", PyGC_Enable());
    say("collected", (long)PyGC_Collect());
}

/* ---- finalizers ---- */

static PyObject *kept;

static void keeping_finalize(PyObject *self)
{
    finalizers++;
    Py_INCREF(self);
    kept = self;
}

static void finalizing_dealloc(PyObject *self)
{
    if (PyObject_CallFinalizerFromDealloc(self) < 0)
        return;
    pair_dealloc(self);
}

static PyTypeObject Phoenix_Type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "alike.Phoenix",
    .tp_basicsize = sizeof(Pair),
    .tp_dealloc = finalizing_dealloc,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_traverse = pair_traverse,
    .tp_clear = pair_clear,
    .tp_finalize = keeping_finalize,
};

static void resurrection(int cyclic)
{
    Pair *a = pair(&Phoenix_Type);
    printf("-- resurrection %s\n", cyclic ? "by the collector" : "at count 0");
    forget();
    if (cyclic)
        set(&a->a, (PyObject *)a);
    say("finalized at first", PyObject_GC_IsFinalized((PyObject *)a));
    Py_DECREF(a);
    if (cyclic)
        say("collected", (long)PyGC_Collect());
    say("finalizers", finalizers);
    say("deallocated", deallocs);
    say("kept", kept == (PyObject *)a);
    say("finalized", PyObject_GC_IsFinalized(kept));
    say("tracked", PyObject_GC_IsTracked(kept));
    Py_CLEAR(kept);
    say("collected afterwards", (long)PyGC_Collect());
    say("finalizers in all", finalizers);
    say("deallocated in all", deallocs);
}

/* ---- heap types, a module ---- */

typedef struct {
    PyObject *held;
} State;

static int module_traverse(PyObject *module, visitproc visit, void *arg)
{
    State *state = (State *)PyModule_GetState_DuringGC(module);
    if (state != NULL)
        Py_VISIT(state->held);
    return 0;
}

static int module_clear(PyObject *module)
{
    State *state = (State *)PyModule_GetState(module);
    if (state != NULL)
        Py_CLEAR(state->held);
    return 0;
}

static int module_frees;

static void module_free(void *module)
{
    module_frees++;
    (void)module_clear((PyObject *)module);
}

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "alike",
    .m_size = sizeof(State),
    .m_traverse = module_traverse,
    .m_clear = module_clear,
    .m_free = module_free,
};

static int heap_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    return pair_traverse(self, visit, arg);
}

static void heap_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    pair_dealloc(self);
    Py_DECREF((PyObject *)type);
}

static PyType_Slot heap_slots[] = {
    {Py_tp_traverse, (void *)heap_traverse},
    {Py_tp_clear, (void *)pair_clear},
    {Py_tp_dealloc, (void *)heap_dealloc},
    {0, NULL},
};

static PyType_Spec heap_spec = {
    .name = "alike.Heap",
    .basicsize = sizeof(Pair),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE,
    .slots = heap_slots,
};

static PyType_Spec bad_spec = {
    .name = "alike.BadHeap",
    .basicsize = sizeof(Pair),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = heap_slots + 3,
};

static void heap_types(void)
{
    PyObject *module = PyModule_Create(&definition);
    PyObject *type = PyType_FromModuleAndSpec(module, &heap_spec, NULL);
    PyTypeObject *t = (PyTypeObject *)type;
    Pair *a;
    printf("-- heap types and modules\n");
    forget();
    say("made", type != NULL);
    say("a container", PyObject_IS_GC(type));
    say("a static one is none", PyObject_IS_GC((PyObject *)&Pair_Type));
    say("heap type", (t->tp_flags & Py_TPFLAGS_HEAPTYPE) != 0);
    say("its module", PyType_GetModule(t) == module);
    say("the module's state", PyType_GetModuleState(t) == PyModule_GetState(module));
    say("zeroed", ((State *)PyModule_GetState(module))->held == NULL);
    a = pair(t);
    set(&a->a, (PyObject *)a);
    set(&((State *)PyModule_GetState(module))->held, (PyObject *)a);
    Py_DECREF(a);
    say("held by the module: collected", (long)PyGC_Collect());
    Py_DECREF(type);
    Py_DECREF(module);
    (void)PyGC_Collect();
    say("all gone together: deallocated", deallocs);
    say("bad spec", PyType_FromSpec(&bad_spec) == NULL);
    say("an error is set", PyErr_Occurred() != NULL);
    PyErr_Clear();
    /* A library may make other objects for a type, and drop them now. */
    (void)PyGC_Collect();
}

/* An instance owns its type, and the type its module. By effect: a free-threaded CPython counts references to heap types per
 * thread, so a type's count says nothing there. */
static void outlived_types(void)
{
    PyObject *module = PyModule_Create(&definition);
    PyObject *type = PyType_FromModuleAndSpec(module, &heap_spec, NULL);
    Pair *a = pair((PyTypeObject *)type);
    printf("-- an instance, and nothing else\n");
    module_frees = 0;
    Py_DECREF(type);
    Py_DECREF(module);
    (void)PyGC_Collect();
    say("its type's module lives: freed", module_frees);
    say("the module's state", PyType_GetModuleState(Py_TYPE((PyObject *)a)) != NULL);
    Py_DECREF((PyObject *)a);
    (void)PyGC_Collect();
    say("gone with the instance: freed", module_frees);
}

/* ---- items ---- */

typedef struct {
    PyObject_VAR_HEAD
    PyObject *items[1];
} Row;

static int row_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_ssize_t i;
    for (i = 0; i < Py_SIZE(self); i++)
        Py_VISIT(((Row *)self)->items[i]);
    return 0;
}

static void row_dealloc(PyObject *self)
{
    Py_ssize_t i;
    deallocs++;
    PyObject_GC_UnTrack(self);
    for (i = 0; i < Py_SIZE(self); i++)
        Py_CLEAR(((Row *)self)->items[i]);
    Py_TYPE(self)->tp_free(self);
}

static PyTypeObject Row_Type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "alike.Row",
    .tp_basicsize = offsetof(Row, items),
    .tp_itemsize = sizeof(PyObject *),
    .tp_dealloc = row_dealloc,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_traverse = row_traverse,
};

static void items(void)
{
    Row *row;
    Pair *a;
    int i;
    printf("-- items\n");
    forget();
    say("ready", PyType_Ready(&Row_Type));
    row = PyObject_GC_NewVar(Row, &Row_Type, 4);
    for (i = 0; i < 4; i++)
        row->items[i] = NULL;
    say("size", (long)Py_SIZE(row));
    a = pair(&Pair_Type);
    set(&row->items[3], (PyObject *)a);
    row = PyObject_GC_Resize(Row, row, 400);
    for (i = 4; i < 400; i++)
        row->items[i] = NULL;
    say("resized", (long)Py_SIZE(row));
    say("an item is where it was", row->items[3] == (PyObject *)a);
    set(&a->a, (PyObject *)row);
    PyObject_GC_Track((PyObject *)row);
    Py_DECREF(a);
    Py_DECREF(row);
    say("collected through a mutable member", (long)PyGC_Collect());
    say("deallocated", deallocs);
    say("negative", PyObject_GC_NewVar(Row, &Row_Type, -1) == NULL);
    PyErr_Clear();
}

/* ---- chains ---- */

static void chain(void)
{
    PyObject *head = NULL;
    int i;
    printf("-- a chain\n");
    forget();
    for (i = 0; i < 1000; i++) {
        Pair *next = pair(&Pair_Type);
        next->a = head;
        head = (PyObject *)next;
    }
    Py_DECREF(head);
    say("deallocated", deallocs);
}

/* ---- blocks ---- */

static void blocks(void)
{
    char *block = PyMem_Malloc(0), *other = PyMem_Calloc(0, 8);
    long *numbers;
    printf("-- blocks\n");
    say("a block of size 0", block != NULL && other != NULL && block != other);
    PyMem_Free(other);
    block = PyMem_Realloc(block, 100);
    strcpy(block, "kept");
    block = PyMem_Realloc(block, 1000000);
    say("contents", strcmp(block, "kept"));
    say("too large", PyMem_Realloc(block, (size_t)PY_SSIZE_T_MAX + 1) == NULL);
    PyErr_Clear();
    say("contents after a failure", strcmp(block, "kept"));
    PyMem_Free(block);
    say("an overflow", PyMem_Calloc(SIZE_MAX / 2, 4) == NULL);
    PyErr_Clear();
    numbers = PyMem_Realloc(NULL, sizeof *numbers);
    numbers[0] = 7;
    PyMem_Resize(numbers, long, 100);
    say("resized", numbers[0]);
    say("too many", PyMem_New(long, PY_SSIZE_T_MAX) == NULL);
    PyErr_Clear();
    PyMem_Del(numbers);
    numbers = PyObject_Calloc(10, sizeof *numbers);
    say("zeroes", numbers[9]);
    numbers = PyObject_Realloc(numbers, 20 * sizeof *numbers);
    PyObject_Free(numbers);
    PyMem_Free(NULL);
    PyObject_Free(NULL);
}

int main(void)
{
    Py_Initialize();
    (void)PyGC_Collect();
    readiness();
    cycles(&Pair_Type);
    cycles(&Child_Type);
    tracking();
    switches();
    say("ready", PyType_Ready(&Phoenix_Type));
    resurrection(0);
    resurrection(1);
    heap_types();
    outlived_types();
    items();
    chain();
    blocks();
    (void)PyGC_Collect();
    Py_Finalize();
    return 0;
}

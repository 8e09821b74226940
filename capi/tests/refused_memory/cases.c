/* One case for every function of the header, in the header's order; more than one where a function has several ways to need
 * memory. */
#include "program.h"

#include <glob.h>
#include <unistd.h>

#define CHECK(condition)                                                       \
    do {                                                                       \
        if (!(condition)) {                                                    \
            printf("not so: %s (line %d)\n", #condition, __LINE__);            \
            fflush(stdout);                                                    \
            abort();                                                           \
        }                                                                      \
    } while (0)

/* ---- types ---- */

typedef struct {
    PyObject_HEAD
    PyObject *a, *b;
} Pair;

typedef struct {
    PyObject_VAR_HEAD
    PyObject *items[1];
} Row;

static int pair_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(((Pair *)self)->a);
    Py_VISIT(((Pair *)self)->b);
    return 0;
}

static int pair_clear(PyObject *self)
{
    Py_CLEAR(((Pair *)self)->a);
    Py_CLEAR(((Pair *)self)->b);
    return 0;
}

static int heap_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(((Pair *)self)->a);
    Py_VISIT(((Pair *)self)->b);
    return PyObject_VisitManagedDict(self, visit, arg);
}

static int heap_clear(PyObject *self)
{
    PyObject_ClearManagedDict(self);
    return pair_clear(self);
}

static int row_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_ssize_t i;
    for (i = 0; i < Py_SIZE(self); i++) {
        Py_VISIT(((Row *)self)->items[i]);
    }
    return 0;
}

static PyTypeObject Pair_Type = {
    .ob_base = PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "refused.Pair",
    .tp_basicsize = sizeof(Pair),
    .tp_flags = Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE,
    .tp_traverse = pair_traverse,
    .tp_clear = pair_clear,
};

static PyTypeObject Row_Type = {
    .ob_base = PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "refused.Row",
    .tp_basicsize = offsetof(Row, items),
    .tp_itemsize = sizeof(PyObject *),
    .tp_flags = Py_TPFLAGS_HAVE_GC,
    .tp_traverse = row_traverse,
};

static PyTypeObject Plain_Type = {
    .ob_base = PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "refused.Plain",
    .tp_basicsize = sizeof(PyObject) + 16,
};

static PyTypeObject Bytes_Type = {
    .ob_base = PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "refused.Bytes",
    .tp_basicsize = sizeof(PyVarObject),
    .tp_itemsize = 1,
};

/* Not ready before a case makes them so; the second is derived from the first. */
static PyTypeObject Late_Type = {
    .ob_base = PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "refused.Late",
    .tp_basicsize = sizeof(Pair),
    .tp_flags = Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE,
    .tp_traverse = pair_traverse,
    .tp_clear = pair_clear,
};

static PyTypeObject Later_Type = {
    .ob_base = PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "refused.Later",
    .tp_basicsize = sizeof(Pair),
    .tp_flags = Py_TPFLAGS_HAVE_GC,
    .tp_base = &Late_Type,
    .tp_traverse = pair_traverse,
};

static PyTypeObject Wrong_Type = {
    .ob_base = PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "refused.Wrong",
    .tp_basicsize = sizeof(Pair),
    .tp_flags = Py_TPFLAGS_HAVE_GC,
};

static int token_here, module_token_here;

static PyType_Slot heap_slots[] = {
    { Py_tp_traverse, (void *)heap_traverse },
    { Py_tp_clear, (void *)heap_clear },
    { Py_tp_token, &token_here },
    { Py_tp_doc, (void *)"a type with all" },
    { 0, NULL },
};
static PyType_Spec heap_spec = { "refused.Heap", sizeof(Pair), 0,
                                 Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_MANAGED_DICT, heap_slots };
static PyType_Spec derived_spec = { "refused.Derived", -16, 0,
                                    Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_MANAGED_DICT, heap_slots };
static PyType_Slot new_slots[] = {
    { Py_tp_traverse, (void *)heap_traverse },
    { Py_tp_doc, (void *)"a type of a new name" },
    { 0, NULL },
};
static PyType_Spec new_spec = { "refused.New", sizeof(Pair), 0,
                                Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_MANAGED_DICT, new_slots };

static int items_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    return 0;
}
static PyType_Slot items_slots[] = { { Py_tp_traverse, (void *)items_traverse }, { 0, NULL } };
static PyType_Spec items_spec = { "refused.Items", sizeof(PyVarObject), 8,
                                  Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_ITEMS_AT_END, items_slots };

static PyModuleDef module_def = { PyModuleDef_HEAD_INIT, .m_name = "refused", .m_size = 64 };

/* ---- objects ---- */

static Pair *p, *q;
static PyTypeObject *ht, *derived, *items_type, *of_module;
static PyObject *h, *d, *items, *module, *weak, *text, *number_object, *tuple, *plain;
static Row *row;
static standstill_heap *other_heap;
static PyThreadState *state;
static PyGILState_STATE gil;
static PyObject *fetched;
static PyTypeObject *fetched_type;
static void *fetched_pointer;
static Py_ssize_t counts[3];
static int thresholds[3];
static standstill_gc_stats stats[3];

static Pair *new_pair(void)
{
    Pair *pair = (Pair *)Pair_Type.tp_alloc(&Pair_Type, 0);
    CHECK(pair != NULL);
    return pair;
}

static void garbage(int n)
{
    while (n-- > 0) {
        Pair *pair = new_pair();
        pair->a = Py_NewRef(pair);
        Py_DECREF(pair);
    }
}

/* ---- a traverse handler in which something is called ---- */

static void (*probe)(void);
static long probed;

static int probe_traverse(PyObject *self, visitproc visit, void *arg)
{
    (void)self;
    (void)visit;
    (void)arg;
    if (probe != NULL) {
        void (*now)(void) = probe;
        probe = NULL;
        refuse();
        now();
        grant();
    }
    return 0;
}

static PyTypeObject Probe_Type = {
    .ob_base = PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "refused.Probe",
    .tp_basicsize = sizeof(PyObject),
    .tp_flags = Py_TPFLAGS_HAVE_GC,
    .tp_traverse = probe_traverse,
};

static visitproc any_visit;
static int no_visit(PyObject *object, void *arg)
{
    (void)object;
    (void)arg;
    return 0;
}

static long in_traversal(void (*what)(void))
{
    PyObject *object = Probe_Type.tp_alloc(&Probe_Type, 0);
    CHECK(object != NULL);
    any_visit = no_visit;
    probe = what;
    (void)PyGC_Collect();
    CHECK(probe == NULL);
    Py_DECREF(object);
    return probed;
}

/* ---- a deallocator in which something is called ---- */

static long (*at_the_end)(PyObject *);
static long ended;

static void ending_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    if (at_the_end != NULL) {
        long (*now)(PyObject *) = at_the_end;
        at_the_end = NULL;
        refuse();
        ended = now(self);
        grant();
    }
    PyObject_GC_Del(self);
}

static void ending_finalize(PyObject *self)
{
    (void)self;
}

static PyTypeObject Ending_Type = {
    .ob_base = PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "refused.Ending",
    .tp_basicsize = sizeof(Pair),
    .tp_flags = Py_TPFLAGS_HAVE_GC,
    .tp_traverse = pair_traverse,
    .tp_finalize = ending_finalize,
    .tp_dealloc = ending_dealloc,
};

static long in_dealloc(long (*what)(PyObject *), int with_weak)
{
    PyObject *object = Ending_Type.tp_alloc(&Ending_Type, 0);
    PyObject *reference = with_weak ? PyWeakref_NewRef(object, NULL) : NULL;
    CHECK(object != NULL && (!with_weak || reference != NULL));
    at_the_end = what;
    Py_DECREF(object);
    CHECK(at_the_end == NULL);
    Py_XDECREF(reference);
    return ended;
}

/* ---- before and after ---- */

void refused_setup(void)
{
    CHECK(standstill_attach(NULL) == 0);
    CHECK(PyType_Ready(&Pair_Type) == 0 && PyType_Ready(&Row_Type) == 0 && PyType_Ready(&Plain_Type) == 0);
    CHECK(PyType_Ready(&Bytes_Type) == 0 && PyType_Ready(&Probe_Type) == 0 && PyType_Ready(&Ending_Type) == 0);
    CHECK((module = PyModule_Create(&module_def)) != NULL);
    CHECK((ht = (PyTypeObject *)PyType_FromSpec(&heap_spec)) != NULL);
    CHECK((derived = (PyTypeObject *)PyType_FromSpecWithBases(&derived_spec, (PyObject *)ht)) != NULL);
    CHECK((items_type = (PyTypeObject *)PyType_FromSpec(&items_spec)) != NULL);
    CHECK((of_module = (PyTypeObject *)PyType_FromModuleAndSpec(module, &heap_spec, NULL)) != NULL);
    p = new_pair();
    q = new_pair();
    p->a = Py_NewRef(q);
    q->a = Py_NewRef(p);
    CHECK((h = ht->tp_alloc(ht, 0)) != NULL);
    CHECK(PyObject_SetAttrString(h, "there", (PyObject *)p) == 0);
    CHECK((d = derived->tp_alloc(derived, 0)) != NULL);
    CHECK((items = items_type->tp_alloc(items_type, 3)) != NULL);
    CHECK((row = PyObject_GC_NewVar(Row, &Row_Type, 3)) != NULL);
    CHECK((weak = PyWeakref_NewRef((PyObject *)p, NULL)) != NULL);
    CHECK((text = PyUnicode_FromString("text")) != NULL);
    CHECK((number_object = PyLong_FromLong(7)) != NULL);
    CHECK((tuple = PyTuple_New(4)) != NULL);
    CHECK((plain = PyObject_New(PyObject, &Plain_Type)) != NULL);
    garbage(300);
}

/* Garbage is found, nothing else is, and everything can still be used. Only for heaps with the objects of `refused_setup`. */
int refused_check(void)
{
    PyObject *object;
    if (!standstill_is_attached() && standstill_attach(NULL) != 0) {
        return 0;
    }
    PyGC_Enable();
    (void)PyGC_Collect();
    if (PyType_Ready(&Pair_Type) != 0) {
        return 0;
    }
    object = Pair_Type.tp_alloc(&Pair_Type, 0);
    if (object == NULL) {
        return 0;
    }
    ((Pair *)object)->a = Py_NewRef(object);
    Py_DECREF(object);
    if (PyGC_Collect() != 1) {
        return 0;
    }
    if (p != NULL && (p->a != (PyObject *)q || q->a != (PyObject *)p || Py_TYPE(p) != &Pair_Type)) {
        return 0;
    }
    if (h != NULL) {
        object = PyObject_GetAttrString(h, "there");
        if (object != (PyObject *)p) {
            return 0;
        }
        Py_DECREF(object);
    }
    return standstill_error_code() == 0;
}

/* ==== Types ==== */

NUMBER(PyType_Ready, , PyType_Ready(&Late_Type))
ALSO(PyType_Ready_with_base, PyType_Ready, , PyType_Ready(&Later_Type), -1)
ALSO(PyType_Ready_again, PyType_Ready, , PyType_Ready(&Pair_Type), -1)
ALSO(PyType_Ready_wrong, PyType_Ready, , PyType_Ready(&Wrong_Type), -1)
POINTER(PyType_FromSpec, , PyType_FromSpec(&new_spec))
ALSO(PyType_FromSpec_known_name, PyType_FromSpec, , PyType_FromSpec(&heap_spec) != NULL, 0)
POINTER(PyType_FromSpecWithBases, , PyType_FromSpecWithBases(&derived_spec, (PyObject *)ht))
static PyObject *bases;
ALSO(PyType_FromSpecWithBases_tuple, PyType_FromSpecWithBases, bases = PyTuple_Pack(2, ht, &Pair_Type),
     PyType_FromSpecWithBases(&derived_spec, bases) != NULL, 0)
POINTER(PyType_FromModuleAndSpec, , PyType_FromModuleAndSpec(module, &new_spec, NULL))
ANSWER(PyType_IsSubtype, , PyType_IsSubtype(derived, ht))
ANSWER(PyType_HasFeature, , PyType_HasFeature(derived, Py_TPFLAGS_HAVE_GC))
ANSWER(PyType_GetFlags, , PyType_GetFlags(ht))
POINTER(PyType_GetSlot, , PyType_GetSlot(ht, Py_tp_traverse))
ALSO(PyType_GetSlot_unknown, PyType_GetSlot, , PyType_GetSlot(ht, 999) != NULL, 0)
POINTER(PyType_GetModule, , PyType_GetModule(of_module))
ALSO(PyType_GetModule_of_none, PyType_GetModule, , PyType_GetModule(ht) != NULL, 0)
POINTER(PyType_GetModuleState, , PyType_GetModuleState(of_module))
POINTER(PyType_GetModuleByDef, , PyType_GetModuleByDef(of_module, &module_def))
POINTER(PyType_GetModuleByToken, , PyType_GetModuleByToken(of_module, &module_def))
ALSO(PyType_GetModuleByToken_unknown, PyType_GetModuleByToken, ,
     PyType_GetModuleByToken(of_module, &module_token_here) != NULL, 0)
NUMBER(PyType_GetBaseByToken, , PyType_GetBaseByToken(derived, &token_here, &fetched_type))
NUMBER(PyType_GetTypeDataSize, , PyType_GetTypeDataSize(derived))

/* ==== Counts and heads ==== */

NOTHING(Py_IncRef, , Py_IncRef((PyObject *)p))
NOTHING(Py_DecRef, Py_INCREF(p), Py_DecRef((PyObject *)p))
ALSO(Py_DecRef_last, Py_DecRef, , (Py_DecRef(d), 0), NO_FAILURE)
static Pair *chain(int n)
{
    Pair *first = NULL;
    while (n-- > 0) {
        Pair *next = new_pair();
        next->a = (PyObject *)first;
        first = next;
    }
    return first;
}
static Pair *list;
ALSO(Py_DecRef_list, Py_DecRef, list = chain(3000), (Py_DecRef((PyObject *)list), 0), NO_FAILURE)
ALSO(Py_DecRef_type, Py_DecRef, Py_DECREF(h); h = NULL; Py_DECREF(d), (Py_DecRef((PyObject *)derived), 0), NO_FAILURE)
ALSO(Py_DecRef_module, Py_DecRef, Py_DECREF(of_module), (Py_DecRef(module), 0), NO_FAILURE)
ALSO(Py_DecRef_watched, Py_DecRef, CHECK(PyWeakref_NewRef(d, NULL) != NULL), (Py_DecRef(d), 0), NO_FAILURE)
ALSO(Py_DecRef_unattached, Py_DecRef, Py_INCREF(p); state = PyEval_SaveThread(), (Py_DecRef((PyObject *)p), 0), NO_FAILURE)
ANSWER(Py_REFCNT, , standstill_Py_REFCNT((PyObject *)p))
ANSWER(Py_SIZE, , standstill_Py_SIZE((PyObject *)row))
ALSO(Py_SIZE_of_none, Py_SIZE, , standstill_Py_SIZE((PyObject *)p), NO_FAILURE)
ANSWER(PyObject_TypeCheck, , standstill_PyObject_TypeCheck(d, ht))
ANSWER(PyType_Check, , PyType_Check(ht))
ANSWER(PyType_CheckExact, , PyType_CheckExact(ht))
ANSWER(PyModule_Check, , PyModule_Check(module))
ANSWER(PyModule_CheckExact, , PyModule_CheckExact(module))
ANSWER(PyTuple_Check, , PyTuple_Check(tuple))
ANSWER(PyTuple_CheckExact, , PyTuple_CheckExact(tuple))
ANSWER(PyUnicode_Check, , PyUnicode_Check(text))
ANSWER(PyUnicode_CheckExact, , PyUnicode_CheckExact(text))
ANSWER(PyLong_Check, , PyLong_Check(number_object))
ANSWER(PyLong_CheckExact, , PyLong_CheckExact(number_object))
ANSWER(PyWeakref_Check, , PyWeakref_Check(weak))

/* ==== Allocation ==== */

POINTER(PyType_GenericAlloc, , PyType_GenericAlloc(&Pair_Type, 0))
ALSO(PyType_GenericAlloc_heap_type, PyType_GenericAlloc, , PyType_GenericAlloc(ht, 0) != NULL, 0)
ALSO(PyType_GenericAlloc_large, PyType_GenericAlloc, , PyType_GenericAlloc(&Row_Type, 1000000) != NULL, 0)
ALSO(PyType_GenericAlloc_many_pages, PyType_GenericAlloc, , ({
         int i;
         for (i = 0; i < 20000 && PyType_GenericAlloc(&Pair_Type, 0) != NULL; i++) {
         }
         i == 20000;
     }), 0)
ALSO(PyType_GenericAlloc_bad_size, PyType_GenericAlloc, , PyType_GenericAlloc(&Row_Type, -1) != NULL, 0)
ALSO(PyType_GenericAlloc_too_large, PyType_GenericAlloc, , PyType_GenericAlloc(&Row_Type, PY_SSIZE_T_MAX / 16) != NULL, 0)
ALSO(PyType_GenericAlloc_not_ready, PyType_GenericAlloc, , PyType_GenericAlloc(&Late_Type, 0) != NULL, 0)
POINTER(_PyObject_GC_New, , _PyObject_GC_New(&Pair_Type))
ALSO(_PyObject_GC_New_plain, _PyObject_GC_New, , _PyObject_GC_New(&Plain_Type) != NULL, 0)
POINTER(_PyObject_GC_NewVar, , _PyObject_GC_NewVar(&Row_Type, 5))
POINTER(_PyObject_GC_Resize, , row = (Row *)_PyObject_GC_Resize((PyVarObject *)row, 5000))
POINTER(PyUnstable_Object_GC_NewWithExtraData, , PyUnstable_Object_GC_NewWithExtraData(&Pair_Type, 100))
POINTER(_PyObject_New, , _PyObject_New(&Plain_Type))
POINTER(_PyObject_NewVar, , _PyObject_NewVar(&Bytes_Type, 100))
NOTHING(PyObject_GC_Del, fetched = (PyObject *)PyObject_GC_New(Pair, &Pair_Type), PyObject_GC_Del(fetched))
ALSO(PyObject_GC_Del_misuse, PyObject_GC_Del, , (PyObject_GC_Del(p), 0), NO_FAILURE)
NOTHING(PyObject_Free, , PyObject_Free(plain))

/* ==== Memory that objects own outside the heap ==== */

static void *block;
POINTER(PyMem_Malloc, , PyMem_Malloc(100))
ALSO(PyMem_Malloc_large, PyMem_Malloc, , PyMem_Malloc(1000000) != NULL, 0)
ALSO(PyMem_Malloc_too_large, PyMem_Malloc, , PyMem_Malloc(SIZE_MAX) != NULL, 0)
POINTER(PyMem_Calloc, , PyMem_Calloc(10, 10))
POINTER(PyMem_Realloc, block = PyMem_Malloc(10), PyMem_Realloc(block, 1000000))
ALSO(PyMem_Realloc_null, PyMem_Realloc, , PyMem_Realloc(NULL, 100) != NULL, 0)
ALSO(PyMem_Realloc_misuse, PyMem_Realloc, , PyMem_Realloc(p, 100) != NULL, 0)
NOTHING(PyMem_Free, block = PyMem_Malloc(1000000), PyMem_Free(block))
ALSO(PyMem_Free_misuse, PyMem_Free, , (PyMem_Free(p), 0), NO_FAILURE)

/* ==== Tracking ==== */

NOTHING(PyObject_GC_Track, fetched = (PyObject *)PyObject_GC_New(Pair, &Pair_Type), PyObject_GC_Track(fetched))
ALSO(PyObject_GC_Track_misuse, PyObject_GC_Track, , (PyObject_GC_Track(module), 0), NO_FAILURE)
NOTHING(PyObject_GC_UnTrack, , PyObject_GC_UnTrack(p))
ANSWER(PyObject_IS_GC, , PyObject_IS_GC((PyObject *)p))
ANSWER(PyObject_GC_IsTracked, , PyObject_GC_IsTracked((PyObject *)p))
ANSWER(PyObject_GC_IsFinalized, , PyObject_GC_IsFinalized((PyObject *)p))

/* ==== The end of an object ==== */

NOTHING(PyObject_CallFinalizer, , PyObject_CallFinalizer((PyObject *)p))
static long finalizer_from_dealloc(PyObject *self)
{
    return PyObject_CallFinalizerFromDealloc(self);
}
REGISTER(PyObject_CallFinalizerFromDealloc, "PyObject_CallFinalizerFromDealloc", "PyObject_CallFinalizerFromDealloc", ,
         return in_dealloc(finalizer_from_dealloc, 0), NO_FAILURE, 0, 1)
static long clear_weak(PyObject *self)
{
    PyObject_ClearWeakRefs(self);
    return 0;
}
REGISTER(PyObject_ClearWeakRefs, "PyObject_ClearWeakRefs", "PyObject_ClearWeakRefs", ,
         return in_dealloc(clear_weak, 1), NO_FAILURE, 0, 1)

/* ==== The managed dictionary, and attributes ==== */

IN_TRAVERSAL(PyObject_VisitManagedDict, PyObject_VisitManagedDict(h, any_visit, NULL))
NOTHING(PyObject_ClearManagedDict, fetched = ht->tp_alloc(ht, 0); PyObject_SetAttrString(fetched, "x", (PyObject *)p),
        PyObject_ClearManagedDict(fetched))
NUMBER(PyObject_SetAttrString, , PyObject_SetAttrString(h, "new", (PyObject *)p))
ALSO(PyObject_SetAttrString_first, PyObject_SetAttrString, , PyObject_SetAttrString(d, "new", (PyObject *)p), -1)
ALSO(PyObject_SetAttrString_again, PyObject_SetAttrString, , PyObject_SetAttrString(h, "there", (PyObject *)p), -1)
ALSO(PyObject_SetAttrString_type, PyObject_SetAttrString, , PyObject_SetAttrString((PyObject *)ht, "new", (PyObject *)p), -1)
ALSO(PyObject_SetAttrString_many, PyObject_SetAttrString, , ({
         char name[] = "a0";
         int i, result = 0;
         for (i = 0; i < 40 && result == 0; i++) {
             name[1] = (char)('0' + i);
             result = PyObject_SetAttrString(d, name, (PyObject *)p);
         }
         result;
     }), -1)
ALSO(PyObject_SetAttrString_not_utf8, PyObject_SetAttrString, , PyObject_SetAttrString(h, "\xff", (PyObject *)p), -1)
ALSO(PyObject_SetAttrString_remove, PyObject_SetAttrString, , PyObject_SetAttrString(h, "missing", NULL), -1)
ALSO(PyObject_SetAttrString_of_none, PyObject_SetAttrString, ,
     PyObject_SetAttrString((PyObject *)p, "x", (PyObject *)p), -1)
POINTER(PyObject_GetAttrString, , fetched = PyObject_GetAttrString(h, "there"))
ALSO(PyObject_GetAttrString_missing, PyObject_GetAttrString, , PyObject_GetAttrString(h, "missing") != NULL, 0)
ANSWER(PyObject_HasAttrString, , PyObject_HasAttrString(h, "there"))
ALSO(PyObject_HasAttrString_not_utf8, PyObject_HasAttrString, , PyObject_HasAttrString(h, "\xff"), NO_FAILURE)

/* ==== Data of types and items ==== */

POINTER(PyObject_GetTypeData, , PyObject_GetTypeData(d, derived))
ALSO(PyObject_GetTypeData_of_none, PyObject_GetTypeData, , PyObject_GetTypeData(h, derived) != NULL, 0)
POINTER(PyObject_GetItemData, , PyObject_GetItemData(items))

/* ==== Modules ==== */

POINTER(PyModule_Create, , PyModule_Create(&module_def))
static PyModuleDef_Slot bad_slots[] = { { 99, NULL }, { 0, NULL } };
static PyModuleDef bad_def = { PyModuleDef_HEAD_INIT, .m_name = "refused.bad", .m_slots = bad_slots };
ALSO(PyModule_Create_wrong, PyModule_Create, , PyModule_Create(&bad_def) != NULL, 0)
POINTER(PyModule_FromDefAndSpec, PyObject_SetAttrString(h, "name", text), PyModule_FromDefAndSpec(&module_def, h))
POINTER(PyModule_GetState, , PyModule_GetState(module))
POINTER(PyModule_GetDef, , PyModule_GetDef(module))
NUMBER(PyModule_GetToken, , PyModule_GetToken(module, &fetched_pointer))
POINTER(PyModule_GetName, , PyModule_GetName(module))
ALSO(PyModule_GetName_of_none, PyModule_GetName, , PyModule_GetName((PyObject *)p) != NULL, 0)

/* ==== For traverse handlers only ==== */

IN_TRAVERSAL(PyObject_GetTypeData_DuringGC, PyObject_GetTypeData_DuringGC(d, derived) != NULL)
IN_TRAVERSAL(PyObject_GetItemData_DuringGC, PyObject_GetItemData_DuringGC(items) != NULL)
IN_TRAVERSAL(PyType_GetModuleState_DuringGC, PyType_GetModuleState_DuringGC(of_module) != NULL)
IN_TRAVERSAL(PyModule_GetState_DuringGC, PyModule_GetState_DuringGC(module) != NULL)
IN_TRAVERSAL(PyModule_GetToken_DuringGC, PyModule_GetToken_DuringGC(module, &fetched_pointer))
IN_TRAVERSAL(PyType_GetBaseByToken_DuringGC, PyType_GetBaseByToken_DuringGC(derived, &token_here, &fetched_type))
IN_TRAVERSAL(PyType_GetModule_DuringGC, PyType_GetModule_DuringGC(of_module) != NULL)
IN_TRAVERSAL(PyType_GetModuleByToken_DuringGC, PyType_GetModuleByToken_DuringGC(of_module, &module_def) != NULL)
/* Refused there, and reported when the world runs again. */
static void probe_refused(void)
{
    probed = PyErr_Occurred() != NULL;
}
REGISTER(refused_in_traversal, "PyErr_Occurred", "refused_in_traversal", , return in_traversal(probe_refused), NO_FAILURE, 0, 1)

/* ==== Tuples, strings, numbers ==== */

POINTER(PyTuple_New, , PyTuple_New(10))
ALSO(PyTuple_New_negative, PyTuple_New, , PyTuple_New(-1) != NULL, 0)
NUMBER(PyTuple_Size, , PyTuple_Size(tuple))
ALSO(PyTuple_Size_of_none, PyTuple_Size, , PyTuple_Size((PyObject *)p), -1)
POINTER(PyTuple_GetItem, PyTuple_SetItem(tuple, 0, Py_NewRef(p)), PyTuple_GetItem(tuple, 0))
ALSO(PyTuple_GetItem_missing, PyTuple_GetItem, , PyTuple_GetItem(tuple, 9) != NULL, 0)
NUMBER(PyTuple_SetItem, , PyTuple_SetItem(tuple, 0, Py_NewRef(p)))
POINTER(PyUnicode_FromString, , PyUnicode_FromString("hello"))
ALSO(PyUnicode_FromString_not_utf8, PyUnicode_FromString, , PyUnicode_FromString("\xff") != NULL, 0)
POINTER(PyUnicode_AsUTF8, , PyUnicode_AsUTF8(text))
POINTER(PyLong_FromLong, , PyLong_FromLong(8))
POINTER(PyLong_FromLongLong, , PyLong_FromLongLong(8))
NUMBER(PyLong_AsLong, , PyLong_AsLong(number_object))
NUMBER(PyLong_AsLongLong, , PyLong_AsLongLong(number_object))
ALSO(PyLong_AsLongLong_of_none, PyLong_AsLongLong, , PyLong_AsLongLong(text), -1)

/* ==== Weak references ==== */

static void called_back(PyObject *self, PyObject *reference)
{
    (void)self;
    (void)reference;
}
static PyObject *callback;
POINTER(PyWeakref_NewRef, , PyWeakref_NewRef((PyObject *)q, NULL))
ALSO(PyWeakref_NewRef_second, PyWeakref_NewRef, , PyWeakref_NewRef((PyObject *)p, NULL) != NULL, 0)
ALSO(PyWeakref_NewRef_callback, PyWeakref_NewRef, callback = standstill_Callback_New(called_back, NULL),
     PyWeakref_NewRef((PyObject *)q, callback) != NULL, 0)
ALSO(PyWeakref_NewRef_many, PyWeakref_NewRef, callback = standstill_Callback_New(called_back, NULL), ({
         int i;
         for (i = 0; i < 30 && PyWeakref_NewRef((PyObject *)q, callback) != NULL; i++) {
         }
         i == 30;
     }), 0)
ALSO(PyWeakref_NewRef_static, PyWeakref_NewRef, , PyWeakref_NewRef((PyObject *)&Pair_Type, NULL) != NULL, 0)
ALSO(PyWeakref_NewRef_bad_callback, PyWeakref_NewRef, , PyWeakref_NewRef((PyObject *)q, text) != NULL, 0)
NUMBER(PyWeakref_GetRef, , PyWeakref_GetRef(weak, &fetched))
POINTER(Callback_New, , standstill_Callback_New(called_back, (PyObject *)p))

/* ==== Tables with weak keys, and guardians ==== */

static standstill_weak_map *map;
static standstill_guardian *guardian;
static void map_of(Pair *key, Pair *value)
{
    CHECK((map = standstill_weak_map_new()) != NULL);
    if (value)
        CHECK(standstill_weak_map_set(map, (PyObject *)key, (PyObject *)value) == 0);
}
static void guardian_of(Pair *object)
{
    CHECK((guardian = standstill_guardian_new()) != NULL);
    if (object)
        CHECK(standstill_guardian_register(guardian, (PyObject *)object) == 0);
}
static void no_entry(PyObject *key, PyObject *value, void *arg)
{
    (void)arg;
    CHECK(key != NULL && value != NULL);
}
POINTER(weak_map_new, , standstill_weak_map_new())
NOTHING(weak_map_free, , standstill_weak_map_free(standstill_weak_map_new()))
NUMBER(weak_map_set, map_of(NULL, NULL), standstill_weak_map_set(map, (PyObject *)q, (PyObject *)p))
ALSO(weak_map_set_again, weak_map_set, map_of(p, q), standstill_weak_map_set(map, (PyObject *)p, (PyObject *)p), -1)
NUMBER(weak_map_get, map_of(p, q), standstill_weak_map_get(map, (PyObject *)p, &fetched))
ALSO(weak_map_get_none, weak_map_get, map_of(p, q), standstill_weak_map_get(map, (PyObject *)q, &fetched), -1)
ANSWER(weak_map_remove, map_of(p, q), standstill_weak_map_remove(map, (PyObject *)p) >= 0)
NUMBER(weak_map_length, map_of(p, q), standstill_weak_map_length(map))
NUMBER(weak_map_entries, map_of(p, q), standstill_weak_map_entries(map, no_entry, NULL))
IN_TRAVERSAL(weak_map_visit, standstill_weak_map_visit(NULL, any_visit, NULL))
POINTER(guardian_new, , standstill_guardian_new())
NOTHING(guardian_free, guardian_of(NULL), standstill_guardian_free(guardian); guardian = NULL)
NUMBER(guardian_register, guardian_of(NULL), standstill_guardian_register(guardian, (PyObject *)q))
ANSWER(guardian_next, guardian_of(p), standstill_guardian_next(guardian) == NULL)
NUMBER(guardian_is_ready, guardian_of(p), standstill_guardian_is_ready(guardian))

/* ==== Errors ==== */

ANSWER(PyErr_Occurred, PyErr_SetString(PyExc_ValueError, "x"), PyErr_Occurred() != NULL)
NOTHING(PyErr_Clear, PyErr_SetString(PyExc_ValueError, "x"), PyErr_Clear())
NOTHING(PyErr_SetString, , PyErr_SetString(PyExc_ValueError, "a message of some length"))
REGISTER(PyErr_NoMemory, "PyErr_NoMemory", "PyErr_NoMemory", , return PyErr_NoMemory() != NULL, 0, 0, 0)
NOTHING(PyErr_BadInternalCall, , PyErr_BadInternalCall())
ANSWER(PyErr_ExceptionMatches, PyErr_SetString(PyExc_ValueError, "x"), PyErr_ExceptionMatches(PyExc_ValueError))
static void set_error(void)
{
    PyErr_SetString(PyExc_ValueError, "x");
}
NOTHING(PyErr_WriteUnraisable, , set_error(); PyErr_WriteUnraisable((PyObject *)p))
ANSWER(error_code, , standstill_error_code())
ANSWER(error_message, , standstill_error_message() != NULL)

/* ==== The collector ==== */

ANSWER(PyGC_Collect, , PyGC_Collect())
ALSO(PyGC_Collect_error_set, PyGC_Collect, , ({ long n; PyErr_SetString(PyExc_ValueError, "x"); n = PyGC_Collect(); n; }), NO_FAILURE)
static void failing_finalize(PyObject *self)
{
    (void)self;
    PyErr_SetString(PyExc_ValueError, "left by a finalizer");
}
static PyTypeObject Failing_Type = {
    .ob_base = PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "refused.Failing",
    .tp_basicsize = sizeof(Pair),
    .tp_flags = Py_TPFLAGS_HAVE_GC,
    .tp_traverse = pair_traverse,
    .tp_clear = pair_clear,
    .tp_finalize = failing_finalize,
};
static void failing_garbage(void)
{
    Pair *pair;
    CHECK(PyType_Ready(&Failing_Type) == 0);
    pair = (Pair *)Failing_Type.tp_alloc(&Failing_Type, 0);
    pair->a = Py_NewRef(pair);
    CHECK(PyWeakref_NewRef((PyObject *)pair, standstill_Callback_New(called_back, NULL)) != NULL);
    Py_DECREF(pair);
}
ALSO(PyGC_Collect_failing_finalizer, PyGC_Collect, failing_garbage(), PyGC_Collect(), NO_FAILURE)
ANSWER(PyGC_Disable, , PyGC_Disable())
ANSWER(PyGC_Enable, , PyGC_Enable())
ANSWER(PyGC_IsEnabled, , PyGC_IsEnabled())
static int visits;
static int visit_one(PyObject *object, void *arg)
{
    (void)object;
    (void)arg;
    visits++;
    return 1;
}
ANSWER(PyUnstable_GC_VisitObjects, , ({ visits = 0; PyUnstable_GC_VisitObjects(visit_one, NULL); visits > 0; }))

/* ==== Threads and heaps ==== */

REGISTER(heap_new, "heap_new", "heap_new", , other_heap = standstill_heap_new(NULL); return other_heap != NULL, 0, 0, 0)
FIRST(heap_new_first, heap_new, , (other_heap = standstill_heap_new(NULL)) != NULL, 0)
static standstill_heap_options bad_options = { 0, 1, 1, 0, -1, 0, 0 };
ALSO(heap_new_bad_setting, heap_new, , standstill_heap_new(&bad_options) != NULL, 0)
/* Without memory for its last collection the heap goes all the same, and the report says that cycles are left. */
static long free_a_heap(void)
{
    standstill_heap *heap = other_heap != NULL ? other_heap : standstill_heap_new(NULL);
    other_heap = NULL;
    return standstill_heap_free(heap);
}
NUMBER(heap_free, other_heap = standstill_heap_new(NULL), free_a_heap())
POINTER(default_heap, , standstill_default_heap())
FIRST(configure, configure, , standstill_configure(NULL), -1)
FIRST(attach_first, attach, , standstill_attach(NULL), -1)
NUMBER(attach, standstill_detach(), standstill_attach(NULL))
static long attach_elsewhere(void)
{
    return standstill_attach(other_heap);
}
REGISTER(attach_other_heap, "attach", "attach_other_heap", other_heap = standstill_heap_new(NULL); standstill_detach(),
         long result = attach_elsewhere(); if (result == 0) { grant(); CHECK(standstill_detach() == 0); } return result, -1, 0, 0)
ALSO(attach_again, attach, , standstill_attach(NULL), -1)
NUMBER(detach, , standstill_detach())
ANSWER(is_attached, , standstill_is_attached())
NOTHING(safepoint, , standstill_safepoint())
REGISTER(PyEval_SaveThread, "PyEval_SaveThread", "PyEval_SaveThread", , state = PyEval_SaveThread();
         int given = state != NULL; if (given) { grant(); PyEval_RestoreThread(state); } return given, 0, 0, 0)
REGISTER(PyEval_RestoreThread, "PyEval_RestoreThread", "PyEval_RestoreThread", state = PyEval_SaveThread(),
         PyEval_RestoreThread(state); return standstill_is_attached(), 0, 0, 0)
REGISTER(PyGILState_Ensure, "PyGILState_Ensure", "PyGILState_Ensure", standstill_detach(),
         gil = PyGILState_Ensure(); return standstill_is_attached(), 0, 0, 0)
FIRST(PyGILState_Ensure_first, PyGILState_Ensure, CHECK(standstill_default_heap() != NULL), (gil = PyGILState_Ensure(), standstill_is_attached()), 0)
REGISTER(PyGILState_Ensure_saved, "PyGILState_Ensure", "PyGILState_Ensure_saved", state = PyEval_SaveThread(),
         gil = PyGILState_Ensure(); return standstill_is_attached(), 0, 0, 0)
static void ensure_detached(void)
{
    standstill_detach();
    gil = PyGILState_Ensure();
}
REGISTER(PyGILState_Release, "PyGILState_Release", "PyGILState_Release", ensure_detached(),
         PyGILState_Release(gil); return standstill_is_attached(), 1, 0, 0)
static void ensure_saved(void)
{
    state = PyEval_SaveThread();
    gil = PyGILState_Ensure();
}
REGISTER(PyGILState_Release_saved, "PyGILState_Release", "PyGILState_Release_saved", ensure_saved(),
         PyGILState_Release(gil); return standstill_is_attached(), 1, 0, 0)
FIRST(Py_Initialize, Py_Initialize, CHECK(standstill_default_heap() != NULL), (Py_Initialize(), standstill_is_attached()), 0)
REGISTER(Py_Finalize, "Py_Finalize", "Py_Finalize", Py_Initialize(),
         Py_Finalize(); return standstill_is_attached(), 1, 0, 0)
ANSWER(Py_IsInitialized, , Py_IsInitialized())

/* ==== Hooks ==== */

static void misuse_hook(const standstill_misuse *report, void *arg)
{
    (void)report;
    (void)arg;
}
static void unraisable_hook(const standstill_unraisable *report, void *arg)
{
    (void)report;
    (void)arg;
}
NOTHING(set_misuse_hook, , standstill_set_misuse_hook(misuse_hook, NULL))
ALSO(set_misuse_hook_none, set_misuse_hook, standstill_set_misuse_hook(NULL, NULL),
     (PyObject_GC_Track(module), PyObject_GC_Track(p), PyObject_GC_Del(p), 0), NO_FAILURE)
static void line_sink(const char *line, void *arg)
{
    (void)line;
    (void)arg;
}
NUMBER(set_line_sink, , standstill_set_line_sink(line_sink, NULL))
ALSO(set_line_sink_misuse, set_line_sink,
     standstill_set_line_sink(line_sink, NULL); standstill_set_misuse_hook(NULL, NULL),
     (PyObject_GC_Track((PyObject *)p), 0), NO_FAILURE)
ALSO(set_line_sink_none, set_line_sink, , standstill_set_line_sink(NULL, NULL), -1)
static void slow_stop_hook(const standstill_slow_stop *report, void *arg)
{
    (void)report;
    (void)arg;
}
NOTHING(set_slow_stop_hook, , standstill_set_slow_stop_hook(slow_stop_hook, NULL))
NOTHING(set_unraisable_hook, , standstill_set_unraisable_hook(unraisable_hook, NULL))
ALSO(set_unraisable_hook_none, set_unraisable_hook, standstill_set_unraisable_hook(NULL, NULL),
     (set_error(), PyErr_WriteUnraisable((PyObject *)p), 0), NO_FAILURE)

/* ==== The gc module ==== */

ANSWER(gc_collect, , standstill_gc_collect(2))
ALSO(gc_collect_young, gc_collect, , standstill_gc_collect(0), NO_FAILURE)
ALSO(gc_collect_bad_generation, gc_collect, , standstill_gc_collect(7), -1)
ANSWER(adjust_external_bytes, , standstill_adjust_external_bytes(1))
ANSWER(gc_enable, , standstill_gc_enable())
ANSWER(gc_disable, , standstill_gc_disable())
ANSWER(gc_isenabled, , standstill_gc_isenabled())
NUMBER(gc_set_threshold, , standstill_gc_set_threshold(5, 5, 5))
ALSO(gc_set_threshold_bad, gc_set_threshold, , standstill_gc_set_threshold(-5, 5, 5), -1)
NUMBER(gc_get_threshold, , standstill_gc_get_threshold(thresholds))
NUMBER(gc_get_count, , standstill_gc_get_count(counts))
NUMBER(gc_get_stats, , standstill_gc_get_stats(stats))
static int told;
static void progress(const char *phase, const standstill_gc_info *info, void *arg)
{
    (void)phase;
    (void)info;
    (void)arg;
    told++;
}
static void failing_progress(const char *phase, const standstill_gc_info *info, void *arg)
{
    (void)phase;
    (void)info;
    (void)arg;
    set_error();
}
static int id;
REGISTER(gc_add_callback, "gc_add_callback", "gc_add_callback", , id = standstill_gc_add_callback(progress, NULL);
         return id < 0 ? -1 : 0, -1, 0, 0)
ALSO(PyGC_Collect_callbacks, PyGC_Collect,
     standstill_gc_add_callback(progress, NULL); standstill_gc_add_callback(failing_progress, NULL), PyGC_Collect(), NO_FAILURE)
NUMBER(gc_remove_callback, id = standstill_gc_add_callback(progress, NULL), standstill_gc_remove_callback(id))
NUMBER(gc_set_debug, , standstill_gc_set_debug(STANDSTILL_GC_DEBUG_STATS))
ALSO(gc_set_debug_bad, gc_set_debug, , standstill_gc_set_debug(0xffff), -1)
static void sink(const char *line, void *arg)
{
    (void)line;
    (void)arg;
}
static Pair *small_garbage(void)
{
    (void)PyGC_Collect();
    garbage(3);
    return NULL;
}
ALSO(PyGC_Collect_debug, PyGC_Collect,
     (void)small_garbage(); standstill_gc_set_debug(STANDSTILL_GC_DEBUG_LEAK | STANDSTILL_GC_DEBUG_STATS), PyGC_Collect(), NO_FAILURE)
ALSO(PyGC_Collect_debug_sink, PyGC_Collect,
     (void)small_garbage(); standstill_gc_set_debug_sink(sink, NULL);
     standstill_gc_set_debug(STANDSTILL_GC_DEBUG_COLLECTABLE | STANDSTILL_GC_DEBUG_STATS), PyGC_Collect(), NO_FAILURE)
ANSWER(gc_get_debug, , standstill_gc_get_debug())
NOTHING(gc_set_debug_sink, , standstill_gc_set_debug_sink(sink, NULL))
static void some_garbage_kept(void)
{
    (void)small_garbage();
    standstill_gc_set_debug_sink(sink, NULL);
    standstill_gc_set_debug(STANDSTILL_GC_DEBUG_SAVEALL);
    (void)PyGC_Collect();
    standstill_gc_set_debug(0);
    CHECK(standstill_gc_garbage_size() == 3);
}
NUMBER(gc_garbage_size, some_garbage_kept(), standstill_gc_garbage_size())
POINTER(gc_garbage_get, some_garbage_kept(), standstill_gc_garbage_get(0))
ALSO(gc_garbage_get_missing, gc_garbage_get, , standstill_gc_garbage_get(5) != NULL, 0)
NUMBER(gc_garbage_clear, some_garbage_kept(), standstill_gc_garbage_clear())
NUMBER(gc_freeze, , standstill_gc_freeze())
NUMBER(gc_unfreeze, standstill_gc_freeze(), standstill_gc_unfreeze())
NUMBER(gc_get_freeze_count, , standstill_gc_get_freeze_count())
POINTER(gc_get_objects, , standstill_gc_get_objects(-1))
ALSO(gc_get_objects_bad, gc_get_objects, , standstill_gc_get_objects(9) != NULL, 0)
static PyObject *some[20];
static void fill_some(void)
{
    int i;
    for (i = 0; i < 20; i++) {
        some[i] = i % 2 ? (PyObject *)p : (PyObject *)q;
    }
}
POINTER(gc_get_referrers, fill_some(), standstill_gc_get_referrers(some, 20))
POINTER(gc_get_referents, fill_some(), standstill_gc_get_referents(some, 20))
ANSWER(gc_is_tracked, , standstill_gc_is_tracked((PyObject *)p))
ANSWER(gc_is_finalized, , standstill_gc_is_finalized((PyObject *)p))
static void audit(const char *event, void *arg)
{
    (void)event;
    (void)arg;
}
NOTHING(gc_set_audit_hook, , standstill_gc_set_audit_hook(audit, NULL))
ALSO(gc_get_objects_audited, gc_get_objects, standstill_gc_set_audit_hook(audit, NULL), standstill_gc_get_objects(-1) != NULL, 0)

/* ==== Threads without a heap ==== */

/* The thread is attached to a heap meanwhile, so that each call that needs an attachment is refused. */
static standstill_coordinator *coordinator;
static standstill_participant *participant;
static void join(void)
{
    coordinator = standstill_coordinator_new("refused", 0);
    participant = standstill_participant_new(coordinator, NULL);
}
static void visited(void *data, void *arg) { (void)data, (void)arg; }
POINTER(coordinator_new, , standstill_coordinator_new("refused", 0))
NUMBER(coordinator_free, coordinator = standstill_coordinator_new(NULL, 0), standstill_coordinator_free(coordinator))
POINTER(participant_new, coordinator = standstill_coordinator_new(NULL, 0), standstill_participant_new(coordinator, NULL))
NUMBER(participant_free, join(), standstill_participant_free(participant))
NUMBER(participant_attach, join(), standstill_participant_attach(participant))
NUMBER(participant_detach, join(), standstill_participant_detach(participant))
NUMBER(participant_park, join(), standstill_participant_park(participant))
POINTER(participant_poll_word, join(), standstill_participant_poll_word(participant))
NUMBER(participant_stop, join(), standstill_participant_stop(participant))
NUMBER(participant_try_stop, join(), standstill_participant_try_stop(participant))
NUMBER(participant_stop_for, join(), standstill_participant_stop_for(participant, 0))
NUMBER(participant_prepare_fork, join(), standstill_participant_prepare_fork(participant))
NUMBER(participant_threads, join(), standstill_participant_threads(participant, visited, NULL))
NUMBER(participant_resume, join(), standstill_participant_resume(participant))

/* ==== Diagnostics ==== */

static int passed;
#define PASSES(name, type)                    \
    static void name(const type *row, void *arg) \
    {                                         \
        (void)arg;                            \
        passed += row->size == sizeof *row;   \
    }
PASSES(census_row, standstill_census_row)
PASSES(holder_row, standstill_holder)
PASSES(path_step, standstill_path_step)
PASSES(times_row, standstill_gc_times)
PASSES(thread_row, standstill_thread_times)
NUMBER(census, , standstill_census(census_row, NULL))
NUMBER(holders, , standstill_holders(9, holder_row, NULL))
NUMBER(why_alive, , standstill_why_alive((PyObject *)q, path_step, NULL))
NUMBER(gc_get_times, (void)PyGC_Collect(), standstill_gc_get_times(2, times_row, NULL))
static long snapshot(void)
{
    long objects = standstill_snapshot("refused.heapsnapshot");
    glob_t found;
    CHECK(glob("refused.heapsnapshot.*.part", 0, NULL, &found) == GLOB_NOMATCH);
    return objects;
}
NUMBER(snapshot, , snapshot())
NUMBER(threads, , standstill_threads(thread_row, NULL))
NOTHING(mark, , standstill_mark("counting on memory"))
NOTHING(PyObject_Dump, , PyObject_Dump((PyObject *)p))

/* ==== For tests ==== */

NUMBER(live_objects, (void)PyGC_Collect(), standstill_live_objects())
ANSWER(live_bytes, , standstill_live_bytes())
ANSWER(external_bytes, , standstill_external_bytes())

/* What each function answers to a pointer that it cannot use, and what reaches a type, a module and a heap from its
 * description. */

#include "check.h"

#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#define GC_TYPE (Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC)

static PyModuleDef plain_module = {.m_base = PyModuleDef_HEAD_INIT, .m_name = "check.plain", .m_size = 8};

/* Answers ---------------------------------------------------------------------------------------------------------- */

/* The answer is right, and the error indicator has the code. */
#define FAILS(answer, code)                                                                                           \
    do {                                                                                                              \
        CHECK(answer);                                                                                                \
        EXPECT_ERROR(code);                                                                                           \
    } while (0)
/* The answer is right, and there is one report of misuse with the code, and no error. */
#define REPORTS_IT(answer, code)                                                                                      \
    do {                                                                                                              \
        CHECK(answer);                                                                                                \
        EXPECT_MISUSE(code, 1);                                                                                       \
        CHECK(!PyErr_Occurred());                                                                                     \
    } while (0)

static int never(PyObject *object, void *arg) {
    (void)object;
    (void)arg;
    check_failed(__FILE__, __LINE__, "there was nothing to visit");
    return 0;
}

/* Functions that need an attached thread. The pointer stands for an object, a type, or a module. */
static void attached_functions_answer(void *bad, int code) {
    PyObject *object = bad, *out = (PyObject *)&plain_module;
    PyTypeObject *type = bad, *found = &Pair_Type;
    void *token = &token;
    FAILS(PyType_GetSlot(type, Py_tp_traverse) == NULL, code);
    FAILS(PyType_GetModule(type) == NULL, code);
    FAILS(PyType_GetModuleState(type) == NULL, code);
    FAILS(PyType_GetModuleByDef(type, &plain_module) == NULL, code);
    FAILS(PyType_GetModuleByToken(type, &plain_module) == NULL, code);
    FAILS(PyType_GetBaseByToken(type, &token, &found) == -1 && found == NULL, code);
    FAILS(PyType_GetBaseByToken(type, &token, NULL) == -1, code);
    FAILS(PyType_GetTypeDataSize(type) == -1, code);
    FAILS(PyType_GenericAlloc(type, 0) == NULL, code);
    FAILS(PyType_GenericAlloc(type, 3) == NULL, code);
    FAILS(PyObject_GC_New(Pair, type) == NULL, code);
    FAILS(PyObject_GC_NewVar(Row, type, 3) == NULL, code);
    FAILS(PyObject_New(Leaf, type) == NULL, code);
    FAILS(PyObject_NewVar(PyVarObject, type, 3) == NULL, code);
    FAILS(PyUnstable_Object_GC_NewWithExtraData(type, 8) == NULL, code);
    FAILS(PyObject_GC_Resize(Row, (Row *)bad, 3) == NULL, code);
    FAILS(PyObject_SetAttrString(object, "name", NULL) == -1, code);
    FAILS(PyObject_GetAttrString(object, "name") == NULL, code);
    FAILS(PyObject_GetTypeData(object, &Leaf_Type) == NULL, code);
    FAILS(PyObject_GetItemData(object) == NULL, code);
    FAILS(PyModule_GetState(object) == NULL, code);
    FAILS(PyModule_GetDef(object) == NULL, code);
    FAILS(PyModule_GetToken(object, &token) == -1 && token == NULL, code);
    FAILS(PyModule_GetName(object) == NULL, code);
    FAILS(PyTuple_Size(object) == -1, code);
    FAILS(PyTuple_GetItem(object, 0) == NULL, code);
    FAILS(PyTuple_SetItem(object, 0, NULL) == -1, code);
    FAILS(PyUnicode_AsUTF8(object) == NULL, code);
    FAILS(PyLong_AsLong(object) == -1, code);
    FAILS(PyLong_AsLongLong(object) == -1, code);
    FAILS(PyWeakref_NewRef(object, NULL) == NULL, code);
    FAILS(PyWeakref_GetRef(object, &out) == -1 && out == NULL, code);
    REPORTS_IT(PyObject_HasAttrString(object, "name") == 0, code);
    REPORTS_IT(PyObject_GC_IsTracked(object) == 0, code);
    REPORTS_IT(PyObject_GC_IsFinalized(object) == 0, code);
    REPORTS_IT(standstill_gc_is_tracked(object) == 0, code);
    REPORTS_IT(standstill_gc_is_finalized(object) == 0, code);
    REPORTS_IT((PyObject_GC_Track(object), 1), code);
    REPORTS_IT((PyObject_GC_UnTrack(object), 1), code);
    REPORTS_IT((PyObject_CallFinalizer(object), 1), code);
    REPORTS_IT(PyObject_CallFinalizerFromDealloc(object) == 0, code);
    REPORTS_IT((PyObject_ClearWeakRefs(object), 1), code);
    REPORTS_IT((PyObject_ClearManagedDict(object), 1), code);
}

/* Functions that may be called anywhere. */
static void other_functions_answer(void *bad, int code) {
    PyObject *object = bad;
    PyTypeObject *type = bad;
    Leaf *one = leaf();
    REPORTS_IT(Py_REFCNT(object) == 0, code);
    REPORTS_IT(Py_SIZE(object) == 0, code);
    REPORTS_IT(PyObject_IS_GC(object) == 0, code);
    REPORTS_IT(PyObject_VisitManagedDict(object, never, NULL) == 0, code);
    REPORTS_IT(PyType_GetFlags(type) == 0, code);
    REPORTS_IT(PyType_HasFeature(type, ~0ul) == 0, code);
    REPORTS_IT(PyType_IsSubtype(type, &PyBaseObject_Type) == 0, code);
    REPORTS_IT(PyType_IsSubtype(&Leaf_Type, type) == 0, code);
    REPORTS_IT(PyObject_TypeCheck(object, &PyBaseObject_Type) == 0, code);
    REPORTS_IT(PyObject_TypeCheck((PyObject *)one, type) == 0, code);
    REPORTS_IT(PyType_Check(object) == 0, code);
    REPORTS_IT(PyType_CheckExact(object) == 0, code);
    REPORTS_IT(PyModule_Check(object) == 0, code);
    REPORTS_IT(PyModule_CheckExact(object) == 0, code);
    REPORTS_IT(PyTuple_Check(object) == 0, code);
    REPORTS_IT(PyTuple_CheckExact(object) == 0, code);
    REPORTS_IT(PyUnicode_Check(object) == 0, code);
    REPORTS_IT(PyUnicode_CheckExact(object) == 0, code);
    REPORTS_IT(PyLong_Check(object) == 0, code);
    REPORTS_IT(PyLong_CheckExact(object) == 0, code);
    REPORTS_IT(PyWeakref_Check(object) == 0, code);
    Py_DECREF(one);
}

static void null_is_answered_with_the_failure_value(void) {
    Leaf *one = leaf();
    PyObject *object = (PyObject *)one, *module = PyModule_Create(&plain_module), *weak = weak_to(one), *text;
    int code = STANDSTILL_E_NULL_ARGUMENT;
    MUST(module != NULL);
    attached_functions_answer(NULL, code);
    other_functions_answer(NULL, code);
    REPORTS_IT((PyObject_GC_Del(NULL), 1), code);
    PyObject_Free(NULL);
    Py_IncRef(NULL);
    Py_DecRef(NULL);
    FAILS(PyObject_GetTypeData(object, NULL) == NULL, code);
    FAILS(PyObject_SetAttrString(object, NULL, NULL) == -1, code);
    FAILS(PyObject_GetAttrString(object, NULL) == NULL, code);
    REPORTS_IT(PyObject_HasAttrString(object, NULL) == 0, code);
    REPORTS_IT(PyObject_VisitManagedDict(object, NULL, NULL) == 0, code);
    FAILS(PyType_GetModuleByDef(&Leaf_Type, NULL) == NULL, code);
    FAILS(PyType_GetModuleByToken(&Leaf_Type, NULL) == NULL, code);
    FAILS(PyType_GetBaseByToken(&Leaf_Type, NULL, NULL) == -1, code);
    FAILS(PyType_FromSpec(NULL) == NULL, code);
    FAILS(PyType_FromSpecWithBases(NULL, NULL) == NULL, code);
    FAILS(PyType_FromModuleAndSpec(module, NULL, NULL) == NULL, code);
    FAILS(PyModule_Create(NULL) == NULL, code);
    FAILS(PyModule_FromDefAndSpec(NULL, object) == NULL, code);
    FAILS(PyModule_GetToken(module, NULL) == -1, code);
    FAILS(PyWeakref_GetRef(weak, NULL) == -1, code);
    FAILS(PyUnicode_FromString(NULL) == NULL, code);
    FAILS(standstill_Callback_New(NULL, object) == NULL, code);
    FAILS(standstill_gc_get_threshold(NULL) == -1, code);
    FAILS(standstill_gc_get_count(NULL) == -1, code);
    FAILS(standstill_gc_get_stats(NULL) == -1, code);
    FAILS(standstill_gc_add_callback(NULL, NULL) == -1, code);
    FAILS(standstill_gc_get_referrers(NULL, 1) == NULL, code);
    FAILS(standstill_gc_get_referents(NULL, 1) == NULL, code);
    REPORTS_IT((PyUnstable_GC_VisitObjects(NULL, NULL), 1), code);
    REPORTS_IT(standstill_heap_free(NULL) == -1, code);
    /* No objects are no mistake. */
    text = standstill_gc_get_referrers(NULL, 0);
    CHECK_INT(PyTuple_Size(text), 0);
    Py_DECREF(text);
    CHECK_INT(PyErr_ExceptionMatches(NULL), 0);
    Py_DECREF(weak);
    Py_DECREF(module);
    Py_DECREF(one);
}

/* Checked mode looks every pointer up: memory in which no object is, and an object that was freed. */
static void a_pointer_to_no_object_is_answered_with_the_failure_value(void) {
    static uint64_t nothing[64] = {0, 5}; /* where an object would have 5 references */
    Leaf *gone = leaf();
    int i;
    attached_functions_answer(nothing, STANDSTILL_E_FOREIGN_POINTER);
    other_functions_answer(nothing, STANDSTILL_E_FOREIGN_POINTER);
    REPORTS_IT((PyObject_GC_Del(nothing), 1), STANDSTILL_E_FOREIGN_POINTER);
    REPORTS_IT((PyObject_Free(nothing), 1), STANDSTILL_E_FOREIGN_POINTER);
    REPORTS_IT((Py_IncRef((PyObject *)nothing), 1), STANDSTILL_E_FOREIGN_POINTER);
    REPORTS_IT((Py_DecRef((PyObject *)nothing), 1), STANDSTILL_E_FOREIGN_POINTER);
    REPORTS_IT(PyErr_ExceptionMatches((PyObject *)nothing) == 0, STANDSTILL_E_FOREIGN_POINTER);
    PyErr_SetString((PyObject *)&Leaf_Type, "an exception of the program's own");
    CHECK_INT(PyErr_ExceptionMatches((PyObject *)(uintptr_t)64), 0); /* not even to be read */
    EXPECT_MISUSE(STANDSTILL_E_FOREIGN_POINTER, 1);
    PyErr_Clear();
    for (i = 0; i < 64; i++)
        CHECK(nothing[i] == (i == 1 ? 5 : 0)); /* nothing was written there */
    /* An object that is no type. */
    FAILS(PyObject_New(Leaf, (PyTypeObject *)gone) == NULL, STANDSTILL_E_WRONG_TYPE);
    FAILS(PyType_GetTypeDataSize((PyTypeObject *)gone) == -1, STANDSTILL_E_WRONG_TYPE);
    Py_DECREF(gone);
    attached_functions_answer(gone, STANDSTILL_E_FREED_POINTER);
    other_functions_answer(gone, STANDSTILL_E_FREED_POINTER);
    REPORTS_IT((PyObject_GC_Del(gone), 1), STANDSTILL_E_DOUBLE_FREE);
    REPORTS_IT((PyObject_Free(gone), 1), STANDSTILL_E_DOUBLE_FREE);
    CHECK(strstr(last_misuse.text, "the object was freed before") != NULL);
    REPORTS_IT((Py_IncRef((PyObject *)gone), 1), STANDSTILL_E_FREED_POINTER);
    REPORTS_IT((Py_DecRef((PyObject *)gone), 1), STANDSTILL_E_FREED_POINTER);
}

static void asks_everything(void *arg) {
    Leaf *one = arg;
    attached_functions_answer(NULL, STANDSTILL_E_NOT_ATTACHED);
    attached_functions_answer(one, STANDSTILL_E_NOT_ATTACHED);
    FAILS(PyTuple_New(1) == NULL, STANDSTILL_E_NOT_ATTACHED);
    FAILS(PyUnicode_FromString("text") == NULL, STANDSTILL_E_NOT_ATTACHED);
    FAILS(PyLong_FromLong(1) == NULL, STANDSTILL_E_NOT_ATTACHED);
    FAILS(PyLong_FromLongLong(1) == NULL, STANDSTILL_E_NOT_ATTACHED);
    FAILS(PyModule_Create(&plain_module) == NULL, STANDSTILL_E_NOT_ATTACHED);
    FAILS(standstill_gc_collect(2) == -1, STANDSTILL_E_NOT_ATTACHED);
    FAILS(standstill_gc_set_threshold(1, 2, 3) == -1, STANDSTILL_E_NOT_ATTACHED);
    FAILS(standstill_gc_garbage_size() == -1, STANDSTILL_E_NOT_ATTACHED);
    FAILS(standstill_gc_garbage_clear() == -1, STANDSTILL_E_NOT_ATTACHED);
    FAILS(standstill_gc_freeze() == -1, STANDSTILL_E_NOT_ATTACHED);
    FAILS(standstill_gc_unfreeze() == -1, STANDSTILL_E_NOT_ATTACHED);
    FAILS(standstill_gc_get_freeze_count() == -1, STANDSTILL_E_NOT_ATTACHED);
    FAILS(standstill_gc_get_objects(-1) == NULL, STANDSTILL_E_NOT_ATTACHED);
    FAILS(standstill_gc_remove_callback(0) == -1, STANDSTILL_E_NOT_ATTACHED);
    FAILS(standstill_gc_set_debug(0) == -1, STANDSTILL_E_NOT_ATTACHED);
    FAILS(standstill_gc_get_debug() == 0, STANDSTILL_E_NOT_ATTACHED);
    FAILS(standstill_live_objects() == -1, STANDSTILL_E_NOT_ATTACHED);
    FAILS(standstill_live_bytes() == 0, STANDSTILL_E_NOT_ATTACHED);
    REPORTS_IT(PyGC_Collect() == 0, STANDSTILL_E_NOT_ATTACHED);
    REPORTS_IT(PyGC_Enable() == 0, STANDSTILL_E_NOT_ATTACHED);
    REPORTS_IT(PyGC_Disable() == 0, STANDSTILL_E_NOT_ATTACHED);
    REPORTS_IT(PyGC_IsEnabled() == 0, STANDSTILL_E_NOT_ATTACHED);
    REPORTS_IT((PyUnstable_GC_VisitObjects(never, NULL), 1), STANDSTILL_E_NOT_ATTACHED);
    CHECK(strcmp(last_misuse.function, "PyUnstable_GC_VisitObjects") == 0);
    REPORTS_IT((standstill_safepoint(), 1), STANDSTILL_E_NOT_ATTACHED);
    REPORTS_IT(standstill_detach() == -1, STANDSTILL_E_NOT_ATTACHED);
    REPORTS_IT(PyEval_SaveThread() == NULL, STANDSTILL_E_NOT_ATTACHED);
    CHECK_INT(standstill_is_attached(), 0);
}

static void a_thread_that_is_not_attached_gets_the_failure_value(void) {
    Leaf *one = leaf();
    thread t;
    start_raw(&t, asks_everything, one);
    join(&t);
    CHECK_INT(Py_REFCNT((PyObject *)one), 1);
    Py_DECREF(one);
}

/* An object of another kind than the function is for. */
static void an_object_of_another_type_is_answered_with_the_failure_value(void) {
    Leaf *one = leaf();
    PyObject *object = (PyObject *)one, *out = object;
    PyType_Spec spec = {"check.OfNoModule", 0, 0, Py_TPFLAGS_DEFAULT, NULL};
    int code = STANDSTILL_E_WRONG_TYPE;
    void *token = &token;
    FAILS(PyModule_GetState(object) == NULL, code);
    FAILS(PyModule_GetDef(object) == NULL, code);
    FAILS(PyModule_GetToken(object, &token) == -1 && token == NULL, code);
    FAILS(PyModule_GetName(object) == NULL, code);
    FAILS(PyTuple_Size(object) == -1, code);
    FAILS(PyTuple_GetItem(object, 0) == NULL, code);
    FAILS(PyTuple_SetItem(object, 0, NULL) == -1, code);
    FAILS(PyUnicode_AsUTF8(object) == NULL, code);
    FAILS(PyLong_AsLong(object) == -1, code);
    FAILS(PyLong_AsLongLong(object) == -1, code);
    FAILS(PyWeakref_GetRef(object, &out) == -1 && out == NULL, code);
    FAILS(PyWeakref_NewRef(object, object) == NULL, code);
    FAILS(PyType_FromModuleAndSpec(object, &spec, NULL) == NULL, code);
    REPORTS_IT(Py_SIZE(object) == 0, code);
    CHECK(strstr(last_misuse.text, "the object has no items") != NULL);
    CHECK(strcmp(last_misuse.function, "Py_SIZE") == 0);
    CHECK(last_misuse.object == object && strcmp(last_misuse.type, "check.Leaf") == 0);
    REPORTS_IT(PyObject_CallFinalizerFromDealloc(object) == 0, STANDSTILL_E_NOT_ALLOWED_HERE);
    REPORTS_IT((PyObject_ClearWeakRefs(object), 1), STANDSTILL_E_NOT_ALLOWED_HERE);
    CHECK_INT(PyObject_HasAttrString(object, "name"), 0);
    CHECK_INT(PyObject_HasAttrString(Py_None, "name"), 0);
    FAILS(PyObject_GetAttrString(Py_None, "name") == NULL, STANDSTILL_E_NO_ATTRIBUTE);
    FAILS(PyObject_SetAttrString(Py_None, "name", object) == -1, STANDSTILL_E_NO_ATTRIBUTE);
    CHECK_INT(PyObject_VisitManagedDict(object, never, NULL), 0);
    PyObject_ClearManagedDict(object);
    Py_DECREF(one);
}

static uint64_t nothing_here[64];
static Leaf *leaf_inside;
static PyTypeObject Unready_Type;
static int asking_traverse(PyObject *self, visitproc visit, void *arg) {
    PyObject *nothing = (PyObject *)nothing_here;
    PyTypeObject *no_type = (PyTypeObject *)nothing_here, *found = &Leaf_Type;
    void *token = &token;
    (void)self;
    (void)visit;
    (void)arg;
    if (leaf_inside == NULL)
        return 0;
    CHECK_INT(PyType_Check(nothing), 0);
    CHECK_INT(PyObject_TypeCheck((PyObject *)leaf_inside, no_type), 0);
    CHECK_INT(PyObject_IS_GC(nothing), 0);
    CHECK(PyObject_GetTypeData_DuringGC(nothing, &Leaf_Type) == NULL);
    CHECK(PyObject_GetItemData_DuringGC(nothing) == NULL);
    CHECK(PyModule_GetState_DuringGC(nothing) == NULL);
    CHECK_INT(PyModule_GetToken_DuringGC(nothing, &token), -1);
    CHECK(token == NULL);
    CHECK(PyType_GetModule_DuringGC(no_type) == NULL);
    CHECK(PyType_GetModuleState_DuringGC((PyTypeObject *)leaf_inside) == NULL);
    CHECK_INT(PyType_GetBaseByToken_DuringGC(no_type, &token, &found), -1);
    CHECK(found == NULL);
    CHECK(PyModule_GetState_DuringGC((PyObject *)&Unready_Type) == NULL);
    CHECK(PyObject_GetTypeData_DuringGC((PyObject *)&Unready_Type, &Leaf_Type) == NULL);
    CHECK(PyObject_GetItemData_DuringGC((PyObject *)&Unready_Type) == NULL);
    CHECK_INT(PyTuple_SetItem((PyObject *)leaf_inside, 0, nothing), -1);
    CHECK_INT(Py_SIZE(leaf_inside), 0);
    return 0;
}
static PyTypeObject Asking_Type = {TYPE_HEAD .tp_name = "check.AskingAnswers", .tp_basicsize = sizeof(Leaf),
                                   .tp_flags = GC_TYPE, .tp_traverse = asking_traverse};

/* The safe list looks its pointers up too, in the heap that is traversed. The report names the type of the object that the
 * mistake is about, or else that of the object whose handler runs. */
static void a_handler_that_asks_about_no_object_is_answered_and_reported(void) {
    PyObject *asking;
    ready(&Asking_Type);
    asking = PyType_GenericAlloc(&Asking_Type, 0);
    MUST(asking != NULL);
    leaf_inside = leaf();
    PyGC_Collect();
    CHECK_INT(misuses_in(STANDSTILL_E_FOREIGN_POINTER, "PyType_Check"), 1);
    CHECK_INT(misuses_in(STANDSTILL_E_FOREIGN_POINTER, "PyObject_TypeCheck"), 1);
    CHECK_INT(misuses_in(STANDSTILL_E_FOREIGN_POINTER, "PyObject_IS_GC"), 1);
    CHECK_INT(misuses_in(STANDSTILL_E_FOREIGN_POINTER, "PyObject_GetTypeData_DuringGC"), 1);
    CHECK_INT(misuses_in(STANDSTILL_E_FOREIGN_POINTER, "PyObject_GetItemData_DuringGC"), 1);
    CHECK_INT(misuses_in(STANDSTILL_E_FOREIGN_POINTER, "PyModule_GetState_DuringGC"), 1);
    CHECK_INT(misuses_in(STANDSTILL_E_FOREIGN_POINTER, "PyModule_GetToken_DuringGC"), 1);
    CHECK_INT(misuses_in(STANDSTILL_E_FOREIGN_POINTER, "PyType_GetModule_DuringGC"), 1);
    CHECK_INT(misuses_in(STANDSTILL_E_FOREIGN_POINTER, "PyType_GetBaseByToken_DuringGC"), 1);
    CHECK_INT(misuses_in(STANDSTILL_E_IN_TRAVERSAL, "PyTuple_SetItem"), 1);
    CHECK_INT(misuses_in(STANDSTILL_E_WRONG_TYPE, "PyType_GetModuleState_DuringGC"), 1);
    CHECK_INT(misuses_in(STANDSTILL_E_WRONG_TYPE, "Py_SIZE"), 1);
    CHECK(strcmp(last_misuse.function, "Py_SIZE") == 0 && strcmp(last_misuse.type, "check.Leaf") == 0);
    forget_misuses();
    CHECK(!PyErr_Occurred());
    Py_CLEAR(leaf_inside);
    Py_DECREF(asking);
}

static int nothing_visit(PyObject *self, visitproc visit, void *arg) {
    (void)self;
    CHECK_INT(visit((PyObject *)nothing_here, arg), 0);
    return 0;
}
static PyTypeObject Stray_Type = {TYPE_HEAD .tp_name = "check.Stray", .tp_basicsize = sizeof(Leaf), .tp_flags = GC_TYPE,
                                  .tp_traverse = nothing_visit};

/* Without checked mode no visit is looked up: neither in a collection, nor where referrers are looked for. */
static void without_checked_mode_a_visit_outside_the_heap_is_ignored(void) {
    PyObject *stray, *target = (PyObject *)pair(NULL, NULL), *found;
    ready(&Stray_Type);
    stray = PyType_GenericAlloc(&Stray_Type, 0);
    MUST(stray != NULL);
    PyGC_Collect();
    found = standstill_gc_get_referrers(&target, 1);
    CHECK_INT(PyTuple_Size(found), 0);
    Py_DECREF(found);
    Py_DECREF(stray);
    Py_DECREF(target);
}

/* Types ------------------------------------------------------------------------------------------------------------ */

static PyObject *some_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    (void)args;
    (void)kwargs;
    return type->tp_alloc(type, 0);
}
static int some_init(PyObject *self, PyObject *args, PyObject *kwargs) {
    (void)self;
    (void)args;
    (void)kwargs;
    return 0;
}
static int always_gc(PyObject *self) {
    (void)self;
    return 1;
}
static PyObject *some_alloc(PyTypeObject *type, Py_ssize_t n) { return PyType_GenericAlloc(type, n); }
static void some_free(void *object) { PyObject_GC_Del(object); }

/* Each slot of a spec reaches the type: the member that C sees, and what PyType_GetSlot gives. */
static void every_slot_of_a_spec_reaches_the_type(void) {
    static int token;
    static uint64_t more = STANDSTILL_TPFLAGS_SERIAL_TRAVERSE;
    PyType_Slot slots[] = {
        {Py_tp_alloc, FN(some_alloc)},        {Py_tp_base, &Pair_Type},          {Py_tp_clear, FN(pair_clear)},
        {Py_tp_dealloc, FN(heap_pair_dealloc)}, {Py_tp_del, FN(pair_finalize)},  {Py_tp_doc, "What it is for"},
        {Py_tp_init, FN(some_init)},          {Py_tp_is_gc, FN(always_gc)},      {Py_tp_new, FN(some_new)},
        {Py_tp_traverse, FN(heap_pair_traverse)}, {Py_tp_free, FN(some_free)},   {Py_tp_finalize, FN(pair_finalize)},
        {Py_tp_token, &token},                {STANDSTILL_tp_flags, &more},      {0, NULL},
    };
    PyTypeObject *type = type_of_slots("check.Full", sizeof(Pair) + 8, 0, GC_TYPE | Py_TPFLAGS_BASETYPE, slots);
    PyTypeObject *found = NULL;
    size_t i;
    MUST(type != NULL);
    CHECK(type->tp_alloc == some_alloc && type->tp_base == &Pair_Type && type->tp_clear == pair_clear);
    CHECK(type->tp_dealloc == heap_pair_dealloc && type->tp_del == pair_finalize);
    CHECK(strcmp(type->tp_doc, "What it is for") == 0 && type->tp_init == some_init);
    CHECK(type->tp_is_gc == always_gc && type->tp_new == some_new && type->tp_traverse == heap_pair_traverse);
    CHECK(type->tp_free == some_free && type->tp_finalize == pair_finalize);
    CHECK_INT(type->tp_basicsize, sizeof(Pair) + 8);
    CHECK((type->tp_flags & STANDSTILL_TPFLAGS_SERIAL_TRAVERSE) == STANDSTILL_TPFLAGS_SERIAL_TRAVERSE);
    CHECK((type->tp_flags & (GC_TYPE | Py_TPFLAGS_BASETYPE)) == (GC_TYPE | Py_TPFLAGS_BASETYPE));
    for (i = 0; slots[i].slot != 0; i++)
        if (slots[i].slot != Py_tp_doc && slots[i].slot != STANDSTILL_tp_flags)
            CHECK(PyType_GetSlot(type, slots[i].slot) == slots[i].pfunc);
    CHECK(PyType_GetSlot(type, Py_tp_doc) == type->tp_doc);
    CHECK(PyType_GetSlot(type, Py_tp_bases) == NULL && !PyErr_Occurred());
    FAILS(PyType_GetSlot(type, 1000) == NULL, STANDSTILL_E_BAD_SLOT);
    FAILS(PyType_GetSlot(type, 0) == NULL, STANDSTILL_E_BAD_SLOT);
    CHECK_INT(PyType_GetBaseByToken(type, &token, &found), 1);
    CHECK(found == type);
    Py_DECREF(found);
    Py_DECREF(type);
}

/* The slot Py_tp_bases names bases as the argument of PyType_FromSpecWithBases does, and stands back behind it. */
static void bases_come_from_the_argument_or_from_the_slots(void) {
    PyType_Slot none[] = {{0, NULL}}, slots[] = {{Py_tp_bases, NULL}, {0, NULL}};
    PyType_Spec spec = {"check.Based", 0, 0, Py_TPFLAGS_DEFAULT, NULL};
    PyTypeObject *a = type_of_slots("check.A", 0, 0, Py_TPFLAGS_BASETYPE, none);
    PyTypeObject *b = type_of_slots("check.B", 0, 0, Py_TPFLAGS_BASETYPE, none), *type;
    PyObject *bases;
    MUST(a && b);
    bases = PyTuple_Pack(2, (PyObject *)a, (PyObject *)b);
    slots[0].pfunc = bases;
    spec.slots = slots;
    type = (PyTypeObject *)PyType_FromSpec(&spec);
    MUST(type != NULL);
    CHECK(type->tp_base == a && PyType_IsSubtype(type, a) && PyType_IsSubtype(type, b));
    Py_DECREF(type);
    type = (PyTypeObject *)PyType_FromSpecWithBases(&spec, (PyObject *)b);
    MUST(type != NULL);
    CHECK(type->tp_base == b && !PyType_IsSubtype(type, a) && PyType_IsSubtype(type, b));
    Py_DECREF(type);
    slots[0].pfunc = NULL; /* no bases: the root */
    type = (PyTypeObject *)PyType_FromSpec(&spec);
    MUST(type != NULL);
    CHECK(type->tp_base == &PyBaseObject_Type);
    Py_DECREF(type);
    Py_DECREF(bases);
    Py_DECREF(a);
    Py_DECREF(b);
}

static void a_spec_with_a_slot_twice_or_empty_or_unknown_is_refused(void) {
    PyType_Slot twice[] = {{Py_tp_finalize, FN(pair_finalize)}, {Py_tp_finalize, FN(pair_finalize)}, {0, NULL}};
    PyType_Slot empty[] = {{Py_tp_finalize, NULL}, {0, NULL}};
    PyType_Slot unknown[] = {{Py_tp_doc, NULL}, {1002, FN(pair_finalize)}, {0, NULL}};
    PyType_Slot none[] = {{Py_tp_doc, NULL}, {Py_tp_base, NULL}, {Py_tp_bases, NULL}, {0, NULL}};
    PyType_Spec nameless = {NULL, 0, 0, Py_TPFLAGS_DEFAULT, NULL};
    PyTypeObject *type;
    FAILS(type_of_slots("check.Twice", 0, 0, Py_TPFLAGS_DEFAULT, twice) == NULL, STANDSTILL_E_BAD_SLOT);
    FAILS(type_of_slots("check.Empty", 0, 0, Py_TPFLAGS_DEFAULT, empty) == NULL, STANDSTILL_E_BAD_SLOT);
    FAILS(type_of_slots("check.Unknown", 0, 0, Py_TPFLAGS_DEFAULT, unknown) == NULL, STANDSTILL_E_BAD_SLOT);
    FAILS(PyType_FromSpec(&nameless) == NULL, STANDSTILL_E_BAD_SLOT);
    type = type_of_slots("check.None", 0, 0, Py_TPFLAGS_DEFAULT, none);
    MUST(type != NULL);
    CHECK(type->tp_doc == NULL && type->tp_base == &PyBaseObject_Type);
    Py_DECREF(type);
    type = type_of_slots("check.NoSlots", 0, 0, Py_TPFLAGS_DEFAULT, NULL);
    MUST(type != NULL);
    CHECK(PyType_GetSlot(type, Py_tp_token) == NULL && !PyErr_Occurred());
    Py_DECREF(type);
}

/* tp_new and tp_init mean nothing to the library. They are inherited all the same, by static types and by others. */
static void new_and_init_are_inherited(void) {
    static PyTypeObject base = {TYPE_HEAD .tp_name = "check.Newish", .tp_basicsize = sizeof(Leaf), .tp_new = some_new,
                                .tp_init = some_init, .tp_flags = Py_TPFLAGS_BASETYPE};
    static PyTypeObject below = {TYPE_HEAD .tp_name = "check.BelowNewish", .tp_base = &base};
    PyType_Slot slots[] = {{Py_tp_base, &base}, {0, NULL}};
    PyTypeObject *type;
    ready(&base);
    ready(&below);
    CHECK(below.tp_new == some_new && below.tp_init == some_init);
    type = type_of_slots("check.HeapNewish", 0, 0, Py_TPFLAGS_DEFAULT, slots);
    MUST(type != NULL);
    CHECK(type->tp_new == some_new && type->tp_init == some_init);
    Py_DECREF(type);
    CHECK(PyBaseObject_Type.tp_new == NULL && Leaf_Type.tp_init == NULL);
}

/* Bases of static types are made ready with them; a chain without an end is an error. */
static void static_bases_are_made_ready_up_to_a_depth(void) {
    static PyTypeObject chain[70], other[70], loop = {TYPE_HEAD .tp_name = "check.Loop", .tp_basicsize = sizeof(Leaf)};
    static PyTypeObject items = {TYPE_HEAD .tp_name = "check.Items", .tp_basicsize = sizeof(PyVarObject),
                                 .tp_itemsize = 8, .tp_flags = Py_TPFLAGS_BASETYPE};
    static PyTypeObject below_items = {TYPE_HEAD .tp_name = "check.BelowItems", .tp_base = &items};
    static PyTypeObject negative = {TYPE_HEAD .tp_name = "check.Negative", .tp_basicsize = -8};
    static PyTypeObject nameless = {TYPE_HEAD .tp_basicsize = sizeof(Leaf)};
    PyType_Slot slots[] = {{Py_tp_base, NULL}, {0, NULL}};
    PyTypeObject *type;
    int i;
    for (i = 0; i < 70; i++) {
        chain[i].tp_name = "check.Chain";
        chain[i].tp_flags = Py_TPFLAGS_BASETYPE;
        chain[i].tp_base = i ? &chain[i - 1] : NULL;
    }
    /* 64 bases of bases are made ready at a time. */
    FAILS(PyType_Ready(&chain[65]) == -1, STANDSTILL_E_BAD_BASE);
    CHECK(!(chain[0].tp_flags & Py_TPFLAGS_READY));
    CHECK_INT(PyType_Ready(&chain[64]), 0);
    for (i = 0; i < 65; i++)
        CHECK((chain[i].tp_flags & Py_TPFLAGS_READY) && chain[i].tp_basicsize == sizeof(PyObject));
    CHECK_INT(PyType_IsSubtype(&chain[64], &chain[0]), 1);
    CHECK_INT(PyType_Ready(&chain[69]), 0);
    /* The same for the base of a heap type. */
    for (i = 0; i < 65; i++) {
        other[i].tp_name = "check.Other";
        other[i].tp_flags = Py_TPFLAGS_BASETYPE;
        other[i].tp_base = i ? &other[i - 1] : NULL;
    }
    slots[0].pfunc = &other[64];
    type = type_of_slots("check.Above", 0, 0, Py_TPFLAGS_DEFAULT, slots);
    MUST(type != NULL);
    Py_DECREF(type);
    loop.tp_base = &loop;
    FAILS(PyType_Ready(&loop) == -1, STANDSTILL_E_BAD_BASE);
    ready(&below_items);
    CHECK_INT(below_items.tp_itemsize, 8);
    CHECK_INT(below_items.tp_basicsize, sizeof(PyVarObject));
    FAILS(PyType_Ready(&negative) == -1, STANDSTILL_E_BAD_SIZE);
    FAILS(PyType_Ready(&nameless) == -1, STANDSTILL_E_BAD_SLOT);
}

/* The members of a ready type are the library's. */
static void every_member_of_a_ready_type_gets_its_value_again(void) {
    static PyTypeObject type = {TYPE_HEAD .tp_name = "check.Kept", .tp_basicsize = sizeof(Pair),
                                .tp_dealloc = pair_dealloc, .tp_traverse = pair_traverse, .tp_clear = pair_clear,
                                .tp_flags = GC_TYPE};
    PyTypeObject before;
    int i;
    ready(&type);
    before = type;
    for (i = 0; i < 12; i++) {
        switch (i) {
        case 0: type.tp_basicsize += 8; break;
        case 1: type.tp_itemsize = 8; break;
        case 2: type.tp_flags |= 1 << 3; break;
        case 3: type.tp_base = &Pair_Type; break;
        case 4: type.tp_traverse = nothing_traverse; break;
        case 5: type.tp_clear = NULL; break;
        case 6: type.tp_dealloc = NULL; break;
        case 7: type.tp_finalize = pair_finalize; break;
        case 8: type.tp_del = pair_finalize; break;
        case 9: type.tp_is_gc = always_gc; break;
        case 10: type.tp_alloc = some_alloc; break;
        default: type.tp_free = some_free;
        }
        CHECK_INT(PyType_Ready(&type), 0);
        if (memcmp(&type, &before, sizeof type) != 0)
            check_failed(__FILE__, __LINE__, "member %d was not put right", i);
        EXPECT_MISUSE(STANDSTILL_E_WRITTEN_AFTER_READY, check_is_checked ? 1 : 0);
    }
    type.tp_flags &= ~(unsigned long)Py_TPFLAGS_HAVE_GC;
    FAILS(PyType_Ready(&type) == -1, STANDSTILL_E_WRITTEN_AFTER_READY);
    EXPECT_MISUSE(STANDSTILL_E_WRITTEN_AFTER_READY, check_is_checked ? 1 : 0);
    CHECK(memcmp(&type, &before, sizeof type) == 0);
    CHECK_INT(PyType_Ready(&type), 0);
}

/* The types that are there from the start are as their flags and sizes say. */
static void the_built_in_types_have_their_flags_and_sizes(void) {
    PyTypeObject *exceptions[6];
    int i;
    CHECK(PyType_HasFeature(&PyTuple_Type, 1ul << 26) && PyType_HasFeature(&PyUnicode_Type, 1ul << 28));
    CHECK(PyType_HasFeature(&PyLong_Type, 1ul << 24) && PyType_HasFeature(&PyType_Type, 1ul << 31));
    CHECK(!PyType_HasFeature(&PyLong_Type, 1ul << 26) && !PyType_HasFeature(&PyTuple_Type, 1ul << 24));
    CHECK_INT(PyTuple_Type.tp_basicsize, 32);
    CHECK_INT(PyTuple_Type.tp_itemsize, sizeof(PyObject *));
    CHECK_INT(PyUnicode_Type.tp_basicsize, 32);
    CHECK_INT(PyUnicode_Type.tp_itemsize, 1);
    CHECK_INT(PyLong_Type.tp_basicsize, 32);
    CHECK_INT(PyLong_Type.tp_itemsize, 0);
    CHECK_INT(Py_TYPE(Py_None)->tp_basicsize, sizeof(PyObject));
    CHECK(strcmp(Py_TYPE(Py_None)->tp_name, "NoneType") == 0);
    CHECK(PyTuple_Type.tp_alloc == PyType_GenericAlloc && PyLong_Type.tp_alloc == PyType_GenericAlloc);
    CHECK(PyTuple_Type.tp_free == PyObject_GC_Del && PyLong_Type.tp_free == PyObject_Free);
    CHECK(PyType_Type.tp_free == PyObject_GC_Del && PyModule_Type.tp_free == PyObject_GC_Del);
    CHECK(PyBaseObject_Type.tp_free == PyObject_Free && PyBaseObject_Type.tp_alloc == PyType_GenericAlloc);
    exceptions[0] = (PyTypeObject *)PyExc_TypeError;
    exceptions[1] = (PyTypeObject *)PyExc_ValueError;
    exceptions[2] = (PyTypeObject *)PyExc_SystemError;
    exceptions[3] = (PyTypeObject *)PyExc_MemoryError;
    exceptions[4] = (PyTypeObject *)PyExc_RuntimeError;
    exceptions[5] = (PyTypeObject *)PyExc_AttributeError;
    for (i = 0; i < 6; i++) {
        CHECK(PyType_HasFeature(exceptions[i], 1ul << 30) && !PyType_HasFeature(exceptions[i], 1ul << 29));
        CHECK(PyType_HasFeature(exceptions[i], Py_TPFLAGS_READY | Py_TPFLAGS_BASETYPE));
        CHECK(PyType_Check((PyObject *)exceptions[i]) && PyType_CheckExact((PyObject *)exceptions[i]));
        CHECK_INT(exceptions[i]->tp_basicsize, sizeof(PyObject));
        CHECK(exceptions[i]->tp_base == &PyBaseObject_Type);
    }
}

/* Objects ---------------------------------------------------------------------------------------------------------- */

struct visits {
    PyObject *seen[4];
    int count, last;
};
static int record_visit(PyObject *object, void *arg) {
    struct visits *visits = arg;
    CHECK(visits->count < 4);
    visits->seen[visits->count++] = object;
    return visits->count == visits->last ? 7 : 0;
}

/* What the traverse handler of a type of the library answers, when the visitor answers 7 to visit `last`. */
static int visit(PyObject *object, int last, struct visits *visits) {
    memset(visits, 0, sizeof *visits);
    visits->last = last;
    return Py_TYPE(object)->tp_traverse(object, record_visit, visits);
}

static void nothing_called(PyObject *self, PyObject *weak) {
    (void)self;
    (void)weak;
}

static void tuples_and_callbacks_stop_where_the_visitor_says_so(void) {
    PyObject *one = (PyObject *)leaf(), *other = (PyObject *)leaf(), *tuple = PyTuple_New(3), *callback, *empty;
    struct visits visits;
    PyTuple_SetItem(tuple, 0, one);
    PyTuple_SetItem(tuple, 2, other);
    CHECK_INT(visit(tuple, 0, &visits), 0);
    CHECK(visits.count == 2 && visits.seen[0] == one && visits.seen[1] == other);
    CHECK_INT(visit(tuple, 1, &visits), 7);
    CHECK_INT(visits.count, 1);
    CHECK_INT(visit(tuple, 2, &visits), 7);
    CHECK_INT(visits.count, 2);
    CHECK_INT(PyTuple_Type.tp_traverse(NULL, record_visit, &visits), 0);
    PyTuple_Type.tp_dealloc(NULL);
    callback = standstill_Callback_New(nothing_called, one);
    empty = standstill_Callback_New(nothing_called, NULL);
    MUST(callback && empty);
    CHECK_INT(Py_REFCNT(one), 2);
    CHECK_INT(visit(callback, 0, &visits), 0);
    CHECK(visits.count == 1 && visits.seen[0] == one);
    CHECK_INT(visit(callback, 1, &visits), 7);
    CHECK_INT(visit(empty, 0, &visits), 0);
    CHECK_INT(visits.count, 0);
    CHECK(PyObject_GC_IsTracked(callback) && PyObject_GC_IsTracked(empty));
    /* Clearing takes function and object. */
    CHECK_INT(Py_TYPE(callback)->tp_clear(callback), 0);
    CHECK_INT(Py_REFCNT(one), 1);
    CHECK_INT(visit(callback, 0, &visits), 0);
    CHECK_INT(visits.count, 0);
    CHECK_INT(Py_TYPE(callback)->tp_clear(callback), 0);
    Py_DECREF(callback);
    Py_DECREF(empty);
    Py_DECREF(tuple);
}

static void must_not_be_called(PyObject *self, PyObject *weak) {
    (void)self;
    (void)weak;
    check_failed(__FILE__, __LINE__, "a cleared callback was called");
}

static void a_cleared_callback_calls_nothing(void) {
    Leaf *one = leaf();
    PyObject *callback = standstill_Callback_New(must_not_be_called, NULL), *weak;
    weak = PyWeakref_NewRef((PyObject *)one, callback);
    MUST(callback && weak);
    Py_TYPE(callback)->tp_clear(callback);
    Py_DECREF(one);
    CHECK(!is_alive(weak));
    Py_DECREF(weak);
    Py_DECREF(callback);
}

static void numbers_texts_and_items_come_back(void) {
    long long values[] = {0, 1, -1, 2, 1LL << 62, -(1LL << 62)};
    PyObject *tuple = PyTuple_New(2), *text = PyUnicode_FromString("text"), *number;
    size_t i;
    for (i = 0; i < sizeof values / sizeof values[0]; i++) {
        number = PyLong_FromLongLong(values[i]);
        CHECK(PyLong_AsLongLong(number) == values[i] && !PyErr_Occurred());
        Py_DECREF(number);
        number = PyLong_FromLong((long)values[i]);
        CHECK(PyLong_AsLong(number) == (long)values[i] && !PyErr_Occurred());
        CHECK_INT(Py_REFCNT(number), 1);
        Py_DECREF(number);
    }
    CHECK(strcmp(PyUnicode_AsUTF8(text), "text") == 0);
    CHECK_INT(Py_SIZE(text), 5);
    CHECK_INT(PyTuple_Size(tuple), 2);
    CHECK_INT(PyTuple_SetItem(tuple, 1, Py_NewRef(text)), 0);
    CHECK(PyTuple_GetItem(tuple, 1) == text && PyTuple_GetItem(tuple, 0) == NULL && !PyErr_Occurred());
    CHECK_INT(PyTuple_SetItem(tuple, 1, NULL), 0); /* the item before is dropped */
    CHECK_INT(Py_REFCNT(text), 1);
    FAILS(PyTuple_GetItem(tuple, 2) == NULL, STANDSTILL_E_BAD_SIZE);
    FAILS(PyTuple_GetItem(tuple, -1) == NULL, STANDSTILL_E_BAD_SIZE);
    FAILS(PyTuple_SetItem(tuple, 2, Py_NewRef(text)) == -1, STANDSTILL_E_BAD_SIZE);
    CHECK_INT(Py_REFCNT(text), 1);
    FAILS(PyTuple_New(-1) == NULL, STANDSTILL_E_BAD_SIZE);
    FAILS(PyUnicode_FromString("\xff") == NULL, STANDSTILL_E_WRONG_TYPE);
    Py_DECREF(text);
    Py_DECREF(tuple);
}

/* Modules ---------------------------------------------------------------------------------------------------------- */

/* A module takes its name from the attribute `name` of its spec, where that is a string, and else from the definition. */
static void a_module_is_named_by_its_spec(void) {
    PyType_Slot none[] = {{0, NULL}};
    PyTypeObject *spec = type_of_slots("check.Spec", 0, 0, Py_TPFLAGS_DEFAULT, none);
    PyObject *name = PyUnicode_FromString("check.given"), *module;
    MUST(spec && name);
    module = PyModule_FromDefAndSpec(&plain_module, (PyObject *)spec);
    MUST(module != NULL);
    CHECK(strcmp(PyModule_GetName(module), "check.plain") == 0);
    CHECK(PyModule_GetDef(module) == &plain_module && PyModule_GetState(module) != NULL);
    Py_DECREF(module);
    MUST(PyObject_SetAttrString((PyObject *)spec, "name", name) == 0);
    Py_DECREF(name);
    module = PyModule_FromDefAndSpec(&plain_module, (PyObject *)spec);
    MUST(module != NULL);
    MUST(PyObject_SetAttrString((PyObject *)spec, "name", module) == 0);
    CHECK(strcmp(PyModule_GetName(module), "check.given") == 0);
    CHECK(PyModule_GetDef(module) == &plain_module);
    Py_DECREF(module);
    module = PyModule_FromDefAndSpec(&plain_module, (PyObject *)spec); /* the name is no string */
    MUST(module != NULL);
    CHECK(strcmp(PyModule_GetName(module), "check.plain") == 0);
    Py_DECREF(module);
    Py_DECREF(spec);
    PyErr_Clear();
    PyGC_Collect();
}

static void slots_of_a_module_are_known_or_refused(void) {
    PyModuleDef_Slot slots[] = {{2, FN(some_init)}, {3, NULL}, {4, NULL}, {0, NULL}};
    PyModuleDef def = plain_module;
    PyObject *module;
    int i, wrong[] = {1, 5, -1, 1000};
    def.m_slots = slots;
    module = PyModule_Create(&def);
    MUST(module != NULL);
    Py_DECREF(module);
    for (i = 0; i < 4; i++) {
        slots[2].slot = wrong[i];
        FAILS(PyModule_Create(&def) == NULL, STANDSTILL_E_BAD_SLOT);
    }
    def.m_slots = NULL;
    def.m_name = NULL;
    FAILS(PyModule_Create(&def) == NULL, STANDSTILL_E_BAD_SLOT);
    def.m_name = "check.negative";
    def.m_size = -1; /* no state */
    module = PyModule_Create(&def);
    MUST(module != NULL);
    CHECK(PyModule_GetState(module) == NULL && !PyErr_Occurred());
    Py_DECREF(module);
}

/* Errors ----------------------------------------------------------------------------------------------------------- */

static void an_exception_matches_itself_and_its_bases(void) {
    PyType_Slot slots[] = {{Py_tp_base, NULL}, {0, NULL}};
    PyTypeObject *mine, *below;
    slots[0].pfunc = PyExc_ValueError;
    mine = type_of_slots("check.Mine", 0, 0, Py_TPFLAGS_BASETYPE, slots);
    MUST(mine != NULL);
    slots[0].pfunc = mine;
    below = type_of_slots("check.Below", 0, 0, Py_TPFLAGS_BASETYPE, slots);
    MUST(below != NULL);
    CHECK_INT(PyErr_ExceptionMatches(PyExc_ValueError), 0); /* no error */
    CHECK_INT(standstill_error_code(), 0);
    CHECK(standstill_error_message() == NULL);
    PyErr_SetString((PyObject *)mine, "mine");
    CHECK_INT(PyErr_ExceptionMatches((PyObject *)mine), 1);
    CHECK_INT(PyErr_ExceptionMatches(PyExc_ValueError), 1);
    CHECK_INT(PyErr_ExceptionMatches(PyExc_TypeError), 0);
    CHECK_INT(PyErr_ExceptionMatches((PyObject *)below), 0);
    CHECK_INT(standstill_error_code(), STANDSTILL_E_CUSTOM);
    PyErr_SetString(PyExc_ValueError, "value");
    CHECK_INT(PyErr_ExceptionMatches(PyExc_ValueError), 1);
    CHECK_INT(PyErr_ExceptionMatches((PyObject *)mine), 0);
    CHECK_INT(PyErr_ExceptionMatches(PyExc_SystemError), 0);
    PyErr_Clear();
    CHECK(PyErr_Occurred() == NULL);
    CHECK(PyErr_NoMemory() == NULL);
    EXPECT_ERROR(STANDSTILL_E_MEMORY);
    PyErr_BadInternalCall();
    CHECK(strcmp(standstill_error_message(), "bad argument to an internal function") == 0);
    EXPECT_ERROR(STANDSTILL_E_CUSTOM);
    /* The error is handed over, with the object that it is about. */
    PyErr_WriteUnraisable(NULL);
    CHECK_INT(unraisables(), 0);
    PyErr_SetString(PyExc_ValueError, "handed over");
    PyErr_WriteUnraisable((PyObject *)below);
    CHECK(!PyErr_Occurred() && last_unraisable.object == below);
    CHECK(strcmp(last_unraisable.text, "handed over") == 0 && strcmp(last_unraisable.type, "type") == 0);
    CHECK(strcmp(last_unraisable.function, "call") == 0);
    EXPECT_UNRAISABLE(1);
    PyErr_SetString(PyExc_ValueError, "of nothing");
    PyErr_WriteUnraisable(NULL);
    CHECK(last_unraisable.object == NULL && last_unraisable.type[0] == 0);
    EXPECT_UNRAISABLE(1);
    Py_DECREF(below);
    Py_DECREF(mine);
}

/* Heaps ------------------------------------------------------------------------------------------------------------ */

static uint64_t collections(void) {
    standstill_gc_stats stats[3];
    CHECK_INT(standstill_gc_get_stats(stats), 0);
    return stats[0].collections + stats[1].collections + stats[2].collections;
}

/* A thread that is attached to another heap collects nothing in the one that it frees, and the hook is called. */
static void a_heap_freed_from_another_reports_the_remaining_objects(void) {
    int cycles;
    for (cycles = 0; cycles < 2; cycles++) {
        standstill_heap *heap = standstill_heap_new(NULL);
        Pair *kept;
        MUST(heap && standstill_detach() == 0 && standstill_attach(heap) == 0);
        kept = cycles ? ring(3) : NULL;
        MUST(standstill_detach() == 0 && standstill_attach(check_heap) == 0);
        CHECK_INT(standstill_heap_free(heap), 0);
        if (cycles) {
            CHECK(strcmp(last_unraisable.function, "heap's end") == 0);
            CHECK(strstr(last_unraisable.text, "is attached to another heap; 3 objects are left") != NULL);
        }
        EXPECT_UNRAISABLE(cycles);
        if (kept) {
            /* In a heap that has ended objects die by their counts. No dealloc handler runs, so the
             * references of a dead object leak: the test drops them first. */
            Pair *second = (Pair *)kept->a;
            set_a(second->a, NULL);
            set_a(second, NULL);
            set_a(kept, NULL);
            Py_DECREF(kept);
        }
    }
}

/* A heap is as its options say; 0 is the default of all but `checked` and `stress`. */
static void a_heap_is_as_its_options_say(void) {
    standstill_heap_options options;
    standstill_heap *heap;
    uint64_t before;
    int checked, stress;
    for (checked = 0; checked < 2; checked++)
        for (stress = 0; stress < 2; stress++) {
            memset(&options, 0, sizeof options);
            options.size = sizeof options;
            options.checked = checked;
            options.stress = stress;
            heap = standstill_heap_new(&options);
            MUST(heap && standstill_attach(heap) == 0);
            before = collections();
            standstill_safepoint();
            CHECK_INT(collections() - before, stress);
            Py_IncRef((PyObject *)&options); /* no object: only checked mode sees that */
            EXPECT_MISUSE(STANDSTILL_E_FOREIGN_POINTER, checked);
            MUST(standstill_detach() == 0);
            CHECK_INT(standstill_heap_free(heap), 0);
        }
    options.workers = 2000;
    FAILS(standstill_heap_new(&options) == NULL, STANDSTILL_E_BAD_SIZE);
    options.workers = 0;
    heap = standstill_heap_new(&options);
    MUST(heap && standstill_attach(heap) == 0);
    REPORTS_IT(standstill_heap_free(heap) == -1, STANDSTILL_E_NOT_ALLOWED_HERE);
    FAILS(standstill_attach(heap) == -1, STANDSTILL_E_NOT_ALLOWED_HERE);
    MUST(standstill_detach() == 0);
    CHECK_INT(standstill_heap_free(heap), 0);
    REPORTS_IT(standstill_heap_free(heap) == -1, STANDSTILL_E_FOREIGN_POINTER);
    CHECK_INT(standstill_attach(heap), -1);
    CHECK(strstr(standstill_error_message(), "standstill_attach") != NULL);
    EXPECT_ERROR(STANDSTILL_E_FOREIGN_POINTER);
}

/* Threads ---------------------------------------------------------------------------------------------------------- */

static void ensures_on_a_new_thread(void *arg) {
    PyGILState_STATE outer, inner;
    (void)arg;
    CHECK_INT(standstill_is_attached(), 0);
    outer = PyGILState_Ensure();
    CHECK_INT(outer, PyGILState_UNLOCKED);
    CHECK_INT(standstill_is_attached(), 1);
    ready(&Leaf_Type);
    Py_DECREF(leaf());
    inner = PyGILState_Ensure();
    CHECK_INT(inner, PyGILState_LOCKED);
    PyGILState_Release(inner);
    CHECK_INT(standstill_is_attached(), 1);
    PyGILState_Release(outer);
    CHECK_INT(standstill_is_attached(), 0);
    CHECK_INT(misuses(0), 0);
    PyGILState_Release(outer);
    EXPECT_MISUSE(STANDSTILL_E_NOT_ALLOWED_HERE, 1);
    outer = PyGILState_Ensure();
    CHECK_INT(outer, PyGILState_UNLOCKED);
    PyGILState_Release(outer);
    CHECK_INT(standstill_is_attached(), 0);
}

/* PyGILState_Ensure attaches a thread that is not attached, to the default heap, and its Release ends that. */
static void ensure_attaches_until_its_release(void) {
    PyGILState_STATE state = PyGILState_Ensure();
    thread t;
    CHECK_INT(state, PyGILState_LOCKED);
    PyGILState_Release(state);
    CHECK_INT(standstill_is_attached(), 1);
    start_raw(&t, ensures_on_a_new_thread, NULL);
    join(&t);
}

/* Where an attachment was put down, PyGILState_Ensure takes that one up. Nothing else does so meanwhile. */
static void ensure_takes_up_the_attachment_that_was_put_down_last(void) {
    long long before = LIVE();
    Leaf *one = leaf();
    PyThreadState *first = PyEval_SaveThread(), *second;
    PyGILState_STATE outer, inner;
    MUST(first != NULL);
    CHECK_INT(standstill_is_attached(), 0);
    outer = PyGILState_Ensure();
    CHECK_INT(outer, PyGILState_UNLOCKED);
    CHECK_INT(LIVE(), before + 1); /* the heap is the same */
    PyEval_RestoreThread(first);
    EXPECT_MISUSE(STANDSTILL_E_NOT_ALLOWED_HERE, 1);
    second = PyEval_SaveThread();
    MUST(second != NULL);
    inner = PyGILState_Ensure();
    CHECK_INT(inner, PyGILState_UNLOCKED);
    CHECK_INT(LIVE(), before + 1);
    PyGILState_Release(inner);
    CHECK_INT(standstill_is_attached(), 0);
    PyEval_RestoreThread(second);
    CHECK_INT(standstill_is_attached(), 1);
    PyGILState_Release(outer);
    CHECK_INT(standstill_is_attached(), 0);
    CHECK_INT(standstill_attach(check_heap), 0);
    PyEval_RestoreThread(first);
    EXPECT_MISUSE(STANDSTILL_E_NOT_ALLOWED_HERE, 1);
    CHECK_INT(standstill_detach(), 0);
    PyEval_RestoreThread(first);
    CHECK_INT(standstill_is_attached(), 1);
    CHECK_INT(misuses(0), 0);
    PyEval_RestoreThread(first); /* it was given back */
    EXPECT_MISUSE(STANDSTILL_E_FOREIGN_POINTER, 1);
    PyEval_RestoreThread(NULL);
    Py_DECREF(one);
    CHECK_INT(LIVE(), before);
}

static void attaches_and_ends(void *heap) { MUST(standstill_attach(heap) == 0); }
static void puts_down_and_ends(void *heap) {
    MUST(standstill_attach(heap) == 0);
    MUST(PyEval_SaveThread() != NULL);
}

/* A thread that ends without doing so itself is detached. */
static void a_thread_that_ends_is_detached(void) {
    void (*ways[])(void *) = {attaches_and_ends, puts_down_and_ends};
    int way;
    for (way = 0; way < 2; way++) {
        standstill_heap *heap = standstill_heap_new(NULL);
        thread t;
        MUST(heap != NULL);
        start_raw(&t, ways[way], heap);
        join(&t);
        CHECK_INT(standstill_heap_free(heap), 0);
    }
}

static void a_second_attachment_is_refused_by_name(void) {
    CHECK_INT(standstill_attach(check_heap), -1);
    CHECK(strstr(standstill_error_message(), "standstill_attach") != NULL);
    CHECK(strstr(standstill_error_message(), "attached to a heap already") != NULL);
    EXPECT_ERROR(STANDSTILL_E_NOT_ALLOWED_HERE);
    /* What was not begun is not ended. */
    CHECK_INT(Py_IsInitialized(), 0);
    Py_Finalize();
    CHECK_INT(standstill_is_attached(), 1);
}

/* Py_Initialize attaches the thread, and Py_Finalize ends that. */
static void initialize_attaches_and_finalize_detaches(void) {
    CHECK_INT(Py_IsInitialized(), 0);
    CHECK_INT(standstill_is_attached(), 0);
    Py_Initialize();
    CHECK_INT(Py_IsInitialized(), 1);
    CHECK_INT(standstill_is_attached(), 1);
    Py_Finalize();
    CHECK_INT(Py_IsInitialized(), 0);
    CHECK_INT(standstill_is_attached(), 0);
}

static int collected_in_fork = -1;
static void collects_in_fork(void) { collected_in_fork = (int)PyGC_Collect(); }

/* A handler that runs while the world is stopped for a fork cannot collect, and is told nothing: as in a collection. What it
 * registered before the library did runs after it. */
static void a_collection_in_the_middle_of_a_fork_does_nothing(void) {
    standstill_heap *heap;
    pid_t child;
    int status = -1;
    CHECK(pthread_atfork(collects_in_fork, NULL, NULL) == 0);
    heap = standstill_heap_new(NULL);
    MUST(heap && standstill_attach(heap) == 0);
    ready(&Pair_Type);
    garbage_ring(2);
    child = fork();
    if (child == 0)
        _exit(PyGC_Collect() == 2 ? 0 : 1);
    CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
    CHECK_INT(collected_in_fork, 0);
    CHECK_INT(misuses(0), 0);
    CHECK_INT(PyGC_Collect(), 2);
    MUST(standstill_detach() == 0 && standstill_heap_free(heap) == 0);
}

/* Errors in errors ------------------------------------------------------------------------------------------------- */

static Pair *inner_pairs[2];
static int finalizer_depth, kinds_of_finalizers;
static void failing_finalizer(PyObject *self) {
    int depth = finalizer_depth++;
    (void)self;
    CHECK(!PyErr_Occurred()); /* set aside, whatever stood there */
    if (depth != 1)
        PyErr_SetString(PyExc_ValueError, depth == 0 ? "outer" : "inner");
    if (depth < 2)
        Py_CLEAR(inner_pairs[depth]);
    if (depth == 0)
        CHECK(PyErr_Occurred() && strcmp(standstill_error_message(), "outer") == 0);
    if (depth == 1)
        CHECK(!PyErr_Occurred());
    kinds_of_finalizers += strcmp(last_unraisable.function, "finalizer") == 0;
    finalizer_depth--;
}
static PyTypeObject Failing_Type = {TYPE_HEAD .tp_name = "check.Failing", .tp_basicsize = sizeof(Pair),
                                    .tp_base = &Pair_Type, .tp_finalize = failing_finalizer};

/* Each handler finds the indicator empty, and leaves it to the code around it as it was. */
static void errors_are_set_aside_one_within_the_other(void) {
    int round;
    ready(&Failing_Type);
    for (round = 0; round < 2; round++) {
        Pair *outer = pair_of(&Failing_Type, NULL, NULL);
        inner_pairs[0] = pair_of(&Failing_Type, NULL, NULL);
        inner_pairs[1] = pair_of(&Failing_Type, NULL, NULL);
        if (round)
            PyErr_SetString(PyExc_TypeError, "before");
        Py_DECREF(outer);
        CHECK_INT(PyErr_Occurred() == PyExc_TypeError, round);
        CHECK(strcmp(last_unraisable.text, "outer") == 0 && strcmp(last_unraisable.type, "check.Failing") == 0);
        EXPECT_UNRAISABLE(2);
        PyErr_Clear();
    }
    CHECK(kinds_of_finalizers >= 3);
}

static void failing_callback(PyObject *self, PyObject *weak) {
    (void)self;
    (void)weak;
    PyErr_SetString(PyExc_ValueError, "in the callback");
}
static int failing_clear(PyObject *self) {
    pair_clear(self);
    PyErr_SetString(PyExc_ValueError, "in clear");
    return 0;
}
static int answering_traverse(PyObject *self, visitproc visit, void *arg) {
    (void)self;
    (void)visit;
    (void)arg;
    return inner_pairs[0] ? 5 : 0;
}
static PyTypeObject Clearing_Type = {TYPE_HEAD .tp_name = "check.Clearing", .tp_basicsize = sizeof(Pair),
                                     .tp_dealloc = pair_dealloc, .tp_flags = GC_TYPE, .tp_traverse = pair_traverse,
                                     .tp_clear = failing_clear};
static PyTypeObject Answering_Type = {TYPE_HEAD .tp_name = "check.Answering", .tp_basicsize = sizeof(Pair),
                                      .tp_dealloc = pair_dealloc, .tp_flags = GC_TYPE,
                                      .tp_traverse = answering_traverse};

/* An error that no caller receives is reported with its place. */
static void an_ignored_error_names_the_kind_of_handler(void) {
    PyObject *callback = standstill_Callback_New(failing_callback, NULL), *weak;
    Pair *target = pair(NULL, NULL), *answering;
    ready(&Clearing_Type);
    ready(&Answering_Type);
    weak = PyWeakref_NewRef((PyObject *)target, callback);
    MUST(callback && weak);
    Py_DECREF(target);
    CHECK(strcmp(last_unraisable.function, "weak reference callback") == 0);
    EXPECT_UNRAISABLE(1);
    garbage_ring_of(&Clearing_Type, 1);
    CHECK_INT(PyGC_Collect(), 1);
    CHECK(strcmp(last_unraisable.function, "clear handler") == 0);
    EXPECT_UNRAISABLE(1);
    answering = pair_of(&Answering_Type, NULL, NULL);
    inner_pairs[0] = answering;
    CHECK_INT(PyGC_Collect(), 0);
    inner_pairs[0] = NULL;
    CHECK(strcmp(last_unraisable.function, "traverse handler") == 0);
    EXPECT_UNRAISABLE(-1);
    Py_DECREF(answering);
    Py_DECREF(weak);
    Py_DECREF(callback);
}

static int told_phases;
static void failing_phase(const char *phase, const standstill_gc_info *info, void *arg) {
    (void)phase;
    (void)info;
    (void)arg;
    told_phases++;
    CHECK(!PyErr_Occurred());
    PyErr_SetString(PyExc_ValueError, "in the callback");
}

/* A callback of a collection that a safepoint starts finds the indicator empty, too, and leaves it as it was. */
static void a_callback_at_a_safepoint_leaves_a_pending_error_alone(void) {
    standstill_heap_options options = STANDSTILL_HEAP_OPTIONS_INIT;
    standstill_heap *heap;
    int id;
    options.checked = check_is_checked;
    options.stress = 1;
    heap = standstill_heap_new(&options);
    MUST(heap && standstill_detach() == 0 && standstill_attach(heap) == 0);
    id = standstill_gc_add_callback(failing_phase, NULL);
    CHECK(id >= 0);
    PyErr_SetString(PyExc_TypeError, "before");
    standstill_safepoint();
    CHECK_INT(told_phases, 2);
    CHECK(PyErr_Occurred() == PyExc_TypeError && strcmp(standstill_error_message(), "before") == 0);
    EXPECT_UNRAISABLE(2);
    CHECK(strcmp(last_unraisable.function, "collection callback") == 0);
    PyErr_Clear();
    CHECK_INT(standstill_gc_remove_callback(id), 0);
    CHECK_INT(standstill_gc_remove_callback(id), -1);
    MUST(standstill_detach() == 0 && standstill_heap_free(heap) == 0 && standstill_attach(check_heap) == 0);
}

/* Types that are not ready ------------------------------------------------------------------------------------------ */

static PyTypeObject Unready_Type = {TYPE_HEAD .tp_name = "check.NotReady", .tp_basicsize = sizeof(Leaf)};

/* A static type that is not ready is an object without a type, and asked about as such. */
static void a_type_that_is_not_ready_is_no_object_of_any_type(void) {
    PyObject *unready = (PyObject *)&Unready_Type;
    Leaf *one = leaf();
    void *token = &token;
    int code = STANDSTILL_E_WRONG_TYPE;
    FAILS(PyModule_GetState(unready) == NULL, code);
    FAILS(PyModule_GetDef(unready) == NULL, code);
    FAILS(PyModule_GetToken(unready, &token) == -1 && token == NULL, code);
    FAILS(PyModule_GetName(unready) == NULL, code);
    CHECK_INT(PyObject_VisitManagedDict(unready, never, NULL), 0);
    PyObject_ClearManagedDict(unready);
    CHECK_INT(PyObject_TypeCheck((PyObject *)one, &Unready_Type), 0);
    CHECK_INT(PyObject_TypeCheck(unready, &Leaf_Type), 0);
    CHECK_INT(PyTuple_Check(unready), 0);
    CHECK_INT(PyObject_IS_GC(unready), 0);
    PyErr_SetString(unready, "of a type that is not ready");
    CHECK(PyErr_Occurred() == unready);
    PyErr_Clear();
    FAILS(PyType_GenericAlloc(&Unready_Type, 0) == NULL, STANDSTILL_E_NOT_READY);
    CHECK(PyType_GetTypeDataSize(&Unready_Type) == -1);
    CHECK(strstr(standstill_error_message(), "type 'check.NotReady' is not ready") != NULL);
    EXPECT_ERROR(STANDSTILL_E_NOT_READY);
    Py_DECREF(one);
}

static void nothing_is_an_object_before_the_first_heap(void) {
    CHECK_INT(PyTuple_Check((PyObject *)&Unready_Type), 0);
    CHECK_INT(PyType_Check((PyObject *)&Unready_Type), 0);
    CHECK_INT(PyType_IsSubtype(&Unready_Type, &Leaf_Type), 0);
    CHECK_INT(PyType_IsSubtype(&Unready_Type, &Unready_Type), 1);
}

static void bases_that_are_no_types_are_refused(void) {
    static PyTypeObject late = {TYPE_HEAD .tp_name = "check.Late", .tp_basicsize = sizeof(Leaf),
                                .tp_flags = Py_TPFLAGS_BASETYPE};
    PyType_Slot slots[] = {{Py_tp_base, &late}, {0, NULL}};
    PyType_Spec spec = {"check.Derived", 0, 0, Py_TPFLAGS_DEFAULT, NULL};
    PyObject *one = (PyObject *)leaf(), *bases = PyTuple_New(1), *like_a_type;
    static PyTypeObject as_large = {TYPE_HEAD .tp_name = "check.AsLargeAsAType", .tp_basicsize = sizeof(PyTypeObject)};
    PyTypeObject *type;
    Row *full;
    int i;
    FAILS(PyType_FromSpecWithBases(&spec, one) == NULL, STANDSTILL_E_BAD_BASE);
    FAILS(PyType_FromSpecWithBases(&spec, bases) == NULL, STANDSTILL_E_BAD_BASE); /* null in it */
    PyTuple_SetItem(bases, 0, one);
    FAILS(PyType_FromSpecWithBases(&spec, bases) == NULL, STANDSTILL_E_BAD_BASE);
    Py_DECREF(bases);
    /* Large enough to have something where the record of a type is. */
    full = row(100);
    for (i = 0; i < 100; i++)
        full->items[i] = Py_NewRef(Py_None);
    FAILS(PyType_FromSpecWithBases(&spec, (PyObject *)full) == NULL, STANDSTILL_E_BAD_BASE);
    Py_DECREF(full);
    /* An object that is no type, with the record of a type where types have theirs. */
    ready(&as_large);
    like_a_type = as_large.tp_alloc(&as_large, 0);
    MUST(like_a_type != NULL);
    ((PyTypeObject *)like_a_type)->ss_own = Pair_Type.ss_own;
    FAILS(PyType_FromSpecWithBases(&spec, like_a_type) == NULL, STANDSTILL_E_BAD_BASE);
    Py_DECREF(like_a_type);
    /* A static base that is not ready is made so. */
    type = type_of_slots("check.OfLate", 0, 0, Py_TPFLAGS_DEFAULT, slots);
    MUST(type != NULL);
    CHECK((late.tp_flags & Py_TPFLAGS_READY) && type->tp_base == &late);
    Py_DECREF(type);
}

/* PyType_Ready of a heap type changes nothing. A member that the program has overwritten gets its value again. */
static void a_heap_type_is_ready_from_the_start(void) {
    PyType_Slot none[] = {{0, NULL}};
    PyTypeObject *type = type_of_slots("check.FromSpec", sizeof(Leaf), 0, Py_TPFLAGS_DEFAULT, none);
    MUST(type != NULL);
    CHECK_INT(PyType_Ready(type), 0);
    type->tp_basicsize = 8;
    CHECK_INT(PyType_Ready(type), 0);
    CHECK_INT(type->tp_basicsize, sizeof(Leaf));
    CHECK_INT(Py_REFCNT(type), 1);
    if (check_is_checked)
        EXPECT_MISUSE(STANDSTILL_E_WRITTEN_AFTER_READY, 1);
    Py_DECREF(type);
}

/* Checked mode makes no memory ready that claims to be a type and is none, and knows a ready type without its head. */
static void checked_mode_knows_the_types_that_are_ready(void) {
    static PyTypeObject claims = {TYPE_HEAD .tp_name = "check.Claims", .tp_basicsize = sizeof(Leaf)};
    static PyTypeObject known = {TYPE_HEAD .tp_name = "check.Known", .tp_basicsize = sizeof(Leaf)};
    static uint64_t fake[64];
    PyObject head;
    size_t own = sizeof(PyTypeObject) - sizeof(void *); /* the record is the last member */
    void *address = fake;
    ready(&known);
    memcpy((char *)&claims + own, &address, sizeof address);
    CHECK_INT(PyType_Ready(&claims), -1);
    CHECK(strstr(standstill_error_message(), "PyType_Ready") != NULL);
    EXPECT_ERROR(STANDSTILL_E_FOREIGN_POINTER);
    memcpy(&head, &known, sizeof head);
    memset(&known, 0, sizeof head);
    CHECK_INT(PyType_Ready(&known), 0);
    memcpy(&known, &head, sizeof head);
    CHECK_INT(PyType_Ready(&known), 0);
    FAILS(PyType_Ready((PyTypeObject *)Py_None) == -1, STANDSTILL_E_WRONG_TYPE);
}

static void plain_dealloc(PyObject *self) { Py_TYPE(self)->tp_base->tp_dealloc(self); }

/* What stands in tp_dealloc of a type without one can be called, by a handler of a derived type. */
static void the_dealloc_that_is_shown_can_be_called(void) {
    static PyTypeObject base = {TYPE_HEAD .tp_name = "check.NoDealloc", .tp_basicsize = sizeof(Pair),
                                .tp_flags = GC_TYPE | Py_TPFLAGS_BASETYPE, .tp_traverse = pair_traverse,
                                .tp_clear = pair_clear};
    static PyTypeObject below = {TYPE_HEAD .tp_name = "check.CallsIt", .tp_base = &base, .tp_dealloc = plain_dealloc};
    long long before = LIVE();
    Leaf *one = leaf();
    ready(&base);
    ready(&below);
    CHECK(base.tp_dealloc != NULL && below.tp_dealloc == plain_dealloc);
    Py_DECREF(pair_of(&below, one, NULL));
    CHECK_INT(Py_REFCNT((PyObject *)one), 1);
    CHECK_INT(calls.cleared, 1);
    Py_DECREF(one);
    CHECK_INT(LIVE(), before);
}

/* Deaths ------------------------------------------------------------------------------------------------------------ */

static PyObject *weak_to_dying;
static int upgraded_while_dying, handler_step;
static void asking_dealloc(PyObject *self) {
    if (PyObject_CallFinalizerFromDealloc(self) < 0)
        return;
    upgraded_while_dying += is_alive(weak_to_dying);
    PyObject_GC_UnTrack(self);
    /* A reference that is taken here keeps the memory, and brings nothing back. */
    Py_INCREF(self);
    Py_TYPE(self)->tp_free(self);
    EXPECT_MISUSE(STANDSTILL_E_REFERENCES_LEFT, 1);
    upgraded_while_dying += is_alive(weak_to_dying);
    Py_DECREF(self);
    PyObject_ClearWeakRefs(self);
    ADD(calls.freed);
    Py_TYPE(self)->tp_free(self);
}
static PyTypeObject Asking_To_Die_Type = {TYPE_HEAD .tp_name = "check.AskingToDie", .tp_basicsize = sizeof(Pair),
                                          .tp_base = &Pair_Type, .tp_dealloc = asking_dealloc,
                                          .tp_finalize = pair_finalize};

/* An object that dies again after its finalizer is upgraded by no weak reference, whatever its handler does with the count. */
static void a_dying_object_is_not_upgraded(void) {
    Pair *p;
    long long before;
    ready(&Asking_To_Die_Type);
    Py_DECREF(leaf());
    before = LIVE();
    p = pair_of(&Asking_To_Die_Type, NULL, NULL);
    weak_to_dying = weak_to(p);
    CHECK(is_alive(weak_to_dying));
    Py_DECREF(p);
    CHECK_INT(calls.finalized, 1);
    CHECK_INT(calls.freed, 1);
    CHECK_INT(upgraded_while_dying, 0);
    CHECK(!is_alive(weak_to_dying));
    Py_CLEAR(weak_to_dying);
    CHECK_INT(LIVE(), before);
}

/* What dies with an object is destroyed after it, not within it. */
static void a_chain_of_objects_dies_one_after_the_other(void) {
    long long before = LIVE();
    Pair *chain = NULL;
    int i;
    for (i = 0; i < 60000; i++) {
        Pair *next = pair(chain, NULL);
        Py_XDECREF(chain);
        chain = next;
    }
    calls.freed = 0;
    Py_DECREF(chain);
    CHECK_INT(calls.freed, 60000);
    CHECK_INT(LIVE(), before);
}

static int collecting_way;
static void collecting_finalizer(PyObject *self) {
    (void)self;
    ADD(calls.finalized);
    if (collecting_way == 0) {
        /* Within a collection there is nothing more to collect, and that is no mistake. */
        CHECK_INT(PyGC_Collect(), 0);
        CHECK_INT(standstill_gc_collect(2), 0);
        CHECK(!PyErr_Occurred());
        CHECK_INT(misuses(0), 0);
        /* The thread stays where it is. */
        CHECK_INT(standstill_detach(), -1);
        EXPECT_MISUSE(STANDSTILL_E_NOT_ALLOWED_HERE, 1);
    } else {
        CHECK_INT(PyGC_Collect(), 0);
        EXPECT_MISUSE(STANDSTILL_E_NOT_ALLOWED_HERE, 1);
        standstill_safepoint();
        EXPECT_MISUSE(STANDSTILL_E_NOT_ALLOWED_HERE, 1);
    }
    CHECK_INT(standstill_is_attached(), 1);
}
static PyTypeObject Collecting_Type = {TYPE_HEAD .tp_name = "check.Collecting", .tp_basicsize = sizeof(Pair),
                                       .tp_base = &Pair_Type, .tp_finalize = collecting_finalizer};

/* A finalizer that collects: within a collection, and within the end of an object. */
static void a_collection_in_a_finalizer_does_nothing(void) {
    ready(&Collecting_Type);
    garbage_ring_of(&Collecting_Type, 1);
    collecting_way = 0;
    CHECK_INT(PyGC_Collect(), 1);
    CHECK_INT(calls.finalized, 1);
    collecting_way = 1;
    Py_DECREF(pair_of(&Collecting_Type, NULL, NULL));
    CHECK_INT(calls.finalized, 2);
}

static PyObject *kept_by_clear;
static int keeping_clear(PyObject *self) {
    pair_clear(self);
    if (handler_step == 1)
        kept_by_clear = Py_NewRef(self);
    return 0;
}
static PyTypeObject Kept_Type = {TYPE_HEAD .tp_name = "check.KeptByClear", .tp_basicsize = sizeof(Pair),
                                 .tp_flags = GC_TYPE, .tp_traverse = pair_traverse, .tp_clear = keeping_clear};

/* A type without a dealloc handler is cleared at its end. What its clear handler keeps is not freed under that reference. */
static void an_object_that_its_clear_handler_keeps_is_not_freed(void) {
    long long before = LIVE();
    ready(&Kept_Type);
    handler_step = 0;
    Py_DECREF(pair_of(&Kept_Type, NULL, NULL));
    CHECK_INT(LIVE(), before);
    handler_step = 1;
    Py_DECREF(pair_of(&Kept_Type, NULL, NULL));
    EXPECT_MISUSE(STANDSTILL_E_REFERENCES_LEFT, 1);
    CHECK(kept_by_clear != NULL);
    CHECK_INT(LIVE(), before + 1);
    CHECK_INT(Py_REFCNT(kept_by_clear), 1);
}

static int answers_of_visits[3];
static PyObject *sought;
static int visiting_all_traverse(PyObject *self, visitproc visit, void *arg) {
    Pair *pair = (Pair *)self;
    if (sought != NULL && pair->a == sought) {
        answers_of_visits[0] = visit(pair->b, arg);
        answers_of_visits[1] = visit(pair->a, arg);
        answers_of_visits[2] = visit(pair->b, arg);
    } else {
        Py_VISIT(pair->a);
        Py_VISIT(pair->b);
    }
    return 0;
}
static PyTypeObject Visiting_Type = {TYPE_HEAD .tp_name = "check.VisitingAll", .tp_basicsize = sizeof(Pair),
                                     .tp_dealloc = pair_dealloc, .tp_clear = pair_clear, .tp_flags = GC_TYPE,
                                     .tp_traverse = visiting_all_traverse};

/* A search for referrers has its answer with the first visit that finds something: each later visit says so, too. */
static void a_visitor_that_has_found_something_says_so_from_then_on(void) {
    PyObject *target = (PyObject *)pair(NULL, NULL), *other = (PyObject *)pair(NULL, NULL), *found;
    Pair *visiting;
    ready(&Visiting_Type);
    visiting = pair_of(&Visiting_Type, target, other);
    sought = target;
    found = standstill_gc_get_referrers(&target, 1);
    sought = NULL;
    CHECK_INT(PyTuple_Size(found), 1);
    CHECK(answers_of_visits[0] == 0 && answers_of_visits[1] != 0 && answers_of_visits[2] != 0);
    Py_DECREF(found);
    Py_DECREF(visiting);
    Py_DECREF(other);
    Py_DECREF(target);
}

/* Other borders ---------------------------------------------------------------------------------------------------- */

static void messages_name_the_function_and_the_mistake(void) {
    PyObject *none = Py_None, *found, *one = (PyObject *)leaf(), *out;
    static int token;
    PyType_Slot slots[] = {{Py_tp_token, &token}, {0, NULL}};
    PyTypeObject *type = type_of_slots("check.Token", 0, 0, Py_TPFLAGS_DEFAULT, slots);
    Py_ssize_t count = Py_REFCNT((PyObject *)type);
    CHECK(standstill_gc_get_objects(99) == NULL);
    CHECK(strstr(standstill_error_message(), "standstill_gc_get_objects") != NULL);
    EXPECT_ERROR(STANDSTILL_E_BAD_GENERATION);
    CHECK(standstill_gc_collect(3) == -1);
    CHECK(strstr(standstill_error_message(), "standstill_gc_collect") != NULL);
    EXPECT_ERROR(STANDSTILL_E_BAD_GENERATION);
    CHECK(PyObject_GetAttrString(none, "name") == NULL);
    CHECK(strstr(standstill_error_message(), "a static object has no attribute 'name'") != NULL);
    EXPECT_ERROR(STANDSTILL_E_NO_ATTRIBUTE);
    CHECK_INT(PyWeakref_GetRef(one, &out), -1);
    CHECK(strstr(standstill_error_message(), "this is no weak reference") != NULL);
    EXPECT_ERROR(STANDSTILL_E_WRONG_TYPE);
    found = standstill_gc_get_referrers(&none, 1); /* no object counts as a referrer of a static one */
    CHECK_INT(PyTuple_Size(found), 0);
    Py_DECREF(found);
    PyErr_SetString(PyExc_ValueError, "value");
    CHECK_INT(PyErr_ExceptionMatches((PyObject *)&PyBaseObject_Type), 0);
    PyErr_Clear();
    /* Without a place for it there is no new reference. */
    CHECK_INT(PyType_GetBaseByToken(type, &token, NULL), 1);
    CHECK_INT(Py_REFCNT((PyObject *)type), count);
    Py_DECREF(type);
    Py_DECREF(one);
}

static void a_tuple_does_not_lose_items_unseen(void) {
    PyObject *tuple = PyTuple_New(2);
    PyObject_GC_UnTrack(tuple);
    PyTuple_SetItem(tuple, 1, (PyObject *)leaf());
    CHECK(PyObject_GC_Resize(Row, (Row *)tuple, 1) == NULL);
    EXPECT_ERROR(STANDSTILL_E_CUT_REFERENCES);
    Py_DECREF(tuple);
}

static void legacy(PyObject *self) { (void)self; }

/* A heap that is made after a type with a legacy finalizer keeps garbage with it, as one made before does. */
static void a_later_heap_knows_of_legacy_finalizers(void) {
    static PyTypeObject type = {TYPE_HEAD .tp_name = "check.OldLegacy", .tp_basicsize = sizeof(Pair),
                                .tp_base = &Pair_Type, .tp_del = legacy};
    standstill_heap *heap;
    Pair *p;
    ready(&type);
    heap = standstill_heap_new(NULL);
    MUST(heap && standstill_detach() == 0 && standstill_attach(heap) == 0);
    p = garbage_ring_of(&type, 1);
    CHECK_INT(PyGC_Collect(), 1);
    CHECK_INT(standstill_gc_garbage_size(), 1);
    set_a(p, NULL);
    CHECK_INT(standstill_gc_garbage_clear(), 0);
    CHECK_INT(standstill_gc_garbage_size(), 0);
    PyGC_Collect();
    MUST(standstill_detach() == 0 && standstill_heap_free(heap) == 0 && standstill_attach(check_heap) == 0);
}

/* Options that the caller's header does not have are off. */
static void options_that_are_not_given_are_off(void) {
    standstill_heap_options options = STANDSTILL_HEAP_OPTIONS_INIT;
    standstill_heap *heap;
    uint64_t before;
    options.size = sizeof options.size;
    options.limit = 1;
    options.checked = options.stress = 1;
    heap = standstill_heap_new(&options);
    MUST(heap && standstill_attach(heap) == 0);
    ready(&Leaf_Type);
    Py_DECREF(leaf());
    before = collections();
    standstill_safepoint();
    CHECK_INT(collections(), before);
    Py_IncRef((PyObject *)&options); /* no object: only checked mode sees that */
    MUST(standstill_detach() == 0 && standstill_heap_free(heap) == 0);
}

const struct test answers_tests[] = {
    TEST(null_is_answered_with_the_failure_value),
    TEST_AS(a_pointer_to_no_object_is_answered_with_the_failure_value, CHECKED_ONLY),
    TEST(a_thread_that_is_not_attached_gets_the_failure_value),
    TEST(an_object_of_another_type_is_answered_with_the_failure_value),
    TEST_AS(a_handler_that_asks_about_no_object_is_answered_and_reported, CHECKED_ONLY),
    TEST_AS(without_checked_mode_a_visit_outside_the_heap_is_ignored, UNCHECKED_ONLY),
    TEST(every_slot_of_a_spec_reaches_the_type),
    TEST(bases_come_from_the_argument_or_from_the_slots),
    TEST(a_spec_with_a_slot_twice_or_empty_or_unknown_is_refused),
    TEST(new_and_init_are_inherited),
    TEST(static_bases_are_made_ready_up_to_a_depth),
    TEST(every_member_of_a_ready_type_gets_its_value_again),
    TEST(the_built_in_types_have_their_flags_and_sizes),
    TEST(tuples_and_callbacks_stop_where_the_visitor_says_so),
    TEST(a_cleared_callback_calls_nothing),
    TEST(numbers_texts_and_items_come_back),
    TEST(a_module_is_named_by_its_spec),
    TEST(slots_of_a_module_are_known_or_refused),
    TEST(an_exception_matches_itself_and_its_bases),
    TEST_AS(a_heap_freed_from_another_reports_the_remaining_objects, UNCHECKED_ONLY),
    TEST_AS(a_heap_is_as_its_options_say, BARE),
    TEST(ensure_attaches_until_its_release),
    TEST(ensure_takes_up_the_attachment_that_was_put_down_last),
    TEST(a_thread_that_ends_is_detached),
    TEST(a_second_attachment_is_refused_by_name),
    TEST_AS(initialize_attaches_and_finalize_detaches, BARE),
    TEST_AS(a_collection_in_the_middle_of_a_fork_does_nothing, BARE),
    TEST(errors_are_set_aside_one_within_the_other),
    TEST(an_ignored_error_names_the_kind_of_handler),
    TEST(a_callback_at_a_safepoint_leaves_a_pending_error_alone),
    TEST(a_type_that_is_not_ready_is_no_object_of_any_type),
    TEST_AS(nothing_is_an_object_before_the_first_heap, BARE),
    TEST(bases_that_are_no_types_are_refused),
    TEST(a_heap_type_is_ready_from_the_start),
    TEST_AS(checked_mode_knows_the_types_that_are_ready, CHECKED_ONLY),
    TEST(the_dealloc_that_is_shown_can_be_called),
    TEST(a_dying_object_is_not_upgraded),
    TEST(a_collection_in_a_finalizer_does_nothing),
    TEST(a_chain_of_objects_dies_one_after_the_other),
    TEST(an_object_that_its_clear_handler_keeps_is_not_freed),
    TEST(a_visitor_that_has_found_something_says_so_from_then_on),
    TEST(messages_name_the_function_and_the_mistake),
    TEST_AS(a_tuple_does_not_lose_items_unseen, CHECKED_ONLY),
    TEST(a_later_heap_knows_of_legacy_finalizers),
    TEST_AS(options_that_are_not_given_are_off, BARE),
    TESTS_END,
};

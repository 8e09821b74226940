/* standstill.h: the C API of standstill, a stop-the-world cyclic garbage collector for
 * free-threaded language runtimes.
 *
 * This is the only public header. It compiles as C99 and as C++11. It is the reference: each
 * function is described at its declaration. The guide, with complete programs, is docs/c-api.md.
 *
 * NAMES. The names are those of CPython's C API (the page "Supporting Cyclic Garbage Collection"
 * and related ones). Arguments have the same order and results the same meaning. The library
 * exports each symbol with the prefix `standstill_`; macros of this header map the CPython name to
 * the symbol. One process can therefore contain both CPython and this library. A C file includes
 * only one of the two headers.
 *
 * HOW TO READ AN ENTRY. The word before a prototype says how stable the function is:
 *
 *   STANDSTILL_STABLE    name, arguments and result do not change within a major version
 *   STANDSTILL_UNSTABLE  a minor version may change the function; the change log reports it
 *
 * An entry ends with these lines, as far as they apply:
 *
 *   Errors:     The codes that the function sets in the error indicator when it fails.
 *   Misuse:     Wrong calls that the function reports to the misuse hook.
 *   Aborts:     When the function ends the process, after a line on stderr. In checked mode each
 *               function that takes an object also does so if the object's head was overwritten.
 *   Since:      The CPython version that introduced the name. "ours": CPython does not have it.
 *   Traversal:  "safe": a traverse handler may call the function. "refused": in a traverse handler
 *               the function does nothing, returns its failure value and reports
 *               STANDSTILL_E_IN_TRAVERSAL as misuse. Parentheses give the failure value where the
 *               entry has none, or the function to call instead. A later version may make more
 *               functions safe. A safe function stays safe.
 *
 * A list of codes writes STANDSTILL_E only once: STANDSTILL_E_MEMORY, _BAD_SIZE.
 *
 * REFERENCES. A result is a new reference, which the caller owns, unless the entry says "borrowed".
 * Arguments are borrowed, unless the entry says "steals".
 *
 * ERRORS. A function that fails returns its failure value (NULL, -1, or the value in its entry) and
 * sets the error indicator of the thread. The indicator holds a code (enum standstill_code), an
 * exception type, and a message with the names of the function, the type and the object.
 *
 * MISUSE. A call that is wrong in itself changes nothing, unless its entry says otherwise, and is
 * reported to the misuse hook. Failures of functions without a failure value are reported there
 * too. What a traverse handler does wrong in a stop is reported when the world runs again.
 *
 * Two failures are not repeated in the entries. A function that needs an attached thread fails with
 * STANDSTILL_E_NOT_ATTACHED on any other thread. A NULL pointer where the function needs an object
 * fails with STANDSTILL_E_NULL_ARGUMENT.
 *
 * NOT CHECKED. The program must pass valid pointers. The library detects wild pointers
 * (STANDSTILL_E_FOREIGN_POINTER) and stale pointers (STANDSTILL_E_FREED_POINTER) only in checked
 * mode. It does not detect that a type has lost a reference too many while it has instances.
 * Checked mode is on by default in debug builds of the library. The environment variable
 * STANDSTILL_CHECKED (1 or 0) changes the default. The field `checked` of standstill_heap_options
 * sets the mode of one heap and overrides both.
 *
 * No function unwinds or jumps out of the library. No handler may unwind or jump through it.
 */
#ifndef STANDSTILL_H
#define STANDSTILL_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define STANDSTILL_VERSION_MAJOR 0
#define STANDSTILL_VERSION_MINOR 1
#define STANDSTILL_VERSION_PATCH 0
#define STANDSTILL_VERSION "0.1.0"

#ifndef STANDSTILL_STABLE
#  define STANDSTILL_STABLE
#endif
#ifndef STANDSTILL_UNSTABLE
#  define STANDSTILL_UNSTABLE
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ==== CPython's names and the symbols behind them ============================================= */

#define Py_IncRef                              standstill_Py_IncRef
#define Py_DecRef                              standstill_Py_DecRef
#define PyType_IsSubtype                       standstill_PyType_IsSubtype
#define PyType_HasFeature                      standstill_PyType_HasFeature
#define PyType_GetFlags                        standstill_PyType_GetFlags
#define PyType_GetSlot                         standstill_PyType_GetSlot
#define PyType_Ready                           standstill_PyType_Ready
#define PyType_FromSpec                        standstill_PyType_FromSpec
#define PyType_FromSpecWithBases               standstill_PyType_FromSpecWithBases
#define PyType_FromModuleAndSpec               standstill_PyType_FromModuleAndSpec
#define PyType_GenericAlloc                    standstill_PyType_GenericAlloc
#define PyType_GetModule                       standstill_PyType_GetModule
#define PyType_GetModuleState                  standstill_PyType_GetModuleState
#define PyType_GetModuleByDef                  standstill_PyType_GetModuleByDef
#define PyType_GetModuleByToken                standstill_PyType_GetModuleByToken
#define PyType_GetBaseByToken                  standstill_PyType_GetBaseByToken
#define PyType_GetTypeDataSize                 standstill_PyType_GetTypeDataSize
#define PyType_GetModuleState_DuringGC         standstill_PyType_GetModuleState_DuringGC
#define PyType_GetBaseByToken_DuringGC         standstill_PyType_GetBaseByToken_DuringGC
#define PyType_GetModule_DuringGC              standstill_PyType_GetModule_DuringGC
#define PyType_GetModuleByToken_DuringGC       standstill_PyType_GetModuleByToken_DuringGC

#define _PyObject_New                          standstill__PyObject_New
#define _PyObject_NewVar                       standstill__PyObject_NewVar
#define PyObject_Free                          standstill_PyObject_Free
#define _PyObject_GC_New                       standstill__PyObject_GC_New
#define _PyObject_GC_NewVar                    standstill__PyObject_GC_NewVar
#define _PyObject_GC_Resize                    standstill__PyObject_GC_Resize
#define PyUnstable_Object_GC_NewWithExtraData  standstill_PyUnstable_Object_GC_NewWithExtraData
#define PyObject_GC_Track                      standstill_PyObject_GC_Track
#define PyObject_GC_UnTrack                    standstill_PyObject_GC_UnTrack
#define PyObject_GC_Del                        standstill_PyObject_GC_Del
#define PyObject_IS_GC                         standstill_PyObject_IS_GC
#define PyObject_GC_IsTracked                  standstill_PyObject_GC_IsTracked
#define PyObject_GC_IsFinalized                standstill_PyObject_GC_IsFinalized
#define PyObject_CallFinalizer                 standstill_PyObject_CallFinalizer
#define PyObject_CallFinalizerFromDealloc      standstill_PyObject_CallFinalizerFromDealloc
#define PyObject_ClearWeakRefs                 standstill_PyObject_ClearWeakRefs
#define PyObject_VisitManagedDict              standstill_PyObject_VisitManagedDict
#define PyObject_ClearManagedDict              standstill_PyObject_ClearManagedDict
#define PyObject_SetAttrString                 standstill_PyObject_SetAttrString
#define PyObject_GetAttrString                 standstill_PyObject_GetAttrString
#define PyObject_HasAttrString                 standstill_PyObject_HasAttrString
#define PyObject_GetTypeData                   standstill_PyObject_GetTypeData
#define PyObject_GetItemData                   standstill_PyObject_GetItemData
#define PyObject_GetTypeData_DuringGC          standstill_PyObject_GetTypeData_DuringGC
#define PyObject_GetItemData_DuringGC          standstill_PyObject_GetItemData_DuringGC
#define PyObject_Dump                          standstill_PyObject_Dump

#define PyMem_Malloc                           standstill_PyMem_Malloc
#define PyMem_Calloc                           standstill_PyMem_Calloc
#define PyMem_Realloc                          standstill_PyMem_Realloc
#define PyMem_Free                             standstill_PyMem_Free

#define PyModule_Create                        standstill_PyModule_Create
#define PyModule_FromDefAndSpec                standstill_PyModule_FromDefAndSpec
#define PyModule_GetState                      standstill_PyModule_GetState
#define PyModule_GetDef                        standstill_PyModule_GetDef
#define PyModule_GetToken                      standstill_PyModule_GetToken
#define PyModule_GetName                       standstill_PyModule_GetName
#define PyModule_GetState_DuringGC             standstill_PyModule_GetState_DuringGC
#define PyModule_GetToken_DuringGC             standstill_PyModule_GetToken_DuringGC

#define PyTuple_New                            standstill_PyTuple_New
#define PyTuple_Size                           standstill_PyTuple_Size
#define PyTuple_GetItem                        standstill_PyTuple_GetItem
#define PyTuple_SetItem                        standstill_PyTuple_SetItem
#define PyUnicode_FromString                   standstill_PyUnicode_FromString
#define PyUnicode_AsUTF8                       standstill_PyUnicode_AsUTF8
#define PyLong_FromLong                        standstill_PyLong_FromLong
#define PyLong_FromLongLong                    standstill_PyLong_FromLongLong
#define PyLong_AsLong                          standstill_PyLong_AsLong
#define PyLong_AsLongLong                      standstill_PyLong_AsLongLong
#define PyWeakref_NewRef                       standstill_PyWeakref_NewRef
#define PyWeakref_GetRef                       standstill_PyWeakref_GetRef

#define PyErr_Occurred                         standstill_PyErr_Occurred
#define PyErr_Clear                            standstill_PyErr_Clear
#define PyErr_SetString                        standstill_PyErr_SetString
#define PyErr_NoMemory                         standstill_PyErr_NoMemory
#define PyErr_BadInternalCall                  standstill_PyErr_BadInternalCall
#define PyErr_ExceptionMatches                 standstill_PyErr_ExceptionMatches
#define PyErr_WriteUnraisable                  standstill_PyErr_WriteUnraisable

#define PyGC_Collect                           standstill_PyGC_Collect
#define PyGC_Enable                            standstill_PyGC_Enable
#define PyGC_Disable                           standstill_PyGC_Disable
#define PyGC_IsEnabled                         standstill_PyGC_IsEnabled
#define PyUnstable_GC_VisitObjects             standstill_PyUnstable_GC_VisitObjects

#define PyEval_SaveThread                      standstill_PyEval_SaveThread
#define PyEval_RestoreThread                   standstill_PyEval_RestoreThread
#define PyGILState_Ensure                      standstill_PyGILState_Ensure
#define PyGILState_Release                     standstill_PyGILState_Release
#define Py_Initialize                          standstill_Py_Initialize
#define Py_Finalize                            standstill_Py_Finalize
#define Py_IsInitialized                       standstill_Py_IsInitialized

#define PyBaseObject_Type                      standstill_PyBaseObject_Type
#define PyType_Type                            standstill_PyType_Type
#define PyModule_Type                          standstill_PyModule_Type
#define PyTuple_Type                           standstill_PyTuple_Type
#define PyUnicode_Type                         standstill_PyUnicode_Type
#define PyLong_Type                            standstill_PyLong_Type
#define PyWeakref_Type                         standstill_PyWeakref_Type
#define _PyWeakref_RefType                     standstill_PyWeakref_Type
#define _Py_NoneStruct                         standstill__Py_NoneStruct
#define PyExc_TypeError                        standstill_PyExc_TypeError
#define PyExc_ValueError                       standstill_PyExc_ValueError
#define PyExc_SystemError                      standstill_PyExc_SystemError
#define PyExc_MemoryError                      standstill_PyExc_MemoryError
#define PyExc_RuntimeError                     standstill_PyExc_RuntimeError
#define PyExc_AttributeError                   standstill_PyExc_AttributeError

/* ==== Objects ================================================================================= */

/* A size or an index: signed, as wide as a pointer. */
typedef intptr_t Py_ssize_t;
#define PY_SSIZE_T_MAX INTPTR_MAX
#define PY_SSIZE_T_MIN INTPTR_MIN

typedef struct _object PyObject;
typedef struct _typeobject PyTypeObject;

/* The type of an object, as the collector reads it. More fields follow; they are private. */
struct standstill_record {
    PyTypeObject *ss_type;
};

/* The head of every object: 24 bytes. The fields are private. Py_TYPE, Py_REFCNT and similar
 * functions read them. */
struct _object {
    uint64_t ss_word;
    uint32_t ss_local;
    uint32_t ss_shared;
    const struct standstill_record *ss_record;
};

/* The head of an object with items: 32 bytes. `ob_size` is the number of items; read it with
 * Py_SIZE. */
typedef struct {
    PyObject ob_base;
    Py_ssize_t ob_size;
} PyVarObject;

/* Each object struct has one of these heads as its first member. */
#define PyObject_HEAD PyObject ob_base;
#define PyObject_VAR_HEAD PyVarObject ob_base;

/* Initialisers for the heads of static objects. A static object is immortal and its references
 * are not counted. Each initialiser ends with its own comma, as in CPython:
 * `{ PyVarObject_HEAD_INIT(NULL, 0) .tp_name = ... }`. The argument `type` is ignored; PyType_Ready
 * sets the type. */
#define PyObject_HEAD_INIT(type) { UINT64_C(0xffffffffff000000), 0, 4, NULL },
#define PyVarObject_HEAD_INIT(type, size) { PyObject_HEAD_INIT(type) (size) },

/* An array of negative size is a compile error. It reports a layout that differs from the
 * library's. */
typedef char standstill_assert_object_[sizeof(PyObject) == 24 ? 1 : -1];
typedef char standstill_assert_var_object_[sizeof(PyVarObject) == 32 ? 1 : -1];
typedef char standstill_assert_flags_[sizeof(unsigned long) == 8 ? 1 : -1];

#define _PyObject_CAST(op) ((PyObject *)(op))
#define _PyVarObject_CAST(op) ((PyVarObject *)(op))

/* Marks an unused parameter. */
#if defined(__GNUC__) || defined(__clang__)
#  define Py_UNUSED(name) _unused_##name __attribute__((unused))
#else
#  define Py_UNUSED(name) _unused_##name
#endif

/* ==== Handlers ================================================================================ */

/* visitproc: a traverse handler calls `visit` for each reference that an object owns, with the
 * `arg` that the handler was given. If the result is not 0, the handler returns that value at once.
 * There are several visitors; a handler must do the same for all of them. A visitor may be called
 * only during the handler call that received it.
 * Misuse: STANDSTILL_E_NULL_VISIT (`object` is NULL: the call is ignored, and reported once per
 * type), _STALE_VISITOR (the handler call is over: the visitor returns 0). */
typedef int (*visitproc)(PyObject *object, void *arg);

/* traverseproc: the type of tp_traverse. The handler calls `visit` once for each strong reference
 * that `self` owns directly: twice for an object that `self` holds twice, and never for a borrowed
 * pointer or a weak reference. If the type of `self` is a heap type, the handler also visits the
 * type. The handler returns 0, or at once the first value from `visit` that is not 0. Py_VISIT does
 * both.
 *
 * A traverse handler runs while the world is stopped, on any thread, in checked mode too. Several
 * handlers run at the same time, and two threads may traverse the same object: see
 * STANDSTILL_TPFLAGS_SERIAL_TRAVERSE. A handler must have no side effects and may call only
 * functions marked "safe". It must not wait for anything: a lock may belong to a stopped thread. */
typedef int (*traverseproc)(PyObject *self, visitproc visit, void *arg);

/* inquiry: the type of tp_clear and of tp_is_gc. A clear handler drops the references that may
 * close a cycle: it calls Py_CLEAR for each such member. The object stays valid, and the handler
 * may be called again. The world is running meanwhile. The result is ignored. An error that the
 * handler leaves in the indicator goes to the unraisable hook. */
typedef int (*inquiry)(PyObject *self);

/* destructor: the type of tp_dealloc, tp_finalize and tp_del. */
typedef void (*destructor)(PyObject *self);

typedef void (*freefunc)(void *op);
typedef PyObject *(*allocfunc)(PyTypeObject *type, Py_ssize_t nitems);
typedef PyObject *(*newfunc)(PyTypeObject *type, PyObject *args, PyObject *kwargs);
typedef int (*initproc)(PyObject *self, PyObject *args, PyObject *kwargs);
typedef PyObject *(*PyCFunction)(PyObject *self, PyObject *args);

/* Py_VISIT(o): for traverse handlers. The handler's parameters must be named `visit` and `arg`, and
 * it must return int. If `o` is not NULL, the macro calls visit(o, arg). If the result is not 0,
 * it makes the handler return it. `o` is evaluated once and may be a pointer to any object struct.
 * Since: 2.4. Traversal: safe. */
#define Py_VISIT(o)                                              \
    do {                                                         \
        PyObject *standstill_op_ = _PyObject_CAST(o);            \
        if (standstill_op_ != NULL) {                            \
            int standstill_result_ = visit(standstill_op_, arg); \
            if (standstill_result_ != 0) {                       \
                return standstill_result_;                       \
            }                                                    \
        }                                                        \
    } while (0)

/* ==== Types =================================================================================== */

/* A type. A static type is written with designated initialisers, in the order of the members,
 * and made ready by PyType_Ready. A heap type is made by PyType_FromSpec. The members of a ready
 * type can be read and show inherited values. Writing them has no effect; checked mode reports
 * it (STANDSTILL_E_WRITTEN_AFTER_READY). */
struct _typeobject {
    PyVarObject ob_base;
    const char *tp_name;               /* "module.name"; a heap type owns a copy */
    Py_ssize_t tp_basicsize;           /* bytes of an instance, including its head */
    Py_ssize_t tp_itemsize;            /* bytes of an item; 0: no items */
    destructor tp_dealloc;             /* NULL: the generic deallocator */
    unsigned long tp_flags;            /* Py_TPFLAGS_* */
    const char *tp_doc;
    traverseproc tp_traverse;
    inquiry tp_clear;
    Py_ssize_t tp_weaklistoffset;      /* ignored: any object can have weak references */
    PyTypeObject *tp_base;             /* NULL: PyBaseObject_Type */
    Py_ssize_t tp_dictoffset;          /* ignored: use Py_TPFLAGS_MANAGED_DICT */
    initproc tp_init;                  /* stored and inherited; the library never calls it */
    allocfunc tp_alloc;                /* NULL: the base's; at the root PyType_GenericAlloc */
    newfunc tp_new;                    /* stored and inherited; the library never calls it */
    freefunc tp_free;                  /* NULL: PyObject_GC_Del; for a plain type PyObject_Free */
    inquiry tp_is_gc;                  /* tests an object, in addition to the flag */
    PyObject *tp_bases;                /* a tuple, or NULL */
    PyObject *tp_weaklist;             /* reserved */
    destructor tp_del;                 /* legacy finalizer: its cycles are not collected */
    unsigned int tp_version_tag;       /* reserved */
    destructor tp_finalize;            /* called at most once for each object */
    void *ss_reserved[7];              /* reserved */
    const struct standstill_record *ss_own; /* private; NULL until the type is ready */
};

/* Flags of types, with CPython's bits. Py_TPFLAGS_MANAGED_DICT is only for heap types with
 * Py_TPFLAGS_HAVE_GC. */
#define Py_TPFLAGS_DEFAULT 0UL
#define Py_TPFLAGS_MANAGED_WEAKREF (1UL << 3)        /* ignored: not needed */
#define Py_TPFLAGS_MANAGED_DICT (1UL << 4)           /* a dictionary in each instance */
#define Py_TPFLAGS_DISALLOW_INSTANTIATION (1UL << 7) /* stored, no effect */
#define Py_TPFLAGS_IMMUTABLETYPE (1UL << 8)          /* stored, no effect */
#define Py_TPFLAGS_HEAPTYPE (1UL << 9)               /* set by PyType_FromSpec */
#define Py_TPFLAGS_BASETYPE (1UL << 10)              /* may be subclassed */
#define Py_TPFLAGS_READY (1UL << 12)                 /* set when the type is ready */
#define Py_TPFLAGS_HAVE_GC (1UL << 14)               /* container type: its objects are collected */
#define Py_TPFLAGS_IS_ABSTRACT (1UL << 20)           /* stored, no effect */
#define Py_TPFLAGS_ITEMS_AT_END (1UL << 23)          /* items at the end: PyObject_GetItemData */
#define Py_TPFLAGS_LONG_SUBCLASS (1UL << 24)
#define Py_TPFLAGS_LIST_SUBCLASS (1UL << 25)
#define Py_TPFLAGS_TUPLE_SUBCLASS (1UL << 26)
#define Py_TPFLAGS_BYTES_SUBCLASS (1UL << 27)
#define Py_TPFLAGS_UNICODE_SUBCLASS (1UL << 28)
#define Py_TPFLAGS_DICT_SUBCLASS (1UL << 29)
#define Py_TPFLAGS_BASE_EXC_SUBCLASS (1UL << 30)
#define Py_TPFLAGS_TYPE_SUBCLASS (1UL << 31)
/* Ours: traverse handlers of types with this flag run one at a time. The flags of a PyType_Spec
 * have too few bits for it; use the slot STANDSTILL_tp_flags. */
#define STANDSTILL_TPFLAGS_SERIAL_TRAVERSE (1UL << 62)
/* Ours: the items are references to objects. In checked mode, a resize that would cut off a
 * reference fails. A heap type sets it by the slot STANDSTILL_tp_flags. */
#define STANDSTILL_TPFLAGS_ITEMS_ARE_REFERENCES (1UL << 61)

/* The description of a heap type. */
typedef struct {
    int slot;    /* Py_tp_*; 0 ends the list */
    void *pfunc;
} PyType_Slot;

typedef struct {
    const char *name;   /* "module.name"; copied */
    int basicsize;      /* bytes; 0: same as base; negative: added to the base's */
    int itemsize;       /* bytes; 0: same as base */
    unsigned int flags; /* Py_TPFLAGS_* */
    PyType_Slot *slots; /* read by the constructor, not kept */
} PyType_Spec;

/* Slots, with CPython's numbers. CPython's other slots belong to the language: a spec with such
 * a slot fails with STANDSTILL_E_BAD_SLOT. */
#define Py_tp_alloc 47
#define Py_tp_base 48
#define Py_tp_bases 49
#define Py_tp_clear 51
#define Py_tp_dealloc 52
#define Py_tp_del 53
#define Py_tp_doc 56
#define Py_tp_init 60
#define Py_tp_is_gc 61
#define Py_tp_new 65
#define Py_tp_traverse 71
#define Py_tp_free 74
#define Py_tp_finalize 80
#define Py_tp_token 83
/* Ours: the address of a uint64_t with more flags, since the flags of a PyType_Spec have 32
 * bits. */
#define STANDSTILL_tp_flags 1001
/* As the value of the slot Py_tp_token: the address of the spec is the token. */
#define Py_TP_USE_SPEC NULL

/* PyType_Ready: fills in what a static type inherits, then checks the type. A type inherits
 * Py_TPFLAGS_HAVE_GC, tp_traverse and tp_clear from its base together, and only if it has none of
 * the three. Returns 0, or -1 and an error. After a failure the type can be corrected and tried
 * again. If the type is ready already, the result is 0, and the members that the program has
 * changed since get their values back.
 * Errors: STANDSTILL_E_MISSING_TRAVERSE (the flag without tp_traverse), _HANDLERS_WITHOUT_FLAG,
 * _MIXED_BASES, _BAD_FREE, _BAD_FLAGS, _BAD_BASE, _BAD_SIZE (also items under a base with fields
 * and without items: the number of items would overlap the base's first field), _BAD_SLOT (no
 * tp_name), _WRONG_TYPE (tp_name is not UTF-8), _WRITTEN_AFTER_READY (Py_TPFLAGS_HAVE_GC of a ready
 * type was changed; it is restored), _MEMORY.
 * Since: 2.2. Traversal: refused. */
STANDSTILL_STABLE int PyType_Ready(PyTypeObject *type);

/* PyType_FromSpec, PyType_FromSpecWithBases, PyType_FromModuleAndSpec: make a heap type, which is
 * ready. `bases` is a type, a tuple of types, or NULL. If it is NULL, the bases are those of the
 * slot Py_tp_bases or Py_tp_base, or else PyBaseObject_Type. `module` is NULL or a module; the type
 * owns a reference to it. Returns the type, or NULL and an error. A failed call leaks nothing.
 * Errors: those of PyType_Ready; STANDSTILL_E_BAD_SLOT, _BAD_MRO, _BAD_BASE (also a base that was
 * made in Rust), _WRONG_TYPE (`module` is no module).
 * Aborts: as standstill_heap_new.
 * Since: 3.2, 3.3, 3.9. Traversal: refused. */
STANDSTILL_STABLE PyObject *PyType_FromSpec(PyType_Spec *spec);
STANDSTILL_STABLE PyObject *PyType_FromSpecWithBases(PyType_Spec *spec, PyObject *bases);
STANDSTILL_STABLE PyObject *PyType_FromModuleAndSpec(PyObject *module, PyType_Spec *spec,
                                                     PyObject *bases);

/* PyType_IsSubtype: returns 1 if `a` is `b` or derives from `b`, else 0.
 * Misuse: NULL (result 0).
 * Since: 2.2. Traversal: safe. */
STANDSTILL_STABLE int PyType_IsSubtype(PyTypeObject *a, PyTypeObject *b);

/* PyType_HasFeature: returns 1 if the type has at least one of the flags in `feature`, else 0.
 * Misuse: NULL (result 0).
 * Since: 2.2. Traversal: safe. */
STANDSTILL_STABLE int PyType_HasFeature(PyTypeObject *type, unsigned long feature);

/* PyType_GetFlags: returns the type's flags.
 * Misuse: NULL (result 0).
 * Since: 3.2. Traversal: refused (0). */
STANDSTILL_STABLE unsigned long PyType_GetFlags(PyTypeObject *type);

/* PyType_GetSlot: returns the value of the slot `slot` (Py_tp_*). NULL without an error: the slot
 * is empty.
 * Errors: STANDSTILL_E_BAD_SLOT, _NOT_READY.
 * Since: 3.4. Traversal: refused. */
STANDSTILL_STABLE void *PyType_GetSlot(PyTypeObject *type, int slot);

/* PyType_GetModule: returns the module with which the type was made, borrowed. Bases are not
 * searched.
 * Errors: STANDSTILL_E_NO_MODULE, _NOT_READY.
 * Since: 3.9. Traversal: refused (PyType_GetModule_DuringGC). */
STANDSTILL_STABLE PyObject *PyType_GetModule(PyTypeObject *type);

/* PyType_GetModuleState: returns the state of the type's own module. NULL without an error: the
 * module has no state.
 * Errors: STANDSTILL_E_NO_MODULE, _NOT_READY.
 * Since: 3.9. Traversal: refused (PyType_GetModuleState_DuringGC). */
STANDSTILL_STABLE void *PyType_GetModuleState(PyTypeObject *type);

/* PyType_GetModuleByDef: searches the type's resolution order for the first type whose module was
 * made from `def`. Returns this module, borrowed.
 * Errors: STANDSTILL_E_NO_MODULE, _NOT_READY.
 * Since: 3.11. Traversal: refused. */
struct PyModuleDef;
STANDSTILL_STABLE PyObject *PyType_GetModuleByDef(PyTypeObject *type, struct PyModuleDef *def);

/* PyType_GetModuleByToken: searches the type's resolution order for the first type whose module has
 * this token. Returns a new reference to the module.
 * Errors: STANDSTILL_E_NO_MODULE, _NOT_READY.
 * Since: 3.15. Traversal: refused (PyType_GetModuleByToken_DuringGC). */
STANDSTILL_STABLE PyObject *PyType_GetModuleByToken(PyTypeObject *type, const void *token);

/* PyType_GetBaseByToken: searches the type's resolution order for the first type with this token.
 * Returns 1 and writes a new reference to `*result`; or returns 0 and writes NULL if no type has
 * the token; or returns -1, writes NULL and sets an error. `result` may be NULL; `token` may not.
 * Errors: STANDSTILL_E_NOT_READY.
 * Since: 3.14. Traversal: refused (PyType_GetBaseByToken_DuringGC). */
STANDSTILL_STABLE int PyType_GetBaseByToken(PyTypeObject *type, void *token, PyTypeObject **result);

/* PyType_GetTypeDataSize: returns the size in bytes of the data that PyObject_GetTypeData returns
 * for the type. 0: the type reserves no data. -1 and an error: the type is not ready.
 * Errors: STANDSTILL_E_NOT_READY.
 * Since: 3.12. Traversal: refused. */
STANDSTILL_STABLE Py_ssize_t PyType_GetTypeDataSize(PyTypeObject *type);

/* The built-in types: static and immortal. */
extern STANDSTILL_STABLE PyTypeObject PyBaseObject_Type; /* the base of all types */
extern STANDSTILL_STABLE PyTypeObject PyType_Type;       /* the type of types */
extern STANDSTILL_STABLE PyTypeObject PyModule_Type;
extern STANDSTILL_STABLE PyTypeObject PyTuple_Type;
extern STANDSTILL_STABLE PyTypeObject PyUnicode_Type;    /* immutable, UTF-8 */
extern STANDSTILL_STABLE PyTypeObject PyLong_Type;       /* 64 bits, signed */
extern STANDSTILL_STABLE PyTypeObject PyWeakref_Type;

/* The object for "nothing": immortal. */
extern STANDSTILL_STABLE PyObject _Py_NoneStruct;
#define Py_None (&_Py_NoneStruct)
#define Py_RETURN_NONE return Py_None

/* ==== Reference counts and object heads ======================================================= */

/* Py_IncRef, Py_DecRef: the functions behind Py_INCREF and Py_DECREF. They ignore NULL. When the
 * count reaches 0, Py_DecRef destroys the object: it calls tp_dealloc on this thread while the
 * world runs. A thread that is not attached may also call Py_DecRef. If it drops the last
 * reference, an attached thread destroys the object later.
 * Since: 2.4. Traversal: refused. */
STANDSTILL_STABLE void Py_IncRef(PyObject *op);
STANDSTILL_STABLE void Py_DecRef(PyObject *op);

/* Py_REFCNT: returns the number of references at this moment; a large number for an immortal
 * object.
 * Since: 2.0. Traversal: refused (0). */
STANDSTILL_STABLE Py_ssize_t standstill_Py_REFCNT(PyObject *op);

/* Py_SIZE: returns the number of items.
 * Misuse: STANDSTILL_E_WRONG_TYPE (an object without items; result 0).
 * Since: 2.0. Traversal: safe. */
STANDSTILL_STABLE Py_ssize_t standstill_Py_SIZE(PyObject *op);

#define Py_REFCNT(op) standstill_Py_REFCNT(_PyObject_CAST(op))
#define Py_SIZE(op) standstill_Py_SIZE(_PyObject_CAST(op))

static inline PyTypeObject *standstill_type_of_(const PyObject *op)
{
    const struct standstill_record *record = op->ss_record;
    return record != NULL ? record->ss_type : NULL;
}

static inline void standstill_xincref_(PyObject *op)
{
    if (op != NULL) {
        Py_IncRef(op);
    }
}

static inline void standstill_xdecref_(PyObject *op)
{
    if (op != NULL) {
        Py_DecRef(op);
    }
}

static inline PyObject *standstill_new_ref_(PyObject *op)
{
    Py_IncRef(op);
    return op;
}

static inline PyObject *standstill_x_new_ref_(PyObject *op)
{
    standstill_xincref_(op);
    return op;
}

/* Sets the pointer at `field`, then drops the old reference. The pointer is copied as bytes,
 * since it may have any pointer type. */
static inline void standstill_set_(void *field, PyObject *value)
{
    PyObject *old;
    memcpy(&old, field, sizeof old);
    memcpy(field, &value, sizeof value);
    standstill_xdecref_(old);
}

/* Py_TYPE: returns the type of an object, borrowed. The result is valid as long as the object is
 * alive. NULL: the object is a static type that is not ready.
 * Since: 2.0. Traversal: safe. The result is valid for the whole handler call. */
#define Py_TYPE(op) standstill_type_of_(_PyObject_CAST(op))
/* Py_IS_TYPE: whether the type of the object is exactly `type`.
 * Since: 3.9. Traversal: safe. */
#define Py_IS_TYPE(op, type) (Py_TYPE(op) == (type))

/* Py_INCREF, Py_DECREF: add or drop a reference. Py_XINCREF, Py_XDECREF: the same; `op` may be
 * NULL.
 * Since: 2.0. Traversal: refused. */
#define Py_INCREF(op) Py_IncRef(_PyObject_CAST(op))
#define Py_DECREF(op) Py_DecRef(_PyObject_CAST(op))
#define Py_XINCREF(op) standstill_xincref_(_PyObject_CAST(op))
#define Py_XDECREF(op) standstill_xdecref_(_PyObject_CAST(op))
/* Py_NewRef, Py_XNewRef: add a reference and return the object as PyObject *. The argument of
 * Py_XNewRef may be NULL.
 * Since: 3.10. Traversal: refused. The result is then the argument, borrowed. */
#define Py_NewRef(op) standstill_new_ref_(_PyObject_CAST(op))
#define Py_XNewRef(op) standstill_x_new_ref_(_PyObject_CAST(op))

/* Py_CLEAR(field): sets the field to NULL, then drops the old reference, if there was one.
 * Py_SETREF(field, value), Py_XSETREF(field, value): set the field to `value`, then drop the old
 * reference. They steal the reference to `value`.
 * Each macro evaluates its arguments once. The field may be a pointer to any object struct. If
 * other threads change the field, hold its lock, as for any other assignment.
 * Since: 2.4, 3.6. Traversal: refused. Never use them there: the field is changed all the same. */
#define Py_CLEAR(field) standstill_set_((void *)&(field), NULL)
#define Py_SETREF(field, value) standstill_set_((void *)&(field), _PyObject_CAST(value))
#define Py_XSETREF(field, value) standstill_set_((void *)&(field), _PyObject_CAST(value))

/* PyObject_TypeCheck: returns 1 if the object is an instance of the type or of a derived type, else
 * 0.
 * Misuse: NULL (result 0).
 * Since: 2.2. Traversal: safe. */
STANDSTILL_STABLE int standstill_PyObject_TypeCheck(PyObject *op, PyTypeObject *type);
#define PyObject_TypeCheck(op, type) standstill_PyObject_TypeCheck(_PyObject_CAST(op), (type))

/* Py*_Check: return 1 for an instance of the type or of a derived type, else 0. Py*_CheckExact:
 * return 1 only for an instance of exactly this type.
 * Misuse: NULL (result 0).
 * Since: 2.2. Traversal: safe. */
STANDSTILL_STABLE int standstill_PyType_Check(PyObject *op);
STANDSTILL_STABLE int standstill_PyType_CheckExact(PyObject *op);
STANDSTILL_STABLE int standstill_PyModule_Check(PyObject *op);
STANDSTILL_STABLE int standstill_PyModule_CheckExact(PyObject *op);
STANDSTILL_STABLE int standstill_PyTuple_Check(PyObject *op);
STANDSTILL_STABLE int standstill_PyTuple_CheckExact(PyObject *op);
STANDSTILL_STABLE int standstill_PyUnicode_Check(PyObject *op);
STANDSTILL_STABLE int standstill_PyUnicode_CheckExact(PyObject *op);
STANDSTILL_STABLE int standstill_PyLong_Check(PyObject *op);
STANDSTILL_STABLE int standstill_PyLong_CheckExact(PyObject *op);
STANDSTILL_STABLE int standstill_PyWeakref_Check(PyObject *op);
#define PyType_Check(op) standstill_PyType_Check(_PyObject_CAST(op))
#define PyType_CheckExact(op) standstill_PyType_CheckExact(_PyObject_CAST(op))
#define PyModule_Check(op) standstill_PyModule_Check(_PyObject_CAST(op))
#define PyModule_CheckExact(op) standstill_PyModule_CheckExact(_PyObject_CAST(op))
#define PyTuple_Check(op) standstill_PyTuple_Check(_PyObject_CAST(op))
#define PyTuple_CheckExact(op) standstill_PyTuple_CheckExact(_PyObject_CAST(op))
#define PyUnicode_Check(op) standstill_PyUnicode_Check(_PyObject_CAST(op))
#define PyUnicode_CheckExact(op) standstill_PyUnicode_CheckExact(_PyObject_CAST(op))
#define PyLong_Check(op) standstill_PyLong_Check(_PyObject_CAST(op))
#define PyLong_CheckExact(op) standstill_PyLong_CheckExact(_PyObject_CAST(op))
#define PyWeakref_Check(op) standstill_PyWeakref_Check(_PyObject_CAST(op))

/* ==== Allocation ============================================================================== */
/* No allocation runs a collection. An allocation may request a collection, which then runs at
 * the next standstill_safepoint of some thread. */

/* PyType_GenericAlloc: the default tp_alloc. It makes an object of the type with room for `nitems`
 * items. All bytes after the head are 0. An object of a container type is tracked at once; the
 * first PyObject_GC_Track of the object afterwards is no misuse. Programs allocate by
 * `type->tp_alloc(type, nitems)`. Returns NULL and an error on failure. In checked mode it tries
 * the traverse handler with the type's first instance, as PyObject_GC_Track does.
 * Errors: STANDSTILL_E_MEMORY (also: `nitems` is too large), _NOT_READY, _BAD_SIZE (`nitems` is
 * negative, or not 0 for a type without items).
 * Since: 2.2. Traversal: refused. */
STANDSTILL_STABLE PyObject *PyType_GenericAlloc(PyTypeObject *type, Py_ssize_t nitems);

/* PyObject_GC_New(TYPE, typeobj): makes a container object of tp_basicsize bytes and returns it as
 * TYPE *. All bytes after the head are 0. The object is not tracked. This is a building block for a
 * program's own tp_alloc; elsewhere call tp_alloc. Free the object by tp_free.
 * Errors: STANDSTILL_E_MEMORY, _NOT_READY, _NOT_GC_TYPE, _BAD_SIZE.
 * Since: 2.0. Traversal: refused. */
#define PyObject_GC_New(TYPE, typeobj) ((TYPE *)_PyObject_GC_New(typeobj))
STANDSTILL_STABLE PyObject *_PyObject_GC_New(PyTypeObject *type);

/* PyObject_GC_NewVar(TYPE, typeobj, size): like PyObject_GC_New, with `size` items of tp_itemsize
 * bytes each after the tp_basicsize bytes. All items are written with 0, so the memory of a large
 * object is in use at once.
 * Errors: those of PyObject_GC_New. STANDSTILL_E_BAD_SIZE: the size is negative.
 * STANDSTILL_E_MEMORY: the size is too large.
 * Since: 2.0. Traversal: refused. */
#define PyObject_GC_NewVar(TYPE, typeobj, size) ((TYPE *)_PyObject_GC_NewVar((typeobj), (size)))
STANDSTILL_STABLE PyVarObject *_PyObject_GC_NewVar(PyTypeObject *type, Py_ssize_t nitems);

/* PyObject_GC_Resize(TYPE, op, newsize): changes the number of items of an object that was made by
 * PyObject_GC_NewVar or tp_alloc. The object must be untracked, the caller must own its only
 * reference, and no weak reference to it may exist. Returns the object as TYPE *, possibly at
 * another address; `op` is then invalid. New items are 0. Items that are cut off are not released.
 * On failure `op` is unchanged.
 * Errors: STANDSTILL_E_MEMORY, _BAD_SIZE, _TRACKED_RESIZE, _SHARED_RESIZE, _NOT_RESIZABLE (the type
 * has no items), _NOT_GC_OBJECT, _CUT_REFERENCES (checked mode).
 * Since: 2.0. Traversal: refused. */
#define PyObject_GC_Resize(TYPE, op, newsize) \
    ((TYPE *)_PyObject_GC_Resize(_PyVarObject_CAST(op), (newsize)))
STANDSTILL_STABLE PyVarObject *_PyObject_GC_Resize(PyVarObject *op, Py_ssize_t newsize);

/* PyUnstable_Object_GC_NewWithExtraData: like PyObject_GC_New, with `extra_size` bytes after
 * tp_basicsize. These bytes are 0, and the library never reads them. Prefer items.
 * Errors: those of PyObject_GC_New. STANDSTILL_E_BAD_SIZE: also for a type with items.
 * Since: 3.12. Traversal: refused. */
STANDSTILL_UNSTABLE PyObject *PyUnstable_Object_GC_NewWithExtraData(PyTypeObject *type,
                                                                    size_t extra_size);

/* PyObject_New(TYPE, typeobj), PyObject_NewVar(TYPE, typeobj, size): like PyObject_GC_New and
 * PyObject_GC_NewVar, for types without Py_TPFLAGS_HAVE_GC. Free the object by PyObject_Free.
 * Errors: those of PyObject_GC_NewVar, with STANDSTILL_E_GC_TYPE in place of _NOT_GC_TYPE.
 * Since: 1.5. Traversal: refused. */
#define PyObject_New(TYPE, typeobj) ((TYPE *)_PyObject_New(typeobj))
#define PyObject_NewVar(TYPE, typeobj, size) ((TYPE *)_PyObject_NewVar((typeobj), (size)))
STANDSTILL_STABLE PyObject *_PyObject_New(PyTypeObject *type);
STANDSTILL_STABLE PyVarObject *_PyObject_NewVar(PyTypeObject *type, Py_ssize_t nitems);

/* PyObject_GC_Del: frees the memory of a container object. It calls no handler and releases neither
 * the members nor the type. Deallocators call tp_free, which ends here. An untracked object with a
 * single reference may also be freed, by a constructor that failed.
 * Misuse: STANDSTILL_E_WRONG_ALLOCATOR (not a container object), _REFERENCES_LEFT (other references
 * exist), _DOUBLE_FREE (checked mode), _STILL_TRACKED (the object is untracked and freed).
 * Since: 2.0. Traversal: refused. */
STANDSTILL_STABLE void PyObject_GC_Del(void *op);

/* PyObject_Free: like PyObject_GC_Del, for objects made by PyObject_New and PyObject_NewVar. It
 * also frees a block of PyObject_Malloc, as PyMem_Free does. It ignores NULL.
 * Misuse: STANDSTILL_E_WRONG_ALLOCATOR (a container object; nothing is freed).
 * Since: 1.5. Traversal: refused. */
STANDSTILL_STABLE void PyObject_Free(void *op);
#define PyObject_Del PyObject_Free

/* ==== Memory that objects own outside the heap ================================================ */
/* Blocks for the buffers of objects. They come from the process's allocator, and their bytes count
 * as memory outside the heap, see standstill_adjust_external_bytes. So a small dead object with a
 * large block makes a collection due as a large object does. For memory of malloc the program calls
 * that function itself; for a block it must not.
 *
 * Free a block on a thread that is attached to the heap for which it was allocated, for example in
 * tp_dealloc, but on any such thread. On a thread of another heap the block is freed, and the bytes
 * are subtracted there: then both sums are wrong by them. No sum falls below 0.
 *
 * The functions need an attached thread. On any other thread nothing is allocated or freed. */

/* PyMem_Malloc, PyMem_Calloc, PyMem_Realloc: allocate a block of `size` bytes, of `nelem` elements
 * of `elsize` bytes that are 0, or with the contents of `block`, up to `size`. A block of size 0
 * has an address of its own. Each is aligned for all types of C, at 16 bytes. The bytes of Malloc,
 * and new bytes of Realloc, are arbitrary. If `block` is NULL, PyMem_Realloc is PyMem_Malloc. If
 * it succeeds, `block` is invalid; if it fails, `block` is unchanged. Returns NULL and an error on
 * failure.
 * Errors: STANDSTILL_E_MEMORY (also a size above PY_SSIZE_T_MAX), _FOREIGN_POINTER (`block` is no
 * block), _WRONG_ALLOCATOR (it is an object).
 * Since: 1.5, 3.5, 1.5. Traversal: refused. */
STANDSTILL_STABLE void *PyMem_Malloc(size_t size);
STANDSTILL_STABLE void *PyMem_Calloc(size_t nelem, size_t elsize);
STANDSTILL_STABLE void *PyMem_Realloc(void *block, size_t size);

/* PyMem_Free: frees a block. It ignores NULL.
 * Misuse: STANDSTILL_E_NOT_ATTACHED, _FOREIGN_POINTER (not a block; nothing is freed),
 * _WRONG_ALLOCATOR (an object; nothing is freed).
 * Since: 1.5. Traversal: refused. */
STANDSTILL_STABLE void PyMem_Free(void *block);

/* The same functions. Their blocks may also be freed by PyObject_Free. */
#define PyObject_Malloc PyMem_Malloc
#define PyObject_Calloc PyMem_Calloc
#define PyObject_Realloc PyMem_Realloc

/* PyMem_New(TYPE, n), PyMem_Resize(block, TYPE, n): a block with room for `n` values of a type, as
 * TYPE *. PyMem_Resize assigns it to `block`, also the NULL of a failure: keep the old pointer.
 * PyMem_Del: PyMem_Free.
 * Errors: as above.
 * Since: 1.5. Traversal: refused. */
#define PyMem_New(TYPE, n) ((TYPE *)PyMem_Malloc(standstill_bytes_((n), sizeof(TYPE))))
#define PyMem_Resize(block, TYPE, n) \
    ((block) = (TYPE *)PyMem_Realloc((block), standstill_bytes_((n), sizeof(TYPE))))
#define PyMem_Del PyMem_Free
static inline size_t standstill_bytes_(size_t n, size_t size)
{
    return n > SIZE_MAX / size ? SIZE_MAX : n * size;
}

/* ==== Tracking ================================================================================ */

/* PyObject_GC_Track: adds an object to the set that the collector traverses. From then on each
 * member that the traverse handler visits must be NULL or a living object.
 * In checked mode, if no other thread is attached, the call stops the world without waiting, calls
 * the object's traverse handler, and leaves the object untracked if a member is no object. If
 * another thread is attached, the next collection reports such a member, and does not follow it.
 * Misuse: STANDSTILL_E_ALREADY_TRACKED (except for the first call after PyType_GenericAlloc),
 * _NOT_GC_OBJECT, _FOREIGN_POINTER, _FREED_POINTER (a member, in checked mode).
 * Since: 2.0. Traversal: refused. */
STANDSTILL_STABLE void PyObject_GC_Track(void *op);

/* PyObject_GC_UnTrack: removes an object from the set that the collector traverses. A deallocator
 * does this first. If the object is not tracked, nothing happens.
 * Misuse: STANDSTILL_E_NOT_GC_OBJECT.
 * Since: 2.0. Traversal: refused. */
STANDSTILL_STABLE void PyObject_GC_UnTrack(void *op);

/* PyObject_IS_GC: returns 1 if the type of the object is a container type and its tp_is_gc, if any,
 * agrees; else 0. For a static type the result is 0.
 * Misuse: NULL (result 0).
 * Since: 2.2. Traversal: safe. */
STANDSTILL_STABLE int PyObject_IS_GC(PyObject *op);

/* PyObject_GC_IsTracked: returns 1 if the object is tracked at this moment, else 0.
 * Since: 3.9. Traversal: refused (0). */
STANDSTILL_STABLE int PyObject_GC_IsTracked(PyObject *op);

/* PyObject_GC_IsFinalized: returns 1 if the object's finalizer has run, else 0.
 * Since: 3.9. Traversal: refused (0). */
STANDSTILL_STABLE int PyObject_GC_IsFinalized(PyObject *op);

/* ==== Destruction ============================================================================= */

/* PyObject_CallFinalizer: calls tp_finalize, unless it has been called for this object before.
 * Misuse: STANDSTILL_E_NOT_READY (a static type that is not ready; nothing happens).
 * Since: 3.4. Traversal: refused. */
STANDSTILL_STABLE void PyObject_CallFinalizer(PyObject *op);

/* PyObject_CallFinalizerFromDealloc: calls tp_finalize at the start of a deallocator, unless it has
 * been called before. Returns 0 if the deallocator must go on. Returns -1 if the finalizer has made
 * the object reachable again; the deallocator must then return at once.
 * Misuse: STANDSTILL_E_NOT_ALLOWED_HERE (the object has references).
 * Since: 3.4. Traversal: refused (0). */
STANDSTILL_STABLE int PyObject_CallFinalizerFromDealloc(PyObject *op);

/* PyObject_ClearWeakRefs: for deallocators. It clears the weak references to the object and calls
 * their callbacks.
 * Misuse: STANDSTILL_E_NOT_ALLOWED_HERE (the object has references).
 * Since: 2.1. Traversal: refused. */
STANDSTILL_STABLE void PyObject_ClearWeakRefs(PyObject *op);

/* ==== The managed dictionary, and attributes ================================================== */

/* PyObject_VisitManagedDict: for traverse handlers of types with Py_TPFLAGS_MANAGED_DICT. It visits
 * the values in the instance's dictionary and returns 0 or the first value from `visit` that is not
 * 0. The handler must return such a value at once. For a type without the flag the result is 0.
 * Outside traversals `visit` may change the dictionary: the function visits a copy. Without memory
 * for the copy it visits nothing and returns -1.
 * Since: 3.13. Traversal: safe. */
STANDSTILL_STABLE int PyObject_VisitManagedDict(PyObject *op, visitproc visit, void *arg);

/* PyObject_ClearManagedDict: for clear handlers and deallocators of types with
 * Py_TPFLAGS_MANAGED_DICT. It empties the instance's dictionary.
 * Since: 3.13. Traversal: refused. */
STANDSTILL_STABLE void PyObject_ClearManagedDict(PyObject *op);

/* PyObject_SetAttrString, PyObject_GetAttrString, PyObject_HasAttrString: attributes of an instance
 * with a managed dictionary, or of a heap type. The functions are thread-safe. There are no
 * descriptors, and attributes of bases are not searched. `name` is UTF-8.
 * PyObject_SetAttrString: returns 0, or -1 and an error. The value NULL removes the attribute.
 * PyObject_GetAttrString: returns a new reference, or NULL and an error.
 * PyObject_HasAttrString: returns 1 or 0 and sets no error.
 * Errors: STANDSTILL_E_NO_ATTRIBUTE, _WRONG_TYPE (`name` is not UTF-8), _MEMORY.
 * Misuse: PyObject_HasAttrString with a name that is not UTF-8 (result 0).
 * Since: 2.0. Traversal: refused. */
STANDSTILL_STABLE int PyObject_SetAttrString(PyObject *op, const char *name, PyObject *value);
STANDSTILL_STABLE PyObject *PyObject_GetAttrString(PyObject *op, const char *name);
STANDSTILL_STABLE int PyObject_HasAttrString(PyObject *op, const char *name);

/* ==== Type data and item data ================================================================= */

/* PyObject_GetTypeData: returns the part of `op` that `cls` reserves. `cls` was made with a
 * negative basicsize.
 * Errors: STANDSTILL_E_WRONG_TYPE (`op` is no instance of `cls`, or `cls` reserves nothing),
 * _NOT_READY.
 * Since: 3.12. Traversal: refused (PyObject_GetTypeData_DuringGC). */
STANDSTILL_STABLE void *PyObject_GetTypeData(PyObject *op, PyTypeObject *cls);

/* PyObject_GetItemData: returns the first item of an object, if its type has
 * Py_TPFLAGS_ITEMS_AT_END.
 * Errors: STANDSTILL_E_WRONG_TYPE (the type does not have the flag).
 * Since: 3.12. Traversal: refused (PyObject_GetItemData_DuringGC). */
STANDSTILL_STABLE void *PyObject_GetItemData(PyObject *op);

/* ==== Modules ================================================================================= */

/* Methods are accepted for source compatibility. The library never calls them. */
typedef struct PyMethodDef {
    const char *ml_name;
    PyCFunction ml_meth;
    int ml_flags;
    const char *ml_doc;
} PyMethodDef;
#define METH_VARARGS 0x0001
#define METH_KEYWORDS 0x0002
#define METH_NOARGS 0x0004
#define METH_O 0x0008

typedef struct PyModuleDef_Slot {
    int slot; /* Py_mod_*; 0 ends the list */
    void *value;
} PyModuleDef_Slot;
#define Py_mod_create 1                /* not supported: STANDSTILL_E_BAD_SLOT */
#define Py_mod_exec 2                  /* accepted, never called */
#define Py_mod_multiple_interpreters 3 /* accepted, no meaning */
#define Py_mod_gil 4                   /* accepted, no meaning: there is no global lock */
#define Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED ((void *)0)
#define Py_MOD_MULTIPLE_INTERPRETERS_SUPPORTED ((void *)1)
#define Py_MOD_PER_INTERPRETER_GIL_SUPPORTED ((void *)2)
#define Py_MOD_GIL_USED ((void *)0)
#define Py_MOD_GIL_NOT_USED ((void *)1)

typedef struct PyModuleDef_Base {
    PyObject ob_base;
    PyObject *(*m_init)(void); /* not used */
    Py_ssize_t m_index;        /* not used */
    PyObject *m_copy;          /* not used */
} PyModuleDef_Base;
#define PyModuleDef_HEAD_INIT { PyObject_HEAD_INIT(NULL) NULL, 0, NULL }

/* The description of a module. The library does not copy it: it must outlive all modules that
 * are made from it. Its address is their token. */
typedef struct PyModuleDef {
    PyModuleDef_Base m_base;
    const char *m_name;
    const char *m_doc;
    Py_ssize_t m_size;         /* bytes of state; 0 or negative: no state */
    PyMethodDef *m_methods;    /* accepted, never called */
    PyModuleDef_Slot *m_slots;
    traverseproc m_traverse;   /* visits the references in the state; self is the module */
    inquiry m_clear;
    freefunc m_free;           /* called with the module before its state is freed */
} PyModuleDef;

/* PyModule_Create: makes a module with m_size bytes of state, all 0. PyModule_FromDefAndSpec: the
 * same, but if `spec` is not NULL and its attribute "name" is a string, this string is the module's
 * name.
 * Errors: STANDSTILL_E_MEMORY, _BAD_SLOT, _WRONG_TYPE (the name is not UTF-8, or `spec` is a static
 * type that is not ready).
 * Since: 3.0, 3.5. Traversal: refused. */
STANDSTILL_STABLE PyObject *PyModule_Create(PyModuleDef *def);
STANDSTILL_STABLE PyObject *PyModule_FromDefAndSpec(PyModuleDef *def, PyObject *spec);

/* PyModule_GetState: returns the module's state. NULL without an error: the module has no state.
 * Errors: STANDSTILL_E_WRONG_TYPE (not a module).
 * Since: 3.0. Traversal: refused (PyModule_GetState_DuringGC). */
STANDSTILL_STABLE void *PyModule_GetState(PyObject *module);

/* PyModule_GetDef: returns the definition from which the module was made. NULL without an error:
 * there is none.
 * Errors: STANDSTILL_E_WRONG_TYPE (not a module).
 * Since: 3.0. Traversal: refused. */
STANDSTILL_STABLE PyModuleDef *PyModule_GetDef(PyObject *module);

/* PyModule_GetToken: writes the module's token to `*result` and returns 0. On failure it writes
 * NULL, returns -1 and sets an error.
 * Errors: STANDSTILL_E_WRONG_TYPE (not a module).
 * Since: 3.15. Traversal: refused (PyModule_GetToken_DuringGC). */
STANDSTILL_STABLE int PyModule_GetToken(PyObject *module, void **result);

/* PyModule_GetName: returns the module's name. The string belongs to the module.
 * Errors: STANDSTILL_E_WRONG_TYPE (not a module).
 * Since: 2.0. Traversal: refused. */
STANDSTILL_STABLE const char *PyModule_GetName(PyObject *module);

/* ==== For traverse handlers only ============================================================== */
/* These functions correspond to the ones without the suffix, but change no count and set no
 * error. Their results are borrowed and valid until the handler returns. Outside a traverse
 * handler they return the failure value and report STANDSTILL_E_OUTSIDE_TRAVERSAL as misuse. */

/* Returns the part of `o` that `cls` reserves. NULL: `o` is no instance, or `cls` reserves nothing.
 * Since: 3.15. Traversal: safe. */
STANDSTILL_STABLE void *PyObject_GetTypeData_DuringGC(PyObject *o, PyTypeObject *cls);
/* Returns the first item. NULL: the type does not have Py_TPFLAGS_ITEMS_AT_END.
 * Since: 3.15. Traversal: safe. */
STANDSTILL_STABLE void *PyObject_GetItemData_DuringGC(PyObject *o);
/* Returns the state of the type's own module. NULL: there is no module, or it has no state, or the
 * type was garbage and the collector has cleared it. It clears types and modules after it has
 * cleared and released their instances. So NULL is seen for the last reason only by an instance
 * that no clear handler could free.
 * Since: 3.15. Traversal: safe. */
STANDSTILL_STABLE void *PyType_GetModuleState_DuringGC(PyTypeObject *type);
/* Returns the state of a module. NULL: the module has no state, or the object is no module.
 * Since: 3.15. Traversal: safe. */
STANDSTILL_STABLE void *PyModule_GetState_DuringGC(PyObject *module);
/* Writes the module's token to `*result` and returns 0. On failure it writes NULL and returns -1.
 * Since: 3.15. Traversal: safe. */
STANDSTILL_STABLE int PyModule_GetToken_DuringGC(PyObject *module, void **result);
/* Returns 1 and writes the type to `*result`, borrowed; or returns 0 and writes NULL if no type has
 * the token; or returns -1 and writes NULL on failure. `result` may be NULL; the token may not.
 * Since: 3.15. Traversal: safe. */
STANDSTILL_STABLE int PyType_GetBaseByToken_DuringGC(PyTypeObject *type, void *tp_token,
                                                     PyTypeObject **result);
/* Returns the type's own module, borrowed. NULL: the type has no module.
 * Since: 3.15. Traversal: safe. */
STANDSTILL_STABLE PyObject *PyType_GetModule_DuringGC(PyTypeObject *type);
/* Returns the first module in the resolution order that has the token, borrowed. NULL: none.
 * Since: 3.15. Traversal: safe. */
STANDSTILL_STABLE PyObject *PyType_GetModuleByToken_DuringGC(PyTypeObject *type,
                                                             const void *mod_token);

/* ==== Tuples, strings, numbers ================================================================ */
/* The library has as much of these as types, bases and attributes need. A runtime brings its
 * own. */

/* PyTuple_New: makes a tuple of `size` items, all NULL. Set them by PyTuple_SetItem before the
 * tuple is passed on. PyTuple_Pack: makes a tuple of `n` objects (PyObject *) and adds a reference
 * to each.
 * Errors: STANDSTILL_E_MEMORY, _BAD_SIZE.
 * Since: 2.0, 2.4. Traversal: refused. */
STANDSTILL_STABLE PyObject *PyTuple_New(Py_ssize_t size);
/* PyTuple_Size: returns the number of items. -1 and an error: not a tuple.
 * Errors: STANDSTILL_E_WRONG_TYPE.
 * Since: 2.0. Traversal: refused. */
STANDSTILL_STABLE Py_ssize_t PyTuple_Size(PyObject *tuple);
/* PyTuple_GetItem: returns item `i`, borrowed.
 * Errors: STANDSTILL_E_WRONG_TYPE (not a tuple), _BAD_SIZE (there is no such item).
 * Since: 2.0. Traversal: refused. */
STANDSTILL_STABLE PyObject *PyTuple_GetItem(PyObject *tuple, Py_ssize_t i);
/* PyTuple_SetItem: sets item `i` of a tuple that only the caller uses. It steals the reference to
 * `item`, even when it fails. Returns 0, or -1 and an error.
 * Errors: STANDSTILL_E_WRONG_TYPE (not a tuple), _BAD_SIZE (there is no such item).
 * Since: 2.0. Traversal: refused. The caller then keeps the reference: in a traverse handler no
 * function changes a count. */
STANDSTILL_STABLE int PyTuple_SetItem(PyObject *tuple, Py_ssize_t i, PyObject *item);
static inline PyObject *standstill_tuple_pack_(Py_ssize_t n, ...)
{
    PyObject *tuple = PyTuple_New(n);
    va_list items;
    Py_ssize_t i;
    va_start(items, n);
    for (i = 0; tuple != NULL && i < n; i++) {
        PyObject *item = va_arg(items, PyObject *);
        standstill_xincref_(item);
        (void)PyTuple_SetItem(tuple, i, item);
    }
    va_end(items);
    return tuple;
}
#define PyTuple_Pack standstill_tuple_pack_
#define PyTuple_GET_SIZE(op) PyTuple_Size(_PyObject_CAST(op))
#define PyTuple_GET_ITEM(op, i) PyTuple_GetItem(_PyObject_CAST(op), (i))
#define PyTuple_SET_ITEM(op, i, item) \
    ((void)PyTuple_SetItem(_PyObject_CAST(op), (i), _PyObject_CAST(item)))

/* PyUnicode_FromString: makes a string with a copy of the text.
 * PyUnicode_AsUTF8: returns the text with a 0 at its end. The text belongs to the string.
 * Errors: STANDSTILL_E_MEMORY, _WRONG_TYPE (the text is not UTF-8; the object is not a string).
 * Since: 3.0, 3.3. Traversal: refused. */
STANDSTILL_STABLE PyObject *PyUnicode_FromString(const char *text);
STANDSTILL_STABLE const char *PyUnicode_AsUTF8(PyObject *string);

/* PyLong_FromLong, PyLong_FromLongLong: make a number.
 * PyLong_AsLong, PyLong_AsLongLong: return the value of a number, or -1 and an error.
 * Errors: STANDSTILL_E_MEMORY, _WRONG_TYPE (the object is not a number).
 * Since: 2.0. Traversal: refused. */
STANDSTILL_STABLE PyObject *PyLong_FromLong(long value);
STANDSTILL_STABLE PyObject *PyLong_FromLongLong(long long value);
STANDSTILL_STABLE long PyLong_AsLong(PyObject *number);
STANDSTILL_STABLE long long PyLong_AsLongLong(PyObject *number);

/* ==== Weak references ========================================================================= */

/* PyWeakref_NewRef: makes a weak reference to `ob`. `callback` is NULL, Py_None, or an object from
 * standstill_Callback_New. The weak reference owns the callback. When `ob` dies, the weak reference
 * is cleared; the callback is then called once, with the weak reference.
 * Errors: STANDSTILL_E_MEMORY, _WRONG_TYPE.
 * Since: 2.2. Traversal: refused. */
STANDSTILL_STABLE PyObject *PyWeakref_NewRef(PyObject *ob, PyObject *callback);

/* PyWeakref_GetRef: returns 1 and writes a new reference to `*pobj`; or returns 0 and writes NULL
 * if the object is dead; or returns -1, writes NULL and sets an error.
 * Errors: STANDSTILL_E_WRONG_TYPE (`ref` is not a weak reference).
 * Since: 3.13. Traversal: refused. */
STANDSTILL_STABLE int PyWeakref_GetRef(PyObject *ref, PyObject **pobj);

/* standstill_Callback_New: makes a callback for weak references, which is called as
 * `fn(self, weakref)`. The callback owns a reference to `self`, which may be NULL. When the
 * collector clears the callback, it drops `self` and never calls `fn` again.
 * Errors: STANDSTILL_E_MEMORY.
 * Since: ours. Traversal: refused. */
STANDSTILL_STABLE PyObject *standstill_Callback_New(void (*fn)(PyObject *self, PyObject *weakref),
                                                    PyObject *self);

/* ==== Tables with weak keys, and guardians ==================================================== */

/* A table from objects to objects that keeps no key alive: a value may refer to its key, and dies
 * with it. An entry goes when its key dies, or when a full collection finds that only entries lead
 * to the key. Its value is then dropped. A key of a plain type counts as alive while anything
 * refers to it. All threads may use a table at the same time. */
typedef struct standstill_weak_map standstill_weak_map;

/* standstill_weak_map_new: makes a table without entries.
 * standstill_weak_map_free: gives the table up, and drops its values. NULL does nothing.
 * Errors: STANDSTILL_E_MEMORY.
 * Misuse: STANDSTILL_E_WRONG_TYPE (not a table).
 * Since: ours. Traversal: refused. */
STANDSTILL_STABLE standstill_weak_map *standstill_weak_map_new(void);
STANDSTILL_STABLE void standstill_weak_map_free(standstill_weak_map *map);

/* standstill_weak_map_set: sets the value of a key. Returns 0, or -1 and an error.
 * standstill_weak_map_get: returns 1 and writes a new reference to `*pvalue`; or returns 0 and
 * writes NULL if the key has no entry; or returns -1, writes NULL and sets an error.
 * standstill_weak_map_remove: removes the entry of a key. Returns 1, or 0 if there was none, or -1
 * and an error.
 * Errors: STANDSTILL_E_MEMORY, _WRONG_TYPE (not a table; the key is a static object).
 * Since: ours. Traversal: refused. */
STANDSTILL_STABLE int standstill_weak_map_set(standstill_weak_map *map, PyObject *key,
                                              PyObject *value);
STANDSTILL_STABLE int standstill_weak_map_get(standstill_weak_map *map, PyObject *key,
                                              PyObject **pvalue);
STANDSTILL_STABLE int standstill_weak_map_remove(standstill_weak_map *map, PyObject *key);

/* standstill_weak_map_length: returns the number of entries.
 * standstill_weak_map_entries: calls `entry` with the key and the value of each entry, in no order,
 * and returns their number. It works on a copy, which holds references until it returns, so `entry`
 * may use the table. Both references are borrowed.
 * Errors: STANDSTILL_E_MEMORY, _WRONG_TYPE (not a table).
 * Since: ours. Traversal: refused. */
STANDSTILL_STABLE Py_ssize_t standstill_weak_map_length(standstill_weak_map *map);
STANDSTILL_STABLE Py_ssize_t standstill_weak_map_entries(
    standstill_weak_map *map, void (*entry)(PyObject *key, PyObject *value, void *arg), void *arg);

/* standstill_weak_map_visit: for the traverse handler of an object that owns a table. It visits the
 * table, and returns what `visit` returns, which the handler must return at once if it is not 0.
 * NULL is not visited. So the object is collected although values of the table refer to it; its
 * clear handler calls standstill_weak_map_free. A table that no handler visits counts as referred
 * to from outside. `visit` must be the argument of a handler, because a table is no PyObject.
 * Misuse: STANDSTILL_E_FOREIGN_POINTER (an object of C, or in checked mode no object; result 0).
 * Since: ours. Traversal: safe. */
STANDSTILL_STABLE int standstill_weak_map_visit(standstill_weak_map *map, visitproc visit,
                                                void *arg);

/* A queue that gets objects instead of their deaths. A registered object is put into the queue when
 * its last reference is dropped, before its deallocator is called, or when a collection finds it,
 * before its finalizer is. It is intact, and no longer registered, so it dies next time. The queue
 * counts as a reference from outside. */
typedef struct standstill_guardian standstill_guardian;

/* standstill_guardian_new: makes a guardian.
 * standstill_guardian_free: gives it up. The objects in its queue are dropped, and those that are
 * registered die as others do. NULL does nothing.
 * standstill_guardian_register: registers an object, once more if it is registered already. Returns
 * 0, or -1 and an error.
 * standstill_guardian_next: takes the object out that died first. Returns NULL without an error if
 * there is none.
 * standstill_guardian_is_ready: returns 1 if there is an object to take out, else 0; or -1 and an
 * error.
 * Errors: STANDSTILL_E_MEMORY, _WRONG_TYPE (not a guardian; the object is static).
 * Misuse: STANDSTILL_E_WRONG_TYPE (standstill_guardian_free: not a guardian).
 * Aborts: standstill_guardian_new, without memory for what std allocates (docs/c-api.md, "Without
 * memory").
 * Since: ours. Traversal: refused. */
STANDSTILL_STABLE standstill_guardian *standstill_guardian_new(void);
STANDSTILL_STABLE void standstill_guardian_free(standstill_guardian *guardian);
STANDSTILL_STABLE int standstill_guardian_register(standstill_guardian *guardian, PyObject *op);
STANDSTILL_STABLE PyObject *standstill_guardian_next(standstill_guardian *guardian);
STANDSTILL_STABLE int standstill_guardian_is_ready(standstill_guardian *guardian);

/* ==== Errors ================================================================================== */

/* The codes of errors and of misuse. The numbers never change; new ones are added at the end. */
enum standstill_code {
    STANDSTILL_OK = 0,
    STANDSTILL_E_MEMORY = 1,                /* no memory, or the heap's limit is reached */
    STANDSTILL_E_NOT_ATTACHED = 2,          /* the thread is not attached to a heap */
    STANDSTILL_E_NOT_READY = 3,             /* the type is not ready */
    STANDSTILL_E_MISSING_TRAVERSE = 4,      /* Py_TPFLAGS_HAVE_GC without tp_traverse */
    STANDSTILL_E_HANDLERS_WITHOUT_FLAG = 5, /* handlers without the flag under a container base */
    STANDSTILL_E_MIXED_BASES = 6,           /* a base is a container type, the first is not */
    STANDSTILL_E_BAD_FREE = 7,              /* tp_free does not fit the type */
    STANDSTILL_E_BAD_FLAGS = 8,             /* flags exclude each other or the kind of type */
    STANDSTILL_E_BAD_BASE = 9,              /* no type, not ready, final, or of another runtime */
    STANDSTILL_E_BAD_MRO = 10,              /* the bases have no common resolution order */
    STANDSTILL_E_BAD_SLOT = 11,             /* a slot: unknown, twice, without value; no name */
    STANDSTILL_E_BAD_SIZE = 12,             /* negative, too large, or less than the base's */
    STANDSTILL_E_NOT_GC_TYPE = 13,          /* not a container type */
    STANDSTILL_E_GC_TYPE = 14,              /* a container type */
    STANDSTILL_E_NULL_ARGUMENT = 15,
    STANDSTILL_E_NOT_GC_OBJECT = 16,        /* not a container object */
    STANDSTILL_E_ALREADY_TRACKED = 17,
    STANDSTILL_E_STILL_TRACKED = 18,
    STANDSTILL_E_TRACKED_RESIZE = 19,
    STANDSTILL_E_SHARED_RESIZE = 20,        /* other references exist, or weak ones */
    STANDSTILL_E_NOT_RESIZABLE = 21,        /* the type has no items */
    STANDSTILL_E_WRONG_ALLOCATOR = 22,      /* memory of the other kind of allocator */
    STANDSTILL_E_REFERENCES_LEFT = 23,      /* freed while references exist */
    STANDSTILL_E_DOUBLE_FREE = 24,
    STANDSTILL_E_FOREIGN_POINTER = 25,      /* no object of this heap */
    STANDSTILL_E_FREED_POINTER = 26,        /* a freed object */
    STANDSTILL_E_NULL_VISIT = 27,
    STANDSTILL_E_STALE_VISITOR = 28,
    STANDSTILL_E_OVER_VISITED = 29,         /* more visits than references */
    STANDSTILL_E_IN_TRAVERSAL = 30,         /* not allowed in traverse handlers */
    STANDSTILL_E_OUTSIDE_TRAVERSAL = 31,    /* allowed only in traverse handlers */
    STANDSTILL_E_NOT_ALLOWED_HERE = 32,     /* not possible here, as in a finalizer or callback */
    STANDSTILL_E_BAD_CALLBACK_RESULT = 33,  /* neither 1 nor 0 */
    STANDSTILL_E_BAD_GENERATION = 34,
    STANDSTILL_E_BAD_THRESHOLD = 35,
    STANDSTILL_E_BAD_DEBUG_FLAGS = 36,
    STANDSTILL_E_WRONG_TYPE = 37,           /* an object of another type is needed */
    STANDSTILL_E_NO_MODULE = 38,
    STANDSTILL_E_NO_ATTRIBUTE = 40,
    STANDSTILL_E_WRITTEN_AFTER_READY = 41,  /* a member of a ready type was changed */
    STANDSTILL_E_BAD_ALLOC_RESULT = 42,     /* tp_alloc returned an object of another type */
    STANDSTILL_E_CUT_REFERENCES = 43,       /* a resize cut off references */
    STANDSTILL_E_MISSING_TYPE_VISIT = 44,   /* the handler does not visit the heap type */
    STANDSTILL_E_MISSING_DICT_VISIT = 45,   /* the handler does not visit the dictionary */
    STANDSTILL_E_HANDLER_ERROR = 46,        /* a traverse handler returned its own value */
    STANDSTILL_E_PANIC = 47,                /* a panic was caught */
    STANDSTILL_E_CUSTOM = 48,               /* set by PyErr_SetString, or as the function says */
    STANDSTILL_E_SLOW_HANDLER = 49,         /* a traverse handler exceeded the heap's limit */
    STANDSTILL_E_BUSY = 50,                 /* another thread stops the threads */
    STANDSTILL_E_TIMED_OUT = 51             /* the limit of a stop is over */
};

/* The exception types: static, immortal objects that only serve as names. */
extern STANDSTILL_STABLE PyObject *PyExc_TypeError;
extern STANDSTILL_STABLE PyObject *PyExc_ValueError;
extern STANDSTILL_STABLE PyObject *PyExc_SystemError;
extern STANDSTILL_STABLE PyObject *PyExc_MemoryError;
extern STANDSTILL_STABLE PyObject *PyExc_RuntimeError;
extern STANDSTILL_STABLE PyObject *PyExc_AttributeError;

/* Each thread has an error indicator, even while it is not attached. */

/* PyErr_Occurred: returns the exception type of the current error, borrowed. NULL: no error is set.
 * Since: 2.0. Traversal: refused (NULL). */
STANDSTILL_STABLE PyObject *PyErr_Occurred(void);
/* PyErr_Clear: clears the error indicator.
 * Since: 2.0. Traversal: refused. */
STANDSTILL_STABLE void PyErr_Clear(void);
/* PyErr_SetString: sets an error with the code STANDSTILL_E_CUSTOM and a copy of the message.
 * `exception` is one of PyExc_* or a type of the program, to which the error keeps a reference.
 * NULL means PyExc_SystemError.
 * Since: 2.0. Traversal: refused. */
STANDSTILL_STABLE void PyErr_SetString(PyObject *exception, const char *message);
/* PyErr_NoMemory: sets STANDSTILL_E_MEMORY and returns NULL.
 * Since: 2.0. Traversal: refused. */
STANDSTILL_STABLE PyObject *PyErr_NoMemory(void);
/* PyErr_BadInternalCall: sets an error of type PyExc_SystemError.
 * Since: 2.0. Traversal: refused. */
STANDSTILL_STABLE void PyErr_BadInternalCall(void);
/* PyErr_ExceptionMatches: returns 1 if an error of this exception type is set, else 0.
 * Since: 2.0. Traversal: refused (0). */
STANDSTILL_STABLE int PyErr_ExceptionMatches(PyObject *exception);
/* PyErr_WriteUnraisable: passes the current error, if any, to the unraisable hook and clears it.
 * `obj` is the object at which the error happened, or NULL.
 * Since: 2.0. Traversal: refused. */
STANDSTILL_STABLE void PyErr_WriteUnraisable(PyObject *obj);

/* standstill_error_code: returns the code of the current error (enum standstill_code). 0: no error
 * is set.
 * Since: ours. Traversal: refused (0). */
STANDSTILL_STABLE int standstill_error_code(void);
/* standstill_error_message: returns the message of the current error. It is valid until the
 * indicator changes. NULL: no error is set.
 * Since: ours. Traversal: refused (NULL). */
STANDSTILL_STABLE const char *standstill_error_message(void);

/* ==== The collector =========================================================================== */

/* PyGC_Collect: runs a full collection. Returns the number of collected plus the number of
 * uncollectable objects. Returns 0 if the collector is disabled, or another thread collects or
 * visits all objects: it does not wait for the end of that. An error in the indicator is preserved.
 * The call is a safepoint, also if no collection runs: it stops for another thread's stop. It is
 * none after misuse, and none in code that a collection of this thread calls: there it returns 0
 * without a report.
 * Misuse: the thread is not attached; STANDSTILL_E_NOT_ALLOWED_HERE (in any other destructor,
 * finalizer or callback, also in that of PyUnstable_GC_VisitObjects). The result is 0.
 * Since: 3.0. Traversal: refused (0). */
STANDSTILL_STABLE Py_ssize_t PyGC_Collect(void);

/* PyGC_Enable, PyGC_Disable: enable or disable automatic collections and PyGC_Collect. They return
 * 1 if these were enabled before, else 0. PyGC_IsEnabled: returns the present state.
 * Since: 3.10. Traversal: refused (0). */
STANDSTILL_STABLE int PyGC_Enable(void);
STANDSTILL_STABLE int PyGC_Disable(void);
STANDSTILL_STABLE int PyGC_IsEnabled(void);

/* gcvisitobjects_t: returns 1 to go on and 0 to stop. Any other value stops, and is misuse
 * (STANDSTILL_E_BAD_CALLBACK_RESULT). `object` is borrowed. A visitproc has the opposite
 * convention: its 0 means go on. */
typedef int (*gcvisitobjects_t)(PyObject *object, void *arg);

/* PyUnstable_GC_VisitObjects: calls `callback` once for each object that is tracked at the start of
 * the call, also for frozen ones, but not for those that a running collection will clear. The world
 * runs meanwhile; automatic collections do not. The call is a safepoint, but no collection starts
 * at it: a program that only visits collects nothing. Without memory for a list of the objects it
 * visits none, and the unraisable hook receives an error.
 * Misuse: STANDSTILL_E_NOT_ALLOWED_HERE (in a destructor, finalizer, or callback of another kind).
 * Since: 3.12. Traversal: refused. */
STANDSTILL_UNSTABLE void PyUnstable_GC_VisitObjects(gcvisitobjects_t callback, void *arg);

/* ==== Threads and heaps ======================================================================= */

typedef struct standstill_heap standstill_heap;

typedef struct {
    size_t size;         /* sizeof(standstill_heap_options) */
    size_t reserve;      /* bytes of address space, which the heap cannot outgrow; 0: default */
    size_t limit;        /* bytes of objects, in and outside the heap, before the allocation of
                            objects fails; 0: no limit */
    unsigned workers;    /* threads of a collection, also its own, at most 1024; 0: default */
    int checked;         /* checked mode: 1 on, 0 off, -1 default */
    int stress;          /* 1: collect at every safepoint */
    size_t serial_below; /* fewer objects: collect with one thread; 0: default */
    unsigned slow_stop_ms; /* milliseconds before a stop is slow; 0: 1000 */
    size_t slow_collection_ms; /* milliseconds before a collection is slow; 0: 1000. It is reported
                                  by an event of `tracing`, and if its first stop alone is so long,
                                  its line of STANDSTILL_LOG=gc has the largest types */
    size_t child_from;   /* objects from which a full collection that is due searches in a child of
                            the process, where traverse handlers then run, and stops the program
                            for milliseconds (docs/child-search.md); 0: never */
} standstill_heap_options;
/* Sets all options to their defaults. A zeroed struct would switch checked mode off. */
#define STANDSTILL_HEAP_OPTIONS_INIT { sizeof(standstill_heap_options), 0, 0, 0, -1, 0, 0, 0, 0, 0 }

/* standstill_heap_new: makes a heap in addition to the default one. `options` may be NULL: all
 * defaults. The field `size` must be set; fields beyond this size are not read. A size of 0 means
 * the fields up to serial_below. Returns the heap, or NULL and an error.
 * standstill_heap_free: runs a last collection and gives up the heap. Returns 0, or -1 after
 * misuse.
 * An object belongs to one heap, and threads attached to other heaps cannot use it. Objects that
 * still have references stay alive for ever, because no thread can attach to their heap any more;
 * the unraisable hook receives their number by type. If the calling thread is attached to another
 * heap, there is no last collection. The hook then receives the number of objects that are left,
 * and cycles of these objects are never freed.
 * Errors: STANDSTILL_E_MEMORY, _BAD_SIZE (an option makes no sense).
 * Misuse: STANDSTILL_E_NOT_ALLOWED_HERE (threads are attached to the heap, or are between
 * PyEval_SaveThread and PyEval_RestoreThread; or it is the default heap), _FOREIGN_POINTER (not a
 * heap).
 * Aborts: without memory for what std allocates (docs/c-api.md, "Without memory").
 * Since: ours. Traversal: refused. */
STANDSTILL_STABLE standstill_heap *standstill_heap_new(const standstill_heap_options *options);
STANDSTILL_STABLE int standstill_heap_free(standstill_heap *heap);

/* standstill_default_heap: returns the default heap of the process. The heap is made at the first
 * use and never freed.
 * Aborts: at the first use, as standstill_heap_new.
 * Since: ours. Traversal: refused (NULL). */
STANDSTILL_STABLE standstill_heap *standstill_default_heap(void);

/* standstill_configure: makes the default heap with these options, before its first use, which
 * would make it with the defaults. `options` is as for standstill_heap_new. Returns 0, or -1 and an
 * error.
 * Errors: STANDSTILL_E_MEMORY, _BAD_SIZE (an option makes no sense), _NOT_ALLOWED_HERE (the default
 * heap exists already).
 * Aborts: as standstill_heap_new.
 * Since: ours. Traversal: refused. */
STANDSTILL_STABLE int standstill_configure(const standstill_heap_options *options);

/* standstill_attach: attaches the calling thread to `heap` (NULL: the default heap). An attached
 * thread may use objects, and each stop waits for its next safepoint. Returns 0, or -1 and an
 * error.
 * standstill_detach: detaches the calling thread. Each stop waits for an attached thread, so a
 * thread detaches when it needs no objects any more. A thread that ends attached is detached at its
 * end. It cannot be, and every later stop of the heap fails, if it ends inside a destructor,
 * finalizer or callback of the library. Returns 0, or -1 after misuse.
 * standstill_is_attached: returns 1 or 0.
 * Errors: STANDSTILL_E_NOT_ALLOWED_HERE (the thread is attached already, or is ending: in the
 * destructor of a pthread key on a thread that was attached before), _MEMORY, _FOREIGN_POINTER. If
 * the error indicator of an ending thread is gone, the error is reported as misuse instead.
 * Misuse: STANDSTILL_E_NOT_ALLOWED_HERE (standstill_detach in a destructor, finalizer or callback).
 * Aborts: without memory for std's handle of a thread that C has started, the first time that the
 * thread attaches; at the first use of the default heap, as standstill_heap_new.
 * Since: ours. Traversal: refused. */
STANDSTILL_STABLE int standstill_attach(standstill_heap *heap);
STANDSTILL_STABLE int standstill_detach(void);
STANDSTILL_STABLE int standstill_is_attached(void);

/* standstill_safepoint: lets a collection run here, or waits for the end of a stop. An attached
 * thread must call it regularly, at points where it is not in the middle of changing an object. The
 * call costs one load when there is nothing to do.
 * Misuse: STANDSTILL_E_NOT_ALLOWED_HERE (in a destructor, finalizer or callback).
 * Since: ours. Traversal: refused. */
STANDSTILL_STABLE void standstill_safepoint(void);

/* Py_BEGIN_ALLOW_THREADS ... Py_END_ALLOW_THREADS: put these around code that blocks. The thread is
 * detached between the two and must not use objects.
 * PyEval_SaveThread: detaches the thread and returns its state. NULL after misuse: the thread stays
 * attached. PyEval_RestoreThread: attaches it again, on the same thread; it ignores NULL.
 * Misuse: STANDSTILL_E_NOT_ALLOWED_HERE (in a destructor, finalizer or callback;
 * PyEval_RestoreThread before the PyGILState_Ensure in between was released), _FOREIGN_POINTER (the
 * state of another thread, or one that was restored), _MEMORY.
 * Since: 1.5. Traversal: refused. */
typedef struct standstill_thread_state PyThreadState;
STANDSTILL_STABLE PyThreadState *PyEval_SaveThread(void);
STANDSTILL_STABLE void PyEval_RestoreThread(PyThreadState *state);
#define Py_BEGIN_ALLOW_THREADS { PyThreadState *_save; _save = PyEval_SaveThread();
#define Py_BLOCK_THREADS PyEval_RestoreThread(_save);
#define Py_UNBLOCK_THREADS _save = PyEval_SaveThread();
#define Py_END_ALLOW_THREADS PyEval_RestoreThread(_save); }

/* PyGILState_Ensure: attaches the thread, unless it is attached. After PyEval_SaveThread it
 * attaches to the heap that the thread has left; otherwise it attaches to the default heap.
 * PyGILState_Release: undoes the PyGILState_Ensure that returned `state`. The calls nest. They take
 * no lock: other threads run meanwhile.
 * A PyGILState_Ensure that fails reports misuse, leaves the thread unattached, and returns
 * PyGILState_LOCKED. So it does on a thread that is ending, see standstill_attach.
 * Misuse: STANDSTILL_E_NOT_ALLOWED_HERE, _MEMORY.
 * Aborts: as standstill_attach.
 * Since: 2.3. Traversal: refused. */
typedef enum { PyGILState_LOCKED, PyGILState_UNLOCKED } PyGILState_STATE;
STANDSTILL_STABLE PyGILState_STATE PyGILState_Ensure(void);
STANDSTILL_STABLE void PyGILState_Release(PyGILState_STATE state);

/* Py_Initialize: attaches the calling thread to the default heap, unless it is attached.
 * Py_Finalize: runs a last full collection without progress callbacks, then detaches the thread.
 * After misuse it can be called again. Py_IsInitialized: returns 1 between the two calls, else 0.
 * Aborts: as standstill_attach.
 * Misuse: STANDSTILL_E_NOT_ATTACHED, _NOT_ALLOWED_HERE (Py_Finalize cannot detach the thread).
 * Since: 1.5. Traversal: refused. */
STANDSTILL_STABLE void Py_Initialize(void);
STANDSTILL_STABLE void Py_Finalize(void);
STANDSTILL_STABLE int Py_IsInitialized(void);

/* ==== Fork ==================================================================================== */
/* A program calls fork() as usual. Handlers of the library (pthread_atfork) stop the worlds of all
 * heaps before it. Each attached thread must reach a safepoint for this, as for a collection.
 *
 * In the child, the thread that forked is the only one. All heaps are complete, also those to which
 * it was not attached. If it was attached, it still is. Objects of the other threads have no owner
 * and are collected like all others. References on the stacks of these threads still count. If
 * another thread was collecting, that collection is over, and the next one finds the garbage again.
 * Finalizers that had run do not run again. Hooks and types are the same as in the parent.
 *
 * A detached thread may fork, and so may a thread that was never attached. The fork is a safepoint
 * of an attached thread.
 *
 * A thread that forks in a destructor, finalizer, clear handler, callback or hook cannot stop the
 * worlds, nor can it in a traverse handler. It cannot either if memory is short, or if a thread has
 * ended attached to one of the heaps. The fork happens all the same, but the child may not use the
 * library: it calls exec or _exit. After a fork in an atexit handler or in the destructor of a
 * pthread key, the child reports that it cannot repair its heaps, because its thread is ending.
 *
 * Other threads may use all of the library meanwhile. What must not change during the fork waits.
 *
 * The library registers its handlers when a thread attaches for the first time. Those that the
 * program has registered before with pthread_atfork run while the worlds are stopped. There the
 * thread counts as being inside a collection, whether it was attached or not: it can use no object,
 * neither attach nor detach, and PyGC_Collect returns 0. Handlers that are registered later run
 * before the worlds stop, and after they run again. */

/* ==== Threads without a heap ================================================================== */
/* The coordinator stops the threads of a program for a purpose of its own: a profiler, a fork, the
 * collector of another library. It knows no objects, and needs no heap.
 *
 * Each thread has a participant, which only that thread may pass; another one's is refused. A
 * thread is attached while it uses what a stop protects, and detached while it does not: before a
 * call that blocks, and at the end. A stop waits for the attached threads, and while it lasts no
 * thread attaches. An attached thread loads its poll word often, and parks if it is not 0. A thread
 * is attached to one coordinator or heap at a time; if it forks while that is a coordinator, the
 * child can use no heap. */

typedef struct standstill_coordinator standstill_coordinator;
typedef struct standstill_participant standstill_participant;

/* standstill_coordinator_new: makes a coordinator without threads. `name` is for debuggers; NULL:
 * none. A stop that takes longer than `slow_stop_ms` milliseconds (0: 1000) is reported to the hook
 * for slow stops. Returns the coordinator, or NULL and an error.
 * standstill_coordinator_free: gives the coordinator up. Threads that are registered remain so.
 * Returns 0, or -1 and an error. The pointer must be one that was not freed, which is not checked.
 * Errors: STANDSTILL_E_MEMORY, _NULL_ARGUMENT.
 * Aborts: as standstill_heap_new.
 * Since: ours. Traversal: refused. */
STANDSTILL_STABLE standstill_coordinator *standstill_coordinator_new(const char *name,
                                                                     unsigned slow_stop_ms);
STANDSTILL_STABLE int standstill_coordinator_free(standstill_coordinator *coordinator);

/* standstill_participant_new: registers the calling thread, detached. In a stop the other threads
 * see `data`. Returns the participant, or NULL and an error. The coordinator is not checked, as in
 * standstill_coordinator_free.
 * standstill_participant_free: ends the membership, and a stop that the participant keeps. Returns
 * 0, or -1 and an error. A thread that ends frees its participants.
 * Errors: STANDSTILL_E_MEMORY, _NULL_ARGUMENT, _NOT_ALLOWED_HERE (the thread is ending),
 * _FOREIGN_POINTER (the thread has no such participant).
 * Aborts: as standstill_attach.
 * Since: ours. Traversal: refused. */
STANDSTILL_STABLE standstill_participant *
standstill_participant_new(standstill_coordinator *coordinator, void *data);
STANDSTILL_STABLE int standstill_participant_free(standstill_participant *participant);

/* standstill_participant_attach: attaches. It waits for the end of a stop.
 * standstill_participant_detach: detaches.
 * standstill_participant_park: waits detached for the end of a stop, if one is on.
 * They return 0, or -1 and an error; then nothing has changed.
 * Errors: STANDSTILL_E_NOT_ALLOWED_HERE (attach: the thread is attached, here or elsewhere, or is
 * ending; detach, park: it has stopped the others), _NOT_ATTACHED, _NULL_ARGUMENT,
 * _FOREIGN_POINTER.
 * Since: ours. Traversal: refused. */
STANDSTILL_STABLE int standstill_participant_attach(standstill_participant *participant);
STANDSTILL_STABLE int standstill_participant_detach(standstill_participant *participant);
STANDSTILL_STABLE int standstill_participant_park(standstill_participant *participant);

/* standstill_participant_poll_word: returns the word that is not 0 when the thread should park, or
 * NULL and an error. Only the library writes it. It is valid until the participant is freed.
 * Errors: STANDSTILL_E_NULL_ARGUMENT, _FOREIGN_POINTER.
 * Since: ours. Traversal: refused. */
STANDSTILL_STABLE const volatile uint32_t *
standstill_participant_poll_word(standstill_participant *participant);

/* standstill_participant_stop: waits until no other thread is attached, and lets none attach until
 * standstill_participant_resume. Stops take turns, and the thread waits detached for its own.
 * standstill_participant_try_stop: does not wait for another stop.
 * standstill_participant_stop_for: does not wait longer than `limit_ns` nanoseconds for attached
 * threads. The message of the error names those that are late.
 * standstill_participant_prepare_fork: the same as stop, for a fork() before the resume. The child
 * resumes too, and has no other threads.
 * They return 0, or -1 and an error; then the threads run on.
 * Errors: STANDSTILL_E_NOT_ATTACHED, _NOT_ALLOWED_HERE (the thread has stopped threads already),
 * _CUSTOM (a thread has ended attached, so that no stop succeeds), _BUSY (try_stop), _TIMED_OUT
 * (stop_for), _MEMORY (prepare_fork), _NULL_ARGUMENT, _FOREIGN_POINTER.
 * Since: ours. Traversal: refused. */
STANDSTILL_STABLE int standstill_participant_stop(standstill_participant *participant);
STANDSTILL_STABLE int standstill_participant_try_stop(standstill_participant *participant);
STANDSTILL_STABLE int standstill_participant_stop_for(standstill_participant *participant,
                                                      uint64_t limit_ns);
STANDSTILL_STABLE int standstill_participant_prepare_fork(standstill_participant *participant);

/* standstill_participant_threads: calls `each` with the data of each registered thread, also the
 * calling one, in a stop of this participant. `each` cannot end the stop.
 * standstill_participant_resume: ends the stop, or the fork.
 * They return 0, or -1 and an error.
 * Errors: STANDSTILL_E_NOT_ALLOWED_HERE (there is no such stop), _NULL_ARGUMENT, _FOREIGN_POINTER.
 * Since: ours. Traversal: refused. */
STANDSTILL_STABLE int standstill_participant_threads(standstill_participant *participant,
                                                     void (*each)(void *data, void *arg),
                                                     void *arg);
STANDSTILL_STABLE int standstill_participant_resume(standstill_participant *participant);

/* ==== Hooks =================================================================================== */
/* Hooks belong to the process. The library calls a hook on the thread on which the event
 * happened, attached or not. A hook must not use objects and must not unwind. Its arguments are
 * valid until it returns. NULL restores the default. */

/* A report of misuse: a call that was wrong in itself. */
typedef struct {
    int code;              /* enum standstill_code */
    const char *code_name; /* "AlreadyTracked" */
    const char *function;  /* "PyObject_GC_Track" */
    const char *type;      /* name of the object's type, or NULL */
    const void *object;    /* the object's address, or NULL */
    const char *text;      /* one line with all of this */
} standstill_misuse;

/* standstill_set_misuse_hook: sets the hook for misuse. By default the library writes a line to
 * stderr, at most five times for each code and type.
 * Since: ours. Traversal: refused. */
STANDSTILL_STABLE void
standstill_set_misuse_hook(void (*hook)(const standstill_misuse *report, void *arg),
                           void *arg);

/* An error that no caller can receive. */
typedef struct {
    const char *kind;    /* the place: "finalizer", "clear handler", ... */
    const char *type;    /* name of the object's type, or NULL */
    const void *object;  /* the object's address, or NULL */
    const char *message;
} standstill_unraisable;

/* standstill_set_unraisable_hook: sets the hook for errors in handlers, finalizers and callbacks.
 * By default the library writes a block to stderr.
 * Since: ours. Traversal: refused. */
STANDSTILL_STABLE void
standstill_set_unraisable_hook(void (*hook)(const standstill_unraisable *report, void *arg),
                               void *arg);

/* A thread that holds up a stop: the thread blocks while it is attached, or reaches no safepoint.
 * The report also describes a thread that stops the world, or collects, for too long. The text says
 * which of these, which thread waits, and for what. */
typedef struct {
    const char *thread; /* the thread's name, or NULL */
    uint64_t os_thread; /* the system's thread id (gettid); 0: unknown */
    double waited;      /* seconds of the wait so far, or for which collecting held up the thread */
    double attached;    /* seconds since the thread was registered for stops; see below */
    int ended;          /* 1: the thread ended and could not be detached; every stop now fails */
    const char *text;   /* one line about all such threads */
} standstill_slow_stop;

/* standstill_set_slow_stop_hook: sets the hook for slow stops. "Slow" means longer than
 * slow_stop_ms of standstill_heap_options. By default the library writes a line to stderr.
 * standstill_attach registers a thread for stops, until it detaches by standstill_detach. Between
 * PyEval_SaveThread and PyEval_RestoreThread it stays registered. The hook is called in six cases:
 * A stop waits for other threads for too long. The stopping thread calls the hook, once for each
 * thread that it waits for, and again each time the wait has doubled. The hook itself should not
 * wait.
 * A stop fails, because a thread has ended attached. The stopping thread calls the hook, once for
 * each such thread, with `ended` 1 and `waited` 0.
 * A stop itself takes too long. A thread that waits for the end of the stop calls the hook. The
 * restrictions of a traverse handler apply to this call.
 * The finalizers, callbacks and deallocators of a collection take too long. A thread that waits to
 * collect calls the hook.
 * Collecting has held up its own thread for too long. That thread calls the hook afterwards. The
 * text names the type whose code ran longest.
 * In checked mode that the options or STANDSTILL_CHECKED ask for, a thread has reached no safepoint
 * for a second, although no stop waits for it. A thread of the library calls the hook, once until
 * it reaches one.
 * Since: ours. Traversal: refused. */
STANDSTILL_STABLE void
standstill_set_slow_stop_hook(void (*hook)(const standstill_slow_stop *report, void *arg),
                              void *arg);

/* standstill_set_line_sink: sets the function that receives each line that the library would write
 * to stderr: of misuse, unraisable errors and slow stops without a hook, debugging lines without a
 * sink of their own, and those of STANDSTILL_LOG=gc. A line has no line feed at its end; an
 * unraisable error is one line with line feeds in it. Returns 0, or -1 and an error.
 * The sink is called in the middle of an operation, also in a stop, and so is restricted like a
 * traverse handler. stderr still receives the lines that the sink itself causes, those for which
 * there is no memory, and the one after which the library ends the process. Another thread may
 * still be calling the sink that was set before, and each call keeps some bytes for ever.
 * Errors: STANDSTILL_E_MEMORY.
 * Since: ours. Traversal: refused. */
STANDSTILL_STABLE int standstill_set_line_sink(void (*sink)(const char *line, void *arg),
                                               void *arg);

/* ==== The gc module =========================================================================== */
/* All functions of this section use the heap to which the calling thread is attached.
 *
 * These stop the world, so they are safepoints: standstill_gc_get_count, _freeze, _unfreeze,
 * _get_freeze_count, _get_objects, _get_referrers and _get_referents. In a destructor, finalizer or
 * callback they fail with STANDSTILL_E_NOT_ALLOWED_HERE. */

/* standstill_gc_collect: collects a generation: 0 and 1 are the young objects, 2 is all objects.
 * The call works also while the collector is disabled. Returns the number of collected plus the
 * number of uncollectable objects, or -1 and an error. Returns 0 if another thread collects or
 * visits all objects: it does not wait for the end of that. Like PyGC_Collect it is a safepoint,
 * also then.
 * Errors: STANDSTILL_E_BAD_GENERATION.
 * Misuse: STANDSTILL_E_NOT_ALLOWED_HERE, as for PyGC_Collect (result 0).
 * Since: ours (gc.collect). Traversal: refused (-1). */
STANDSTILL_STABLE Py_ssize_t standstill_gc_collect(int generation);

/* standstill_adjust_external_bytes: tells the heap that its objects have got `change` bytes outside
 * the heap, or, if `change` is negative, that they have given them up. For memory of malloc,
 * mappings, and objects of other libraries: the heap cannot see it, and a small object can keep
 * much of it. (PyMem_Malloc counts its blocks by itself.) An automatic collection becomes due as
 * for bytes in the heap, and the bytes count for the heap's limit. Call it once with the
 * size when the memory is allocated, and once with the negative size when it is freed, for example
 * in tp_dealloc. Wrong numbers make collections too frequent or too rare. It never collects.
 * Returns 0, or -1 and an error.
 * Since: ours. Traversal: refused (-1). */
STANDSTILL_STABLE int standstill_adjust_external_bytes(Py_ssize_t change);

/* The same as PyGC_Enable, PyGC_Disable, PyGC_IsEnabled. */
STANDSTILL_STABLE int standstill_gc_enable(void);
STANDSTILL_STABLE int standstill_gc_disable(void);
STANDSTILL_STABLE int standstill_gc_isenabled(void);

/* standstill_gc_set_threshold: more than `t0` new objects start an automatic collection; 0 disables
 * automatic collections. If `t1` is 0, every automatic collection is full. Otherwise one is full
 * only if the heap has over a quarter more objects than the last full collection left, or more than
 * twice its bytes and over 16 MiB more: a full one is due then, however few objects are new. `t2`
 * is stored and has no effect. Returns 0, or -1 and an error.
 * standstill_gc_get_threshold: writes the three thresholds. Returns 0 or -1.
 * Errors: STANDSTILL_E_BAD_THRESHOLD (negative).
 * Since: ours (gc.set_threshold). Traversal: refused. */
STANDSTILL_STABLE int standstill_gc_set_threshold(int t0, int t1, int t2);
STANDSTILL_STABLE int standstill_gc_get_threshold(int out[3]);

/* standstill_gc_get_count: writes the number of tracked objects that are new since the last
 * collection, 0, and the number of young collections since the last full one. (The collector
 * compares an estimate with `t0`: it counts memory for objects, tracked or not.) Returns 0 or -1.
 * Since: ours (gc.get_count). Traversal: refused. */
STANDSTILL_STABLE int standstill_gc_get_count(Py_ssize_t out[3]);

/* Totals of one generation since the heap was made. */
typedef struct {
    uint64_t collections;
    uint64_t collected;
    uint64_t uncollectable;
    uint64_t candidates; /* objects that were examined */
    double duration;     /* seconds */
    double stopped;      /* seconds for which the world was stopped */
} standstill_gc_stats;

/* standstill_gc_get_stats: writes the totals of the three generations. Returns 0 or -1.
 * Since: ours (gc.get_stats). Traversal: refused. */
STANDSTILL_STABLE int standstill_gc_get_stats(standstill_gc_stats out[3]);

/* The argument of a progress callback. In the phase "start" only the generation is set. */
typedef struct {
    int generation;
    uint64_t collected;
    uint64_t uncollectable;
    uint64_t candidates;
    double duration;
    double stopped;
    uint64_t external_bytes; /* bytes outside the heap that the collected objects had */
} standstill_gc_info;

/* standstill_gc_add_callback: registers a callback. The collecting thread calls it before ("start")
 * and after ("stop") each collection, while the world runs, but not at the last one of Py_Finalize
 * or standstill_heap_free. Returns the callback's id, from 1, or -1 and an error.
 * standstill_gc_remove_callback: removes a callback. Returns 0, or -1 if there is no such id. Both
 * take effect at the next phase.
 * Aborts: as standstill_heap_new.
 * Since: ours (gc.callbacks). Traversal: refused. */
typedef void (*standstill_gc_callback)(const char *phase, const standstill_gc_info *info,
                                       void *arg);
STANDSTILL_STABLE int standstill_gc_add_callback(standstill_gc_callback callback, void *arg);
STANDSTILL_STABLE int standstill_gc_remove_callback(int id);

#define STANDSTILL_GC_DEBUG_STATS 1u
#define STANDSTILL_GC_DEBUG_COLLECTABLE 2u
#define STANDSTILL_GC_DEBUG_UNCOLLECTABLE 4u
#define STANDSTILL_GC_DEBUG_SAVEALL 32u
#define STANDSTILL_GC_DEBUG_LEAK 38u

/* standstill_gc_set_debug: selects the lines that collections write. Returns 0, or -1 and an error.
 * standstill_gc_get_debug: returns the selected bits. standstill_gc_set_debug_sink: sets the
 * function that receives the lines; NULL: they go to stderr.
 * Errors: STANDSTILL_E_BAD_DEBUG_FLAGS (unknown bits).
 * Aborts: standstill_gc_set_debug_sink as standstill_heap_new.
 * Since: ours (gc.set_debug). Traversal: refused. */
STANDSTILL_STABLE int standstill_gc_set_debug(unsigned flags);
STANDSTILL_STABLE unsigned standstill_gc_get_debug(void);
STANDSTILL_STABLE void standstill_gc_set_debug_sink(void (*sink)(const char *line, void *arg),
                                                    void *arg);

/* The garbage list holds unreachable objects that were not freed: those with tp_del, and with
 * STANDSTILL_GC_DEBUG_SAVEALL all.
 * standstill_gc_garbage_size: returns the length of the list.
 * standstill_gc_garbage_get: returns a new reference to object `i`, or NULL and an error.
 * standstill_gc_garbage_clear: empties the list. Returns 0 or -1.
 * Errors: STANDSTILL_E_BAD_SIZE (there is no such object).
 * Since: ours (gc.garbage). Traversal: refused. */
STANDSTILL_STABLE Py_ssize_t standstill_gc_garbage_size(void);
STANDSTILL_STABLE PyObject *standstill_gc_garbage_get(Py_ssize_t i);
STANDSTILL_STABLE int standstill_gc_garbage_clear(void);

/* standstill_gc_freeze: excludes all objects that are tracked now from collections.
 * standstill_gc_unfreeze: includes them again. Both return 0 or -1. standstill_gc_get_freeze_count:
 * returns the number of excluded objects, or -1 and an error.
 * Since: ours (gc.freeze). Traversal: refused. */
STANDSTILL_STABLE int standstill_gc_freeze(void);
STANDSTILL_STABLE int standstill_gc_unfreeze(void);
STANDSTILL_STABLE Py_ssize_t standstill_gc_get_freeze_count(void);

/* These functions are for debugging: the objects that they return may be half built. Each returns a
 * tuple, or NULL and an error.
 * standstill_gc_get_objects: the tracked objects of one generation (0, 1, 2) or of all (-1).
 * standstill_gc_get_referrers: the tracked objects whose traverse handlers visit one of the `n`
 * given objects. Both leave out frozen objects, and those that a running collection will clear.
 * standstill_gc_get_referents: the objects that the traverse handlers of the given objects visit.
 * Errors: STANDSTILL_E_BAD_GENERATION, _MEMORY, _FOREIGN_POINTER (an object of another heap),
 * _BAD_SIZE (`n` is negative), _HANDLER_ERROR (a traverse handler returned its own value).
 * Since: ours. Traversal: refused. */
STANDSTILL_STABLE PyObject *standstill_gc_get_objects(int generation);
STANDSTILL_STABLE PyObject *standstill_gc_get_referrers(PyObject *const *objects, Py_ssize_t n);
STANDSTILL_STABLE PyObject *standstill_gc_get_referents(PyObject *const *objects, Py_ssize_t n);

/* The same as PyObject_GC_IsTracked, PyObject_GC_IsFinalized. */
STANDSTILL_STABLE int standstill_gc_is_tracked(PyObject *op);
STANDSTILL_STABLE int standstill_gc_is_finalized(PyObject *op);

/* standstill_gc_set_audit_hook: sets a hook for calls of get_objects, get_referrers and
 * get_referents. The event is "gc.get_objects", "gc.get_referrers" or "gc.get_referents".
 * Aborts: as standstill_heap_new.
 * Since: ours. Traversal: refused. */
STANDSTILL_STABLE void standstill_gc_set_audit_hook(void (*hook)(const char *event, void *arg),
                                                    void *arg);

/* ==== Diagnostics ============================================================================= */
/* docs/diagnostics.md explains the figures. These functions use the heap to which the calling
 * thread is attached. Those with a callback make their answer first, and then call `row`, or
 * `step`, for each part of it. The callback may use all of the library; an object whose address it
 * gets may be dead by then. The struct and its texts are valid until the callback returns. Its
 * field `size` is the size of the struct in the library: a later version may add fields at the end.
 * The result of a function is -1 after an error.
 *
 * standstill_census, standstill_holders, standstill_why_alive and standstill_snapshot stop the
 * world, so they are safepoints, and fail in a destructor, finalizer or callback with
 * STANDSTILL_E_NOT_ALLOWED_HERE. They also fail if a traverse handler does
 * (STANDSTILL_E_HANDLER_ERROR), without memory (_MEMORY), and if a thread has ended attached
 * (_CUSTOM). Garbage counts until it is collected. */

/* The objects of one type that are alive. */
typedef struct {
    size_t size;
    const char *type;      /* name of the type */
    size_t objects;
    size_t bytes;          /* in the heap, with heads and rounding */
    size_t external_bytes; /* outside the heap, if the heap knows them by type */
    size_t old;            /* objects that have survived a collection */
    size_t held;           /* objects that are held from outside, and not only by other objects */
    size_t outside;        /* references from outside to all of them */
} standstill_census_row;

/* standstill_census: counts objects and bytes by type, in one stop. The types with the most bytes
 * come first. Returns the number of types.
 * Errors: those above, STANDSTILL_E_NULL_ARGUMENT.
 * Since: ours. Traversal: refused (-1). */
STANDSTILL_STABLE Py_ssize_t standstill_census(void (*row)(const standstill_census_row *row,
                                                           void *arg),
                                               void *arg);

/* An object that is held from outside. */
typedef struct {
    size_t size;
    const char *type;        /* name of its type */
    const void *object;      /* its address */
    size_t outside;          /* references to it from outside; 0: held without a counted one */
    size_t retained_bytes;   /* what would become free without it, its own bytes included */
    size_t retained_objects; /* the number of these objects, with itself */
} standstill_holder;

/* standstill_holders: lists the objects that are held from outside, at most `most` of them. Those
 * that retain the most bytes come first. It copies all references in one stop, and works on the
 * copy afterwards. Returns the number of all such objects.
 * Errors: those above, STANDSTILL_E_NULL_ARGUMENT, _BAD_SIZE (`most` is negative).
 * Since: ours. Traversal: refused (-1). */
STANDSTILL_STABLE Py_ssize_t standstill_holders(Py_ssize_t most,
                                                void (*row)(const standstill_holder *row,
                                                            void *arg),
                                                void *arg);

/* An object on a path. */
typedef struct {
    size_t size;
    const char *field;  /* the attribute of the object before that leads here; NULL: not known */
    const char *type;   /* name of its type */
    const void *object; /* its address */
    size_t outside;     /* of the first object: references to it from outside; of others 0 */
} standstill_path_step;

/* standstill_why_alive: finds the shortest path to `op` from another object that is held from
 * outside. If there is none, and `op` itself is held, the path is `op` alone. Returns the number of
 * objects on the path, the last of which is `op`. 0: nothing keeps it alive, so it is garbage; or
 * it is static, or its destruction has begun.
 * Errors: those above, STANDSTILL_E_NULL_ARGUMENT.
 * Since: ours. Traversal: refused (-1). */
STANDSTILL_STABLE Py_ssize_t standstill_why_alive(PyObject *op,
                                                  void (*step)(const standstill_path_step *step,
                                                               void *arg),
                                                  void *arg);

/* standstill_snapshot: writes all objects and references into the file `path`, which the developer
 * tools of Chrome and Edge open as a .heapsnapshot. Any bytes that the system takes for a path will
 * do. A child of the process writes it, so that the stop is short; of your code only traverse
 * handlers run in it, and one that allocates or takes a lock may make it wait, for ten minutes at
 * most. Where there can be no child, or it fails, the objects are copied in one stop. The thread is
 * detached while the file is written. Until it is complete, ".PID-N.part" is behind its name; after
 * an error no part is left, and a file that had the name is as it was. Returns the number of
 * objects.
 * Errors: those above, STANDSTILL_E_NULL_ARGUMENT, _CUSTOM (the system refuses to make or write the
 * file; the message has the reason and errno).
 * Aborts: without memory for std's copy of a `path` of more than 370 bytes.
 * Since: ours. Traversal: refused (-1). */
STANDSTILL_STABLE Py_ssize_t standstill_snapshot(const char *path);

/* How values of one time are distributed, in nanoseconds. A percentile is up to 1.6 %, or 0.1
 * microseconds, too long; that of a thread, up to a quarter. */
typedef struct {
    size_t size;
    const char *name;
    uint64_t count;   /* the number of values; 0: all other fields are 0 too */
    uint64_t mean_ns;
    uint64_t p50_ns;  /* half of the values are at most this */
    uint64_t p99_ns;  /* 99 % are at most this */
    uint64_t p999_ns; /* 99.9 % are at most this */
    uint64_t max_ns;
} standstill_gc_times;

/* standstill_gc_get_times: passes on how long collections took, since the heap was made: of
 * `generation` 0 and 1 the young ones, of 2 the full ones. First come "pause" (each stop is a
 * value), "time_to_stop", "waited" (of collections that waited for others) and "duration", then the
 * phases that have run ("Merge", "Count", "Mark", ...). Returns the number of rows.
 * Errors: STANDSTILL_E_BAD_GENERATION, _NULL_ARGUMENT, _MEMORY.
 * Since: ours. Traversal: refused (-1). */
STANDSTILL_STABLE Py_ssize_t standstill_gc_get_times(int generation,
                                                     void (*row)(const standstill_gc_times *row,
                                                                 void *arg),
                                                     void *arg);

/* How late a thread was at stops. */
typedef struct {
    size_t size;
    const char *thread; /* the thread's name, or NULL */
    uint64_t os_thread; /* the system's thread id (gettid); 0: unknown */
    const char *mark;   /* what it has last told standstill_mark, or NULL */
    int attached;       /* 1: it is attached now; 0: it has called PyEval_SaveThread */
    const standstill_gc_times *time_to_stop; /* from the beginning of each stop that found it
                                                attached until it stood still or detached */
} standstill_thread_times;

/* standstill_threads: passes on the threads that are attached to the heap, or will attach again by
 * PyEval_RestoreThread, and how late each was at stops. Returns the number of threads.
 * Errors: STANDSTILL_E_NULL_ARGUMENT, _MEMORY.
 * Since: ours. Traversal: refused (-1). */
STANDSTILL_STABLE Py_ssize_t standstill_threads(void (*row)(const standstill_thread_times *row,
                                                            void *arg),
                                                void *arg);

/* standstill_mark: notes what the calling thread is about to do, such as "reading a request", until
 * its next mark, or until its attachment ends. Reports of late threads and
 * standstill_threads show it. `at` is UTF-8 and not copied, so it must stay valid and unchanged
 * until the process ends, as a literal does. NULL or "" clears the mark. The call is cheap, and
 * allowed in destructors, finalizers and callbacks too.
 * Misuse: the thread is not attached; STANDSTILL_E_WRONG_TYPE (`at` is not UTF-8).
 * Since: ours. Traversal: refused. */
STANDSTILL_STABLE void standstill_mark(const char *at);

/* PyObject_Dump: writes to stderr what lies at an address, in lines: the address, count, type,
 * state and heap of an object; or that there is no object of a heap that C has made. For a debugger
 * (`call standstill_PyObject_Dump(p)`) that has stopped the threads anywhere: it waits for no lock
 * and no stop, and takes no memory, on any thread, attached or not. The pointer may be wrong, but
 * reading an object whose head was overwritten may end the process.
 * Since: 3.15. Traversal: safe. */
STANDSTILL_STABLE void PyObject_Dump(PyObject *op);

/* ==== For tests =============================================================================== */

/* standstill_live_objects, standstill_live_bytes: return the number of objects in the heap and
 * their size in bytes. -1 and 0: the thread is not attached. The numbers are exact while the other
 * threads do nothing.
 * Since: ours. Traversal: refused. */
STANDSTILL_STABLE long long standstill_live_objects(void);
STANDSTILL_STABLE size_t standstill_live_bytes(void);

/* standstill_external_bytes: returns the bytes that objects have outside the heap: blocks of
 * PyMem_Malloc, and what standstill_adjust_external_bytes has told. 0: the thread is not attached.
 * Of each thread up to 64 KiB are missing, or counted too much.
 * Since: ours. Traversal: refused (0). */
STANDSTILL_STABLE size_t standstill_external_bytes(void);

#ifdef __cplusplus
}
#endif

#endif /* STANDSTILL_H */

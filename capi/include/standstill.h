/* standstill.h: the C face of standstill, a stop-the-world cyclic garbage collector for free-threaded runtimes.
 *
 * This is the one public header. It is C99 and C++ (11 or later), and it is the reference: each function is described
 * where it is declared. The guide, with complete programs, is docs/c-api.md.
 *
 * NAMES. The names are those of CPython's C API ("Supporting Cyclic Garbage Collection" and its neighbourhood), with the
 * same order of arguments and the same results. What the library exports has the prefix `standstill_`; macros of this
 * header map the customary names to it. So one process may hold CPython and this library; one C file includes one of
 * the two headers.
 *
 * HOW TO READ AN ENTRY. The word in front of a prototype says what may change:
 *
 *   STANDSTILL_STABLE     name, arguments and result stay as they are within a major version
 *   STANDSTILL_UNSTABLE   a minor version may change it; the change log says so
 *
 * The last line of each comment has two facts:
 *
 *   Since       the CPython version that has the name; "ours" for what only this library has
 *   Traversal   "safe": may be called in a traverse handler. "refused": does nothing there, gives its failure value, and
 *               is reported as misuse (STANDSTILL_E_IN_TRAVERSAL). The safe list may grow, and never shrinks.
 *
 * REFERENCES. A result is a new reference, which the caller owns, unless its entry says "borrowed". Arguments are
 * borrowed, unless the entry says "steals".
 *
 * ERRORS. A function that fails gives its failure value (NULL, -1, or what its entry says) and sets the error indicator of
 * the thread: a code (enum standstill_code), an exception type, and a message that names the function, the type and the
 * object. Functions without a failure value, and calls that are wrong in themselves, are reported to the misuse hook
 * instead: such a call changes nothing. Every function below that needs an attached thread fails with
 * STANDSTILL_E_NOT_ATTACHED on others; every pointer that must not be NULL gives STANDSTILL_E_NULL_ARGUMENT. Entries do
 * not repeat these two.
 *
 * NOT CHECKED. A wild or stale pointer is detected in checked mode only (STANDSTILL_E_FOREIGN_POINTER,
 * STANDSTILL_E_FREED_POINTER); without it, that the pointers a program passes are good is the program's contract. Checked
 * mode is the default of debug builds of the library, and is switched by standstill_heap_options.checked, and by the
 * environment variable STANDSTILL_CHECKED (1 or 0).
 *
 * No function unwinds or jumps out of the library, and no handler may unwind or jump through it.
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

/* ==== The customary names and the symbols behind them ============================================================== */

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

/* ==== Objects ====================================================================================================== */

/* A size or an index: signed, as wide as a pointer. */
typedef intptr_t Py_ssize_t;
#define PY_SSIZE_T_MAX INTPTR_MAX
#define PY_SSIZE_T_MIN INTPTR_MIN

typedef struct _object PyObject;
typedef struct _typeobject PyTypeObject;

/* The type of an object as the collector sees it. More follows, which is private. */
struct standstill_record {
    PyTypeObject *ss_type;
};

/* What every object starts with: 24 bytes. The fields are private; Py_TYPE, Py_REFCNT and the like read them. */
struct _object {
    uint64_t ss_word;
    uint32_t ss_local;
    uint32_t ss_shared;
    const struct standstill_record *ss_record;
};

/* What an object with items starts with: 32 bytes. `ob_size` is the number of items: read it with Py_SIZE. */
typedef struct {
    PyObject ob_base;
    Py_ssize_t ob_size;
} PyVarObject;

/* The first member of an object's struct. */
#define PyObject_HEAD PyObject ob_base;
#define PyObject_VAR_HEAD PyVarObject ob_base;

/* The initialisers of the heads of static objects: these are immortal, and counted by nobody. As in CPython they end
 * in a comma of their own: `{ PyVarObject_HEAD_INIT(NULL, 0) .tp_name = ... }`. The type is not needed, and ignored:
 * PyType_Ready sets it. */
#define PyObject_HEAD_INIT(type) { UINT64_C(0xffffffffff000000), 0, 4, NULL },
#define PyVarObject_HEAD_INIT(type, size) { PyObject_HEAD_INIT(type) (size) },

/* Arrays of negative size, that is errors, where the layout is not what the library was built for. */
typedef char standstill_assert_object_[sizeof(PyObject) == 24 ? 1 : -1];
typedef char standstill_assert_var_object_[sizeof(PyVarObject) == 32 ? 1 : -1];
typedef char standstill_assert_flags_[sizeof(unsigned long) == 8 ? 1 : -1];

#define _PyObject_CAST(op) ((PyObject *)(op))
#define _PyVarObject_CAST(op) ((PyVarObject *)(op))

/* Marks a parameter that is not used. */
#if defined(__GNUC__) || defined(__clang__)
#  define Py_UNUSED(name) _unused_##name __attribute__((unused))
#else
#  define Py_UNUSED(name) _unused_##name
#endif

/* ==== Handlers ===================================================================================================== */

/* visitproc: called by a traverse handler for each reference that an object owns, with the `arg` that the handler was
 * given. Not 0: the handler returns that value at once. Never called with NULL (a NULL is ignored, and reported once
 * per type as STANDSTILL_E_NULL_VISIT). Good during the handler call it was made for; kept and called later it gives
 * 0 and is reported (STANDSTILL_E_STALE_VISITOR). Several visitors exist; a handler must behave alike for all. */
typedef int (*visitproc)(PyObject *object, void *arg);

/* traverseproc: the type of tp_traverse. Calls `visit` once for each strong reference that `self` owns directly
 * (twice for one held twice; not for borrowed pointers, not for weak ones), and for the type of `self`, if that is a
 * heap type. Returns 0, or the first value from `visit` that is not 0, at once: Py_VISIT does both.
 *
 * Runs while the world is stopped, on any thread, several at once, also twice on one object: see
 * STANDSTILL_TPFLAGS_SERIAL_TRAVERSE. It must have no side effects, call nothing but what is marked "safe" here, and
 * wait for nothing: the thread that holds a lock may be stopped. */
typedef int (*traverseproc)(PyObject *self, visitproc visit, void *arg);

/* inquiry: the type of tp_clear (and of tp_is_gc). A clear handler drops the references that may close a cycle:
 * Py_CLEAR for each such member. The object stays valid; the handler may be called again. Runs with the world
 * running. The result is ignored; an error that the handler leaves behind goes to the unraisable hook. */
typedef int (*inquiry)(PyObject *self);

/* destructor: the type of tp_dealloc, tp_finalize and tp_del. */
typedef void (*destructor)(PyObject *self);

typedef void (*freefunc)(void *op);
typedef PyObject *(*allocfunc)(PyTypeObject *type, Py_ssize_t nitems);
typedef PyObject *(*newfunc)(PyTypeObject *type, PyObject *args, PyObject *kwargs);
typedef int (*initproc)(PyObject *self, PyObject *args, PyObject *kwargs);
typedef PyObject *(*PyCFunction)(PyObject *self, PyObject *args);

/* Py_VISIT(o): for traverse handlers, whose parameters must be called `visit` and `arg`, and which return int. If `o`
 * is not NULL, calls visit(o, arg) and makes the handler return the result when it is not 0. Evaluates `o` once; it
 * may be a pointer to any object struct.
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

/* ==== Types ======================================================================================================== */

/* A type. Static types are written with designated initialisers, in the order of the members, and made ready with
 * PyType_Ready; heap types come from PyType_FromSpec. Once a type is ready the members can be read, and show what was
 * inherited; writing them has no effect, and checked mode reports it (STANDSTILL_E_WRITTEN_AFTER_READY). */
struct _typeobject {
    PyVarObject ob_base;
    const char *tp_name;               /* "module.name"; of a heap type its own copy, which goes with it */
    Py_ssize_t tp_basicsize;           /* bytes of an instance, its head included */
    Py_ssize_t tp_itemsize;            /* bytes of an item; 0: no items */
    destructor tp_dealloc;             /* NULL: the generic one */
    unsigned long tp_flags;            /* Py_TPFLAGS_* */
    const char *tp_doc;
    traverseproc tp_traverse;
    inquiry tp_clear;
    Py_ssize_t tp_weaklistoffset;      /* accepted, not needed: every object can be referred to weakly */
    PyTypeObject *tp_base;             /* NULL: PyBaseObject_Type */
    Py_ssize_t tp_dictoffset;          /* accepted, not used: Py_TPFLAGS_MANAGED_DICT */
    initproc tp_init;                  /* stored and inherited, never called by this library */
    allocfunc tp_alloc;                /* NULL: inherited, at the root PyType_GenericAlloc */
    newfunc tp_new;                    /* likewise */
    freefunc tp_free;                  /* NULL: PyObject_GC_Del, or PyObject_Free without Py_TPFLAGS_HAVE_GC */
    inquiry tp_is_gc;                  /* a test per object, besides the flag */
    PyObject *tp_bases;                /* a tuple, or NULL */
    PyObject *tp_weaklist;             /* reserved */
    destructor tp_del;                 /* legacy finalizer: keeps cycles from being collected */
    unsigned int tp_version_tag;       /* reserved */
    destructor tp_finalize;            /* at most once for each object */
    void *ss_reserved[7];              /* reserved */
    const struct standstill_record *ss_own; /* private: NULL until the type is ready */
};

/* Flags of types, with CPython's bits. */
#define Py_TPFLAGS_DEFAULT 0UL
#define Py_TPFLAGS_MANAGED_WEAKREF (1UL << 3)        /* accepted, not needed */
#define Py_TPFLAGS_MANAGED_DICT (1UL << 4)           /* a dictionary for each instance; heap types with HAVE_GC only */
#define Py_TPFLAGS_DISALLOW_INSTANTIATION (1UL << 7) /* stored */
#define Py_TPFLAGS_IMMUTABLETYPE (1UL << 8)          /* stored */
#define Py_TPFLAGS_HEAPTYPE (1UL << 9)               /* set by PyType_FromSpec */
#define Py_TPFLAGS_BASETYPE (1UL << 10)              /* may be subclassed */
#define Py_TPFLAGS_READY (1UL << 12)                 /* set by readiness */
#define Py_TPFLAGS_HAVE_GC (1UL << 14)               /* a container: takes part in collections */
#define Py_TPFLAGS_IS_ABSTRACT (1UL << 20)           /* stored */
#define Py_TPFLAGS_ITEMS_AT_END (1UL << 23)          /* items lie at the end of the instance: PyObject_GetItemData */
#define Py_TPFLAGS_LONG_SUBCLASS (1UL << 24)
#define Py_TPFLAGS_LIST_SUBCLASS (1UL << 25)
#define Py_TPFLAGS_TUPLE_SUBCLASS (1UL << 26)
#define Py_TPFLAGS_BYTES_SUBCLASS (1UL << 27)
#define Py_TPFLAGS_UNICODE_SUBCLASS (1UL << 28)
#define Py_TPFLAGS_DICT_SUBCLASS (1UL << 29)
#define Py_TPFLAGS_BASE_EXC_SUBCLASS (1UL << 30)
#define Py_TPFLAGS_TYPE_SUBCLASS (1UL << 31)
/* Ours: the traverse handlers of types with this flag are called one at a time. In a PyType_Spec by the slot
 * STANDSTILL_tp_flags: its own flags are too narrow. */
#define STANDSTILL_TPFLAGS_SERIAL_TRAVERSE (1UL << 62)
/* Ours: the items are references to objects. In checked mode a resize that would cut one off fails. Given like the
 * flag above. */
#define STANDSTILL_TPFLAGS_ITEMS_ARE_REFERENCES (1UL << 61)

/* What a heap type is made from. */
typedef struct {
    int slot;    /* Py_tp_*; 0 ends the list */
    void *pfunc;
} PyType_Slot;

typedef struct {
    const char *name;   /* "module.name"; copied */
    int basicsize;      /* bytes; 0: as the base; negative: that many bytes besides what the base has */
    int itemsize;       /* bytes; 0: as the base */
    unsigned int flags; /* Py_TPFLAGS_* */
    PyType_Slot *slots; /* read by the constructor, not kept */
} PyType_Spec;

/* Slots, with CPython's numbers. Those of CPython that are not listed concern the language: STANDSTILL_E_BAD_SLOT. */
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
/* Ours: the address of a uint64_t with more flags, for those that the 32 bits of a PyType_Spec have no room for. */
#define STANDSTILL_tp_flags 1001
/* The value of the slot Py_tp_token that makes the address of the spec the token. */
#define Py_TP_USE_SPEC NULL

/* PyType_Ready: finishes a static type: fills what it inherits, then checks it. A type without Py_TPFLAGS_HAVE_GC,
 * tp_traverse and tp_clear inherits all three of its base. Returns 0; -1 and an error: STANDSTILL_E_MISSING_TRAVERSE
 * (the flag without tp_traverse), _HANDLERS_WITHOUT_FLAG, _MIXED_BASES, _BAD_FREE, _BAD_FLAGS, _BAD_BASE, _BAD_SIZE.
 * _BAD_SIZE is also the answer to items under a base that has fields and no items: the number of items lies behind the
 * head, where such a base has its first field. _WRONG_TYPE: tp_name is not UTF-8.
 * A type that failed can be corrected and tried again; for one that is ready: 0, nothing happens.
 * Since: 2.2. Traversal: refused. */
STANDSTILL_STABLE int PyType_Ready(PyTypeObject *type);

/* PyType_FromSpec, PyType_FromSpecWithBases, PyType_FromModuleAndSpec: a new heap type, ready. `bases`: NULL, a type,
 * or a tuple of types; NULL: the slots Py_tp_bases or Py_tp_base, else PyBaseObject_Type. `module`: NULL, or a
 * module, which the type refers to. NULL and an error as for PyType_Ready, and STANDSTILL_E_BAD_SLOT, _BAD_MRO;
 * nothing is leaked then. _BAD_BASE is also the answer to a base that was made in Rust.
 * Since: 3.2, 3.3, 3.9. Traversal: refused. */
STANDSTILL_STABLE PyObject *PyType_FromSpec(PyType_Spec *spec);
STANDSTILL_STABLE PyObject *PyType_FromSpecWithBases(PyType_Spec *spec, PyObject *bases);
STANDSTILL_STABLE PyObject *PyType_FromModuleAndSpec(PyObject *module, PyType_Spec *spec, PyObject *bases);

/* PyType_IsSubtype: 1 if `a` is `b` or has it among its bases, else 0. NULL: 0 and misuse.
 * Since: 2.2. Traversal: safe. */
STANDSTILL_STABLE int PyType_IsSubtype(PyTypeObject *a, PyTypeObject *b);

/* PyType_HasFeature: 1 if a bit of `feature` is among the type's flags, else 0. NULL: 0 and misuse.
 * Since: 2.2. Traversal: safe. */
STANDSTILL_STABLE int PyType_HasFeature(PyTypeObject *type, unsigned long feature);

/* PyType_GetFlags: the type's flags. NULL: 0 and misuse.  Since: 3.2. Traversal: refused (0). */
STANDSTILL_STABLE unsigned long PyType_GetFlags(PyTypeObject *type);

/* PyType_GetSlot: the value of the slot Py_tp_...; NULL: the slot is empty. NULL and an error: STANDSTILL_E_BAD_SLOT.
 * Since: 3.4. Traversal: refused. */
STANDSTILL_STABLE void *PyType_GetSlot(PyTypeObject *type, int slot);

/* PyType_GetModule: the module that the type was made with; bases are not searched. Borrowed. NULL and an error when
 * there is none: STANDSTILL_E_NO_MODULE.
 * Since: 3.9. Traversal: refused (PyType_GetModule_DuringGC). */
STANDSTILL_STABLE PyObject *PyType_GetModule(PyTypeObject *type);

/* PyType_GetModuleState: the state of that module; NULL is also a state. NULL and an error: STANDSTILL_E_NO_MODULE.
 * Since: 3.9. Traversal: refused (PyType_GetModuleState_DuringGC). */
STANDSTILL_STABLE void *PyType_GetModuleState(PyTypeObject *type);

/* PyType_GetModuleByDef: the module of the first type in the resolution order whose module was made from `def`.
 * Borrowed. NULL and an error: STANDSTILL_E_NO_MODULE.
 * Since: 3.11. Traversal: refused. */
struct PyModuleDef;
STANDSTILL_STABLE PyObject *PyType_GetModuleByDef(PyTypeObject *type, struct PyModuleDef *def);

/* PyType_GetModuleByToken: the module of the first type in the resolution order whose module has the token: a new
 * reference. NULL and an error: STANDSTILL_E_NO_MODULE.
 * Since: 3.15. Traversal: refused (PyType_GetModuleByToken_DuringGC). */
STANDSTILL_STABLE PyObject *PyType_GetModuleByToken(PyTypeObject *type, const void *token);

/* PyType_GetBaseByToken: the first type in the resolution order that has the token. 1 and a new reference in
 * `*result`; 0 and NULL: none; -1, NULL and an error: no token, or the type is not ready. `result` may be NULL.
 * Since: 3.14. Traversal: refused (PyType_GetBaseByToken_DuringGC). */
STANDSTILL_STABLE int PyType_GetBaseByToken(PyTypeObject *type, void *token, PyTypeObject **result);

/* PyType_GetTypeDataSize: how many bytes PyObject_GetTypeData gives for the type: 0 when it reserves none of its own.
 * -1 and an error: not ready.
 * Since: 3.12. Traversal: refused. */
STANDSTILL_STABLE Py_ssize_t PyType_GetTypeDataSize(PyTypeObject *type);

/* The types that the library has: static, immortal. */
extern STANDSTILL_STABLE PyTypeObject PyBaseObject_Type; /* the base of all */
extern STANDSTILL_STABLE PyTypeObject PyType_Type;       /* of types */
extern STANDSTILL_STABLE PyTypeObject PyModule_Type;
extern STANDSTILL_STABLE PyTypeObject PyTuple_Type;
extern STANDSTILL_STABLE PyTypeObject PyUnicode_Type;    /* immutable, UTF-8 */
extern STANDSTILL_STABLE PyTypeObject PyLong_Type;       /* 64 bits, signed */
extern STANDSTILL_STABLE PyTypeObject PyWeakref_Type;

/* The object for "nothing": immortal. */
extern STANDSTILL_STABLE PyObject _Py_NoneStruct;
#define Py_None (&_Py_NoneStruct)
#define Py_RETURN_NONE return Py_None

/* ==== Counts and heads ============================================================================================= */

/* Py_IncRef, Py_DecRef: the functions behind Py_INCREF and Py_DECREF. NULL: nothing happens. In a traverse handler
 * nothing happens, and it is reported. A count that reaches 0 destroys the object: tp_dealloc, on this thread, with
 * the world running. Py_DecRef is safe on a thread that is not attached: the object, if that was the last reference,
 * is destroyed later by an attached one.
 * Since: 2.4. Traversal: refused. */
STANDSTILL_STABLE void Py_IncRef(PyObject *op);
STANDSTILL_STABLE void Py_DecRef(PyObject *op);

/* Py_REFCNT: how many references there are at this moment; immortal objects: a large number.
 * Since: 2.0. Traversal: refused (0). */
STANDSTILL_STABLE Py_ssize_t standstill_Py_REFCNT(PyObject *op);

/* Py_SIZE: the number of items. An object without items: 0 and misuse (STANDSTILL_E_WRONG_TYPE).
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

/* Sets the pointer at `field`, then drops what it referred to. Copied as bytes: it may be of any pointer type. */
static inline void standstill_set_(void *field, PyObject *value)
{
    PyObject *old;
    memcpy(&old, field, sizeof old);
    memcpy(field, &value, sizeof value);
    standstill_xdecref_(old);
}

/* Py_TYPE: the type of an object. Borrowed; good as long as the object. NULL for a static type that is not ready.
 * Since: 2.0. Traversal: safe, and the result stays good for the whole handler call. */
#define Py_TYPE(op) standstill_type_of_(_PyObject_CAST(op))
/* Py_IS_TYPE: whether the object is of exactly this type.  Since: 3.9. Traversal: safe. */
#define Py_IS_TYPE(op, type) (Py_TYPE(op) == (type))

/* Py_INCREF, Py_DECREF and those that accept NULL.  Since: 2.0. Traversal: refused. */
#define Py_INCREF(op) Py_IncRef(_PyObject_CAST(op))
#define Py_DECREF(op) Py_DecRef(_PyObject_CAST(op))
#define Py_XINCREF(op) standstill_xincref_(_PyObject_CAST(op))
#define Py_XDECREF(op) standstill_xdecref_(_PyObject_CAST(op))
/* Py_NewRef, Py_XNewRef: adds a reference and gives the object, as PyObject *.
 * Since: 3.10. Traversal: refused. */
#define Py_NewRef(op) standstill_new_ref_(_PyObject_CAST(op))
#define Py_XNewRef(op) standstill_x_new_ref_(_PyObject_CAST(op))

/* Py_CLEAR(field): sets the field to NULL first, then drops what it referred to, if anything. Py_SETREF(field,
 * value), Py_XSETREF: the same with a new value, whose reference the field takes over. Each argument is evaluated
 * once; the field may be a pointer to any object struct. A field that other threads change is to be locked, as for
 * any other assignment.
 * Since: 2.4, 3.6. Traversal: refused (the field is emptied all the same: never do it). */
#define Py_CLEAR(field) standstill_set_((void *)&(field), NULL)
#define Py_SETREF(field, value) standstill_set_((void *)&(field), _PyObject_CAST(value))
#define Py_XSETREF(field, value) standstill_set_((void *)&(field), _PyObject_CAST(value))

/* PyObject_TypeCheck: 1 if the object is of the type, or of one derived from it, else 0. NULL: 0 and misuse.
 * Since: 2.2. Traversal: safe. */
STANDSTILL_STABLE int standstill_PyObject_TypeCheck(PyObject *op, PyTypeObject *type);
#define PyObject_TypeCheck(op, type) standstill_PyObject_TypeCheck(_PyObject_CAST(op), (type))

/* Py..._Check: 1 for an object of the type or a derived one, else 0; ..._CheckExact: of exactly this type. NULL: 0
 * and misuse.
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

/* ==== Allocation =================================================================================================== */
/* No allocation runs a collection: it may request one, which the next safepoint of some thread runs. */

/* PyType_GenericAlloc: what tp_alloc is, unless the type says otherwise: a new object of the type with room for
 * `nitems` items, all bytes behind the head 0; tracked already if the type has Py_TPFLAGS_HAVE_GC (a first
 * PyObject_GC_Track afterwards is no mistake). Users allocate through it: `type->tp_alloc(type, 0)`. NULL and an
 * error: STANDSTILL_E_MEMORY, _NOT_READY, _BAD_SIZE (negative, too large, or items for a type without).
 * Since: 2.2. Traversal: refused. */
STANDSTILL_STABLE PyObject *PyType_GenericAlloc(PyTypeObject *type, Py_ssize_t nitems);

/* PyObject_GC_New(TYPE, typeobj): a new container object of tp_basicsize bytes, as TYPE *, zeroed behind the head,
 * not tracked. A building block for a tp_alloc of one's own; elsewhere call tp_alloc. To be freed by tp_free. NULL
 * and an error: STANDSTILL_E_MEMORY, _NOT_READY, _NOT_GC_TYPE, _BAD_SIZE.
 * Since: 2.0. Traversal: refused. */
#define PyObject_GC_New(TYPE, typeobj) ((TYPE *)_PyObject_GC_New(typeobj))
STANDSTILL_STABLE PyObject *_PyObject_GC_New(PyTypeObject *type);

/* PyObject_GC_NewVar(TYPE, typeobj, size): as PyObject_GC_New, with `size` items of tp_itemsize bytes each after
 * tp_basicsize. Negative: STANDSTILL_E_BAD_SIZE; too large: STANDSTILL_E_MEMORY.
 * Since: 2.0. Traversal: refused. */
#define PyObject_GC_NewVar(TYPE, typeobj, size) ((TYPE *)_PyObject_GC_NewVar((typeobj), (size)))
STANDSTILL_STABLE PyVarObject *_PyObject_GC_NewVar(PyTypeObject *type, Py_ssize_t nitems);

/* PyObject_GC_Resize(TYPE, op, newsize): changes the number of items of an object from PyObject_GC_NewVar or tp_alloc
 * that is not tracked, and to which the caller has the only reference. Gives the object as TYPE *, maybe at another
 * address: `op` is dead then. New items are 0; items that are cut off are not released. NULL and an error, `op` being
 * as it was: STANDSTILL_E_MEMORY, _BAD_SIZE, _TRACKED_RESIZE, _SHARED_RESIZE, _NOT_RESIZABLE (no items),
 * _NOT_GC_OBJECT.
 * Since: 2.0. Traversal: refused. */
#define PyObject_GC_Resize(TYPE, op, newsize) ((TYPE *)_PyObject_GC_Resize(_PyVarObject_CAST(op), (newsize)))
STANDSTILL_STABLE PyVarObject *_PyObject_GC_Resize(PyVarObject *op, Py_ssize_t newsize);

/* PyUnstable_Object_GC_NewWithExtraData: as PyObject_GC_New, with `extra_size` bytes after tp_basicsize, all 0. The
 * library does not look at them. Prefer items. NULL and an error as for PyObject_GC_New, and for a type with items
 * (STANDSTILL_E_BAD_SIZE).
 * Since: 3.12. Traversal: refused. */
STANDSTILL_UNSTABLE PyObject *PyUnstable_Object_GC_NewWithExtraData(PyTypeObject *type, size_t extra_size);

/* PyObject_New(TYPE, typeobj), PyObject_NewVar(TYPE, typeobj, size): the counterparts for types without
 * Py_TPFLAGS_HAVE_GC; freed by PyObject_Free. NULL and an error as above, and for a container type
 * (STANDSTILL_E_GC_TYPE).
 * Since: 1.5. Traversal: refused. */
#define PyObject_New(TYPE, typeobj) ((TYPE *)_PyObject_New(typeobj))
#define PyObject_NewVar(TYPE, typeobj, size) ((TYPE *)_PyObject_NewVar((typeobj), (size)))
STANDSTILL_STABLE PyObject *_PyObject_New(PyTypeObject *type);
STANDSTILL_STABLE PyVarObject *_PyObject_NewVar(PyTypeObject *type, Py_ssize_t nitems);

/* PyObject_GC_Del: gives the memory of a container object back; releases neither its members nor its type, and calls
 * no handler. Deallocators call tp_free, which ends here. Misuse: _WRONG_ALLOCATOR (not a container object),
 * _REFERENCES_LEFT (others have references; one that is not tracked and has one reference is a failed constructor,
 * and freed), _DOUBLE_FREE (checked mode): nothing happens. _STILL_TRACKED: reported, untracked, and freed.
 * Since: 2.0. Traversal: refused. */
STANDSTILL_STABLE void PyObject_GC_Del(void *op);

/* PyObject_Free: the same for objects of PyObject_New and PyObject_NewVar. A container object: misuse
 * (_WRONG_ALLOCATOR), nothing happens. NULL: nothing happens.
 * Since: 1.5. Traversal: refused. */
STANDSTILL_STABLE void PyObject_Free(void *op);
#define PyObject_Del PyObject_Free

/* ==== Tracking ===================================================================================================== */

/* PyObject_GC_Track: adds an object to those that the collector looks at. From now on every member that its traverse
 * handler follows is NULL or a living object. Misuse, and nothing happens: _ALREADY_TRACKED (but for the first call
 * after PyType_GenericAlloc), _NOT_GC_OBJECT.
 * Since: 2.0. Traversal: refused. */
STANDSTILL_STABLE void PyObject_GC_Track(void *op);

/* PyObject_GC_UnTrack: takes it out. A deallocator does this first. An object that is not tracked: nothing happens.
 * Misuse: _NOT_GC_OBJECT.
 * Since: 2.0. Traversal: refused. */
STANDSTILL_STABLE void PyObject_GC_UnTrack(void *op);

/* PyObject_IS_GC: 1 if the object's type is a container type (and its tp_is_gc, if it has one, agrees), else 0.
 * Static types: 0. NULL: 0 and misuse.
 * Since: 2.2. Traversal: safe. */
STANDSTILL_STABLE int PyObject_IS_GC(PyObject *op);

/* PyObject_GC_IsTracked: 1 if the object is tracked at this moment, else 0.
 * Since: 3.9. Traversal: refused (0). */
STANDSTILL_STABLE int PyObject_GC_IsTracked(PyObject *op);

/* PyObject_GC_IsFinalized: 1 if the object's finalizer has been run, else 0.
 * Since: 3.9. Traversal: refused (0). */
STANDSTILL_STABLE int PyObject_GC_IsFinalized(PyObject *op);

/* ==== The end of an object ========================================================================================= */

/* PyObject_CallFinalizer: calls tp_finalize, unless it has been called for this object. A static type that is not
 * ready: misuse (STANDSTILL_E_NOT_READY), nothing happens.
 * Since: 3.4. Traversal: refused. */
STANDSTILL_STABLE void PyObject_CallFinalizer(PyObject *op);

/* PyObject_CallFinalizerFromDealloc: for the start of a deallocator: the same. 0: go on. -1: the finalizer has made
 * the object reachable again, so the deallocator returns at once.
 * Since: 3.4. Traversal: refused (0). */
STANDSTILL_STABLE int PyObject_CallFinalizerFromDealloc(PyObject *op);

/* PyObject_ClearWeakRefs: for deallocators: empties the weak references to the object and runs their callbacks.
 * Since: 2.1. Traversal: refused. */
STANDSTILL_STABLE void PyObject_ClearWeakRefs(PyObject *op);

/* ==== The managed dictionary, and attributes ======================================================================= */

/* PyObject_VisitManagedDict: for traverse handlers of types with Py_TPFLAGS_MANAGED_DICT: visits the values in the
 * instance's dictionary. Gives 0, or the first value from `visit` that is not 0, to be returned at once. A type
 * without the flag: 0. Outside of traversals `visit` may change the dictionary; without memory for that nothing is visited: -1.
 * Since: 3.13. Traversal: safe. */
STANDSTILL_STABLE int PyObject_VisitManagedDict(PyObject *op, visitproc visit, void *arg);

/* PyObject_ClearManagedDict: for their clear handlers and deallocators: empties the dictionary.
 * Since: 3.13. Traversal: refused. */
STANDSTILL_STABLE void PyObject_ClearManagedDict(PyObject *op);

/* PyObject_SetAttrString, PyObject_GetAttrString, PyObject_HasAttrString: attributes of an instance with a managed
 * dictionary, or of a heap type (each thread-safe). Setting: 0, or -1 and an error; the value NULL removes. Getting:
 * a new reference, or NULL and an error: STANDSTILL_E_NO_ATTRIBUTE. Having: 1 or 0, no error. There are no
 * descriptors, and nothing is inherited from bases. `name` is UTF-8; if not: STANDSTILL_E_WRONG_TYPE, and for Having
 * 0 and misuse.
 * Since: 2.0. Traversal: refused. */
STANDSTILL_STABLE int PyObject_SetAttrString(PyObject *op, const char *name, PyObject *value);
STANDSTILL_STABLE PyObject *PyObject_GetAttrString(PyObject *op, const char *name);
STANDSTILL_STABLE int PyObject_HasAttrString(PyObject *op, const char *name);

/* ==== Data of types and items ====================================================================================== */

/* PyObject_GetTypeData: the part of `op` that `cls`, made with a negative basicsize, has reserved. NULL and an error:
 * `op` is not an instance (STANDSTILL_E_WRONG_TYPE), or `cls` reserves nothing.
 * Since: 3.12. Traversal: refused (PyObject_GetTypeData_DuringGC). */
STANDSTILL_STABLE void *PyObject_GetTypeData(PyObject *op, PyTypeObject *cls);

/* PyObject_GetItemData: the first item of an object whose type has Py_TPFLAGS_ITEMS_AT_END. NULL and an error: it has
 * not.
 * Since: 3.12. Traversal: refused (PyObject_GetItemData_DuringGC). */
STANDSTILL_STABLE void *PyObject_GetItemData(PyObject *op);

/* ==== Modules ====================================================================================================== */

/* Accepted for the sake of source compatibility; methods are not called by this library. */
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
#define Py_mod_exec 2                  /* accepted, not called */
#define Py_mod_multiple_interpreters 3 /* accepted, no meaning */
#define Py_mod_gil 4                   /* accepted, no meaning: there is none */
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

/* What a module is made from. It is not copied: it stays as long as modules made from it. Its address is their token. */
typedef struct PyModuleDef {
    PyModuleDef_Base m_base;
    const char *m_name;
    const char *m_doc;
    Py_ssize_t m_size;         /* bytes of state; 0 or negative: none */
    PyMethodDef *m_methods;    /* accepted, not called */
    PyModuleDef_Slot *m_slots;
    traverseproc m_traverse;   /* of what the state refers to; self is the module */
    inquiry m_clear;
    freefunc m_free;           /* called with the module, before the state goes */
} PyModuleDef;

/* PyModule_Create: a new module with m_size bytes of state, all 0. PyModule_FromDefAndSpec: the same, with the name
 * that the attribute "name" of `spec` gives, if `spec` is not NULL and has a string there. NULL and an error:
 * STANDSTILL_E_MEMORY, _BAD_SLOT, _WRONG_TYPE (a name that is not UTF-8, or `spec` is a static type that is not ready).
 * Since: 3.0, 3.5. Traversal: refused. */
STANDSTILL_STABLE PyObject *PyModule_Create(PyModuleDef *def);
STANDSTILL_STABLE PyObject *PyModule_FromDefAndSpec(PyModuleDef *def, PyObject *spec);

/* PyModule_GetState: the module's state, or NULL when it has none. NULL and an error: not a module
 * (STANDSTILL_E_WRONG_TYPE).
 * Since: 3.0. Traversal: refused (PyModule_GetState_DuringGC). */
STANDSTILL_STABLE void *PyModule_GetState(PyObject *module);

/* PyModule_GetDef: what it was made from, or NULL. NULL and an error: not a module.
 * Since: 3.0. Traversal: refused. */
STANDSTILL_STABLE PyModuleDef *PyModule_GetDef(PyObject *module);

/* PyModule_GetToken: puts the module's token into `*result`, and gives 0. -1, NULL there, and an error: not a module.
 * Since: 3.15. Traversal: refused (PyModule_GetToken_DuringGC). */
STANDSTILL_STABLE int PyModule_GetToken(PyObject *module, void **result);

/* PyModule_GetName: its name; belongs to the module. NULL and an error: not a module.
 * Since: 2.0. Traversal: refused. */
STANDSTILL_STABLE const char *PyModule_GetName(PyObject *module);

/* ==== For traverse handlers only =================================================================================== */
/* As the functions without the suffix, but: they change no count, set no error, and what they give is borrowed, until
 * the handler returns. Outside of a traverse handler: the failure value, and misuse (STANDSTILL_E_OUTSIDE_TRAVERSAL). */

/* The part of `o` reserved for `cls`; NULL: `o` is no instance, or nothing is reserved.
 * Since: 3.15. Traversal: safe. */
STANDSTILL_STABLE void *PyObject_GetTypeData_DuringGC(PyObject *o, PyTypeObject *cls);
/* The first item; NULL: the type has not Py_TPFLAGS_ITEMS_AT_END.  Since: 3.15. Traversal: safe. */
STANDSTILL_STABLE void *PyObject_GetItemData_DuringGC(PyObject *o);
/* The state of the type's module; NULL: no module, or no state.  Since: 3.15. Traversal: safe. */
STANDSTILL_STABLE void *PyType_GetModuleState_DuringGC(PyTypeObject *type);
/* The state of a module; NULL: none, or not a module.  Since: 3.15. Traversal: safe. */
STANDSTILL_STABLE void *PyModule_GetState_DuringGC(PyObject *module);
/* 0 and the token in `*result`; -1 and NULL.  Since: 3.15. Traversal: safe. */
STANDSTILL_STABLE int PyModule_GetToken_DuringGC(PyObject *module, void **result);
/* 1 and the type in `*result` (borrowed); 0 and NULL: none; -1 and NULL: failure. `result` may be NULL, the token
 * not.
 * Since: 3.15. Traversal: safe. */
STANDSTILL_STABLE int PyType_GetBaseByToken_DuringGC(PyTypeObject *type, void *tp_token, PyTypeObject **result);
/* The type's own module (borrowed); NULL: none.  Since: 3.15. Traversal: safe. */
STANDSTILL_STABLE PyObject *PyType_GetModule_DuringGC(PyTypeObject *type);
/* The module with the token (borrowed); NULL: none.  Since: 3.15. Traversal: safe. */
STANDSTILL_STABLE PyObject *PyType_GetModuleByToken_DuringGC(PyTypeObject *type, const void *mod_token);

/* ==== Tuples, strings, numbers ===================================================================================== */
/* As much as types, bases and attributes need: a runtime brings its own. */

/* PyTuple_New: a tuple of `size` items, all NULL, to be set with PyTuple_SetItem before others see it. PyTuple_Pack:
 * of `n` objects given (PyObject *), to which it adds references. NULL and an error: STANDSTILL_E_MEMORY, _BAD_SIZE.
 * Since: 2.0, 2.4. Traversal: refused. */
STANDSTILL_STABLE PyObject *PyTuple_New(Py_ssize_t size);
/* PyTuple_Size: how many items; -1 and an error: not a tuple.  Since: 2.0. Traversal: refused. */
STANDSTILL_STABLE Py_ssize_t PyTuple_Size(PyObject *tuple);
/* PyTuple_GetItem: item `i`, borrowed. NULL and an error: not a tuple, or no such item (STANDSTILL_E_BAD_SIZE).
 * Since: 2.0. Traversal: refused. */
STANDSTILL_STABLE PyObject *PyTuple_GetItem(PyObject *tuple, Py_ssize_t i);
/* PyTuple_SetItem: sets item `i` of a tuple that only the caller knows; steals the reference to `item`, also when it
 * fails: -1 and an error.
 * Since: 2.0. Traversal: refused. */
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
#define PyTuple_SET_ITEM(op, i, item) ((void)PyTuple_SetItem(_PyObject_CAST(op), (i), _PyObject_CAST(item)))

/* PyUnicode_FromString: a string; copies. NULL and an error: STANDSTILL_E_MEMORY, or not UTF-8
 * (STANDSTILL_E_WRONG_TYPE). PyUnicode_AsUTF8: its bytes, which belong to it, 0 at the end. NULL and an error: not a
 * string.
 * Since: 3.0, 3.3. Traversal: refused. */
STANDSTILL_STABLE PyObject *PyUnicode_FromString(const char *text);
STANDSTILL_STABLE const char *PyUnicode_AsUTF8(PyObject *string);

/* PyLong_FromLong, PyLong_FromLongLong: a number. NULL and an error: STANDSTILL_E_MEMORY. PyLong_AsLong,
 * PyLong_AsLongLong: its value; -1 and an error: not a number.
 * Since: 2.0. Traversal: refused. */
STANDSTILL_STABLE PyObject *PyLong_FromLong(long value);
STANDSTILL_STABLE PyObject *PyLong_FromLongLong(long long value);
STANDSTILL_STABLE long PyLong_AsLong(PyObject *number);
STANDSTILL_STABLE long long PyLong_AsLongLong(PyObject *number);

/* ==== Weak references ============================================================================================== */

/* PyWeakref_NewRef: a weak reference to `ob`. `callback`: NULL, Py_None, or an object of standstill_Callback_New,
 * which the weak reference owns; it is called once, with the weak reference, after this was emptied because `ob`
 * died. NULL and an error: STANDSTILL_E_MEMORY, _WRONG_TYPE.
 * Since: 2.2. Traversal: refused. */
STANDSTILL_STABLE PyObject *PyWeakref_NewRef(PyObject *ob, PyObject *callback);

/* PyWeakref_GetRef: 1 and a new reference in `*pobj`; 0 and NULL: it is gone; -1, NULL and an error: not a weak
 * reference.
 * Since: 3.13. Traversal: refused. */
STANDSTILL_STABLE int PyWeakref_GetRef(PyObject *ref, PyObject **pobj);

/* standstill_Callback_New: an object that can be called back: as `fn(self, weakref)`. Adds a reference to `self`,
 * which may be NULL; visits it, and lets go of it when cleared (then `fn` is not called any more). NULL and an error:
 * STANDSTILL_E_MEMORY.
 * Since: ours. Traversal: refused. */
STANDSTILL_STABLE PyObject *standstill_Callback_New(void (*fn)(PyObject *self, PyObject *weakref), PyObject *self);

/* ==== Errors ======================================================================================================= */

/* What went wrong. The numbers stay as they are; new ones are added at the end. */
enum standstill_code {
    STANDSTILL_OK = 0,
    STANDSTILL_E_MEMORY = 1,                /* no memory, or the heap's limit is reached */
    STANDSTILL_E_NOT_ATTACHED = 2,          /* the thread is not attached to a heap */
    STANDSTILL_E_NOT_READY = 3,             /* the type is not ready */
    STANDSTILL_E_MISSING_TRAVERSE = 4,      /* Py_TPFLAGS_HAVE_GC without tp_traverse */
    STANDSTILL_E_HANDLERS_WITHOUT_FLAG = 5, /* tp_traverse or tp_clear without the flag, under a container base */
    STANDSTILL_E_MIXED_BASES = 6,           /* a base is a container type, and the first is not */
    STANDSTILL_E_BAD_FREE = 7,              /* tp_free does not fit the type */
    STANDSTILL_E_BAD_FLAGS = 8,             /* flags that contradict one another, or the kind of type */
    STANDSTILL_E_BAD_BASE = 9,              /* not a type, not ready, not to be subclassed, or made by another runtime */
    STANDSTILL_E_BAD_MRO = 10,              /* the bases have no common resolution order */
    STANDSTILL_E_BAD_SLOT = 11,             /* no such slot, or twice the same */
    STANDSTILL_E_BAD_SIZE = 12,             /* negative, too large, or smaller than the base's */
    STANDSTILL_E_NOT_GC_TYPE = 13,          /* not a container type */
    STANDSTILL_E_GC_TYPE = 14,              /* a container type */
    STANDSTILL_E_NULL_ARGUMENT = 15,
    STANDSTILL_E_NOT_GC_OBJECT = 16,        /* not a container object */
    STANDSTILL_E_ALREADY_TRACKED = 17,
    STANDSTILL_E_STILL_TRACKED = 18,
    STANDSTILL_E_TRACKED_RESIZE = 19,
    STANDSTILL_E_SHARED_RESIZE = 20,        /* others hold references, or weak ones */
    STANDSTILL_E_NOT_RESIZABLE = 21,        /* no items */
    STANDSTILL_E_WRONG_ALLOCATOR = 22,      /* the other kind of free function */
    STANDSTILL_E_REFERENCES_LEFT = 23,      /* freed, with references */
    STANDSTILL_E_DOUBLE_FREE = 24,
    STANDSTILL_E_FOREIGN_POINTER = 25,      /* no object of this heap */
    STANDSTILL_E_FREED_POINTER = 26,        /* an object that was freed */
    STANDSTILL_E_NULL_VISIT = 27,
    STANDSTILL_E_STALE_VISITOR = 28,
    STANDSTILL_E_OVER_VISITED = 29,         /* more visits than references */
    STANDSTILL_E_IN_TRAVERSAL = 30,         /* not for traverse handlers */
    STANDSTILL_E_OUTSIDE_TRAVERSAL = 31,    /* for traverse handlers only */
    STANDSTILL_E_NOT_ALLOWED_HERE = 32,     /* a safepoint, detach or collection in a destructor, finalizer or callback */
    STANDSTILL_E_BAD_CALLBACK_RESULT = 33,  /* neither 1 nor 0 */
    STANDSTILL_E_BAD_GENERATION = 34,
    STANDSTILL_E_BAD_THRESHOLD = 35,
    STANDSTILL_E_BAD_DEBUG_FLAGS = 36,
    STANDSTILL_E_WRONG_TYPE = 37,           /* an object of another type than needed */
    STANDSTILL_E_NO_MODULE = 38,
    STANDSTILL_E_NO_ATTRIBUTE = 40,
    STANDSTILL_E_WRITTEN_AFTER_READY = 41,  /* a member of a ready type was changed */
    STANDSTILL_E_BAD_ALLOC_RESULT = 42,     /* tp_alloc gave an object of another type */
    STANDSTILL_E_CUT_REFERENCES = 43,       /* a resize cut off references */
    STANDSTILL_E_MISSING_TYPE_VISIT = 44,   /* the handler does not visit the heap type */
    STANDSTILL_E_MISSING_DICT_VISIT = 45,   /* the handler does not visit the managed dictionary */
    STANDSTILL_E_HANDLER_ERROR = 46,        /* a traverse handler gave a value of its own */
    STANDSTILL_E_PANIC = 47,                /* a panic was caught */
    STANDSTILL_E_CUSTOM = 48,               /* set by PyErr_SetString */
    STANDSTILL_E_SLOW_HANDLER = 49          /* a traverse handler took longer than the heap's limit */
};

/* The exception types: static, immortal objects, which only serve as names. */
extern STANDSTILL_STABLE PyObject *PyExc_TypeError;
extern STANDSTILL_STABLE PyObject *PyExc_ValueError;
extern STANDSTILL_STABLE PyObject *PyExc_SystemError;
extern STANDSTILL_STABLE PyObject *PyExc_MemoryError;
extern STANDSTILL_STABLE PyObject *PyExc_RuntimeError;
extern STANDSTILL_STABLE PyObject *PyExc_AttributeError;

/* The error indicator belongs to the thread, attached or not. */

/* PyErr_Occurred: the exception type of the error that is set, borrowed; NULL: none.
 * Since: 2.0. Traversal: refused (NULL). */
STANDSTILL_STABLE PyObject *PyErr_Occurred(void);
/* PyErr_Clear: no error any more.  Since: 2.0. Traversal: refused. */
STANDSTILL_STABLE void PyErr_Clear(void);
/* PyErr_SetString: sets an error, with the code STANDSTILL_E_CUSTOM; copies the message. `exception`: one of PyExc_*, or
 * an object of the program's own, to which the error keeps a reference; NULL: PyExc_SystemError.
 * Since: 2.0. Traversal: refused. */
STANDSTILL_STABLE void PyErr_SetString(PyObject *exception, const char *message);
/* PyErr_NoMemory: sets STANDSTILL_E_MEMORY; gives NULL.  Since: 2.0. Traversal: refused. */
STANDSTILL_STABLE PyObject *PyErr_NoMemory(void);
/* PyErr_BadInternalCall: sets a SystemError.  Since: 2.0. Traversal: refused. */
STANDSTILL_STABLE void PyErr_BadInternalCall(void);
/* PyErr_ExceptionMatches: 1 if an error is set and is of this exception type, else 0.
 * Since: 2.0. Traversal: refused (0). */
STANDSTILL_STABLE int PyErr_ExceptionMatches(PyObject *exception);
/* PyErr_WriteUnraisable: hands the error that is set, if any, to the unraisable hook, and clears it. `obj`: where it
 * happened, or NULL.
 * Since: 2.0. Traversal: refused. */
STANDSTILL_STABLE void PyErr_WriteUnraisable(PyObject *obj);

/* standstill_error_code: the code of the error that is set (enum standstill_code); 0: none.
 * Since: ours. Traversal: refused (0). */
STANDSTILL_STABLE int standstill_error_code(void);
/* standstill_error_message: its message, good until the error changes; NULL: none.
 * Since: ours. Traversal: refused (NULL). */
STANDSTILL_STABLE const char *standstill_error_message(void);

/* ==== The collector ================================================================================================ */

/* PyGC_Collect: a full collection. How many objects were collected, and how many could not be, in sum. 0 at once: the
 * collector is disabled, or is collecting already; 0 and misuse: not attached, in a destructor, finalizer or
 * callback. An error that is set stays as it was. The thread is at a safepoint.
 * Since: 3.0. Traversal: refused (0). */
STANDSTILL_STABLE Py_ssize_t PyGC_Collect(void);

/* PyGC_Enable, PyGC_Disable: switch automatic collections and PyGC_Collect on and off. The state before: 1 or 0.
 * PyGC_IsEnabled: the state now.
 * Since: 3.10. Traversal: refused (0). */
STANDSTILL_STABLE int PyGC_Enable(void);
STANDSTILL_STABLE int PyGC_Disable(void);
STANDSTILL_STABLE int PyGC_IsEnabled(void);

/* gcvisitobjects_t: 1: go on. 0: stop. Anything else: stop, and misuse (STANDSTILL_E_BAD_CALLBACK_RESULT). `object`
 * is borrowed. Not a visitproc, for which 0 means the opposite. */
typedef int (*gcvisitobjects_t)(PyObject *object, void *arg);

/* PyUnstable_GC_VisitObjects: calls `callback` for each object that is tracked at the start of the call, once. The
 * world runs meanwhile; automatic collections do not.
 * Since: 3.12. Traversal: refused. */
STANDSTILL_UNSTABLE void PyUnstable_GC_VisitObjects(gcvisitobjects_t callback, void *arg);

/* ==== Threads and heaps ============================================================================================ */

typedef struct standstill_heap standstill_heap;

typedef struct {
    size_t size;         /* sizeof(standstill_heap_options); what lies behind is not read. 0: up to serial_below */
    size_t reserve;      /* bytes of address space to reserve; 0: default */
    size_t limit;        /* bytes of objects after which allocation fails; 0: none */
    unsigned workers;    /* threads that help collections, at most 1024; 0: default */
    int checked;         /* checked mode: 1 on, 0 off, -1 default */
    int stress;          /* 1: collect at every safepoint */
    size_t serial_below; /* collect with one thread below this many objects; 0: default */
    unsigned slow_stop_ms; /* milliseconds that a stop may take before it is reported as slow; 0: 1000 */
} standstill_heap_options;
/* All defaults. (A zeroed struct is checked mode off.) */
#define STANDSTILL_HEAP_OPTIONS_INIT { sizeof(standstill_heap_options), 0, 0, 0, -1, 0, 0, 0 }

/* standstill_heap_new: a heap, besides the default one. NULL for `options`: the defaults. NULL and an error:
 * STANDSTILL_E_MEMORY. standstill_heap_free: a last collection, then gives the heap up. 0; -1 and misuse: threads are attached
 * to it, or it is the default one (STANDSTILL_E_NOT_ALLOWED_HERE), or no heap (_FOREIGN_POINTER). Objects that are still
 * referred to live on, and are reported by type to the hook of standstill_set_unraisable_hook. While the calling thread is
 * attached to another heap there is no last collection: then the hook is told how many objects are left, and cycles of them
 * are never freed. An object belongs to one heap; threads that are attached to others cannot use it.
 * Since: ours. Traversal: refused. */
STANDSTILL_STABLE standstill_heap *standstill_heap_new(const standstill_heap_options *options);
STANDSTILL_STABLE int standstill_heap_free(standstill_heap *heap);

/* standstill_default_heap: the heap of the process, made on first use, never freed.
 * Since: ours. Traversal: refused (NULL). */
STANDSTILL_STABLE standstill_heap *standstill_default_heap(void);

/* standstill_attach: attaches the calling thread to `heap` (NULL: the default one): from now on it may use objects,
 * and collections wait for its safepoints. 0; -1 and an error: it is attached already, or no memory.
 * standstill_detach: ends that, before the thread ends. 0; -1 and misuse (STANDSTILL_E_NOT_ALLOWED_HERE in a
 * destructor, finalizer or callback). standstill_is_attached: 1 or 0.
 * Since: ours. Traversal: refused. */
STANDSTILL_STABLE int standstill_attach(standstill_heap *heap);
STANDSTILL_STABLE int standstill_detach(void);
STANDSTILL_STABLE int standstill_is_attached(void);

/* standstill_safepoint: lets a collection run or wait here, if there is one. A thread that is attached calls it every
 * now and then, where it is not in the middle of a change to an object. One load when there is nothing to do. In a
 * destructor, finalizer or callback: misuse.
 * Since: ours. Traversal: refused. */
STANDSTILL_STABLE void standstill_safepoint(void);

/* Py_BEGIN_ALLOW_THREADS ... Py_END_ALLOW_THREADS: around what blocks: the thread is detached between the two, and
 * must not touch objects. In a destructor, finalizer or callback, and without memory (STANDSTILL_E_MEMORY): misuse, NULL,
 * and the thread stays attached.
 * Since: 1.5. Traversal: refused. */
typedef struct standstill_thread_state PyThreadState;
STANDSTILL_STABLE PyThreadState *PyEval_SaveThread(void);
STANDSTILL_STABLE void PyEval_RestoreThread(PyThreadState *state);
#define Py_BEGIN_ALLOW_THREADS { PyThreadState *_save; _save = PyEval_SaveThread();
#define Py_BLOCK_THREADS PyEval_RestoreThread(_save);
#define Py_UNBLOCK_THREADS _save = PyEval_SaveThread();
#define Py_END_ALLOW_THREADS PyEval_RestoreThread(_save); }

/* PyGILState_Ensure: attaches the thread, unless it is: to the heap that it has left for a while (PyEval_SaveThread),
 * else to the default one. PyGILState_Release: undoes what the Ensure that gave `state` did. They nest. There is no
 * lock behind them: other threads run meanwhile.
 * Since: 2.3. Traversal: refused. */
typedef enum { PyGILState_LOCKED, PyGILState_UNLOCKED } PyGILState_STATE;
STANDSTILL_STABLE PyGILState_STATE PyGILState_Ensure(void);
STANDSTILL_STABLE void PyGILState_Release(PyGILState_STATE state);

/* Py_Initialize: attaches the calling thread to the default heap, if it is not. Py_Finalize: a last full collection,
 * without progress callbacks, then detaches it. Py_IsInitialized: 1 between the two, else 0. Where the thread cannot
 * be detached Py_Finalize is misuse (STANDSTILL_E_NOT_ATTACHED, _NOT_ALLOWED_HERE), and can be called again.
 * Since: 1.5. Traversal: refused. */
STANDSTILL_STABLE void Py_Initialize(void);
STANDSTILL_STABLE void Py_Finalize(void);
STANDSTILL_STABLE int Py_IsInitialized(void);

/* ==== Hooks ======================================================================================================== */
/* Hooks are of the process, and called on the thread where it happened, attached or not. They must not use objects,
 * nor unwind. What they are given is good until they return. NULL: back to the default. */

/* A call that was wrong in itself. */
typedef struct {
    int code;              /* enum standstill_code */
    const char *code_name; /* "AlreadyTracked" */
    const char *function;  /* "PyObject_GC_Track" */
    const char *type;      /* the name of the object's type, or NULL */
    const void *object;    /* its address, or NULL */
    const char *text;      /* one line that says it all */
} standstill_misuse;

/* standstill_set_misuse_hook: who is told of misuse. By default a line on stderr, so many for each code and type.
 * Since: ours. Traversal: refused. */
STANDSTILL_STABLE void standstill_set_misuse_hook(void (*hook)(const standstill_misuse *report, void *arg), void *arg);

/* An error that no caller can receive. */
typedef struct {
    const char *kind;    /* where: "finalizer", "clear handler", ... */
    const char *type;    /* the name of the object's type, or NULL */
    const void *object;  /* its address, or NULL */
    const char *message;
} standstill_unraisable;

/* standstill_set_unraisable_hook: who is told of errors of handlers, finalizers and callbacks. By default a block on
 * stderr.
 * Since: ours. Traversal: refused. */
STANDSTILL_STABLE void standstill_set_unraisable_hook(void (*hook)(const standstill_unraisable *report, void *arg),
                                                      void *arg);

/* A thread that a stop waits for, since it blocks while it is attached, or comes to no safepoint; or whose stop takes so long
 * that another thread reports it. */
typedef struct {
    const char *thread; /* its name, or NULL */
    uint64_t os_thread; /* what the system calls it (gettid); 0: not known on this system */
    double waited;      /* seconds that the stop has waited so far */
    double attached;    /* seconds since the thread attached */
    int ended;          /* 1: the thread has ended without detaching; no stop succeeds any more */
    const char *text;   /* one line that says it all, of all such threads */
} standstill_slow_stop;

/* standstill_set_slow_stop_hook: who is told of threads that hold up a stop, and so a collection, for longer than
 * standstill_heap_options.slow_stop_ms: once for each thread, and again each time the wait has doubled. The hook is called on the
 * thread that waits, and should wait for nothing itself. Also of a thread whose own stop takes longer: a thread that waits for the
 * end of the stop calls the hook then, as if inside a traverse handler. Also of a thread whose finalizers, callbacks and
 * deallocators take longer in a collection, by a thread that waits to collect. By default a line on stderr.
 * Since: ours. Traversal: refused. */
STANDSTILL_STABLE void standstill_set_slow_stop_hook(void (*hook)(const standstill_slow_stop *report, void *arg),
                                                     void *arg);

/* ==== The gc module ================================================================================================ */
/* All of the heap that the calling thread is attached to. */

/* standstill_gc_collect: a collection of generation 0, 1 (the young objects) or 2 (all), also when the collector is
 * disabled. The sum of collected and uncollectable objects. -1 and an error: STANDSTILL_E_BAD_GENERATION. 0: it is
 * collecting already.
 * Since: ours (gc.collect). Traversal: refused (-1). */
STANDSTILL_STABLE Py_ssize_t standstill_gc_collect(int generation);

/* As PyGC_Enable, PyGC_Disable, PyGC_IsEnabled. */
STANDSTILL_STABLE int standstill_gc_enable(void);
STANDSTILL_STABLE int standstill_gc_disable(void);
STANDSTILL_STABLE int standstill_gc_isenabled(void);

/* standstill_gc_set_threshold: `t0` new tracked objects start a young collection, 0: none start by themselves; `t1`:
 * 0 lets full ones start regardless of how many objects survived; `t2` is stored. 0; -1 and an error: negative
 * (STANDSTILL_E_BAD_THRESHOLD). standstill_gc_get_threshold: writes the three. 0 or -1.
 * Since: ours (gc.set_threshold). Traversal: refused. */
STANDSTILL_STABLE int standstill_gc_set_threshold(int t0, int t1, int t2);
STANDSTILL_STABLE int standstill_gc_get_threshold(int out[3]);

/* standstill_gc_get_count: writes the counters that are compared with the thresholds, exactly. 0 or -1.
 * Since: ours (gc.get_count). Traversal: refused. */
STANDSTILL_STABLE int standstill_gc_get_count(Py_ssize_t out[3]);

/* Sums since the start, of one generation. */
typedef struct {
    uint64_t collections;
    uint64_t collected;
    uint64_t uncollectable;
    uint64_t candidates; /* objects that were considered */
    double duration;     /* seconds */
    double stopped;      /* seconds for which the world was stopped */
} standstill_gc_stats;

/* standstill_gc_get_stats: writes the sums of the three generations. 0 or -1.
 * Since: ours (gc.get_stats). Traversal: refused. */
STANDSTILL_STABLE int standstill_gc_get_stats(standstill_gc_stats out[3]);

/* What a progress callback is told; in the phase "start" only the generation is known. */
typedef struct {
    int generation;
    uint64_t collected;
    uint64_t uncollectable;
    uint64_t candidates;
    double duration;
    double stopped;
} standstill_gc_info;

/* standstill_gc_add_callback: `callback` is called before ("start") and after ("stop") each collection, on the
 * collecting thread, with the world running. Its id, from 0; -1 and an error. standstill_gc_remove_callback: 0, or
 * -1: no such id. Both take effect from the next phase.
 * Since: ours (gc.callbacks). Traversal: refused. */
typedef void (*standstill_gc_callback)(const char *phase, const standstill_gc_info *info, void *arg);
STANDSTILL_STABLE int standstill_gc_add_callback(standstill_gc_callback callback, void *arg);
STANDSTILL_STABLE int standstill_gc_remove_callback(int id);

#define STANDSTILL_GC_DEBUG_STATS 1u
#define STANDSTILL_GC_DEBUG_COLLECTABLE 2u
#define STANDSTILL_GC_DEBUG_UNCOLLECTABLE 4u
#define STANDSTILL_GC_DEBUG_SAVEALL 32u
#define STANDSTILL_GC_DEBUG_LEAK 38u

/* standstill_gc_set_debug: which lines collections write. 0; -1 and an error: unknown bits
 * (STANDSTILL_E_BAD_DEBUG_FLAGS). standstill_gc_get_debug: the bits. standstill_gc_set_debug_sink: where the lines
 * go; NULL: stderr.
 * Since: ours (gc.set_debug). Traversal: refused. */
STANDSTILL_STABLE int standstill_gc_set_debug(unsigned flags);
STANDSTILL_STABLE unsigned standstill_gc_get_debug(void);
STANDSTILL_STABLE void standstill_gc_set_debug_sink(void (*sink)(const char *line, void *arg), void *arg);

/* standstill_gc_garbage_size, _get, _clear: the list of objects that were unreachable and could not be freed (those
 * with tp_del; with STANDSTILL_GC_DEBUG_SAVEALL: all): how many; number `i`, a new reference, or NULL; empty it: 0 or
 * -1.
 * Since: ours (gc.garbage). Traversal: refused. */
STANDSTILL_STABLE Py_ssize_t standstill_gc_garbage_size(void);
STANDSTILL_STABLE PyObject *standstill_gc_garbage_get(Py_ssize_t i);
STANDSTILL_STABLE int standstill_gc_garbage_clear(void);

/* standstill_gc_freeze: collections leave alone what is tracked now; unfreeze: no longer. 0 or -1. get_freeze_count:
 * how many objects that are; -1 and an error.
 * Since: ours (gc.freeze). Traversal: refused. */
STANDSTILL_STABLE int standstill_gc_freeze(void);
STANDSTILL_STABLE int standstill_gc_unfreeze(void);
STANDSTILL_STABLE Py_ssize_t standstill_gc_get_freeze_count(void);

/* standstill_gc_get_objects: a tuple of all tracked objects, of one generation (0, 1, 2) or all (-1). get_referrers:
 * of those whose traverse handlers visit one of the `n` objects given. get_referents: of what the traverse handlers
 * of the objects given visit. For debugging: objects may be half built. NULL and an error.
 * Since: ours. Traversal: refused. */
STANDSTILL_STABLE PyObject *standstill_gc_get_objects(int generation);
STANDSTILL_STABLE PyObject *standstill_gc_get_referrers(PyObject *const *objects, Py_ssize_t n);
STANDSTILL_STABLE PyObject *standstill_gc_get_referents(PyObject *const *objects, Py_ssize_t n);

/* As PyObject_GC_IsTracked, PyObject_GC_IsFinalized. */
STANDSTILL_STABLE int standstill_gc_is_tracked(PyObject *op);
STANDSTILL_STABLE int standstill_gc_is_finalized(PyObject *op);

/* standstill_gc_set_audit_hook: told of get_objects, get_referrers and get_referents, as "gc.get_objects" and so on.
 * Since: ours. Traversal: refused. */
STANDSTILL_STABLE void standstill_gc_set_audit_hook(void (*hook)(const char *event, void *arg), void *arg);

/* ==== For tests ==================================================================================================== */

/* standstill_live_objects, standstill_live_bytes: how many objects the heap holds, and in how many bytes; -1, 0: not
 * attached. Exact while other threads do nothing.
 * Since: ours. Traversal: refused. */
STANDSTILL_STABLE long long standstill_live_objects(void);
STANDSTILL_STABLE size_t standstill_live_bytes(void);

#ifdef __cplusplus
}
#endif

#endif /* STANDSTILL_H */

// The internal headers of the interpreter, for bindgen. Rust gets all structures from here, so none
// is typed by hand. Macros that are expressions become constants, and inline functions that differ
// between versions get one name.
#ifdef __BINDGEN__
// libclang reads the headers of the C compiler. It does not know that compiler's vector functions,
// and its atomic functions take other types than those of the compiler. Sizes and offsets do not
// depend on either.
#define _Atomic(type) type
#define _IMMINTRIN_H_INCLUDED
#define _X86INTRIN_H_INCLUDED
#define _XMMINTRIN_H_INCLUDED
#define _EMMINTRIN_H_INCLUDED
static inline void _mm_pause(void) {}
#endif

#ifndef Py_BUILD_CORE_MODULE
#define Py_BUILD_CORE_MODULE 1
#endif
#include "Python.h"

#ifndef Py_GIL_DISABLED
#error "standstill-gc needs a free-threaded build of CPython"
#endif

#include "pycore_brc.h"
#include "pycore_ceval.h"
#include "pycore_debug_offsets.h"
#include "pycore_dict.h"
#include "pycore_frame.h"
#include "pycore_gc.h"
#include "pycore_genobject.h"
#include "pycore_interp.h"
#include "pycore_interpframe.h"
#include "pycore_mimalloc.h"
#include "pycore_moduleobject.h"
#include "pycore_object.h"
#include "pycore_object_stack.h"
#include "pycore_pystate.h"
#include "pycore_qsbr.h"
#include "pycore_runtime.h"
#include "pycore_stackref.h"
#include "pycore_tstate.h"
#include "pycore_uniqueid.h"
#include "pycore_weakref.h"

static const long long SS_VERSION = PY_VERSION_HEX;
static const long long SS_REF_DEFERRED = _Py_REF_DEFERRED;
static const long long SS_REF_MERGED = _Py_REF_MERGED;
static const long long SS_REF_FLAG_MASK = _Py_REF_SHARED_FLAG_MASK;
static const long long SS_REF_SHIFT = _Py_REF_SHARED_SHIFT;
static const long long SS_IMMORTAL_LOCAL = _Py_IMMORTAL_REFCNT_LOCAL;
static const long long SS_BITS_TRACKED = _PyGC_BITS_TRACKED;
static const long long SS_BITS_FINALIZED = _PyGC_BITS_FINALIZED;
static const long long SS_BITS_FROZEN = _PyGC_BITS_FROZEN;
static const long long SS_BITS_DEFERRED = _PyGC_BITS_DEFERRED;
static const long long SS_BITS_UNREACHABLE = _PyGC_BITS_UNREACHABLE;
static const long long SS_SEGMENT_SIZE = MI_SEGMENT_SIZE;
static const long long SS_SLICE_SIZE = MI_SEGMENT_SLICE_SIZE;
static const long long SS_BIN_FULL = MI_BIN_FULL;
static const long long SS_HEAP_GC = _Py_MIMALLOC_HEAP_GC;
static const long long SS_HEAP_GC_PRE = _Py_MIMALLOC_HEAP_GC_PRE;
static const long long SS_HUGE_BLOCK_SIZE = MI_HUGE_BLOCK_SIZE;
static const long long SS_PLAIN_CLASS =
    Py_TPFLAGS_HEAPTYPE | Py_TPFLAGS_MANAGED_DICT | Py_TPFLAGS_INLINE_VALUES;
static const long long SS_MANAGED_DICT_OFFSET = MANAGED_DICT_OFFSET;
static const long long SS_DICT_KEYS_GENERAL = DICT_KEYS_GENERAL;
static const long long SS_DICT_UNIQUE_ID_SHIFT = DICT_UNIQUE_ID_SHIFT;
static const long long SS_FRAME_OWNED_BY_INTERPRETER = FRAME_OWNED_BY_INTERPRETER;
static const long long SS_FRAME_OWNED_BY_GENERATOR = FRAME_OWNED_BY_GENERATOR;
static const long long SS_FRAME_OWNED_BY_FRAME_OBJECT = FRAME_OWNED_BY_FRAME_OBJECT;
static const long long SS_FRAME_CLEARED = FRAME_CLEARED;
static const long long SS_DEBUG_STATS = _PyGC_DEBUG_STATS;
static const long long SS_DEBUG_COLLECTABLE = _PyGC_DEBUG_COLLECTABLE;
static const long long SS_DEBUG_UNCOLLECTABLE = _PyGC_DEBUG_UNCOLLECTABLE;
static const long long SS_DEBUG_SAVEALL = _PyGC_DEBUG_SAVEALL;

static const long long SS_PENDING_MAIN = _Py_PENDING_MAINTHREADONLY;

// The object of a stack reference, counted or not. NULL: none, or a tagged integer.
static inline PyObject *ss_stackref_object(_PyStackRef ref) {
    return PyStackRef_IsNullOrInt(ref) ? NULL : PyStackRef_AsPyObjectBorrow(ref);
}

// Whether a stack reference to an object is counted.
static inline int ss_stackref_is_counted(_PyStackRef ref) {
#if PY_VERSION_HEX >= 0x030F0000
    return PyStackRef_RefcountOnObject(ref);
#else
    return !PyStackRef_IsDeferred(ref);
#endif
}

// The stack reference that owns a counted reference.
static inline _PyStackRef ss_stackref_steal(PyObject *op) {
    return PyStackRef_FromPyObjectSteal(op);
}

// As `_mi_ptr_segment`, which calls a hidden function in debug builds.
static inline mi_segment_t *ss_segment_of(const void *block) {
    return (mi_segment_t *)(((uintptr_t)block - 1) & ~MI_SEGMENT_MASK);
}

static inline PyGenObject *ss_generator_of(_PyInterpreterFrame *frame) {
    return _PyGen_GetGeneratorFromFrame(frame);
}

// `Py_DECREF`, inline. The function `Py_DecRef`, which other languages call, calls another one.
static inline void ss_drop_reference(PyObject *op) { Py_DECREF(op); }

// Defers references to the object again.
static inline void ss_defer(PyObject *op) { PyUnstable_Object_EnableDeferredRefcount(op); }

// The next block of a free list of a page. Debug builds encode the links.
static inline mi_block_t *ss_next_in_page(const mi_page_t *page, const mi_block_t *block) {
#ifdef MI_ENCODE_FREELIST
    return mi_block_nextx(page, block, page->keys);
#else
    return mi_block_nextx(page, block, NULL);
#endif
}

// Has a thread process its delayed decrements and its queue of counts to merge, at the next check
// of its eval breaker.
static inline void ss_settle(PyThreadState *thread) {
    struct _qsbr_thread_state *qsbr = ((_PyThreadStateImpl *)thread)->qsbr;
    if (qsbr == NULL) {
        // Another thread is making this state, and has not attached.
        return;
    }
    _Py_atomic_add_uint64(&qsbr->shared->wr_seq, QSBR_INCR);
    qsbr->should_process = true;
    _Py_set_eval_breaker_bit(thread, _PY_EVAL_EXPLICIT_MERGE_BIT);
}

// What must arrive at a thread soon: a signal, a call, an exception from another thread.
static const long long SS_MUST_ARRIVE =
    _PY_SIGNALS_PENDING_BIT | _PY_CALLS_TO_DO_BIT | _PY_ASYNC_EXCEPTION_BIT;

static inline uintptr_t ss_eval_breaker(PyThreadState *thread) {
    return _Py_atomic_load_uintptr_relaxed(&thread->eval_breaker);
}

// The next block that other threads have freed on full pages of a heap.
static inline mi_block_t *ss_next_delayed(const mi_heap_t *heap, const mi_block_t *block) {
    return mi_block_nextx(heap, block, heap->keys);
}

static inline int ss_has_debug_allocator(void) { return _PyRuntime.allocators.is_debug_enabled; }

static inline void ss_lock_heads(void) { HEAD_LOCK(&_PyRuntime); }
static inline void ss_unlock_heads(void) { HEAD_UNLOCK(&_PyRuntime); }

// The table of offsets that an interpreter of these headers has.
static inline void ss_debug_offsets(struct _Py_DebugOffsets *into) {
    *into = (struct _Py_DebugOffsets)_Py_DebugOffsets_INIT(_Py_Debug_Cookie);
}

/* standstill_compat.h: names that CPython has removed. Nothing includes this: it is for old sources, until they are changed.
 *
 * The macro forms of tracking were public until CPython 3.7. Here they are the functions, checks and all. */
#ifndef STANDSTILL_COMPAT_H
#define STANDSTILL_COMPAT_H

#include "standstill.h"

/* Use PyObject_GC_Track. */
#define _PyObject_GC_TRACK(op) PyObject_GC_Track((void *)(op))
/* Use PyObject_GC_UnTrack. */
#define _PyObject_GC_UNTRACK(op) PyObject_GC_UnTrack((void *)(op))

#endif /* STANDSTILL_COMPAT_H */

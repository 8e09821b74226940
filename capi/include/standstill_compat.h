/* standstill_compat.h: names that CPython has removed. No other header includes this one. Old
 * sources may include it until they are changed.
 *
 * The macro forms of tracking were public until CPython 3.7. Here they call the functions, with all
 * their checks. */
#ifndef STANDSTILL_COMPAT_H
#define STANDSTILL_COMPAT_H

#include "standstill.h"

/* New code uses PyObject_GC_Track. */
#define _PyObject_GC_TRACK(op) PyObject_GC_Track((void *)(op))
/* New code uses PyObject_GC_UnTrack. */
#define _PyObject_GC_UNTRACK(op) PyObject_GC_UnTrack((void *)(op))

#endif /* STANDSTILL_COMPAT_H */

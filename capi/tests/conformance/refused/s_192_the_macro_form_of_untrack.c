/* Refused because of: _PyObject_GC_UNTRACK */
#include <standstill.h>
#ifdef ACCEPTED
#define _PyObject_GC_UNTRACK PyObject_GC_UnTrack
#endif
void untrack(PyObject *object);
void untrack(PyObject *object) { _PyObject_GC_UNTRACK(object); }

/* Refused because of: _PyObject_GC_TRACK */
#include <standstill.h>
#ifdef ACCEPTED
#define _PyObject_GC_TRACK PyObject_GC_Track
#endif
void track(PyObject *object);
void track(PyObject *object) { _PyObject_GC_TRACK(object); }

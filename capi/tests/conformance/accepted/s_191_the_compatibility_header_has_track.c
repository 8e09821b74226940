#include <standstill_compat.h>
void track(PyObject *object);
void track(PyObject *object) { _PyObject_GC_TRACK(object); }

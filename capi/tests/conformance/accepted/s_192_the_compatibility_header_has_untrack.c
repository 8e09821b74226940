#include <standstill_compat.h>
void untrack(PyObject *object);
void untrack(PyObject *object) { _PyObject_GC_UNTRACK(object); }

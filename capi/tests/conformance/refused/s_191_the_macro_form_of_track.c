#include <standstill.h>
void track(PyObject *object);
void track(PyObject *object) { _PyObject_GC_TRACK(object); }

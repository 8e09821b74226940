#define STANDSTILL_UNSTABLE __attribute__((deprecated))
#include <standstill.h>
PyObject *make(PyTypeObject *type);
PyObject *make(PyTypeObject *type) { return PyUnstable_Object_GC_NewWithExtraData(type, 8); }

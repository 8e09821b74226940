/* Refused because of: deprecated */
#ifndef ACCEPTED
#define STANDSTILL_UNSTABLE __attribute__((deprecated))
#endif
#include <standstill.h>
PyObject *make(PyTypeObject *type);
PyObject *make(PyTypeObject *type) { return PyUnstable_Object_GC_NewWithExtraData(type, 8); }

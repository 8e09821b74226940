#include <standstill.h>
PyVarObject *make(PyTypeObject *type);
PyVarObject *make(PyTypeObject *type) { return PyObject_GC_VarNew(PyVarObject, type, 3); }

/* Refused because of: PyObject_GC_VarNew */
#include <standstill.h>
#ifdef ACCEPTED
#define PyObject_GC_VarNew PyObject_GC_NewVar
#endif
PyVarObject *make(PyTypeObject *type);
PyVarObject *make(PyTypeObject *type) { return PyObject_GC_VarNew(PyVarObject, type, 3); }

#include <standstill.h>
void traverse(PyObject *self, visitproc visit, void *arg);
void traverse(PyObject *self, visitproc visit, void *arg) { Py_VISIT(self); }

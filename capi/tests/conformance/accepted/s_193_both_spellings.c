#include <standstill.h>
typedef struct {
    PyObject_HEAD
    PyObject *member;
} Fixed;
typedef struct {
    PyObject_VAR_HEAD
    PyObject *items[1];
} Var;
Fixed *make(PyTypeObject *type);
Fixed *make(PyTypeObject *type) { return PyObject_GC_New(Fixed, type); }
Var *make_var(PyTypeObject *type, Py_ssize_t size);
Var *make_var(PyTypeObject *type, Py_ssize_t size) {
    Var *op = PyObject_GC_NewVar(Var, type, size);
    return op ? PyObject_GC_Resize(Var, op, size + 1) : NULL;
}
int traverse(PyObject *op, visitproc visit, void *arg);
int traverse(PyObject *op, visitproc visit, void *arg) {
    Fixed *self = (Fixed *)op;
    Py_VISIT(self->member);
    return 0;
}

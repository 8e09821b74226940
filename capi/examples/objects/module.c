/* The module: it owns the heap types, which refer to it. So module and types are one cycle, which the collector
 * frees in the end. */
#include "objects.h"

static Types *state_of(PyObject *module)
{
    return PyModule_GetState(module);
}

static int module_traverse(PyObject *module, visitproc visit, void *arg)
{
    /* PyModule_GetState is not for handlers. */
    Types *types = PyModule_GetState_DuringGC(module);
    if (types == NULL) {
        return 0;
    }
    Py_VISIT(types->list);
    Py_VISIT(types->dict);
    Py_VISIT(types->object);
    Py_VISIT(types->node);
    Py_VISIT(types->local);
    return 0;
}

static int module_clear(PyObject *module)
{
    Types *types = state_of(module);
    Py_CLEAR(types->list);
    Py_CLEAR(types->dict);
    Py_CLEAR(types->object);
    Py_CLEAR(types->node);
    Py_CLEAR(types->local);
    return 0;
}

static void module_free(void *module)
{
    module_clear(module);
}

static PyModuleDef definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "objects",
    .m_size = sizeof(Types),
    .m_traverse = module_traverse,
    .m_clear = module_clear,
    .m_free = module_free,
};

PyObject *objects_module(void)
{
    if (PyType_Ready(&Tuple_Type) < 0 || PyType_Ready(&Pair_Type) < 0) {
        return NULL;
    }
    PyObject *module = PyModule_Create(&definition);
    if (module == NULL) {
        return NULL;
    }
    Types *types = state_of(module);
    if ((types->list = list_type(module)) == NULL || (types->dict = dict_type(module)) == NULL
        || (types->object = object_type(module)) == NULL
        || (types->node = node_type(module, types->object)) == NULL
        || (types->local = local_type(module)) == NULL) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}

const Types *objects_types(PyObject *module)
{
    return state_of(module);
}

const Types *types_of(PyObject *op)
{
    PyObject *module = PyType_GetModuleByDef(Py_TYPE(op), &definition);
    return module != NULL ? state_of(module) : NULL;
}

/* Section Q: older names and removed macros. What must not compile is in refused/, the rest here. */

#include "check.h"

#include <dlfcn.h>

static int has_symbol(const char *name) {
    void *program = dlopen(NULL, RTLD_NOW);
    int found;
    CHECK(program != NULL);
    found = dlsym(program, name) != NULL;
    dlclose(program);
    return found;
}

static void s_190_varnew_is_no_symbol(void) {
#ifdef PyObject_GC_VarNew
    CHECK(0);
#endif
    CHECK(has_symbol("standstill_PyObject_GC_Track")); /* the look-up works */
    CHECK(!has_symbol("PyObject_GC_VarNew"));
    CHECK(!has_symbol("standstill_PyObject_GC_VarNew"));
}

static void s_191_the_macro_form_of_track_is_absent(void) {
#ifdef _PyObject_GC_TRACK
    CHECK(0);
#endif
    CHECK(!has_symbol("_PyObject_GC_TRACK"));
    CHECK(!has_symbol("standstill__PyObject_GC_TRACK"));
}
static void s_192_the_macro_form_of_untrack_is_absent(void) {
#ifdef _PyObject_GC_UNTRACK
    CHECK(0);
#endif
    CHECK(!has_symbol("_PyObject_GC_UNTRACK"));
    CHECK(!has_symbol("standstill__PyObject_GC_UNTRACK"));
}

static void s_193_the_macros_stand_on_functions(void) {
    PyObject *(*new_function)(PyTypeObject *) = _PyObject_GC_New;
    PyVarObject *(*new_var)(PyTypeObject *, Py_ssize_t) = _PyObject_GC_NewVar;
    PyVarObject *(*resize)(PyVarObject *, Py_ssize_t) = _PyObject_GC_Resize;
    Pair *p = PyObject_GC_New(Pair, &Pair_Type);
    Row *r = PyObject_GC_NewVar(Row, &Row_Type, 3);
    PyObject *q = new_function(&Pair_Type);
    PyVarObject *v = new_var(&Row_Type, 3);
    MUST(p && r && q && v);
    r = PyObject_GC_Resize(Row, r, 5);
    v = resize(v, 5);
    MUST(r && v);
    CHECK_INT(Py_SIZE(r), 5);
    CHECK_INT(Py_SIZE(v), 5);
    Py_DECREF(p);
    Py_DECREF(q);
    Py_DECREF(r);
    Py_DECREF(v);
}

const struct test names_tests[] = {
    TEST(s_190_varnew_is_no_symbol),
    TEST(s_191_the_macro_form_of_track_is_absent),
    TEST(s_192_the_macro_form_of_untrack_is_absent),
    TEST(s_193_the_macros_stand_on_functions),
    TESTS_END,
};

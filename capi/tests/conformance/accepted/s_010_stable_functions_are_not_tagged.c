#define STANDSTILL_UNSTABLE __attribute__((deprecated))
#include <standstill.h>
void use(PyObject *object);
void use(PyObject *object) {
    PyObject_GC_Track(object);
    PyObject_GC_UnTrack(object);
    (void)PyObject_GC_IsTracked(object);
    (void)PyObject_GC_IsFinalized(object);
    (void)PyGC_Collect();
    (void)PyGC_Enable();
    (void)PyGC_Disable();
    (void)PyGC_IsEnabled();
    (void)PyModule_GetState_DuringGC(object);
    PyObject_GC_Del(object);
}

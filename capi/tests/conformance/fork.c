/* Forks: by an attached and a detached thread, while others attach, make heaps and collect.
 *
 * There are few children of each kind, or 400 if STANDSTILL_STRESS_SECS is set. */

#include "check.h"

#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int over;
static standstill_heap *second_heap;

static int children(int few) { return getenv("STANDSTILL_STRESS_SECS") ? 400 : few; }

/* What each child must be able to do. It ends with status 0. */
static void collect_in_child(standstill_heap *heap) {
    alarm(20);
    if (!standstill_is_attached() && standstill_attach(heap) != 0)
        _exit(2);
    PyGC_Collect(); /* what the lost threads left */
    garbage_ring(50);
    if (PyGC_Collect() != 50)
        _exit(3);
    if (standstill_detach() != 0 || standstill_attach(heap) != 0)
        _exit(4);
    _exit(misuses(0) + unraisables());
}

static void child_has_collected(pid_t child) {
    int status = -1;
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    if (status != 0)
        check_failed("the child", 0, "its status is %#x", (unsigned)status);
}

static void churn(void *arg) {
    (void)arg;
    while (!GET(over)) {
        garbage_ring(3);
        standstill_safepoint();
    }
}
static void churn_elsewhere(void *arg) {
    CHECK_INT(standstill_attach(second_heap), 0);
    churn(arg);
    PyGC_Collect(); /* the thread that frees the heap is attached to another one */
    CHECK_INT(standstill_detach(), 0);
}

static void fork_often(int detached, int few) {
    int i;
    for (i = 0; i < children(few); i++) {
        pid_t child;
        if (detached) {
            Py_BEGIN_ALLOW_THREADS
            child = fork();
            if (child == 0)
                collect_in_child(check_heap);
            child_has_collected(child);
            Py_END_ALLOW_THREADS
        } else {
            child = fork();
            if (child == 0)
                collect_in_child(check_heap);
            Py_BEGIN_ALLOW_THREADS
            child_has_collected(child);
            Py_END_ALLOW_THREADS
        }
        standstill_safepoint();
    }
}

static void a_detached_thread_forks_and_the_child_collects(void) {
    thread threads[2];
    int i;
    for (i = 0; i < 2; i++)
        start(&threads[i], churn, NULL);
    fork_often(1, 5);
    PUT(over, 1);
    for (i = 0; i < 2; i++)
        join(&threads[i]);
}

static void forks_by_a_thread_that_was_never_attached(void *arg) {
    int i;
    (void)arg;
    for (i = 0; i < children(4); i++) {
        pid_t child = fork();
        if (child == 0)
            collect_in_child(i % 2 ? check_heap : second_heap);
        child_has_collected(child);
    }
    PUT(over, 1);
}
static void in_the_child_each_heap_is_complete(void) {
    thread here, elsewhere, forks;
    second_heap = standstill_heap_new(NULL);
    CHECK(second_heap != NULL);
    start(&here, churn, NULL);
    start_raw(&elsewhere, churn_elsewhere, NULL);
    start_raw(&forks, forks_by_a_thread_that_was_never_attached, NULL);
    join(&forks);
    join(&here);
    join(&elsewhere);
    CHECK_INT(standstill_heap_free(second_heap), 0);
}

static void attach_briefly(void *arg) {
    (void)arg;
    while (!GET(over)) {
        CHECK_INT(standstill_attach(check_heap), 0);
        CHECK_INT(standstill_detach(), 0);
    }
}
static void make_heaps(void *arg) {
    (void)arg;
    while (!GET(over)) {
        standstill_heap_options options = STANDSTILL_HEAP_OPTIONS_INIT;
        standstill_heap *heap;
        options.reserve = (size_t)1 << 30;
        heap = standstill_heap_new(&options);
        CHECK(heap && standstill_heap_free(heap) == 0);
    }
}
static void the_child_attaches_although_other_threads_did_so_at_the_fork(void) {
    thread threads[4];
    int i;
    for (i = 0; i < 3; i++)
        start_raw(&threads[i], attach_briefly, NULL);
    start_raw(&threads[3], make_heaps, NULL);
    fork_often(0, 10);
    fork_often(1, 10);
    PUT(over, 1);
    for (i = 0; i < 4; i++)
        join(&threads[i]);
}

static void set_hooks(void *arg) {
    while (!GET(over)) {
        standstill_set_slow_stop_hook(NULL, arg);
        PyErr_Clear();
    }
}
static void the_child_has_the_hooks(void) {
    thread setter;
    start_raw(&setter, set_hooks, NULL);
    fork_often(0, 5);
    PUT(over, 1);
    join(&setter);
}

static int finalizing;
static void slow_finalizer(PyObject *self) {
    struct timespec pause = {0, 2 * 1000 * 1000};
    (void)self;
    PUT(finalizing, 1);
    nanosleep(&pause, NULL);
}
static PyTypeObject Slow_Type = {TYPE_HEAD .tp_name = "check.Slow", .tp_basicsize = sizeof(Pair), .tp_base = &Pair_Type,
                                 .tp_finalize = slow_finalizer};
static void collect_slowly(void *arg) {
    (void)arg;
    while (!GET(over)) {
        garbage_ring_of(&Slow_Type, 3);
        garbage_ring(1000);
        PyGC_Collect();
    }
}
static void the_child_collects_although_a_thread_was_in_a_finalizer(void) {
    thread collector;
    int i, detached;
    ready(&Slow_Type);
    start(&collector, collect_slowly, NULL);
    for (i = 0; i < 3; i++)
        for (detached = 0; detached < 2; detached++) {
            PUT(finalizing, 0);
            Py_BEGIN_ALLOW_THREADS
            block_for(&finalizing);
            Py_END_ALLOW_THREADS
            fork_often(detached, 1);
        }
    PUT(over, 1);
    join(&collector);
}

const struct test fork_tests[] = {
    TEST(a_detached_thread_forks_and_the_child_collects),
    TEST(in_the_child_each_heap_is_complete),
    TEST(the_child_attaches_although_other_threads_did_so_at_the_fork),
    TEST(the_child_has_the_hooks),
    TEST(the_child_collects_although_a_thread_was_in_a_finalizer),
    TESTS_END,
};

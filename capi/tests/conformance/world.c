/* Section N: the world stops; one attached thread. */

#include "check.h"

#include <sched.h>
#include <time.h>

#define GC_TYPE (Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC)

static int stop_threads;

static void sleep_ms(long ms) {
    struct timespec time;
    time.tv_sec = ms / 1000;
    time.tv_nsec = ms % 1000 * 1000000;
    nanosleep(&time, NULL);
}

/* S-156 */
static void pauses(void *arg);
static int in_the_middle[2], seen_in_the_middle;
static int watching_traverse(PyObject *self, visitproc visit, void *arg) {
    if (GET(in_the_middle[0]) || GET(in_the_middle[1]))
        ADD(seen_in_the_middle);
    return pair_traverse(self, visit, arg);
}
static PyTypeObject Watching_Type = {
    TYPE_HEAD
    .tp_name = "check.Watching",
    .tp_basicsize = sizeof(Pair),
    .tp_flags = GC_TYPE,
    .tp_dealloc = pair_dealloc,
    .tp_traverse = watching_traverse,
    .tp_clear = pair_clear,
};
static void mutate(void *arg) {
    int *flag = arg;
    while (!GET(stop_threads)) {
        PUT(*flag, 1);
        garbage_ring_of(&Watching_Type, 2); /* in the middle of a change, no safe point in it */
        PUT(*flag, 0);
        standstill_safepoint();
    }
}

static void s_156_no_other_thread_runs_during_a_handler(void) {
    thread threads[2];
    int i;
    ready(&Watching_Type);
    for (i = 0; i < 2; i++)
        start(&threads[i], mutate, &in_the_middle[i]);
    for (i = 0; i < 100; i++) {
        PyGC_Collect();
        standstill_safepoint();
    }
    PUT(stop_threads, 1);
    for (i = 0; i < 2; i++)
        join(&threads[i]);
    CHECK_INT(seen_in_the_middle, 0);
    CHECK(calls.traversed > 100);
    PyGC_Collect();
}

/* Is in the middle of a change nearly all the time. */
static void changes(void *arg) {
    int *flag = arg;
    volatile int i;
    while (!GET(stop_threads)) {
        PUT(*flag, 1);
        for (i = 0; i < 2000; i++)
            ;
        PUT(*flag, 0);
        standstill_safepoint();
    }
}

/* The same for the calls of handlers that no collection makes: by PyObject_GC_Track, at the first instance of a type, after
 * a clear handler, by a question. */
static void s_156_no_handler_runs_in_the_middle_of_another_threads_change(void) {
    thread threads[2];
    PyObject *answer, *asked;
    Pair *p;
    int i;
    ready(&Watching_Type);
    for (i = 0; i < 2; i++)
        start(&threads[i], changes, &in_the_middle[i]);
    for (i = 0; i < 2; i++)
        wait_for(&in_the_middle[i]);
    p = pair_of(&Watching_Type, NULL, NULL);
    asked = (PyObject *)p;
    for (i = 0; i < 300; i++) {
        PyObject_GC_UnTrack(p);
        PyObject_GC_Track(p);
        if (i % 10 == 0) {
            garbage_ring_of(&Watching_Type, 2);
            CHECK_INT(PyGC_Collect(), 2);
            answer = standstill_gc_get_referents(&asked, 1);
            Py_XDECREF(answer);
            answer = standstill_gc_get_referrers(&asked, 1);
            Py_XDECREF(answer);
        }
        standstill_safepoint();
    }
    CHECK(calls.traversed > 0);
    PUT(stop_threads, 1);
    for (i = 0; i < 2; i++)
        join(&threads[i]);
    CHECK_INT(seen_in_the_middle, 0);
    Py_DECREF(p);
}

static Pair *checked_later;
static void tracks_a_dangling_field(void) {
    Pair *dead = pair(NULL, NULL);
    PyObject_GC_UnTrack(checked_later);
    checked_later->a = (PyObject *)dead;
    Py_DECREF(dead);
    PyObject_GC_Track(checked_later);
}

/* While another thread is attached, the next collection looks. It does not follow the field. */
static void s_054_a_dangling_field_of_an_object_that_others_may_know_is_reported_by_the_next_collection(void) {
    thread other;
    int steps[2] = {0, 0};
    checked_later = pair(NULL, NULL);
    start(&other, pauses, steps);
    wait_for(&steps[0]);
    tracks_a_dangling_field();
    CHECK_INT(misuses(0), 0);
    CHECK_INT(PyGC_Collect(), 0);
    EXPECT_MISUSE(STANDSTILL_E_FREED_POINTER, 1);
    checked_later->a = NULL;
    PUT(steps[1], 1);
    join(&other);
    CHECK_INT(PyGC_Collect(), 0);
    Py_DECREF(checked_later);
}

/* Passes safepoints until it is told to end. */
static void pauses(void *arg) {
    int *steps = arg;
    PUT(steps[0], 1);
    wait_for(&steps[1]);
}

static int running, overlapped;
static int serial_traverse(PyObject *self, visitproc visit, void *arg) {
    int result;
    if (__atomic_fetch_add(&running, 1, __ATOMIC_SEQ_CST))
        ADD(overlapped);
    result = pair_traverse(self, visit, arg);
    __atomic_fetch_sub(&running, 1, __ATOMIC_SEQ_CST);
    return result;
}

static void s_156_a_type_can_ask_for_serial_calls(void) {
    static PyTypeObject type = {TYPE_HEAD .tp_name = "check.Serial", .tp_basicsize = sizeof(Pair),
                                .tp_flags = GC_TYPE | STANDSTILL_TPFLAGS_SERIAL_TRAVERSE, .tp_dealloc = pair_dealloc,
                                .tp_traverse = serial_traverse, .tp_clear = pair_clear};
    standstill_heap_options options = STANDSTILL_HEAP_OPTIONS_INIT;
    standstill_heap *heap;
    CHECK_INT(standstill_detach(), 0);
    options.workers = 4;
    options.serial_below = 1;
    options.checked = check_is_checked;
    heap = standstill_heap_new(&options);
    CHECK(heap && standstill_attach(heap) == 0);
    ready(&type);
    garbage_ring_of(&type, 20000);
    CHECK_INT(PyGC_Collect(), 20000);
    CHECK_INT(overlapped, 0);
    CHECK_INT(standstill_detach(), 0);
    CHECK_INT(standstill_attach(check_heap), 0);
}

static void s_156_a_heap_type_asks_by_a_slot(void) {
    static const uint64_t more = STANDSTILL_TPFLAGS_SERIAL_TRAVERSE;
    PyType_Slot slots[] = {{Py_tp_traverse, NULL}, {STANDSTILL_tp_flags, NULL}, {0, NULL}};
    PyType_Spec spec = {"check.SerialHeap", sizeof(Pair), 0, GC_TYPE, NULL};
    traverseproc traverse = serial_traverse;
    const uint64_t *address = &more;
    PyObject *type;
    memcpy(&slots[0].pfunc, &traverse, sizeof traverse);
    memcpy(&slots[1].pfunc, &address, sizeof address);
    spec.slots = slots;
    type = PyType_FromSpec(&spec);
    CHECK(type != NULL);
    CHECK((((PyTypeObject *)type)->tp_flags & more) == more);
    CHECK((((PyTypeObject *)type)->tp_flags & Py_TPFLAGS_HAVE_GC) != 0);
    Py_DECREF(type);
}

/* S-157 */
static pthread_t maker;
static int on_another_thread;
static int located_traverse(PyObject *self, visitproc visit, void *arg) {
    if (!pthread_equal(pthread_self(), maker))
        PUT(on_another_thread, 1);
    return pair_traverse(self, visit, arg);
}
static void collect(void *arg) {
    Py_ssize_t n = PyGC_Collect();
    if (arg)
        *(Py_ssize_t *)arg = n;
}

static void s_157_a_handler_runs_on_other_threads_too(void) {
    static PyTypeObject type = {TYPE_HEAD .tp_name = "check.Located", .tp_basicsize = sizeof(Pair), .tp_flags = GC_TYPE,
                                .tp_dealloc = pair_dealloc, .tp_traverse = located_traverse, .tp_clear = pair_clear};
    Py_ssize_t found = 0;
    ready(&type);
    maker = pthread_self();
    garbage_ring_of(&type, 2);
    run_on_thread(collect, &found);
    CHECK_INT(found, 2);
    CHECK_INT(on_another_thread, 1);
}

static void s_158_a_collection_may_start_at_any_safe_point(void) {
    standstill_heap_options options = STANDSTILL_HEAP_OPTIONS_INIT;
    standstill_heap *heap;
    long before;
    int i;
    CHECK_INT(standstill_detach(), 0);
    options.stress = 1;
    options.checked = check_is_checked;
    heap = standstill_heap_new(&options);
    CHECK(heap && standstill_attach(heap) == 0);
    for (i = 0; i < 50; i++) {
        Pair *p = pair(NULL, NULL);
        before = GET(calls.traversed);
        standstill_safepoint();
        CHECK(GET(calls.traversed) > before);
        set_a(p, p);
        Py_DECREF(p);
    }
    PyGC_Collect();
    CHECK_INT(calls.freed, 50);
    CHECK_INT(standstill_detach(), 0);
    CHECK_INT(standstill_attach(check_heap), 0);
}

/* S-159 */
static int asked, answered, waited_well;
static void answer(void *arg) {
    (void)arg;
    while (!GET(asked))
        standstill_safepoint();
    Py_DECREF(pair(NULL, NULL)); /* progress inside the runtime */
    PUT(answered, 1);
}
static void waiting_finalizer(PyObject *self) {
    (void)self;
    PUT(asked, 1);
    block_for(&answered);
    waited_well = 1;
}

static void s_159_finalizers_run_with_the_world_running(void) {
    static PyTypeObject type = {TYPE_HEAD .tp_name = "check.Waiting", .tp_basicsize = sizeof(Pair), .tp_base = &Pair_Type,
                                .tp_finalize = waiting_finalizer};
    thread t;
    ready(&type);
    garbage_ring_of(&type, 1);
    start(&t, answer, NULL);
    CHECK_INT(PyGC_Collect(), 1);
    CHECK_INT(waited_well, 1);
    join(&t);
}

/* S-160 */
static int is_detached, may_return;
static void be_detached(void *arg) {
    (void)arg;
    Py_BEGIN_ALLOW_THREADS
    PUT(is_detached, 1);
    block_for(&may_return);
    Py_END_ALLOW_THREADS
}

static void s_160_a_detached_thread_delays_no_collection(void) {
    thread t;
    start(&t, be_detached, NULL);
    wait_for(&is_detached);
    garbage_ring(2);
    CHECK_INT(PyGC_Collect(), 2); /* returns, though the other sleeps */
    CHECK_INT(GET(may_return), 0);
    PUT(may_return, 1);
    join(&t);
}

static int stopping, came_back_during;
static int slow_traverse(PyObject *self, visitproc visit, void *arg) {
    PUT(stopping, 1);
    PUT(may_return, 1);
    sleep_ms(30);
    if (GET(asked))
        came_back_during = 1;
    PUT(stopping, 0);
    return pair_traverse(self, visit, arg);
}
static void come_back(void *arg) {
    (void)arg;
    Py_BEGIN_ALLOW_THREADS
    PUT(is_detached, 1);
    block_for(&may_return);
    Py_END_ALLOW_THREADS
    PUT(asked, 1);
}

static void s_160_a_thread_that_comes_back_waits_for_the_stop(void) {
    static PyTypeObject type = {TYPE_HEAD .tp_name = "check.Slow", .tp_basicsize = sizeof(Pair), .tp_flags = GC_TYPE,
                                .tp_dealloc = pair_dealloc, .tp_traverse = slow_traverse, .tp_clear = pair_clear};
    thread t;
    Pair *p;
    ready(&type);
    p = pair_of(&type, NULL, NULL);
    may_return = 0; /* checked mode has tried the handler */
    start(&t, come_back, NULL);
    wait_for(&is_detached);
    PyGC_Collect();
    CHECK_INT(came_back_during, 0);
    join(&t);
    CHECK_INT(asked, 1);
    Py_DECREF(p);
}

/* S-161 */
static int tried;
static int take_all(PyObject *object, void *arg) {
    (void)object;
    ADD(*(int *)arg);
    return 1;
}
static int visited;
static int nesting_traverse(PyObject *self, visitproc visit, void *arg) {
    if (__atomic_exchange_n(&tried, 1, __ATOMIC_SEQ_CST) == 0) {
        CHECK_INT(PyGC_Collect(), 0);
        PyUnstable_GC_VisitObjects(take_all, &visited);
        CHECK(standstill_gc_get_objects(-1) == NULL);
        CHECK(standstill_gc_freeze() == -1);
    }
    return pair_traverse(self, visit, arg);
}

static void s_161_a_stop_inside_a_stop_is_refused(void) {
    static PyTypeObject type = {TYPE_HEAD .tp_name = "check.Nesting", .tp_basicsize = sizeof(Pair),
                                .tp_flags = GC_TYPE | STANDSTILL_TPFLAGS_SERIAL_TRAVERSE, .tp_dealloc = pair_dealloc,
                                .tp_traverse = nesting_traverse, .tp_clear = pair_clear};
    ready(&type);
    garbage_ring_of(&type, 2);
    CHECK_INT(PyGC_Collect(), 2);
    CHECK_INT(visited, 0);
    EXPECT_MISUSE(STANDSTILL_E_IN_TRAVERSAL, 4);
    CHECK_INT(standstill_gc_get_freeze_count(), 0);
}

/* S-162 */
static void pause_all_ways(void *arg) {
    long which = *(long *)arg, i;
    Py_ssize_t counts[3];
    for (i = 0; i < 60; i++) {
        Pair *p = ring(2);
        PyObject *objects[1], *found = NULL;
        int n = 0;
        objects[0] = (PyObject *)p;
        switch ((which + i) % 8) {
        case 0: PyGC_Collect(); break;
        case 1: found = standstill_gc_get_objects(-1); break;
        case 2: found = standstill_gc_get_referrers(objects, 1); break;
        case 3: found = standstill_gc_get_referents(objects, 1); break;
        case 4: standstill_gc_freeze(); break;
        case 5: standstill_gc_unfreeze(); break;
        case 6: standstill_gc_get_count(counts); break;
        case 7: PyUnstable_GC_VisitObjects(take_all, &n); break;
        }
        Py_XDECREF(found);
        CHECK(p->a && ((Pair *)p->a)->a == (PyObject *)p);
        Py_DECREF(p);
        standstill_safepoint();
    }
}

static void s_162_eight_threads_pause_in_all_ways(void) {
    thread threads[8];
    long which[8], i;
    for (i = 0; i < 8; i++) {
        which[i] = i;
        start(&threads[i], pause_all_ways, &which[i]);
    }
    for (i = 0; i < 8; i++)
        join(&threads[i]);
    standstill_gc_unfreeze();
    PyGC_Collect();
    CHECK_INT(calls.freed, 8 * 60 * 2);
}

/* S-163 */
static void leave_garbage(void *arg) {
    (void)arg;
    garbage_ring(4);
}

static void s_163_objects_of_a_thread_that_ended_are_collected(void) {
    long long before = LIVE();
    run_on_thread(leave_garbage, NULL);
    CHECK_INT(LIVE(), before + 4);
    CHECK_INT(PyGC_Collect(), 4);
    CHECK_INT(LIVE(), before);
}

/* The destructor of a pthread key runs after the library has seen the end of the thread. */
static struct {
    int result, code, ensured, is_attached;
} at_end;

static void attach_at_end(void *value) {
    PyGILState_STATE state;
    (void)value;
    at_end.result = standstill_attach(NULL);
    at_end.code = standstill_error_code();
    PyErr_Clear();
    state = PyGILState_Ensure();
    at_end.ensured = state == PyGILState_UNLOCKED;
    at_end.is_attached = standstill_is_attached();
    PyGILState_Release(state);
}

static void set_key(void *key) {
    CHECK(pthread_setspecific(*(pthread_key_t *)key, key) == 0);
}

static void an_attach_in_the_destructor_of_a_key_is_refused_with_an_error(void) {
    pthread_key_t key;
    CHECK(pthread_key_create(&key, attach_at_end) == 0);
    run_on_thread(set_key, &key);
    CHECK_INT(at_end.result, -1);
    CHECK_INT(at_end.code, 0); /* The indicator is gone. */
    CHECK_INT(at_end.ensured, 0);
    CHECK_INT(at_end.is_attached, 0);
    CHECK_INT(misuses_in(STANDSTILL_E_NOT_ALLOWED_HERE, "standstill_attach"), 1);
    EXPECT_MISUSE(STANDSTILL_E_NOT_ALLOWED_HERE, 2);
    CHECK(!strcmp(last_misuse.function, "PyGILState_Ensure"));
    CHECK(pthread_key_delete(key) == 0);
}

/* S-164 */
static standstill_heap *other_heap;
static int other_ready, other_done;
static long other_rounds;
static void live_in_the_other(void *arg) {
    (void)arg;
    CHECK_INT(standstill_attach(other_heap), 0);
    PUT(other_ready, 1);
    while (!GET(other_done)) {
        Py_DECREF(pair(NULL, NULL)); /* no safe point ever: a stop of this heap would wait for us */
        ADD(other_rounds);
    }
    CHECK_INT(standstill_detach(), 0);
}

static int progress_traverse(PyObject *self, visitproc visit, void *arg) {
    long before = GET(other_rounds);
    int i;
    for (i = 0; i < 2000 && GET(other_rounds) == before; i++)
        sleep_ms(1);
    if (GET(other_rounds) != before)
        PUT(asked, 1);
    return pair_traverse(self, visit, arg);
}

static void s_164_stopping_one_heap_does_not_stop_another(void) {
    static PyTypeObject type = {TYPE_HEAD .tp_name = "check.Progress", .tp_basicsize = sizeof(Pair), .tp_flags = GC_TYPE,
                                .tp_dealloc = pair_dealloc, .tp_traverse = progress_traverse, .tp_clear = pair_clear};
    thread t;
    Pair *p;
    other_heap = standstill_heap_new(NULL);
    CHECK(other_heap != NULL);
    ready(&type);
    p = pair_of(&type, NULL, NULL);
    start_raw(&t, live_in_the_other, NULL);
    wait_for(&other_ready);
    CHECK_INT(PyGC_Collect(), 0);
    CHECK_INT(asked, 1); /* the other thread went on while this heap was stopped */
    PUT(other_done, 1);
    join(&t);
    Py_DECREF(p);
    CHECK_INT(standstill_heap_free(other_heap), 0);
}

static void s_164_garbage_of_one_heap_is_not_seen_by_another(void) {
    standstill_heap *heap = standstill_heap_new(NULL);
    long long here = LIVE();
    garbage_ring(2);
    CHECK_INT(standstill_detach(), 0);
    CHECK(heap && standstill_attach(heap) == 0);
    garbage_ring(3);
    CHECK_INT(PyGC_Collect(), 3);
    CHECK_INT(standstill_detach(), 0);
    CHECK_INT(standstill_heap_free(heap), 0);
    CHECK_INT(standstill_attach(check_heap), 0);
    CHECK_INT(LIVE(), here + 2);
    CHECK_INT(PyGC_Collect(), 2);
}

/* A thread that blocks while it is attached holds up every stop. The hook receives its name and the time of its wait. */
#ifdef __linux__
extern int pthread_setname_np(pthread_t id, const char *name);
#endif

static standstill_heap *slow_heap;
static int slow_attached, slow_may_go_on, slow_reports;

static void note_slow_stop(const standstill_slow_stop *report, void *arg) {
    CHECK(arg == &slow_reports);
    CHECK(report->waited >= 0.02 && report->attached >= report->waited);
    CHECK_INT(report->ended, 0);
    CHECK(strstr(report->text, "a stop for a collection by ") != NULL);
#ifdef __linux__
    {
        char path[64], name[32] = "";
        FILE *file;
        snprintf(path, sizeof path, "/proc/self/task/%llu/comm", (unsigned long long)report->os_thread);
        file = fopen(path, "r");
        CHECK(file != NULL && fgets(name, sizeof name, file) != NULL);
        fclose(file);
        CHECK(strcmp(name, "blocks\n") == 0);
        CHECK(report->thread != NULL && strcmp(report->thread, "blocks") == 0);
        CHECK(strstr(report->text, "thread 'blocks' (OS thread ") != NULL);
    }
#endif
    if (++slow_reports == 2)
        PUT(slow_may_go_on, 1);
}

static void blocks(void *arg) {
    (void)arg;
#ifdef __linux__
    CHECK_INT(pthread_setname_np(pthread_self(), "blocks"), 0);
#endif
    MUST(standstill_attach(slow_heap) == 0);
    PUT(slow_attached, 1);
    block_for(&slow_may_go_on);
    MUST(standstill_detach() == 0);
}

static void a_thread_that_blocks_while_attached_is_told_to_the_hook(void) {
    standstill_heap_options options = STANDSTILL_HEAP_OPTIONS_INIT;
    thread t;
    CHECK_INT(standstill_detach(), 0);
    options.checked = check_is_checked;
    options.slow_stop_ms = 20;
    slow_heap = standstill_heap_new(&options);
    CHECK(slow_heap && standstill_attach(slow_heap) == 0);
    standstill_set_slow_stop_hook(note_slow_stop, &slow_reports);
    start_raw(&t, blocks, NULL);
    wait_for(&slow_attached);
    CHECK_INT(PyGC_Collect(), 0); /* it waits for the other thread */
    CHECK(slow_reports >= 2);
    join(&t);
    standstill_set_slow_stop_hook(NULL, NULL);
    CHECK_INT(standstill_detach(), 0);
    CHECK_INT(standstill_attach(check_heap), 0);
}

/* Two threads whose only safepoints are collections. Each collection gives way to the other's, and stops for it. */
static int collections_by[2];
static int both_have_collected(void) { return GET(collections_by[0]) >= 20 && GET(collections_by[1]) >= 20; }
static void collect_often(void *arg) {
    int *mine = arg, i;
    while (!both_have_collected()) {
        garbage_ring(2);
        if ((mine == collections_by ? PyGC_Collect() : standstill_gc_collect(2)) > 0)
            ADD(*mine);
        for (i = 0; i < 100; i++)
            sched_yield(); /* the other thread finds no collection now and then */
    }
}
static void a_collection_that_gives_way_is_a_safepoint(void) {
    thread t;
    start(&t, collect_often, &collections_by[1]);
    collect_often(&collections_by[0]);
    join(&t);
}

static int may_end;
static void collect_while_disabled(void *arg) {
    (void)arg;
    while (!GET(may_end))
        CHECK_INT(PyGC_Collect(), 0);
}
static void a_collection_while_collections_are_disabled_is_a_safepoint(void) {
    thread t;
    int i;
    PyGC_Disable();
    start(&t, collect_while_disabled, NULL);
    for (i = 0; i < 20; i++) {
        garbage_ring(2);
        CHECK_INT(standstill_gc_collect(2), 2);
    }
    PUT(may_end, 1);
    join(&t);
    PyGC_Enable();
}

/* What lies behind an older, smaller struct is not read. */
static void options_of_an_older_header_leave_later_ones_alone(void) {
    struct {
        char bytes[offsetof(standstill_heap_options, stress)];
    } *older;
    standstill_heap_options now = STANDSTILL_HEAP_OPTIONS_INIT;
    standstill_heap *heap;
    now.size = sizeof *older;
    now.reserve = (size_t)1 << 30;
    older = malloc(sizeof *older);
    CHECK(older != NULL);
    memcpy(older, &now, sizeof *older);
    heap = standstill_heap_new((const standstill_heap_options *)(const void *)older);
    free(older);
    CHECK(heap != NULL);
    CHECK_INT(standstill_heap_free(heap), 0);
    /* Stress, which the size leaves out, would collect at a safe point. */
    now.size = offsetof(standstill_heap_options, stress);
    now.checked = check_is_checked;
    now.stress = 1;
    heap = standstill_heap_new(&now);
    CHECK_INT(standstill_detach(), 0);
    CHECK(heap && standstill_attach(heap) == 0);
    garbage_ring(2);
    standstill_safepoint();
    CHECK_INT(PyGC_Collect(), 2);
    CHECK_INT(standstill_detach(), 0);
    CHECK_INT(standstill_attach(check_heap), 0);
}

const struct test world_tests[] = {
    /* Checked mode also tries handlers outside of collections, on objects that only the caller knows. */
    TEST_AS(s_156_no_other_thread_runs_during_a_handler, UNCHECKED_ONLY),
    TEST(s_156_no_handler_runs_in_the_middle_of_another_threads_change),
    TEST_AS(s_054_a_dangling_field_of_an_object_that_others_may_know_is_reported_by_the_next_collection, CHECKED_ONLY),
    TEST(s_156_a_type_can_ask_for_serial_calls),
    TEST(s_156_a_heap_type_asks_by_a_slot),
    TEST(s_157_a_handler_runs_on_other_threads_too),
    TEST(s_158_a_collection_may_start_at_any_safe_point),
    TEST(s_159_finalizers_run_with_the_world_running),
    TEST(s_160_a_detached_thread_delays_no_collection),
    TEST(s_160_a_thread_that_comes_back_waits_for_the_stop),
    TEST(s_161_a_stop_inside_a_stop_is_refused),
    TEST(s_162_eight_threads_pause_in_all_ways),
    TEST(s_163_objects_of_a_thread_that_ended_are_collected),
    TEST(s_164_stopping_one_heap_does_not_stop_another),
    TEST(an_attach_in_the_destructor_of_a_key_is_refused_with_an_error),
    TEST(a_thread_that_blocks_while_attached_is_told_to_the_hook),
    TEST(a_collection_that_gives_way_is_a_safepoint),
    TEST(a_collection_while_collections_are_disabled_is_a_safepoint),
    TEST(options_of_an_older_header_leave_later_ones_alone),
    TEST(s_164_garbage_of_one_heap_is_not_seen_by_another),
    TESTS_END,
};

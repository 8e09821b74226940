/* Sections G and H: visitproc, traverseproc, inquiry, Py_VISIT. */

#include "check.h"

#define GC_TYPE (Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC)
#define STATIC_PAIR(variable, name, traverse, clear)                                                                 \
    static PyTypeObject variable = {TYPE_HEAD .tp_name = name, .tp_basicsize = sizeof(Pair), .tp_flags = GC_TYPE,    \
                                    .tp_dealloc = pair_dealloc, .tp_traverse = traverse, .tp_clear = clear}

struct visits {
    int n, stop_at;
    PyObject *objects[8];
};
/* A visitor of our own: notes what it is given; returns 77 at the visit numbered stop_at. */
static int noting_visit(PyObject *object, void *arg) {
    struct visits *visits = arg;
    visits->objects[visits->n++] = object;
    return visits->n == visits->stop_at ? 77 : 0;
}

/* S-83 */
static int different_args;
static visitproc kept_visit;
static void *kept_arg;
static void *arg_of_first_visit;
static int keeping_visit(PyObject *object, void *arg) {
    (void)object;
    arg_of_first_visit = arg_of_first_visit ? arg_of_first_visit : arg;
    different_args += arg != arg_of_first_visit;
    return 0;
}
static int keeping_traverse(PyObject *self, visitproc visit, void *arg) {
    kept_visit = visit;
    kept_arg = arg;
    return pair_traverse(self, visit, arg);
}
STATIC_PAIR(Keeping_Type, "check.Keeping", keeping_traverse, pair_clear);

static void s_083_each_visit_gets_the_argument_of_the_handler(void) {
    int here;
    Leaf *l = leaf();
    Pair *p = pair(l, l);
    arg_of_first_visit = &here;
    CHECK_INT(Pair_Type.tp_traverse((PyObject *)p, keeping_visit, &here), 0);
    CHECK_INT(different_args, 0);
    Py_DECREF(l);
    Py_DECREF(p);
}

static void s_083_a_visitor_that_was_kept_does_nothing(void) {
    Pair *p, *q = pair(NULL, NULL);
    ready(&Keeping_Type);
    p = pair_of(&Keeping_Type, q, NULL);
    CHECK_INT(PyGC_Collect(), 0);
    CHECK(kept_visit != NULL);
    CHECK_INT(kept_visit((PyObject *)q, kept_arg), 0);
    EXPECT_MISUSE(STANDSTILL_E_STALE_VISITOR, 1);
    CHECK_INT(PyGC_Collect(), 0);
    CHECK_INT(Py_REFCNT((PyObject *)q), 2);
    Py_DECREF(p);
    Py_DECREF(q);
}

static void s_084_every_service_sees_the_same_list(void) {
    Pair *a = pair(NULL, NULL), *b = pair(NULL, NULL), *p;
    PyObject *objects[1], *found;
    struct visits visits = {0, 0, {0}};
    p = pair(a, b);
    objects[0] = (PyObject *)p;
    found = standstill_gc_get_referents(objects, 1);
    MUST(found != NULL);
    CHECK_INT(PyTuple_Size(found), 2);
    CHECK(PyTuple_GetItem(found, 0) == (PyObject *)a && PyTuple_GetItem(found, 1) == (PyObject *)b);
    Py_DECREF(found);
    objects[0] = (PyObject *)b;
    found = standstill_gc_get_referrers(objects, 1);
    MUST(found != NULL);
    CHECK_INT(PyTuple_Size(found), 1);
    CHECK(PyTuple_GetItem(found, 0) == (PyObject *)p);
    Py_DECREF(found);
    CHECK_INT(Pair_Type.tp_traverse((PyObject *)p, noting_visit, &visits), 0);
    CHECK_INT(visits.n, 2);
    CHECK(visits.objects[0] == (PyObject *)a && visits.objects[1] == (PyObject *)b);
    set_a(a, p);
    Py_DECREF(a);
    Py_DECREF(b);
    Py_DECREF(p);
    CHECK_INT(PyGC_Collect(), 3);
    CHECK_INT(calls.freed, 3);
}

static void s_085_a_visitor_of_ones_own_sees_the_direct_referents(void) {
    Leaf *l = leaf();
    Pair *q = pair(l, NULL), *p = pair(q, l);
    struct visits visits = {0, 0, {0}};
    CHECK_INT(Py_TYPE(p)->tp_traverse((PyObject *)p, noting_visit, &visits), 0);
    CHECK_INT(visits.n, 2);
    CHECK(visits.objects[0] == (PyObject *)q && visits.objects[1] == (PyObject *)l);
    Py_DECREF(p);
    Py_DECREF(q);
    Py_DECREF(l);
}

/* S-86 */
static int null_traverse(PyObject *self, visitproc visit, void *arg) {
    int result = visit(NULL, arg);
    return result ? result : pair_traverse(self, visit, arg);
}
STATIC_PAIR(Null_Type, "check.NullVisitor", null_traverse, pair_clear);

static void s_086_a_visit_of_null_is_ignored_and_reported_once(void) {
    long long before = LIVE();
    ready(&Null_Type);
    garbage_ring_of(&Null_Type, 5);
    CHECK_INT(PyGC_Collect(), 5);
    CHECK_INT(LIVE(), before);
    EXPECT_MISUSE(STANDSTILL_E_NULL_VISIT, 1);
    CHECK(strstr(last_misuse.type, "NullVisitor") != NULL);
    garbage_ring_of(&Null_Type, 5);
    CHECK_INT(PyGC_Collect(), 5);
    CHECK_INT(misuses(0), 0);
}

/* S-87 */
static int three_traverse(PyObject *self, visitproc visit, void *arg) {
    Row *r = (Row *)self;
    Py_VISIT(r->items[0]);
    Py_VISIT(r->items[1]);
    Py_VISIT(r->items[2]);
    return 0;
}

static void s_087_a_handler_stops_when_the_visitor_says_so(void) {
    Leaf *l = leaf();
    Row *r = row(3);
    struct visits visits = {0, 2, {0}};
    int i;
    for (i = 0; i < 3; i++)
        r->items[i] = Py_NewRef((PyObject *)l);
    CHECK_INT(three_traverse((PyObject *)r, noting_visit, &visits), 77);
    CHECK_INT(visits.n, 2);
    Py_DECREF(r);
    Py_DECREF(l);
}

/* Visits three members, and counts the visits. Passes a non-zero answer on. */
static int counted_visits;
static int counting_traverse(PyObject *self, visitproc visit, void *arg) {
    Row *r = (Row *)self;
    Py_ssize_t i;
    counted_visits = 0;
    for (i = 0; i < Py_SIZE(r); i++) {
        counted_visits++;
        Py_VISIT(r->items[i]);
    }
    return 0;
}

static PyObject *referrers_of(void *object) {
    PyObject *objects[1], *found;
    objects[0] = object;
    found = standstill_gc_get_referrers(objects, 1);
    MUST(found != NULL);
    return found;
}

static void s_087_the_library_stops_a_handler_that_has_visited_the_sought_object(void) {
    static PyTypeObject type = {TYPE_HEAD .tp_name = "check.Counting", .tp_basicsize = ROW_SIZE,
                                .tp_itemsize = sizeof(PyObject *), .tp_flags = GC_TYPE, .tp_dealloc = row_dealloc,
                                .tp_traverse = counting_traverse, .tp_clear = row_clear};
    Leaf *sought = leaf(), *other = leaf();
    PyObject *found;
    Row *r;
    int at, i;
    ready(&type);
    for (at = 0; at < 3; at++) {
        r = PyObject_GC_NewVar(Row, &type, 3);
        MUST(r != NULL);
        for (i = 0; i < 3; i++)
            r->items[i] = Py_NewRef((PyObject *)(i == at ? sought : other));
        PyObject_GC_Track(r);
        found = referrers_of(sought);
        CHECK_INT(PyTuple_Size(found), 1);
        CHECK(PyTuple_GetItem(found, 0) == (PyObject *)r);
        CHECK_INT(counted_visits, at + 1); /* no member after the sought one is visited */
        Py_DECREF(found);
        PyGC_Collect();
        CHECK_INT(counted_visits, 3); /* a collection stops no handler */
        Py_DECREF(r);
    }
    Py_DECREF(sought);
    Py_DECREF(other);
}

static int answers[4];
static int deaf_traverse(PyObject *self, visitproc visit, void *arg) {
    Pair *p = (Pair *)self;
    if (p->a && p->b) {
        answers[0] = visit(p->b, arg);
        answers[1] = visit(p->a, arg);
        answers[2] = visit(p->b, arg);
        answers[3] = visit(p->a, arg);
    }
    return 0;
}

static void s_087_a_handler_that_goes_on_is_answered_alike(void) {
    static PyTypeObject type = {TYPE_HEAD .tp_name = "check.Deaf", .tp_basicsize = sizeof(Pair), .tp_flags = GC_TYPE,
                                .tp_dealloc = pair_dealloc, .tp_traverse = deaf_traverse, .tp_clear = pair_clear};
    Leaf *sought = leaf(), *other = leaf();
    Pair *p;
    PyObject *found;
    ready(&type);
    p = pair_of(&type, sought, other);
    PyObject_GC_Track(p);
    found = referrers_of(sought);
    CHECK_INT(PyTuple_Size(found), 1); /* though the handler swallowed the answer, and visited the object twice */
    CHECK(PyTuple_GetItem(found, 0) == (PyObject *)p);
    CHECK_INT(answers[0], 0);
    CHECK_INT(answers[1], 1);
    CHECK(answers[2] == answers[1] && answers[3] == answers[1]);
    Py_DECREF(found);
    /* One traversal's answers do not reach the next. */
    found = referrers_of(p);
    CHECK_INT(PyTuple_Size(found), 0);
    CHECK_INT(answers[0] | answers[1] | answers[2] | answers[3], 0);
    Py_DECREF(found);
    PyObject_GC_UnTrack(p);
    Py_DECREF(p);
    Py_DECREF(sought);
    Py_DECREF(other);
    forget_misuses(); /* checked mode reports a handler that visits an object twice */
}

static void s_088_tracked_objects_are_traversed_and_others_are_not(void) {
    Pair *p = pair(NULL, NULL), *q = PyObject_GC_New(Pair, &Pair_Type);
    PyGC_Collect();
    CHECK(calls.traversed > 0);
    PyObject_GC_UnTrack(p);
    calls.traversed = 0;
    PyGC_Collect();
    CHECK_INT(calls.traversed, 0);
    Py_DECREF(p);
    Py_DECREF(q);
}

static void s_089_only_direct_contents(void) {
    Pair *third = pair(NULL, NULL), *second = pair(third, NULL), *first = pair(second, NULL);
    PyObject *objects[1], *found;
    objects[0] = (PyObject *)first;
    found = standstill_gc_get_referents(objects, 1);
    MUST(found != NULL);
    CHECK_INT(PyTuple_Size(found), 1);
    CHECK(PyTuple_GetItem(found, 0) == (PyObject *)second);
    Py_DECREF(found);
    Py_DECREF(first);
    Py_DECREF(second);
    Py_DECREF(third);
}

/* S-90, S-91 */
static int once_traverse(PyObject *self, visitproc visit, void *arg) {
    Py_VISIT(((Pair *)self)->a);
    return 0;
}
STATIC_PAIR(Once_Type, "check.Once", once_traverse, pair_clear);

static void s_090_a_child_held_twice_is_visited_twice(void) {
    long long before = LIVE();
    Pair *p;
    ready(&Once_Type);
    p = pair(NULL, NULL);
    set_a(p, p);
    set_b(p, p);
    Py_DECREF(p);
    CHECK_INT(PyGC_Collect(), 1);
    CHECK_INT(LIVE(), before);
    p = pair_of(&Once_Type, NULL, NULL);
    set_a(p, p);
    set_b(p, p);
    Py_DECREF(p);
    CHECK_INT(PyGC_Collect(), 0);
    CHECK_INT(LIVE(), before + 1);
    Py_INCREF(p);
    pair_clear((PyObject *)p);
    Py_DECREF(p);
    CHECK_INT(LIVE(), before);
}

static void s_091_visiting_too_little_leaks_and_no_more(void) {
    long long before = LIVE();
    Pair *p, *q = pair(NULL, NULL);
    ready(&Once_Type);
    p = pair_of(&Once_Type, NULL, q); /* b is not visited */
    set_a(q, p);
    Py_DECREF(p);
    Py_DECREF(q);
    CHECK_INT(PyGC_Collect(), 0);
    CHECK_INT(LIVE(), before + 2);
    CHECK(q->a == (PyObject *)p && p->b == (PyObject *)q);
    set_a(q, NULL);
    CHECK_INT(LIVE(), before);
}

/* S-92 */
static int twice_traverse(PyObject *self, visitproc visit, void *arg) {
    Py_VISIT(((Pair *)self)->a);
    Py_VISIT(((Pair *)self)->a);
    return 0;
}
STATIC_PAIR(Twice_Type, "check.Twice", twice_traverse, pair_clear);

static void s_092_more_visits_than_references_are_reported(void) {
    Pair *p, *child = pair(NULL, NULL);
    ready(&Twice_Type);
    p = pair_of(&Twice_Type, child, NULL);
    Py_DECREF(child); /* one reference, visited twice */
    CHECK_INT(PyGC_Collect(), 0);
    EXPECT_MISUSE(STANDSTILL_E_OVER_VISITED, -1);
    CHECK(p->a == (PyObject *)child);
    CHECK_INT(Py_REFCNT((PyObject *)child), 1);
    CHECK_INT(calls.cleared, 0);
    Py_DECREF(p);
    forget_misuses();
}

static int a_twice_traverse(PyObject *self, visitproc visit, void *arg) {
    Py_VISIT(((Pair *)self)->a);
    return pair_traverse(self, visit, arg);
}
STATIC_PAIR(ATwice_Type, "check.ATwice", a_twice_traverse, pair_clear);

static void s_092_a_hidden_reference_can_cost_contents_but_no_memory(void) {
    long long before = LIVE();
    Pair *p, *child = pair(NULL, NULL);
    Leaf *content = leaf();
    ready(&ATwice_Type);
    set_a(child, content);
    p = pair_of(&ATwice_Type, child, NULL); /* child: this reference and ours, visited twice */
    set_b(p, p);
    Py_DECREF(p);
    PyGC_Collect();
    CHECK(child->a == NULL || child->a == (PyObject *)content);
    CHECK_INT(calls.freed, 1); /* p */
    CHECK_INT(Py_REFCNT((PyObject *)child), 1);
    set_a(child, child); /* still an object like any other */
    CHECK(child->a == (PyObject *)child);
    Py_DECREF(child);
    Py_DECREF(content);
    PyGC_Collect();
    CHECK_INT(LIVE(), before);
    forget_misuses();
}

/* S-93 */
static int seven;
static int seven_traverse(PyObject *self, visitproc visit, void *arg) {
    int result = pair_traverse(self, visit, arg);
    return result ? result : GET(seven);
}
STATIC_PAIR(Seven_Type, "check.Seven", seven_traverse, pair_clear);

static void s_093_a_result_of_the_handlers_own_abandons_the_collection(void) {
    long long before = LIVE();
    ready(&Seven_Type);
    garbage_ring_of(&Seven_Type, 2);
    garbage_ring(2);
    PUT(seven, 7);
    CHECK_INT(PyGC_Collect(), 0);
    EXPECT_UNRAISABLE(1);
    CHECK(strstr(last_unraisable.type, "Seven") || strstr(last_unraisable.text, "Seven"));
    CHECK_INT(LIVE(), before + 4);
    CHECK_INT(calls.cleared, 0);
    PUT(seven, -1);
    CHECK_INT(PyGC_Collect(), 0);
    EXPECT_UNRAISABLE(1);
    PUT(seven, 0);
    CHECK_INT(PyGC_Collect(), 4);
    CHECK_INT(LIVE(), before);
}

/* S-94 */
static int alternating_traverse(PyObject *self, visitproc visit, void *arg) {
    if (((Pair *)self)->tag++ % 2)
        return 0;
    return pair_traverse(self, visit, arg);
}
STATIC_PAIR(Alternating_Type, "check.Alternating", alternating_traverse, pair_clear);

static void s_094_a_handler_that_changes_its_mind_is_noticed(void) {
    Pair *p;
    ready(&Alternating_Type);
    p = ring_of(&Alternating_Type, 2);
    CHECK_INT(PyGC_Collect(), 0);
    EXPECT_UNRAISABLE(1);
    CHECK_INT(calls.cleared, 0);
    CHECK(p->a != NULL);
    forget_misuses();
}

static void s_094_a_handler_that_changes_its_mind_cannot_damage_memory(void) {
    Pair *p, *q;
    int i;
    ready(&Alternating_Type);
    p = ring_of(&Alternating_Type, 3);
    q = (Pair *)Py_NewRef(p->a);
    for (i = 0; i < 20; i++) {
        PyGC_Collect();
        CHECK(Py_TYPE(p) == &Alternating_Type && Py_TYPE(q) == &Alternating_Type);
        p->tag += i % 3;
        set_a(p, q);
    }
    Py_DECREF(p);
    Py_DECREF(q);
    PyGC_Collect();
    forget_misuses();
    if (unraisables())
        EXPECT_UNRAISABLE(-1);
}

/* S-96 */
#ifndef CHAIN /* the harness asks for less in a debug build */
#define CHAIN 10000000
#endif
static long chain_length;
static void *collect_a_chain(void *unused) {
    Pair *first, *last;
    long i;
    (void)unused;
    CHECK_INT(standstill_attach(check_heap), 0);
    standstill_gc_set_threshold(0, 0, 0);
    first = last = pair(NULL, NULL);
    for (i = 1; i < chain_length; i++) {
        Pair *next = pair(NULL, NULL);
        last->a = (PyObject *)next;
        last = next;
    }
    CHECK_INT(PyGC_Collect(), 0); /* all of it is reached, one after the other */
    last->a = Py_NewRef((PyObject *)first);
    Py_DECREF(first);
    CHECK_INT(PyGC_Collect(), chain_length);
    CHECK_INT(calls.freed, chain_length);
    CHECK_INT(standstill_detach(), 0);
    return NULL;
}

static void s_096_a_long_chain_is_collected_on_a_small_stack(void) {
    pthread_attr_t attributes;
    pthread_t id;
    chain_length = check_is_checked ? 300000 : CHAIN;
    CHECK(pthread_attr_init(&attributes) == 0);
    CHECK(pthread_attr_setstacksize(&attributes, 256 * 1024) == 0);
    CHECK(pthread_create(&id, &attributes, collect_a_chain, NULL) == 0);
    Py_BEGIN_ALLOW_THREADS
    pthread_join(id, NULL);
    Py_END_ALLOW_THREADS
}

static void s_097_a_cycle_of_two_is_cleared(void) {
    long long before = LIVE();
    garbage_ring(2);
    CHECK_INT(PyGC_Collect(), 2);
    CHECK(calls.cleared == 1 || calls.cleared == 2);
    CHECK_INT(calls.freed, 2);
    CHECK_INT(LIVE(), before);
}

/* S-98 */
static PyObject *saved;
static int saving_clear(PyObject *self) {
    if (!saved)
        saved = Py_NewRef(self);
    return pair_clear(self);
}
STATIC_PAIR(Saving_Type, "check.Saving", pair_traverse, saving_clear);

static void s_098_a_cleared_object_can_be_used(void) {
    ready(&Saving_Type);
    garbage_ring_of(&Saving_Type, 2);
    PyGC_Collect();
    CHECK(saved != NULL);
    CHECK(((Pair *)saved)->a == NULL && ((Pair *)saved)->b == NULL);
    CHECK_INT(PyObject_GC_IsTracked(saved), 1);
    set_a(saved, saved);
    Py_DECREF(saved);
    CHECK_INT(PyGC_Collect(), 1);
    CHECK_INT(calls.freed, 2);
}

/* Drops the reference, and keeps the pointer. */
static int dangling_clear(PyObject *self) {
    Py_XDECREF(((Pair *)self)->b);
    ((Pair *)self)->a = NULL; /* its own reference to itself, leaked: it must not die, or the test could not look */
    return 0;
}
static void careful_dealloc(PyObject *self) {
    PyObject_GC_UnTrack(self);
    Py_TYPE(self)->tp_free(self);
}

static void s_098_a_dangling_field_after_clear_is_reported(void) {
    static PyTypeObject type = {TYPE_HEAD .tp_name = "check.Dangling", .tp_basicsize = sizeof(Pair), .tp_flags = GC_TYPE,
                                .tp_dealloc = careful_dealloc, .tp_traverse = pair_traverse, .tp_clear = dangling_clear};
    Pair *p, *child = pair(NULL, NULL);
    ready(&type);
    p = pair_of(&type, NULL, child);
    Py_DECREF(child);
    set_a(p, p);
    Py_DECREF(p);
    PyGC_Collect();
    CHECK(misuses(STANDSTILL_E_FREED_POINTER) + misuses(STANDSTILL_E_FOREIGN_POINTER) > 0);
    forget_misuses();
    p->b = NULL;
    PyObject_GC_UnTrack(p);
}

/* S-99 */
STATIC_PAIR(Immutable_Type, "check.Immutable", pair_traverse, NULL);

static void s_099_immutable_members_of_a_cycle_need_no_clear(void) {
    long long before = LIVE();
    Pair *mutable, *first, *second;
    ready(&Immutable_Type);
    mutable = pair(NULL, NULL);
    first = pair_of(&Immutable_Type, mutable, NULL);
    second = pair_of(&Immutable_Type, first, NULL);
    set_a(mutable, second);
    Py_DECREF(first);
    Py_DECREF(second);
    Py_DECREF(mutable);
    CHECK_INT(PyGC_Collect(), 3);
    CHECK_INT(calls.cleared, 1);
    CHECK_INT(calls.freed, 3);
    CHECK_INT(LIVE(), before);
}

/* S-100 */
static int failing_clear(PyObject *self) {
    pair_clear(self);
    PyErr_SetString(PyExc_RuntimeError, "clear failed");
    return -1;
}
STATIC_PAIR(Failing_Type, "check.Failing", pair_traverse, failing_clear);

static void s_100_an_error_in_clear_does_not_stop_the_collection(void) {
    long long before = LIVE();
    Pair *failing;
    ready(&Failing_Type);
    failing = pair_of(&Failing_Type, NULL, NULL);
    set_a(failing, failing);
    Py_DECREF(failing);
    garbage_ring(3);
    CHECK_INT(PyGC_Collect(), 4);
    CHECK(!PyErr_Occurred());
    EXPECT_UNRAISABLE(1);
    CHECK(strstr(last_unraisable.type, "Failing") && strstr(last_unraisable.text, "clear failed"));
    CHECK_INT(LIVE(), before);
}

static void s_101_clearing_twice_is_clearing_once(void) {
    Leaf *l = leaf();
    Pair *p = pair(l, l);
    CHECK_INT(Py_TYPE(p)->tp_clear((PyObject *)p), 0);
    CHECK_INT(Py_REFCNT((PyObject *)l), 1);
    CHECK_INT(Py_TYPE(p)->tp_clear((PyObject *)p), 0);
    CHECK_INT(Py_REFCNT((PyObject *)l), 1);
    CHECK(p->a == NULL && p->b == NULL);
    Py_DECREF(p);
    Py_DECREF(l);
}

/* The first call keeps the object alive. */
static PyObject *survivor;
static int surviving_clears;
static int surviving_clear(PyObject *self) {
    if (surviving_clears++ == 0)
        survivor = Py_NewRef(self);
    return pair_clear(self);
}

static void s_101_the_collector_clears_a_survivor_again(void) {
    static PyTypeObject type = {TYPE_HEAD .tp_name = "check.Survivor", .tp_basicsize = sizeof(Pair), .tp_flags = GC_TYPE,
                                .tp_dealloc = pair_dealloc, .tp_traverse = pair_traverse, .tp_clear = surviving_clear};
    long long before = LIVE();
    Pair *p;
    int i;
    ready(&type);
    p = pair_of(&type, NULL, NULL);
    for (i = 1; i <= 2; i++) {
        set_a(p, p);
        Py_DECREF(p);
        PyGC_Collect();
        CHECK_INT(surviving_clears, i);
        if (i == 1) {
            CHECK(survivor == (PyObject *)p && p->a == NULL);
            CHECK_INT(Py_REFCNT(survivor), 1);
        }
    }
    CHECK_INT(LIVE(), before);
}

static void s_101_an_object_that_dies_by_its_count_is_never_cleared(void) {
    Pair *p = pair(NULL, NULL), *q = pair(p, NULL);
    Py_DECREF(p);
    Py_DECREF(q);
    PyGC_Collect();
    CHECK_INT(calls.freed, 2);
    CHECK_INT(calls.cleared, 0);
}

/* S-102 */
static int cleared_before_finalized;
static void ordered_finalizer(PyObject *self) {
    ADD(calls.finalized);
    cleared_before_finalized += GET(calls.cleared) != 0 || ((Pair *)self)->a == NULL;
}

static void s_102_every_finalizer_runs_before_the_first_clear(void) {
    static PyTypeObject type = {TYPE_HEAD .tp_name = "check.Ordered", .tp_basicsize = sizeof(Pair), .tp_base = &Pair_Type,
                                .tp_finalize = ordered_finalizer};
    ready(&type);
    garbage_ring_of(&type, 20);
    garbage_ring_of(&type, 1);
    CHECK_INT(PyGC_Collect(), 21);
    CHECK_INT(calls.finalized, 21);
    CHECK_INT(cleared_before_finalized, 0);
    CHECK_INT(calls.freed, 21);
}

/* S-103 */
static int evaluated;
static PyObject *once(PyObject *object) {
    evaluated++;
    return object;
}
static int visit_one(PyObject *object, visitproc visit, void *arg) {
    Py_VISIT(once(object));
    return 5;
}
static int visit_unbraced(Pair *first, int which, visitproc visit, void *arg) {
    if (which)
        Py_VISIT(first);
    else
        return 6;
    return 5;
}

static void s_103_py_visit_skips_null_and_passes_results_on(void) {
    struct visits visits = {0, 0, {0}};
    Pair *p = pair(NULL, NULL);
    CHECK_INT(visit_one(NULL, noting_visit, &visits), 5);
    CHECK_INT(visits.n, 0);
    CHECK_INT(evaluated, 1);
    CHECK_INT(visit_one((PyObject *)p, noting_visit, &visits), 5);
    CHECK_INT(visits.n, 1);
    CHECK_INT(evaluated, 2);
    visits.stop_at = 2;
    CHECK_INT(visit_one((PyObject *)p, noting_visit, &visits), 77);
    CHECK_INT(visit_unbraced(p, 0, noting_visit, &visits), 6); /* one statement */
    CHECK_INT(visit_unbraced(p, 1, noting_visit, &visits), 5);
    Py_DECREF(p);
}

/* S-106 */
static int visit_named_otherwise(Row *some, visitproc visit, void *arg) {
    Py_VISIT(some->items[0] ? some->items[1] : some->items[2]);
    return 0;
}

static void s_106_py_visit_takes_any_expression(void) {
    struct visits visits = {0, 0, {0}};
    Leaf *l = leaf();
    Row *r = row(3);
    r->items[2] = (PyObject *)l;
    CHECK_INT(visit_named_otherwise(r, noting_visit, &visits), 0);
    CHECK_INT(visits.n, 1);
    CHECK(visits.objects[0] == (PyObject *)l);
    Py_DECREF(r);
}

/* S-107, and the newer example of S-110: a class like that of thread-local data. */
typedef struct {
    PyObject_HEAD
    PyObject *args;
    PyObject *kw;
    PyObject *dict;
} Local;
static int local_traverse(PyObject *self, visitproc visit, void *arg) {
    Local *local = (Local *)self;
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(local->args);
    Py_VISIT(local->kw);
    Py_VISIT(local->dict);
    return 0;
}
static int local_clear(PyObject *self) {
    Local *local = (Local *)self;
    Py_CLEAR(local->args);
    Py_CLEAR(local->kw);
    Py_CLEAR(local->dict);
    return 0;
}
static void local_dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    local_clear(self);
    ADD(calls.freed);
    type->tp_free(self);
    Py_DECREF(type);
}
static PyTypeObject *local_type(void) {
    PyType_Slot slots[] = {{Py_tp_traverse, FN(local_traverse)}, {Py_tp_clear, FN(local_clear)},
                           {Py_tp_dealloc, FN(local_dealloc)}, {0, NULL}};
    PyTypeObject *type = type_of_slots("check.local", sizeof(Local), 0, GC_TYPE, slots);
    MUST(type != NULL);
    return type;
}

static void s_107_a_handler_visits_each_member_it_owns(void) {
    long long before = LIVE();
    PyTypeObject *type = local_type();
    PyObject *objects[1], *found;
    Local *local = (Local *)type->tp_alloc(type, 0);
    MUST(local != NULL);
    local->args = PyTuple_New(0);
    local->kw = (PyObject *)pair(NULL, NULL);
    local->dict = (PyObject *)pair(local, NULL);
    objects[0] = (PyObject *)local;
    found = standstill_gc_get_referents(objects, 1);
    MUST(found != NULL);
    CHECK_INT(PyTuple_Size(found), 4);
    Py_DECREF(found);
    Py_DECREF(type);
    Py_DECREF(local);
    CHECK(PyGC_Collect() >= 4);
    CHECK_INT(LIVE(), before);
}

static void s_108_a_member_that_is_only_a_string_may_be_skipped(void) {
    long long before = LIVE();
    Pair *p;
    PyObject *text = PyUnicode_FromString("text");
    ready(&Once_Type);
    p = pair_of(&Once_Type, NULL, text);
    Py_DECREF(text);
    set_a(p, p);
    Py_DECREF(p);
    CHECK_INT(PyGC_Collect(), 1);
    CHECK_INT(LIVE(), before);
}

static void s_109_and_may_be_visited(void) {
    long long before = LIVE();
    PyObject *text = PyUnicode_FromString("text"), *objects[1], *found;
    Pair *p = pair(NULL, text);
    Py_DECREF(text);
    set_a(p, p);
    objects[0] = (PyObject *)p;
    found = standstill_gc_get_referents(objects, 1);
    MUST(found != NULL);
    CHECK_INT(PyTuple_Size(found), 2);
    CHECK(PyTuple_GetItem(found, 1) == text);
    Py_DECREF(found);
    Py_DECREF(p);
    CHECK_INT(PyGC_Collect(), 1);
    CHECK_INT(LIVE(), before);
}

/* S-110: the older example */
typedef struct {
    PyObject_HEAD
    PyObject *foo;
    PyObject *bar;
} MyObject;
static int my_traverse(PyObject *op, visitproc visit, void *arg) {
    MyObject *self = (MyObject *)op;
    Py_VISIT(self->foo);
    Py_VISIT(self->bar);
    return 0;
}
static int my_clear(PyObject *op) {
    MyObject *self = (MyObject *)op;
    Py_CLEAR(self->foo);
    Py_CLEAR(self->bar);
    return 0;
}
static void my_dealloc(PyObject *op) {
    PyObject_GC_UnTrack(op);
    my_clear(op);
    ADD(calls.freed);
    Py_TYPE(op)->tp_free(op);
}
static PyTypeObject My_Type = {TYPE_HEAD .tp_name = "check.My", .tp_basicsize = sizeof(MyObject), .tp_flags = GC_TYPE,
                               .tp_dealloc = my_dealloc, .tp_traverse = my_traverse, .tp_clear = my_clear};

static void s_110_both_examples_are_collected_in_one_cycle(void) {
    long long before = LIVE();
    PyTypeObject *type = local_type();
    Local *local = (Local *)type->tp_alloc(type, 0);
    MyObject *mine;
    ready(&My_Type);
    mine = (MyObject *)My_Type.tp_alloc(&My_Type, 0);
    MUST(local && mine);
    mine->foo = (PyObject *)local;
    mine->bar = Py_NewRef((PyObject *)type);
    local->dict = (PyObject *)mine;
    Py_DECREF(type);
    CHECK(PyGC_Collect() >= 3);
    CHECK_INT(calls.freed, 2);
    CHECK_INT(LIVE(), before);
}

const struct test visit_tests[] = {
    TEST(s_083_each_visit_gets_the_argument_of_the_handler),
    TEST(s_083_a_visitor_that_was_kept_does_nothing),
    TEST(s_084_every_service_sees_the_same_list),
    TEST(s_085_a_visitor_of_ones_own_sees_the_direct_referents),
    TEST(s_086_a_visit_of_null_is_ignored_and_reported_once),
    TEST(s_087_a_handler_stops_when_the_visitor_says_so),
    TEST(s_087_the_library_stops_a_handler_that_has_visited_the_sought_object),
    TEST(s_087_a_handler_that_goes_on_is_answered_alike),
    TEST(s_088_tracked_objects_are_traversed_and_others_are_not),
    TEST(s_089_only_direct_contents),
    TEST(s_090_a_child_held_twice_is_visited_twice),
    TEST(s_091_visiting_too_little_leaks_and_no_more),
    TEST(s_092_more_visits_than_references_are_reported),
    TEST(s_092_a_hidden_reference_can_cost_contents_but_no_memory),
    TEST(s_093_a_result_of_the_handlers_own_abandons_the_collection),
    TEST_AS(s_094_a_handler_that_changes_its_mind_is_noticed, CHECKED_ONLY),
    TEST(s_094_a_handler_that_changes_its_mind_cannot_damage_memory),
    TEST(s_096_a_long_chain_is_collected_on_a_small_stack),
    TEST(s_097_a_cycle_of_two_is_cleared),
    TEST(s_098_a_cleared_object_can_be_used),
    TEST_AS(s_098_a_dangling_field_after_clear_is_reported, CHECKED_ONLY),
    TEST(s_099_immutable_members_of_a_cycle_need_no_clear),
    TEST(s_100_an_error_in_clear_does_not_stop_the_collection),
    TEST(s_101_clearing_twice_is_clearing_once),
    TEST(s_101_the_collector_clears_a_survivor_again),
    TEST(s_101_an_object_that_dies_by_its_count_is_never_cleared),
    TEST(s_102_every_finalizer_runs_before_the_first_clear),
    TEST(s_103_py_visit_skips_null_and_passes_results_on),
    TEST(s_106_py_visit_takes_any_expression),
    TEST(s_107_a_handler_visits_each_member_it_owns),
    TEST(s_108_a_member_that_is_only_a_string_may_be_skipped),
    TEST(s_109_and_may_be_visited),
    TEST(s_110_both_examples_are_collected_in_one_cycle),
    TESTS_END,
};

/* Tables with weak keys, and guardians. */

#include "check.h"

static void set(standstill_weak_map *map, void *key, void *value) {
    MUST(standstill_weak_map_set(map, (PyObject *)key, (PyObject *)value) == 0);
}

/* The value of a key, with a new reference, or NULL. */
static PyObject *get(standstill_weak_map *map, void *key) {
    PyObject *value = (PyObject *)key;
    int found = standstill_weak_map_get(map, (PyObject *)key, &value);
    MUST(found >= 0);
    CHECK_INT(found, value != NULL);
    return value;
}

static void entries_whose_values_refer_to_their_keys_are_collected(void) {
    long long before = LIVE();
    standstill_weak_map *map = standstill_weak_map_new();
    Pair *kept = pair(NULL, NULL);
    int i;
    MUST(map != NULL);
    for (i = 0; i < 10000; i++) {
        Pair *key = pair(NULL, NULL), *value = pair(key, kept);
        set(map, key, value);
        Py_DECREF(key);
        Py_DECREF(value);
    }
    set(map, kept, kept);
    CHECK_INT(standstill_weak_map_length(map), 10001);
    CHECK_INT(PyGC_Collect(), 20000);
    CHECK_INT(standstill_weak_map_length(map), 1);
    CHECK_INT(calls.freed, 20000);
    Py_DECREF(kept);
    CHECK_INT(PyGC_Collect(), 1);
    CHECK_INT(standstill_weak_map_length(map), 0);
    standstill_weak_map_free(map);
    CHECK_INT(LIVE(), before);
}

static void sum_tags(PyObject *key, PyObject *value, void *arg) {
    *(long *)arg += 100 * ((Pair *)key)->tag + ((Pair *)value)->tag;
}

static void the_functions_of_a_table(void) {
    long long before = LIVE();
    standstill_weak_map *map = standstill_weak_map_new();
    Pair *one = pair(NULL, NULL), *two = pair(NULL, NULL);
    PyObject *found;
    long sum = 0;
    one->tag = 1;
    two->tag = 2;
    CHECK(get(map, one) == NULL);
    set(map, one, one);
    set(map, one, two);
    set(map, two, one);
    found = get(map, one);
    CHECK(found == (PyObject *)two);
    Py_DECREF(found);
    CHECK_INT(standstill_weak_map_length(map), 2);
    CHECK_INT(standstill_weak_map_entries(map, sum_tags, &sum), 2);
    CHECK_INT(sum, 303);
    CHECK_INT(standstill_weak_map_remove(map, (PyObject *)two), 1);
    CHECK_INT(standstill_weak_map_remove(map, (PyObject *)two), 0);
    /* A static object may be a value. */
    set(map, one, Py_None);
    found = get(map, one);
    CHECK(found == Py_None);
    Py_DECREF(found);
    /* A key that dies by its count. */
    set(map, one, two);
    Py_DECREF(two);
    CHECK_INT(calls.freed, 0);
    Py_DECREF(one);
    CHECK_INT(calls.freed, 2);
    CHECK_INT(standstill_weak_map_length(map), 0);
    standstill_weak_map_free(map);
    standstill_weak_map_free(NULL);
    standstill_guardian_free(NULL);
    CHECK_INT(LIVE(), before);
}

static void wrong_arguments_of_tables_and_guardians(void) {
    standstill_weak_map *map = standstill_weak_map_new();
    standstill_guardian *guardian = standstill_guardian_new();
    Pair *p = pair(NULL, NULL);
    PyObject *value = (PyObject *)p;
    CHECK_INT(standstill_weak_map_set(map, Py_None, (PyObject *)p), -1);
    EXPECT_ERROR(STANDSTILL_E_WRONG_TYPE);
    CHECK_INT(standstill_weak_map_set(map, (PyObject *)p, NULL), -1);
    EXPECT_ERROR(STANDSTILL_E_NULL_ARGUMENT);
    CHECK_INT(standstill_weak_map_get(map, (PyObject *)p, NULL), -1);
    EXPECT_ERROR(STANDSTILL_E_NULL_ARGUMENT);
    CHECK_INT(standstill_weak_map_get(NULL, (PyObject *)p, &value), -1);
    EXPECT_ERROR(STANDSTILL_E_NULL_ARGUMENT);
    CHECK(value == NULL);
    CHECK_INT(standstill_weak_map_entries(map, NULL, NULL), -1);
    EXPECT_ERROR(STANDSTILL_E_NULL_ARGUMENT);
    CHECK_INT(standstill_weak_map_length((standstill_weak_map *)guardian), -1);
    EXPECT_ERROR(STANDSTILL_E_WRONG_TYPE);
    CHECK(standstill_guardian_next((standstill_guardian *)map) == NULL);
    EXPECT_ERROR(STANDSTILL_E_WRONG_TYPE);
    CHECK_INT(standstill_guardian_register(guardian, (PyObject *)&Pair_Type), -1);
    EXPECT_ERROR(STANDSTILL_E_WRONG_TYPE);
    standstill_weak_map_free((standstill_weak_map *)p);
    EXPECT_MISUSE(STANDSTILL_E_WRONG_TYPE, 1);
    CHECK_INT(standstill_weak_map_length(map), 0);
    standstill_weak_map_free(map);
    standstill_guardian_free(guardian);
    Py_DECREF(p);
}

/* An object that owns a table. */
typedef struct {
    PyObject_HEAD
    standstill_weak_map *map;
} Owner;

static int owner_traverse(PyObject *self, visitproc visit, void *arg) {
    return standstill_weak_map_visit(((Owner *)self)->map, visit, arg);
}
static int owner_clear(PyObject *self) {
    standstill_weak_map *map = ((Owner *)self)->map;
    ((Owner *)self)->map = NULL;
    standstill_weak_map_free(map);
    return 0;
}
static void owner_dealloc(PyObject *self) {
    PyObject_GC_UnTrack(self);
    owner_clear(self);
    ADD(calls.freed);
    Py_TYPE(self)->tp_free(self);
}
static PyTypeObject Owner_Type = {TYPE_HEAD .tp_name = "check.Owner", .tp_basicsize = sizeof(Owner),
                                  .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
                                  .tp_dealloc = owner_dealloc, .tp_traverse = owner_traverse, .tp_clear = owner_clear};
/* The same, without a report of the table. */
static PyTypeObject Silent_Type = {TYPE_HEAD .tp_name = "check.Silent", .tp_basicsize = sizeof(Owner),
                                   .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, .tp_dealloc = owner_dealloc,
                                   .tp_traverse = nothing_traverse, .tp_clear = owner_clear};

static Owner *owner(PyTypeObject *type) {
    Owner *made;
    ready(type);
    made = (Owner *)type->tp_alloc(type, 0);
    MUST(made != NULL && (made->map = standstill_weak_map_new()) != NULL);
    return made;
}

static void a_table_in_an_object_is_collected_with_it(void) {
    long long before = LIVE();
    Pair *key = pair(NULL, NULL), *value;
    Owner *o = owner(&Owner_Type);
    value = pair(o, NULL);
    set(o->map, key, value);
    Py_DECREF(value);
    CHECK_INT(PyGC_Collect(), 0);
    Py_DECREF(o);
    PyGC_Collect();
    CHECK_INT(calls.freed, 2);
    Py_DECREF(key);
    CHECK_INT(LIVE(), before);
}

static void a_table_that_is_not_visited_counts_as_held(void) {
    Pair *key = pair(NULL, NULL), *value;
    Owner *o = owner(&Silent_Type);
    value = pair(o, NULL);
    set(o->map, key, value);
    Py_DECREF(value);
    Py_DECREF(o);
    CHECK_INT(PyGC_Collect(), 0);
    Py_DECREF(key);
    CHECK_INT(calls.freed, 3);
}

/* The value owns the table, and dies in a function of the table. */
static void a_table_may_be_freed_by_what_it_drops(void) {
    long long before = LIVE();
    Pair *key = pair(NULL, NULL);
    Owner *o = owner(&Owner_Type);
    set(o->map, key, o);
    Py_DECREF(o);
    CHECK_INT(standstill_weak_map_remove(o->map, (PyObject *)key), 1);
    CHECK_INT(calls.freed, 1);
    o = owner(&Owner_Type);
    set(o->map, key, o);
    Py_DECREF(o);
    set(o->map, key, key);
    CHECK_INT(calls.freed, 2);
    Py_DECREF(key);
    CHECK_INT(calls.freed, 3);
    CHECK_INT(LIVE(), before);
}

static void nothing_to_visit(PyObject *key, PyObject *value, void *arg) {
    CHECK(key != NULL && value != NULL && arg == NULL);
}

static standstill_weak_map *shared;
static void use_shared(void *arg) {
    int i;
    for (i = 0; i < 2000; i++) {
        Pair *key = pair(NULL, NULL), *value = pair(i % 2 ? key : NULL, NULL);
        PyObject *found;
        set(shared, key, value);
        found = get(shared, key);
        CHECK(found == (PyObject *)value);
        Py_DECREF(found);
        Py_DECREF(value);
        if (i % 7 == 0)
            CHECK_INT(standstill_weak_map_remove(shared, (PyObject *)key), 1);
        Py_DECREF(key);
        if (i % 100 == 0)
            CHECK(standstill_weak_map_entries(shared, nothing_to_visit, NULL) >= 0);
        if (i % 500 == 0)
            PyGC_Collect();
        standstill_safepoint();
    }
    (void)arg;
}
static void threads_share_a_table(void) {
    long long before = LIVE();
    thread threads[3];
    int i;
    shared = standstill_weak_map_new();
    for (i = 0; i < 3; i++)
        start(&threads[i], use_shared, NULL);
    for (i = 0; i < 3; i++)
        join(&threads[i]);
    PyGC_Collect();
    PyGC_Collect();
    CHECK_INT(standstill_weak_map_length(shared), 0);
    standstill_weak_map_free(shared);
    CHECK_INT(LIVE(), before);
}

static void a_guardian_gets_dead_objects_and_garbage(void) {
    long long before = LIVE();
    static PyTypeObject type = {TYPE_HEAD .tp_name = "check.Final", .tp_basicsize = sizeof(Pair),
                                .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, .tp_base = &Pair_Type,
                                .tp_traverse = pair_traverse, .tp_clear = pair_clear, .tp_dealloc = pair_dealloc,
                                .tp_finalize = pair_finalize};
    standstill_guardian *guardian = standstill_guardian_new();
    Pair *counted, *cyclic;
    PyObject *weak;
    ready(&type);
    counted = pair_of(&type, NULL, NULL);
    cyclic = ring_of(&type, 2);
    MUST(standstill_guardian_register(guardian, (PyObject *)counted) == 0);
    MUST(standstill_guardian_register(guardian, (PyObject *)cyclic) == 0);
    weak = weak_to(counted);
    CHECK_INT(standstill_guardian_is_ready(guardian), 0);
    CHECK(standstill_guardian_next(guardian) == NULL);
    Py_DECREF(counted);
    CHECK(is_alive(weak));
    CHECK_INT(standstill_guardian_is_ready(guardian), 1);
    Py_DECREF(cyclic);
    CHECK_INT(PyGC_Collect(), 0);
    CHECK_INT(calls.freed, 0);
    CHECK(standstill_guardian_next(guardian) == (PyObject *)counted);
    CHECK(standstill_guardian_next(guardian) == (PyObject *)cyclic);
    CHECK(cyclic->a != NULL);
    CHECK_INT(standstill_guardian_is_ready(guardian), 0);
    Py_DECREF(counted);
    Py_DECREF(cyclic);
    CHECK_INT(PyGC_Collect(), 2);
    CHECK_INT(calls.freed, 3);
    CHECK_INT(calls.finalized, 3);
    Py_DECREF(weak);
    /* An object of the queue dies with the guardian, and one that is registered afterwards. */
    counted = pair(NULL, NULL);
    cyclic = pair(NULL, NULL);
    MUST(standstill_guardian_register(guardian, (PyObject *)counted) == 0);
    MUST(standstill_guardian_register(guardian, (PyObject *)cyclic) == 0);
    Py_DECREF(counted);
    standstill_guardian_free(guardian);
    CHECK_INT(calls.freed, 4);
    Py_DECREF(cyclic);
    CHECK_INT(calls.freed, 5);
    CHECK_INT(LIVE(), before);
}

static standstill_guardian *saver;
static void saved_finalize(PyObject *self) {
    ADD(calls.finalized);
    MUST(standstill_guardian_register(saver, self) == 0);
}
static void a_finalizer_may_register_its_object(void) {
    static PyTypeObject type = {TYPE_HEAD .tp_name = "check.Saved", .tp_basicsize = sizeof(Pair),
                                .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, .tp_base = &Pair_Type,
                                .tp_traverse = pair_traverse, .tp_clear = pair_clear, .tp_dealloc = pair_dealloc,
                                .tp_finalize = saved_finalize};
    long long before = LIVE();
    Pair *counted, *cyclic;
    saver = standstill_guardian_new();
    ready(&type);
    counted = pair_of(&type, NULL, NULL);
    Py_DECREF(counted);
    cyclic = garbage_ring_of(&type, 1);
    CHECK_INT(PyGC_Collect(), 0);
    CHECK_INT(PyGC_Collect(), 0);
    CHECK_INT(calls.freed, 0);
    CHECK(standstill_guardian_next(saver) == (PyObject *)counted);
    CHECK(standstill_guardian_next(saver) == (PyObject *)cyclic);
    Py_DECREF(counted);
    Py_DECREF(cyclic);
    CHECK_INT(PyGC_Collect(), 1);
    CHECK_INT(calls.finalized, 2);
    CHECK_INT(calls.freed, 2);
    standstill_guardian_free(saver);
    CHECK_INT(LIVE(), before);
}

const struct test weak_map_tests[] = {
    TEST(entries_whose_values_refer_to_their_keys_are_collected),
    TEST(the_functions_of_a_table),
    TEST(wrong_arguments_of_tables_and_guardians),
    TEST(a_table_in_an_object_is_collected_with_it),
    TEST(a_table_that_is_not_visited_counts_as_held),
    TEST(a_table_may_be_freed_by_what_it_drops),
    TEST(threads_share_a_table),
    TEST(a_guardian_gets_dead_objects_and_garbage),
    TEST(a_finalizer_may_register_its_object),
    TESTS_END,
};

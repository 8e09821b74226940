/* Every byte of an object is its own: objects around the sizes at which something changes, as each other's neighbours. */

#include "check.h"

#define PAGE 65536
/* A run of pages that is so long goes back to the system when it is freed, and reads as zero afterwards. */
#define WIDE (20 * PAGE)
#define BLOB_SIZE ((Py_ssize_t)offsetof(Blob, bytes))

/* Any number of bytes. */
typedef struct {
    PyObject_VAR_HEAD
    unsigned char bytes[1];
} Blob;

static PyTypeObject Blob_Type;

static int blob_traverse(PyObject *self, visitproc visit, void *arg) {
    if (Py_TYPE(self) != &Blob_Type) /* all others are heap types */
        Py_VISIT(Py_TYPE(self));
    return PyObject_VisitManagedDict(self, visit, arg);
}

static int blob_clear(PyObject *self) {
    PyObject_ClearManagedDict(self);
    return 0;
}

static PyTypeObject Blob_Type = {TYPE_HEAD .tp_name = "check.Blob", .tp_basicsize = offsetof(Blob, bytes),
                                 .tp_itemsize = 1, .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
                                 .tp_traverse = blob_traverse, .tp_clear = blob_clear};

static PyTypeObject *blob_type(int basicsize, int itemsize, unsigned int flags) {
    PyType_Slot slots[3];
    PyTypeObject *type;
    memset(slots, 0, sizeof slots);
    slots[0].slot = Py_tp_traverse;
    slots[0].pfunc = FN(blob_traverse);
    slots[1].slot = Py_tp_clear;
    slots[1].pfunc = FN(blob_clear);
    type = type_of_slots("check.Sized", basicsize, itemsize, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | flags, slots);
    MUST(type != NULL);
    return type;
}

/* Where the bytes of an object come from. */
enum part { ITEMS, EXTRA, BASIC, PARTS };

/* An object, with its value, its weak reference, and the byte that it is filled with. */
struct sized {
    PyObject *object, *value, *weak;
    unsigned char *bytes;
    size_t count;
    int fill;
};

static int is_filled(const unsigned char *bytes, size_t count, int fill) {
    return count == 0 || (bytes[0] == fill && memcmp(bytes, bytes + 1, count - 1) == 0);
}

static void sized_check(const struct sized *s) {
    CHECK(is_filled(s->bytes, s->count, s->fill));
    if (s->value) {
        PyObject *found = PyObject_GetAttrString(s->object, "value");
        MUST(found != NULL);
        CHECK(found == s->value);
        Py_DECREF(found);
    }
    if (s->weak)
        CHECK(is_alive(s->weak));
}

static void sized_fill(struct sized *s, int fill) {
    s->fill = fill;
    memset(s->bytes, fill, s->count);
}

/* An object of about `size` bytes, all of them filled. */
static struct sized sized_new(PyTypeObject *type, enum part part, size_t size, int with_dict, int fill) {
    struct sized s;
    memset(&s, 0, sizeof s);
    switch (part) {
    case ITEMS:
        s.object = type->tp_alloc(type, (Py_ssize_t)size - BLOB_SIZE);
        break;
    case EXTRA:
        s.object = PyUnstable_Object_GC_NewWithExtraData(type, size - (size_t)BLOB_SIZE);
        break;
    default:
        s.object = type->tp_alloc(type, 0);
    }
    MUST(s.object != NULL);
    s.bytes = (unsigned char *)s.object + BLOB_SIZE;
    s.count = size - (size_t)BLOB_SIZE;
    if (part == PARTS) {
        s.bytes = PyObject_GetTypeData(s.object, type);
        MUST(s.bytes != NULL);
        s.count = (size_t)PyType_GetTypeDataSize(type);
        CHECK(s.count >= size - (size_t)BLOB_SIZE);
    }
    CHECK(is_filled(s.bytes, s.count, 0));
    sized_fill(&s, fill);
    if (part == EXTRA)
        PyObject_GC_Track(s.object);
    if (with_dict) {
        s.value = (PyObject *)leaf();
        MUST(PyObject_SetAttrString(s.object, "value", s.value) == 0);
    }
    return s;
}

static void sized_end(struct sized *s) {
    Py_DECREF(s->object);
    if (s->weak) {
        CHECK(!is_alive(s->weak));
        Py_DECREF(s->weak);
    }
    if (s->value) {
        CHECK_INT(Py_REFCNT(s->value), 1);
        Py_DECREF(s->value);
    }
}

static void sized_resize(struct sized *s, size_t size) {
    size_t count = size - (size_t)BLOB_SIZE, kept = count < s->count ? count : s->count;
    Blob *b;
    PyObject_GC_UnTrack(s->object);
    b = PyObject_GC_Resize(Blob, (Blob *)s->object, (Py_ssize_t)count);
    MUST(b != NULL);
    CHECK(is_filled(b->bytes, kept, s->fill) && is_filled(b->bytes + kept, count - kept, 0));
    s->object = (PyObject *)b;
    s->bytes = b->bytes;
    s->count = count;
    sized_fill(s, s->fill);
    PyObject_GC_Track(b);
}

static void neighbours(PyTypeObject *type, enum part part, size_t size, int with_dict) {
    int large = size > PAGE / 2 - 256, i, j;
    struct sized wide, s[4];
    long long live = LIVE();
    s[0] = sized_new(type, part, size, with_dict, 0xa1);
    s[0].weak = weak_to(s[0].object);
    if (large)
        wide = sized_new(&Blob_Type, ITEMS, WIDE, 0, 0xee);
    for (i = 1; i < 4; i++)
        s[i] = sized_new(type, part, size, with_dict, 0xb1 + i);
    if (large)
        sized_end(&wide);
    for (i = 0; i < 4; i++)
        sized_check(&s[i]);
    sized_end(&s[1]);
    PyObject_GC_UnTrack(s[2].object); /* asks the header of its page for the heap */
    PyObject_GC_Track(s[2].object);
    s[1] = sized_new(type, part, size, with_dict, 0x5b);
    if (part == ITEMS)
        for (j = 0; j < 4; j++) {
            static const int by[] = {8, -8, 33, 0};
            size_t other = (Py_ssize_t)size + by[j] < BLOB_SIZE ? (size_t)BLOB_SIZE : (size_t)((Py_ssize_t)size + by[j]);
            sized_resize(&s[2], other);
            for (i = 0; i < 4; i++)
                sized_check(&s[i]);
        }
    sized_end(&s[0]);
    for (i = 1; i < 4; i++)
        sized_check(&s[i]);
    for (i = 1; i < 4; i++)
        sized_end(&s[i]);
    CHECK_INT(LIVE(), live);
}

/* Around the largest cells, and the ends of the first two pages of a run, with and without the page's header, and around
 * some small cells. */
static void each_size(void (*run)(size_t size)) {
    static const size_t ends[] = {64, 96, 128, 512, 576, 4096, 21824, 32736, PAGE - 64, PAGE, 2 * PAGE - 64, 2 * PAGE};
    static const int by[] = {-72, -64, -40, -33, -32, -16, -9, -8, -7, -1, 0, 1, 7, 8, 9, 24, 32, 64};
    size_t i, j;
    for (i = 0; i < sizeof ends / sizeof ends[0]; i++) {
        for (j = 0; j < sizeof by / sizeof by[0]; j++)
            if ((Py_ssize_t)ends[i] + by[j] >= BLOB_SIZE)
                run((size_t)((Py_ssize_t)ends[i] + by[j]));
        PyGC_Collect();
    }
}

static PyTypeObject *of;
static int with_dict;

static void items_of(size_t size) { neighbours(of, ITEMS, size, with_dict); }
static void extra_of(size_t size) { neighbours(of, EXTRA, size, with_dict); }
static void basic_of(size_t size) {
    of = blob_type((int)size, 0, Py_TPFLAGS_MANAGED_DICT);
    neighbours(of, BASIC, size, 1);
    Py_DECREF(of);
}
static void part_of(size_t size) {
    if ((Py_ssize_t)size == BLOB_SIZE)
        return;
    of = blob_type((int)BLOB_SIZE - (int)size, 0, Py_TPFLAGS_MANAGED_DICT);
    neighbours(of, PARTS, size, 1);
    Py_DECREF(of);
}

static void every_byte_of_an_object_with_items_is_its_own(void) {
    ready(&Blob_Type);
    of = &Blob_Type;
    each_size(items_of);
}

static void every_byte_of_an_object_with_items_and_a_dictionary_is_its_own(void) {
    ready(&Blob_Type);
    of = blob_type((int)BLOB_SIZE, 1, Py_TPFLAGS_MANAGED_DICT);
    with_dict = 1;
    each_size(items_of);
    Py_DECREF(of);
}

static void every_byte_of_an_object_with_extra_bytes_is_its_own(void) {
    ready(&Blob_Type);
    for (with_dict = 0; with_dict < 2; with_dict++) {
        of = blob_type((int)BLOB_SIZE, 0, with_dict ? Py_TPFLAGS_MANAGED_DICT : 0);
        each_size(extra_of);
        Py_DECREF(of);
    }
}

static void every_byte_of_an_object_of_a_large_type_is_its_own(void) {
    ready(&Blob_Type);
    each_size(basic_of);
}

static void every_byte_of_a_types_own_part_is_its_own(void) {
    ready(&Blob_Type);
    each_size(part_of);
}

/* Large objects that come and go in any order, with collections in between. */
static void attributes_of_large_objects_stay_while_others_go(void) {
    enum { N = 200 };
    PyTypeObject *type = blob_type(40024, 0, Py_TPFLAGS_MANAGED_DICT);
    PyObject *objects[N];
    int i, round;
    memset(objects, 0, sizeof objects);
    for (round = 0; round < 4; round++) {
        for (i = round; i < N; i += 2)
            Py_CLEAR(objects[i]);
        PyGC_Collect();
        for (i = 0; i < N; i++) {
            PyObject *n;
            if (objects[i]) {
                n = PyObject_GetAttrString(objects[i], "n");
                MUST(n != NULL);
                CHECK_INT(PyLong_AsLong(n), i);
            } else {
                objects[i] = type->tp_alloc(type, 0);
                n = PyLong_FromLong(i);
                MUST(objects[i] && n && PyObject_SetAttrString(objects[i], "n", n) == 0);
            }
            Py_DECREF(n);
        }
    }
    for (i = 0; i < N; i++)
        Py_DECREF(objects[i]);
    Py_DECREF(type);
}

static void numbers_that_no_memory_has_are_refused(void) {
    static const Py_ssize_t few[] = {-1, PTRDIFF_MIN, PTRDIFF_MIN + 1};
    static const Py_ssize_t many[] = {PTRDIFF_MAX, PTRDIFF_MAX - 1, PTRDIFF_MAX / 2, (Py_ssize_t)1 << 47};
    long long live = LIVE();
    Row *r = PyObject_GC_NewVar(Row, &Row_Type, 3);
    PyObject *tuple;
    size_t i;
    MUST(r != NULL);
    for (i = 0; i < sizeof few / sizeof few[0]; i++) {
        CHECK(PyObject_GC_NewVar(Row, &Row_Type, few[i]) == NULL);
        EXPECT_ERROR(STANDSTILL_E_BAD_SIZE);
        CHECK(PyObject_GC_Resize(Row, r, few[i]) == NULL);
        EXPECT_ERROR(STANDSTILL_E_BAD_SIZE);
        tuple = PyTuple_New(few[i]);
        CHECK(tuple == NULL && PyErr_Occurred() != NULL);
        PyErr_Clear();
    }
    for (i = 0; i < sizeof many / sizeof many[0]; i++) {
        CHECK(PyObject_GC_NewVar(Row, &Row_Type, many[i]) == NULL);
        EXPECT_ERROR(STANDSTILL_E_MEMORY);
        CHECK(PyObject_GC_Resize(Row, r, many[i]) == NULL);
        EXPECT_ERROR(STANDSTILL_E_MEMORY);
        CHECK(PyTuple_New(many[i]) == NULL);
        EXPECT_ERROR(STANDSTILL_E_MEMORY);
        CHECK(PyUnstable_Object_GC_NewWithExtraData(&Pair_Type, (size_t)many[i]) == NULL);
        EXPECT_ERROR(STANDSTILL_E_MEMORY);
    }
    /* Any code can write to the number of items. */
    r->ob_base.ob_size = 1 << 20;
    CHECK(PyObject_GC_Resize(Row, r, 1) == NULL);
    EXPECT_ERROR(STANDSTILL_E_BAD_SIZE);
    r->ob_base.ob_size = 3;
    r = PyObject_GC_Resize(Row, r, 2);
    MUST(r != NULL);
    Py_DECREF(r);
    CHECK_INT(LIVE(), live);
}

const struct test sizes_tests[] = {
    TEST(every_byte_of_an_object_with_items_is_its_own),
    TEST(every_byte_of_an_object_with_items_and_a_dictionary_is_its_own),
    TEST(every_byte_of_an_object_with_extra_bytes_is_its_own),
    TEST(every_byte_of_an_object_of_a_large_type_is_its_own),
    TEST(every_byte_of_a_types_own_part_is_its_own),
    TEST(attributes_of_large_objects_stay_while_others_go),
    TEST(numbers_that_no_memory_has_are_refused),
    TESTS_END,
};

/* Memory that objects own outside the heap: PyMem_Malloc and its relatives. */

#include "allocator.h"
#include "check.h"

#define MIB ((size_t)1 << 20)
/* What a thread may not have reported. */
#define UNREPORTED ((size_t)64 << 10)
#define EXTERNAL() standstill_external_bytes()

static int is_filled(const unsigned char *bytes, size_t n, int with) {
    size_t i;
    for (i = 0; i < n && bytes[i] == with; i++) {
    }
    return i == n;
}

static void blocks_behave_as_those_of_malloc(void) {
    static const size_t sizes[] = {1, 15, 16, 17, 4096, 1000000};
    void *none = PyMem_Malloc(0), *nothing = PyMem_Calloc(7, 0);
    unsigned char *block;
    size_t i;
    MUST(none && nothing);
    CHECK(none != nothing);
    PyMem_Free(none);
    PyMem_Free(nothing);
    PyMem_Free(NULL);
    for (i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        size_t n = sizes[i];
        block = PyMem_Calloc(1, n);
        MUST(block);
        CHECK((uintptr_t)block % 16 == 0);
        CHECK(is_filled(block, n, 0));
        memset(block, 7, n);
        block = PyMem_Realloc(block, 3 * n);
        MUST(block);
        CHECK((uintptr_t)block % 16 == 0);
        CHECK(is_filled(block, n, 7));
        block = PyMem_Realloc(block, n / 2);
        MUST(block);
        CHECK(is_filled(block, n / 2, 7));
        PyMem_Free(block);
    }
    block = PyMem_Realloc(NULL, 100);
    MUST(block);
    block = PyMem_Realloc(block, 0);
    MUST(block);
    PyMem_Free(block);
}

static void the_macros_for_types_and_objects_stand_on_them(void) {
    double *numbers = PyMem_New(double, 3), *before = numbers;
    char *text;
    MUST(numbers);
    numbers[2] = 5;
    PyMem_Resize(numbers, double, 100);
    MUST(numbers);
    CHECK(numbers[2] == 5);
    numbers[99] = 6;
    before = numbers;
    PyMem_Resize(numbers, double, SIZE_MAX / 4);
    CHECK(numbers == NULL);
    EXPECT_ERROR(STANDSTILL_E_MEMORY);
    CHECK(before[99] == 6);
    PyMem_Del(before);
    CHECK(PyMem_New(double, SIZE_MAX / 4) == NULL);
    EXPECT_ERROR(STANDSTILL_E_MEMORY);
    text = PyObject_Malloc(2);
    text = PyObject_Realloc(text, 20);
    MUST(text);
    PyObject_Free(text);
    text = PyObject_Calloc(5, 5);
    MUST(text);
    CHECK(is_filled((unsigned char *)text, 25, 0));
    PyMem_Free(text);
}

static void without_memory_there_is_no_block_and_the_old_one_stays(void) {
    static const size_t most = PY_SSIZE_T_MAX;
    unsigned char *block = PyMem_Malloc(100);
    size_t before = EXTERNAL();
    MUST(block);
    memset(block, 9, 100);
    CHECK(PyMem_Malloc(most + 1) == NULL);
    EXPECT_ERROR(STANDSTILL_E_MEMORY);
    CHECK(PyMem_Malloc(most) == NULL);
    EXPECT_ERROR(STANDSTILL_E_MEMORY);
    CHECK(PyMem_Malloc(SIZE_MAX) == NULL);
    EXPECT_ERROR(STANDSTILL_E_MEMORY);
    CHECK(PyMem_Calloc(SIZE_MAX / 2, 3) == NULL);
    EXPECT_ERROR(STANDSTILL_E_MEMORY);
    CHECK(PyMem_Realloc(block, SIZE_MAX - 3) == NULL);
    EXPECT_ERROR(STANDSTILL_E_MEMORY);
    refuse_memory(0, 1);
    CHECK(PyMem_Realloc(block, 1000) == NULL);
    CHECK(grant_memory());
    EXPECT_ERROR(STANDSTILL_E_MEMORY);
    refuse_memory(0, 1);
    CHECK(PyMem_Calloc(10, 10) == NULL);
    CHECK(grant_memory());
    EXPECT_ERROR(STANDSTILL_E_MEMORY);
    CHECK(is_filled(block, 100, 9));
    PyMem_Free(block);
    CHECK_INT(EXTERNAL(), before);
}

/* With sizes above what stays unreported, the sum is exact. */
static void the_bytes_of_a_block_are_counted_until_it_is_freed(void) {
    void *first = PyMem_Malloc(MIB), *second;
    CHECK_INT(EXTERNAL(), MIB);
    second = PyMem_Calloc(2, MIB);
    CHECK_INT(EXTERNAL(), 3 * MIB);
    first = PyMem_Realloc(first, 4 * MIB);
    CHECK_INT(EXTERNAL(), 6 * MIB);
    first = PyMem_Realloc(first, MIB);
    CHECK_INT(EXTERNAL(), 3 * MIB);
    PyMem_Free(second);
    CHECK_INT(EXTERNAL(), MIB);
    second = PyObject_Malloc(MIB);
    CHECK_INT(EXTERNAL(), 2 * MIB);
    PyObject_Free(second);
    PyObject_Free(first);
    CHECK_INT(EXTERNAL(), 0);
}

/* A pair that owns a block. */
typedef struct {
    Pair pair;
    void *buffer;
} Buffered;

static void buffered_dealloc(PyObject *self) {
    PyMem_Free(((Buffered *)self)->buffer);
    pair_dealloc(self);
}

static PyTypeObject Buffered_Type = {
    TYPE_HEAD
    .tp_name = "check.Buffered",
    .tp_basicsize = sizeof(Buffered),
    .tp_flags = Py_TPFLAGS_HAVE_GC,
    .tp_traverse = pair_traverse,
    .tp_clear = pair_clear,
    .tp_dealloc = buffered_dealloc,
};

static Buffered *buffered(size_t bytes) {
    Buffered *made = (Buffered *)pair_of(&Buffered_Type, NULL, NULL);
    made->buffer = PyMem_Calloc(1, bytes);
    MUST(made->buffer);
    return made;
}

static void lose_a_cycle_with(size_t bytes) {
    Buffered *made = buffered(bytes);
    set_a(made, made);
    Py_DECREF(made);
}

static void dead_cycles_with_large_blocks_are_collected_before_there_are_many(void) {
    long long before;
    size_t most = 0;
    int i;
    ready(&Buffered_Type);
    Py_DECREF(buffered(1));
    before = LIVE();
    for (i = 0; i < 200; i++) {
        lose_a_cycle_with(MIB);
        if (EXTERNAL() > most)
            most = EXTERNAL();
        standstill_safepoint();
        CHECK(LIVE() - before < 32);
    }
    CHECK(most >= MIB && most < 32 * MIB);
    PyGC_Collect();
    CHECK_INT(LIVE(), before);
    CHECK(EXTERNAL() <= UNREPORTED);
}

static uint64_t told;
static void tell(const char *phase, const standstill_gc_info *info, void *arg) {
    (void)arg;
    CHECK(strcmp(phase, "stop") == 0 || info->external_bytes == 0);
    told += info->external_bytes;
}
static void a_progress_callback_tells_the_bytes_of_the_garbage(void) {
    int i, id = standstill_gc_add_callback(tell, NULL);
    CHECK_INT(standstill_gc_disable(), 1);
    ready(&Buffered_Type);
    for (i = 0; i < 3; i++)
        lose_a_cycle_with(MIB);
    Py_DECREF(buffered(MIB)); /* freed by its count */
    CHECK_INT(standstill_gc_collect(2), 3);
    CHECK_INT(told, 3 * MIB);
    CHECK_INT(standstill_gc_remove_callback(id), 0);
}

static void frees_it(void *block) {
    CHECK_INT(EXTERNAL(), 2 * MIB);
    PyMem_Free(block);
    CHECK_INT(EXTERNAL(), MIB);
}
static void a_block_may_be_freed_on_another_thread(void) {
    void *first = PyMem_Malloc(MIB), *second = PyMem_Malloc(MIB);
    run_on_thread(frees_it, first);
    PyMem_Free(second);
    CHECK_INT(EXTERNAL(), 0);
}

static void other_heap(void *block) {
    standstill_heap *heap = standstill_heap_new(NULL);
    MUST(heap);
    CHECK_INT(standstill_attach(heap), 0);
    PyMem_Free(block);
    CHECK_INT(EXTERNAL(), 0);
    CHECK_INT(standstill_detach(), 0);
    CHECK_INT(standstill_heap_free(heap), 0);
}
static void a_block_that_is_freed_in_another_heap_stays_counted(void) {
    void *block = PyMem_Malloc(MIB);
    thread t;
    start_raw(&t, other_heap, block);
    join(&t);
    CHECK_INT(EXTERNAL(), MIB);
    CHECK_INT(standstill_adjust_external_bytes(-(Py_ssize_t)MIB), 0);
    CHECK_INT(EXTERNAL(), 0);
}

static void detached(void *arg) {
    unsigned char *block = arg;
    CHECK(PyMem_Malloc(1) == NULL);
    EXPECT_ERROR(STANDSTILL_E_NOT_ATTACHED);
    CHECK(PyMem_Calloc(1, 1) == NULL);
    EXPECT_ERROR(STANDSTILL_E_NOT_ATTACHED);
    CHECK(PyMem_Realloc(NULL, 1) == NULL);
    EXPECT_ERROR(STANDSTILL_E_NOT_ATTACHED);
    CHECK(PyMem_Realloc(block, 1) == NULL);
    EXPECT_ERROR(STANDSTILL_E_NOT_ATTACHED);
    PyMem_Free(block);
    EXPECT_MISUSE(STANDSTILL_E_NOT_ATTACHED, 1);
    PyObject_Free(block);
    EXPECT_MISUSE(STANDSTILL_E_NOT_ATTACHED, 1);
    PyMem_Free(NULL);
    CHECK(EXTERNAL() == 0);
    EXPECT_ERROR(STANDSTILL_E_NOT_ATTACHED);
}
static void without_attachment_nothing_is_allocated_or_freed(void) {
    unsigned char *block = PyMem_Malloc(MIB);
    thread t;
    memset(block, 3, MIB);
    start_raw(&t, detached, block);
    join(&t);
    CHECK(is_filled(block, MIB, 3));
    CHECK_INT(EXTERNAL(), MIB);
    PyMem_Free(block);
}

static void objects_are_no_blocks(void) {
    Leaf *one = leaf();
    Pair *two = pair(NULL, NULL);
    char *block = PyMem_Malloc(64);
    size_t before = EXTERNAL();
    PyMem_Free(one);
    EXPECT_MISUSE(STANDSTILL_E_WRONG_ALLOCATOR, 1);
    PyMem_Free(two);
    EXPECT_MISUSE(STANDSTILL_E_WRONG_ALLOCATOR, 1);
    CHECK(PyMem_Realloc(two, 8) == NULL);
    EXPECT_ERROR(STANDSTILL_E_WRONG_ALLOCATOR);
    PyObject_Free(two);
    EXPECT_MISUSE(STANDSTILL_E_WRONG_ALLOCATOR, 1);
    CHECK_INT(Py_REFCNT(one), 1);
    CHECK_INT(Py_REFCNT(two), 1);
    PyMem_Free(block + 1);
    EXPECT_MISUSE(STANDSTILL_E_FOREIGN_POINTER, 1);
    memset(block, 0, 64);
    PyMem_Free(block + 16);
    EXPECT_MISUSE(STANDSTILL_E_FOREIGN_POINTER, 1);
    CHECK(PyMem_Realloc(block + 32, 5) == NULL);
    EXPECT_ERROR(STANDSTILL_E_FOREIGN_POINTER);
    CHECK(is_filled((unsigned char *)block, 64, 0));
    CHECK_INT(EXTERNAL(), before);
    PyMem_Free(block);
    Py_DECREF(one);
    Py_DECREF(two);
}

static void any_address_is_refused(void) {
    PyMem_Free((void *)(uintptr_t)0x100000);
    EXPECT_MISUSE(STANDSTILL_E_FOREIGN_POINTER, 1);
    PyMem_Free((void *)(uintptr_t)16);
    EXPECT_MISUSE(STANDSTILL_E_FOREIGN_POINTER, 1);
    PyMem_Free((char *)leaf() + ((size_t)1 << 30)); /* in the heap, where nothing is */
    EXPECT_MISUSE(STANDSTILL_E_FOREIGN_POINTER, 1);
}

static void a_limit_is_kept_for_cells_and_blocks_together(void) {
    standstill_heap_options options;
    standstill_heap *heap;
    PyObject *kept;
    void *block;
    memset(&options, 0, sizeof options);
    options.limit = 4 * MIB;
    heap = standstill_heap_new(&options);
    MUST(heap);
    CHECK_INT(standstill_attach(heap), 0);
    ready(&Pair_Type);
    kept = (PyObject *)pair(NULL, NULL);
    block = PyMem_Malloc(8 * MIB);
    MUST(block);
    CHECK(PyObject_GC_New(Pair, &Pair_Type) == NULL);
    EXPECT_ERROR(STANDSTILL_E_MEMORY);
    PyMem_Free(block);
    Py_DECREF(kept);
    Py_DECREF(pair(NULL, NULL));
    CHECK_INT(standstill_detach(), 0);
    CHECK_INT(standstill_heap_free(heap), 0);
}

const struct test blocks_tests[] = {
    TEST(blocks_behave_as_those_of_malloc),
    TEST(the_macros_for_types_and_objects_stand_on_them),
    TEST(without_memory_there_is_no_block_and_the_old_one_stays),
    TEST(the_bytes_of_a_block_are_counted_until_it_is_freed),
    TEST(dead_cycles_with_large_blocks_are_collected_before_there_are_many),
    TEST(a_progress_callback_tells_the_bytes_of_the_garbage),
    TEST(a_block_may_be_freed_on_another_thread),
    TEST(a_block_that_is_freed_in_another_heap_stays_counted),
    TEST(without_attachment_nothing_is_allocated_or_freed),
    TEST(objects_are_no_blocks),
    TEST_AS(any_address_is_refused, CHECKED_ONLY),
    TEST_AS(a_limit_is_kept_for_cells_and_blocks_together, BARE),
    TESTS_END,
};

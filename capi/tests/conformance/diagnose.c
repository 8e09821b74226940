/* What a heap holds and how long its collections take; where lines go; the options of the default heap; the words for a
 * debugger. */

#include "check.h"

#include <errno.h>
#include <glob.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* A census ------------------------------------------------------------------------------------------------------- */

struct counted_type {
    const char *name;
    Pair *dropped; /* by the callback */
    long rows;
    standstill_census_row row;
};

static void note_type(const standstill_census_row *row, void *arg) {
    struct counted_type *wanted = arg;
    CHECK_INT(row->size, sizeof *row);
    wanted->rows++;
    if (strcmp(row->type, wanted->name) == 0)
        wanted->row = *row;
    Py_XDECREF(wanted->dropped);
    wanted->dropped = NULL;
    PyGC_Collect();
}

static void a_census_counts_objects_by_type_and_its_callback_may_collect(void) {
    struct counted_type pairs = {.name = "check.Pair"}, leaves = {.name = "check.Leaf"};
    Leaf *one = leaf();
    PyGC_Collect();
    CHECK_INT(standstill_census(note_type, &pairs), pairs.rows);
    CHECK_INT(pairs.row.objects, 0);
    pairs.rows = 0;
    pairs.dropped = ring(5);
    PyGC_Collect();
    CHECK_INT(standstill_census(note_type, &pairs), pairs.rows);
    CHECK_INT(pairs.row.objects, 5);
    CHECK_INT(pairs.row.old, 5);
    CHECK_INT(pairs.row.held, 1);
    CHECK_INT(pairs.row.outside, 1);
    CHECK_INT(pairs.row.external_bytes, 0);
    CHECK(pairs.row.bytes >= 5 * sizeof(Pair));
    CHECK_INT(calls.freed, 5); /* by the callback */
    CHECK(standstill_census(note_type, &leaves) > 0);
    CHECK_INT(leaves.row.objects, 1);
    CHECK_INT(leaves.row.old, 0);
    CHECK_INT(leaves.row.held, 1);
    Py_DECREF(one);
}

static int is_failing;
static int failing_traverse(PyObject *self, visitproc visit, void *arg) {
    return GET(is_failing) ? 7 : pair_traverse(self, visit, arg);
}
static int code_in_finalizer;
static void asking_finalize(PyObject *self) {
    struct counted_type none = {.name = ""};
    (void)self;
    CHECK_INT(standstill_census(note_type, &none), -1);
    code_in_finalizer = standstill_error_code();
    PyErr_Clear();
    CHECK_INT(standstill_snapshot("/nowhere/one"), -1);
    CHECK_INT(standstill_error_code(), code_in_finalizer);
    PyErr_Clear();
    standstill_mark("finalizing");
}
static PyTypeObject Asking_Type = {
    TYPE_HEAD
    .tp_name = "check.Asking",
    .tp_base = &Pair_Type,
    .tp_basicsize = sizeof(Pair),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_traverse = failing_traverse,
    .tp_clear = pair_clear,
    .tp_dealloc = pair_dealloc,
    .tp_finalize = asking_finalize,
};

static void holder_must_not_come(const standstill_holder *row, void *arg) {
    (void)arg;
    check_failed(__FILE__, __LINE__, "an object at %p", row->object);
}
static void step_must_not_come(const standstill_path_step *step, void *arg) {
    (void)arg;
    check_failed(__FILE__, __LINE__, "an object at %p", step->object);
}
static void times_must_not_come(const standstill_gc_times *row, void *arg) {
    (void)arg;
    check_failed(__FILE__, __LINE__, "the time %s", row->name);
}

/* Each question fails with this code, and tells nothing. */
static void no_answer(int code) {
    struct counted_type none = {.name = ""};
    CHECK_INT(standstill_census(note_type, &none), -1);
    CHECK_INT(none.rows, 0);
    EXPECT_ERROR(code);
    CHECK_INT(standstill_holders(1, holder_must_not_come, NULL), -1);
    EXPECT_ERROR(code);
    CHECK_INT(standstill_why_alive(Py_None, step_must_not_come, NULL), -1);
    EXPECT_ERROR(code);
    CHECK_INT(standstill_snapshot("/tmp/standstill-no-answer"), -1);
    EXPECT_ERROR(code);
}

struct threads_seen {
    long rows, attached, marked;
    const char *wanted; /* the mark of the threads to count */
    uint64_t stops, os_thread; /* of the last of these */
};

static void note_thread(const standstill_thread_times *row, void *arg) {
    struct threads_seen *seen = arg;
    const standstill_gc_times *times = row->time_to_stop;
    CHECK_INT(row->size, sizeof *row);
    CHECK_INT(times->size, sizeof *times);
    CHECK(strcmp(times->name, "time_to_stop") == 0);
    CHECK(times->p50_ns <= times->p99_ns && times->p99_ns <= times->p999_ns && times->p999_ns <= times->max_ns);
    CHECK(times->count > 0 || times->max_ns == 0);
    seen->rows++;
    seen->attached += row->attached;
    if (row->mark ? seen->wanted != NULL && strcmp(row->mark, seen->wanted) == 0 : seen->wanted == NULL) {
        seen->marked++;
        seen->stops = times->count;
        seen->os_thread = row->os_thread;
#ifdef __linux__
        if (seen->wanted && strcmp(seen->wanted, "reading a request") == 0)
            CHECK(row->thread != NULL && strcmp(row->thread, "reader") == 0);
#endif
    }
    PyGC_Collect();
}

/* How many threads have this mark, or none. */
static long marked(const char *at) {
    struct threads_seen seen = {0};
    seen.wanted = at;
    CHECK_INT(standstill_threads(note_thread, &seen), seen.rows);
    return seen.marked;
}

static void thread_must_not_come(const standstill_thread_times *row, void *arg) {
    (void)arg;
    check_failed(__FILE__, __LINE__, "the thread %s", row->thread ? row->thread : "-");
}

static void a_question_that_cannot_be_answered_is_an_error(void) {
    Pair *one;
    ready(&Asking_Type);
    one = pair_of(&Asking_Type, NULL, NULL);
    PUT(is_failing, 1);
    no_answer(STANDSTILL_E_HANDLER_ERROR);
    PUT(is_failing, 0);
    CHECK_INT(standstill_detach(), 0);
    no_answer(STANDSTILL_E_NOT_ATTACHED);
    CHECK_INT(standstill_gc_get_times(2, times_must_not_come, NULL), -1);
    EXPECT_ERROR(STANDSTILL_E_NOT_ATTACHED);
    CHECK_INT(standstill_threads(thread_must_not_come, NULL), -1);
    EXPECT_ERROR(STANDSTILL_E_NOT_ATTACHED);
    standstill_mark("nowhere");
    EXPECT_MISUSE(STANDSTILL_E_NOT_ATTACHED, 1);
    CHECK_INT(standstill_attach(check_heap), 0);
    CHECK_INT(marked(NULL), 1);
    Py_DECREF(one);
    CHECK_INT(code_in_finalizer, STANDSTILL_E_NOT_ALLOWED_HERE);
    CHECK_INT(marked("finalizing"), 1);
    CHECK_INT(standstill_threads(NULL, NULL), -1);
    EXPECT_ERROR(STANDSTILL_E_NULL_ARGUMENT);
    CHECK_INT(standstill_census(NULL, NULL), -1);
    EXPECT_ERROR(STANDSTILL_E_NULL_ARGUMENT);
    CHECK_INT(standstill_holders(1, NULL, NULL), -1);
    EXPECT_ERROR(STANDSTILL_E_NULL_ARGUMENT);
    CHECK_INT(standstill_holders(-1, holder_must_not_come, NULL), -1);
    EXPECT_ERROR(STANDSTILL_E_BAD_SIZE);
    CHECK_INT(standstill_why_alive(Py_None, NULL, NULL), -1);
    EXPECT_ERROR(STANDSTILL_E_NULL_ARGUMENT);
    CHECK_INT(standstill_why_alive(NULL, step_must_not_come, NULL), -1);
    EXPECT_ERROR(STANDSTILL_E_NULL_ARGUMENT);
    CHECK_INT(standstill_gc_get_times(2, NULL, NULL), -1);
    EXPECT_ERROR(STANDSTILL_E_NULL_ARGUMENT);
    CHECK_INT(standstill_gc_get_times(3, times_must_not_come, NULL), -1);
    EXPECT_ERROR(STANDSTILL_E_BAD_GENERATION);
    CHECK_INT(standstill_gc_get_times(-1, times_must_not_come, NULL), -1);
    EXPECT_ERROR(STANDSTILL_E_BAD_GENERATION);
}

/* Holders and paths ---------------------------------------------------------------------------------------------- */

struct listed {
    long rows;
    standstill_holder rows_of[8];
};

static void note_holder(const standstill_holder *row, void *arg) {
    struct listed *listed = arg;
    CHECK_INT(row->size, sizeof *row);
    CHECK(listed->rows < 8);
    CHECK(strcmp(row->type, "check.Pair") == 0);
    listed->rows_of[listed->rows++] = *row;
}

static void holders_come_with_what_they_retain(void) {
    struct listed all = {0}, first = {0};
    Pair *large = ring(5), *small = ring(2);
    Py_INCREF(small);
    CHECK_INT(standstill_holders(8, note_holder, &all), 2);
    CHECK_INT(all.rows, 2);
    CHECK(all.rows_of[0].object == large && all.rows_of[1].object == small);
    CHECK_INT(all.rows_of[0].outside, 1);
    CHECK_INT(all.rows_of[0].retained_objects, 5);
    CHECK(all.rows_of[0].retained_bytes >= 5 * sizeof(Pair));
    CHECK_INT(all.rows_of[1].outside, 2);
    CHECK_INT(all.rows_of[1].retained_objects, 2);
    CHECK_INT(standstill_holders(1, note_holder, &first), 2);
    CHECK_INT(first.rows, 1);
    CHECK(first.rows_of[0].object == large);
    CHECK_INT(standstill_holders(0, holder_must_not_come, NULL), 2);
    Py_DECREF(large);
    Py_DECREF(small);
    Py_DECREF(small);
    CHECK_INT(PyGC_Collect(), 7);
    CHECK_INT(standstill_holders(8, holder_must_not_come, NULL), 0);
}

struct walked {
    long steps;
    struct {
        char field[16];
        char type[32];
        standstill_path_step step;
    } all[4];
};

static void note_step(const standstill_path_step *step, void *arg) {
    struct walked *walked = arg;
    CHECK_INT(step->size, sizeof *step);
    CHECK(walked->steps < 4);
    snprintf(walked->all[walked->steps].field, 16, "%s", step->field ? step->field : "-");
    snprintf(walked->all[walked->steps].type, 32, "%s", step->type);
    walked->all[walked->steps++].step = *step;
}

static int attributed_traverse(PyObject *self, visitproc visit, void *arg) {
    int result = PyObject_VisitManagedDict(self, visit, arg);
    return result ? result : heap_pair_traverse(self, visit, arg);
}
static int attributed_clear(PyObject *self) {
    PyObject_ClearManagedDict(self);
    return pair_clear(self);
}

static void a_path_names_the_attributes_on_it(void) {
    PyType_Slot slots[] = {{Py_tp_traverse, FN(attributed_traverse)}, {Py_tp_clear, FN(attributed_clear)}, {0, NULL}};
    PyTypeObject *type = heap_pair_type("check.Attributed", Py_TPFLAGS_MANAGED_DICT, slots);
    Pair *end = pair(NULL, NULL), *middle = pair(end, NULL), *held = pair_of(type, NULL, NULL), *garbage;
    struct walked path = {0}, own = {0};
    CHECK_INT(PyObject_SetAttrString((PyObject *)held, "peer", (PyObject *)middle), 0);
    Py_DECREF(end);
    Py_DECREF(middle);
    CHECK_INT(standstill_why_alive((PyObject *)end, note_step, &path), 3);
    CHECK_INT(path.steps, 3);
    CHECK(path.all[0].step.object == held && path.all[1].step.object == middle && path.all[2].step.object == end);
    CHECK(strcmp(path.all[0].type, "check.Attributed") == 0 && strcmp(path.all[2].type, "check.Pair") == 0);
    CHECK(strcmp(path.all[0].field, "-") == 0 && strcmp(path.all[1].field, "peer") == 0);
    CHECK(strcmp(path.all[2].field, "-") == 0);
    CHECK_INT(path.all[0].step.outside, 1);
    CHECK_INT(path.all[1].step.outside, 0);
    CHECK_INT(standstill_why_alive((PyObject *)held, note_step, &own), 1);
    CHECK(own.steps == 1 && own.all[0].step.object == held);
    garbage = garbage_ring(3);
    CHECK_INT(standstill_why_alive((PyObject *)garbage, step_must_not_come, NULL), 0);
    CHECK_INT(standstill_why_alive((PyObject *)&Pair_Type, step_must_not_come, NULL), 0);
    Py_DECREF(held);
    Py_DECREF(type);
    PyGC_Collect();
}

/* Snapshots ------------------------------------------------------------------------------------------------------ */

static char folder[] = "/tmp/standstill-XXXXXX", file_name[64];

static void name_a_file(const char *name) {
    if (!file_name[0])
        CHECK(mkdtemp(folder) != NULL);
    snprintf(file_name, sizeof file_name, "%s/%s", folder, name);
}

static int parts_left(void) {
    char pattern[80];
    glob_t found;
    int none;
    snprintf(pattern, sizeof pattern, "%s/*.part", folder);
    none = glob(pattern, 0, NULL, &found);
    CHECK(none == 0 || none == GLOB_NOMATCH);
    if (none == 0)
        globfree(&found);
    return none == 0;
}

static void a_snapshot_is_a_whole_file_with_all_objects(void) {
    Pair *first = ring(5000);
    static const char *const begin = "{\"snapshot\":{\"meta\":{\"node_fields\":[\"type\",\"name\",";
    long nodes = 0, edges = 0, strings = 0, lines = 0, begins = 0, pairs = 0;
    char line[1024];
    FILE *file;
    name_a_file("\xff.heapsnapshot"); /* not UTF-8 */
    CHECK_INT(standstill_snapshot(file_name), LIVE());
    CHECK_INT(parts_left(), 0);
    CHECK((file = fopen(file_name, "r")) != NULL);
    while (fgets(line, sizeof line, file)) {
        lines++;
        begins += strncmp(line, begin, strlen(begin)) == 0;
        pairs += strncmp(line, "\"check.Pair\"", 12) == 0;
        sscanf(line, "\"trailer\":{\"nodes\":%ld,\"edges\":%ld,\"strings\":%ld}}", &nodes, &edges, &strings);
    }
    fclose(file);
    CHECK_INT(begins, 1);
    CHECK_INT(pairs, 1);
    CHECK(nodes > LIVE() && edges >= 5000);
    /* One line for each, the first one, "trace_function_infos" and the trailer. */
    CHECK_INT(lines, nodes + edges + strings + 3);
    CHECK(unlink(file_name) == 0 && rmdir(folder) == 0);
    Py_DECREF(first);
    CHECK_INT(PyGC_Collect(), 5000);
}

static void is_not_written(const char *path, int number) {
    char words[32];
    CHECK_INT(standstill_snapshot(path), -1);
    snprintf(words, sizeof words, "(errno %d)", number);
    CHECK(strstr(standstill_error_message(), "the file cannot be written: ") != NULL);
    CHECK(strstr(standstill_error_message(), words) != NULL);
    EXPECT_ERROR(STANDSTILL_E_CUSTOM);
}

static void a_snapshot_that_cannot_be_written_leaves_nothing(void) {
    struct rlimit small = {100000, 100000};
    char content[16];
    Pair *first = ring(5000);
    FILE *file;
    CHECK_INT(standstill_snapshot(NULL), -1);
    EXPECT_ERROR(STANDSTILL_E_NULL_ARGUMENT);
    is_not_written("/nowhere/one", ENOENT);
    name_a_file("one");
    CHECK_INT(mkdir(file_name, 0700), 0);
    is_not_written(file_name, EISDIR);
    CHECK_INT(parts_left(), 0);
    CHECK_INT(rmdir(file_name), 0);
    CHECK((file = fopen(file_name, "w")) != NULL && fputs("before", file) >= 0 && fclose(file) == 0);
    signal(SIGXFSZ, SIG_IGN);
    CHECK_INT(setrlimit(RLIMIT_FSIZE, &small), 0); /* like a full disk, after some pieces */
    is_not_written(file_name, EFBIG);
    CHECK_INT(parts_left(), 0);
    CHECK((file = fopen(file_name, "r")) != NULL);
    CHECK(fgets(content, sizeof content, file) != NULL && strcmp(content, "before") == 0);
    fclose(file);
    CHECK(unlink(file_name) == 0 && rmdir(folder) == 0);
    Py_DECREF(first);
    CHECK_INT(PyGC_Collect(), 5000);
}

/* Threads and marks ---------------------------------------------------------------------------------------------- */

#ifdef __linux__
extern int pthread_setname_np(pthread_t id, const char *name);
#endif

static int reads, was_seen, is_detached, was_seen_detached;

static void read_requests(void *arg) {
    PyThreadState *state;
    (void)arg;
#ifdef __linux__
    CHECK_INT(pthread_setname_np(pthread_self(), "reader"), 0);
#endif
    MUST(standstill_attach(check_heap) == 0);
    standstill_mark("reading a request");
    PUT(reads, 1);
    wait_for(&was_seen);
    state = PyEval_SaveThread();
    PUT(is_detached, 1);
    block_for(&was_seen_detached);
    PyEval_RestoreThread(state);
    MUST(standstill_detach() == 0);
}

static void threads_are_listed_with_their_marks_and_delays(void) {
    struct threads_seen attached = {0}, detached = {0};
    thread t;
    standstill_mark("waiting");
    start_raw(&t, read_requests, NULL);
    wait_for(&reads);
    PyGC_Collect();
    detached.wanted = "reading a request";
    /* The reader comes back from the stop when the system lets it. */
    do {
        attached = (struct threads_seen){0};
        attached.wanted = "reading a request";
        CHECK_INT(standstill_threads(note_thread, &attached), 2);
        CHECK_INT(attached.rows, 2);
    } while (attached.attached != 2);
    CHECK_INT(attached.marked, 1);
    CHECK(attached.stops >= 1);
    CHECK_INT(marked("waiting"), 1);
    PUT(was_seen, 1);
    wait_for(&is_detached);
    CHECK_INT(standstill_threads(note_thread, &detached), 2);
    CHECK_INT(detached.attached, 1);
    CHECK_INT(detached.marked, 1);
    CHECK(detached.os_thread == attached.os_thread && detached.stops >= attached.stops);
    PUT(was_seen_detached, 1);
    join(&t);
    CHECK_INT(marked("reading a request"), 0);
    standstill_mark("\xff");
    EXPECT_MISUSE(STANDSTILL_E_WRONG_TYPE, 1);
    CHECK_INT(marked("waiting"), 1);
    standstill_mark("");
    CHECK_INT(marked(NULL), 1);
    standstill_mark("again");
    CHECK_INT(marked("again"), 1);
    standstill_mark(NULL);
    CHECK_INT(marked(NULL), 1);
}

/* Times ---------------------------------------------------------------------------------------------------------- */

struct timed {
    long rows;
    const char *wanted;
    uint64_t count; /* of the time that is wanted */
};

static void note_times(const standstill_gc_times *row, void *arg) {
    static const char *const names[] = {"pause", "time_to_stop", "waited", "duration"};
    struct timed *timed = arg;
    CHECK_INT(row->size, sizeof *row);
    CHECK(timed->rows >= 4 || strcmp(row->name, names[timed->rows]) == 0);
    timed->rows++;
    CHECK(row->p50_ns <= row->p99_ns && row->p99_ns <= row->p999_ns && row->p999_ns <= row->max_ns);
    CHECK(row->mean_ns <= row->max_ns);
    CHECK(row->count > 0 || row->max_ns == 0);
    if (strcmp(row->name, timed->wanted) == 0)
        timed->count = row->count;
}

static uint64_t count_of(int generation, const char *name) {
    struct timed timed = {0, name, 0};
    CHECK_INT(standstill_gc_get_times(generation, note_times, &timed), timed.rows);
    return timed.count;
}

static void times_are_counted_for_young_and_for_full_collections(void) {
    struct timed none = {0, "Mark", 7};
    CHECK_INT(standstill_gc_get_times(0, note_times, &none), 4);
    CHECK_INT(none.rows, 4);
    PyGC_Collect();
    PyGC_Collect();
    CHECK_INT(standstill_gc_collect(0), 0);
    CHECK_INT(count_of(2, "duration"), 2);
    CHECK(count_of(2, "pause") >= 2);
    CHECK_INT(count_of(2, "Count"), 2);
    CHECK_INT(count_of(0, "duration"), 1);
    CHECK_INT(count_of(1, "duration"), 1);
}

/* Lines ---------------------------------------------------------------------------------------------------------- */

static struct {
    int misuse, ignored, json, debug, other;
} heard;
static int nests;

static void note_line(const char *line, void *arg) {
    CHECK(arg == &heard);
    heard.misuse += strstr(line, "standstill: misuse: ") != NULL;
    heard.ignored += strstr(line, "an error was ignored\n") != NULL;
    heard.json += strncmp(line, "{\"event\":\"collection\",", 22) == 0 && line[strlen(line) - 1] == '}';
    heard.debug += strncmp(line, "gc: ", 4) == 0;
    heard.other++;
    if (nests) {
        nests = 0;
        PyObject_GC_Track(NULL); /* reported on stderr */
        standstill_safepoint();
    }
}

static void note_debug_line(const char *line, void *arg) {
    (void)line;
    ++*(int *)arg;
}

static void says_something(void) {
    PyObject_GC_UnTrack(NULL);
    PyErr_SetString(PyExc_ValueError, "nobody gets it");
    PyErr_WriteUnraisable(NULL);
    PyGC_Collect();
}

static void nests_a_line(void) {
    nests = 1;
    says_something();
}

static void every_line_goes_to_the_sink(void) {
    int debug_lines = 0;
    setenv("STANDSTILL_LOG", "gc", 1);
    standstill_set_misuse_hook(NULL, NULL);
    standstill_set_unraisable_hook(NULL, NULL);
    CHECK_INT(standstill_set_line_sink(note_line, &heard), 0);
    Py_Initialize();
    CHECK_INT(standstill_gc_set_debug(STANDSTILL_GC_DEBUG_STATS), 0);
    CHECK_INT(lines_of(says_something, ""), 0);
    CHECK_INT(heard.misuse, 1);
    CHECK_INT(heard.ignored, 1);
    CHECK_INT(heard.json, 1);
    CHECK_INT(heard.debug, 2);
    CHECK_INT(heard.other, 5);
    standstill_gc_set_debug_sink(note_debug_line, &debug_lines);
    CHECK_INT(lines_of(nests_a_line, "misuse"), 2);
    CHECK_INT(debug_lines, 2);
    CHECK_INT(heard.debug, 2);
    CHECK_INT(heard.json, 2);
    CHECK_INT(standstill_set_line_sink(NULL, NULL), 0);
    CHECK_INT(lines_of(says_something, "\"event\":\"collection\""), 1);
    CHECK_INT(heard.json, 2);
    CHECK_INT(standstill_detach(), 0);
}

static int blocks, may_go_on;

static void end_the_wait(const char *line, void *arg) {
    CHECK(arg == NULL);
    if (strstr(line, "a stop for a collection by ")) { /* and not another wait, on a slow machine */
        CHECK(strstr(line, ", last at \"blocking\")") != NULL);
        PUT(may_go_on, 1);
    }
}

static void block_attached(void *arg) {
    (void)arg;
    MUST(standstill_attach(NULL) == 0);
    standstill_mark("blocking");
    PUT(blocks, 1);
    block_for(&may_go_on);
    MUST(standstill_detach() == 0);
}

static void a_slow_stop_goes_to_the_sink(void) {
    standstill_heap_options options = STANDSTILL_HEAP_OPTIONS_INIT;
    thread t;
    options.slow_stop_ms = 20;
    CHECK_INT(standstill_configure(&options), 0);
    CHECK_INT(standstill_set_line_sink(end_the_wait, NULL), 0);
    Py_Initialize();
    start_raw(&t, block_attached, NULL);
    wait_for(&blocks);
    CHECK_INT(PyGC_Collect(), 0); /* it waits for the other thread, which waits for the line */
    join(&t);
    CHECK_INT(standstill_detach(), 0);
}

static int slow_lines, quick_lines;

static void note_largest_types(const char *line, void *arg) {
    (void)arg;
    slow_lines += strstr(line, "\"largest_types\":[{") != NULL;
    quick_lines += strstr(line, "\"largest_types\":[]") != NULL;
}

static int slow_traverse(PyObject *self, visitproc visit, void *arg) {
    struct timespec time = {0, 2000000};
    nanosleep(&time, NULL);
    return pair_traverse(self, visit, arg);
}
static PyTypeObject Slow_Type = {
    TYPE_HEAD
    .tp_name = "check.Slow",
    .tp_base = &Pair_Type,
    .tp_basicsize = sizeof(Pair),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_traverse = slow_traverse,
    .tp_clear = pair_clear,
    .tp_dealloc = pair_dealloc,
};

static int is_slow(size_t slow_collection_ms) {
    standstill_heap_options options = STANDSTILL_HEAP_OPTIONS_INIT;
    standstill_heap *heap;
    int slow;
    options.checked = 0;
    options.slow_collection_ms = slow_collection_ms;
    CHECK((heap = standstill_heap_new(&options)) != NULL);
    MUST(standstill_attach(heap) == 0);
    ready(&Pair_Type);
    ready(&Slow_Type);
    garbage_ring_of(&Slow_Type, 1);
    slow_lines = quick_lines = 0;
    CHECK_INT(PyGC_Collect(), 1);
    CHECK_INT(slow_lines + quick_lines, 1);
    slow = slow_lines;
    MUST(standstill_detach() == 0 && standstill_heap_free(heap) == 0); /* with a last collection */
    return slow;
}

static void a_slow_collection_has_the_largest_types_in_its_line(void) {
    setenv("STANDSTILL_LOG", "gc", 1);
    CHECK_INT(standstill_set_line_sink(note_largest_types, NULL), 0);
    CHECK_INT(is_slow(1), 1);
    CHECK_INT(is_slow(1000000), 0);
}

static int child_lines, other_lines;
static void note_child(const char *line, void *arg) {
    (void)arg;
    child_lines += strstr(line, "\"kind\":\"full\"") != NULL && strstr(line, "\"child\":{") != NULL;
    other_lines += strstr(line, "\"kind\":\"full\"") != NULL && strstr(line, "\"child\":null") != NULL;
}

static void a_full_collection_that_is_due_searches_in_a_child(void) {
    enum { RINGS = 20000 };
    static Pair *kept[RINGS];
    standstill_heap_options options = STANDSTILL_HEAP_OPTIONS_INIT;
    standstill_heap *heap;
    int n = 0;
    setenv("STANDSTILL_LOG", "gc", 1);
    CHECK_INT(standstill_set_line_sink(note_child, NULL), 0);
    options.child_from = 1;
    CHECK((heap = standstill_heap_new(&options)) != NULL);
    MUST(standstill_attach(heap) == 0);
    ready(&Pair_Type);
    while (child_lines + other_lines == 0 && n < RINGS) {
        kept[n++] = ring(2);
        standstill_safepoint();
    }
    while (child_lines + other_lines == 0)
        standstill_safepoint(); /* it goes on without allocations */
#if defined(__linux__) && defined(__GLIBC__)
    CHECK_INT(child_lines, 1);
#else
    CHECK_INT(other_lines, 1);
#endif
    while (n > 0)
        Py_DECREF(kept[--n]);
    MUST(standstill_detach() == 0 && standstill_heap_free(heap) == 0);
}

/* The default heap ----------------------------------------------------------------------------------------------- */

static void the_default_heap_has_the_options_that_were_set_before_its_first_use(void) {
    standstill_heap_options options = STANDSTILL_HEAP_OPTIONS_INIT;
    int i;
    options.limit = 1;
    CHECK_INT(standstill_configure(&options), -1);
    EXPECT_ERROR(STANDSTILL_E_BAD_SIZE);
    options.limit = (size_t)1 << 18;
    options.checked = 0;
    CHECK_INT(standstill_configure(&options), 0);
    CHECK_INT(standstill_configure(&options), -1);
    EXPECT_ERROR(STANDSTILL_E_NOT_ALLOWED_HERE);
    Py_Initialize();
    for (i = 0; i < 100000 && PyLong_FromLong(i); i++)
        ;
    CHECK(i > 0 && i < 100000);
    EXPECT_ERROR(STANDSTILL_E_MEMORY);
    CHECK_INT(standstill_detach(), 0);
}

static void the_default_heap_cannot_be_configured_after_its_first_use(void) {
    CHECK(standstill_default_heap() != NULL);
    CHECK_INT(standstill_configure(NULL), -1);
    EXPECT_ERROR(STANDSTILL_E_NOT_ALLOWED_HERE);
}

static void without_options_the_default_heap_has_the_defaults(void) {
    CHECK_INT(standstill_configure(NULL), 0);
    CHECK_INT(standstill_attach(standstill_default_heap()), 0);
    CHECK_INT(standstill_detach(), 0);
}

/* For a debugger ------------------------------------------------------------------------------------------------- */

static void *dumped;
static void dumps(void) { PyObject_Dump(dumped); }
#define SAYS(address, part)                      \
    do {                                         \
        dumped = (void *)(address);              \
        CHECK_INT(lines_of(dumps, "object"), 6); \
        CHECK_INT(lines_of(dumps, part), 1);     \
    } while (0)
#define SAYS_NO_OBJECT(address, part)                                    \
    do {                                                                 \
        dumped = (void *)(address);                                      \
        CHECK_INT(lines_of(dumps, "object"), 2);                         \
        CHECK_INT(lines_of(dumps, "no object       : " part), 1);        \
    } while (0)

static void dump_on_a_thread(void *arg) {
    SAYS(arg, "object type name: check.Pair");
    CHECK_INT(standstill_is_attached(), 0);
}

static void a_dump_describes_an_object_and_knows_what_is_none(void) {
    Pair *one = pair(NULL, NULL);
    Leaf *plain = leaf();
    const struct standstill_record *record = one->ob_base.ss_record;
    long on_stack[8] = {0};
    char address[64];
    thread t;
    snprintf(address, sizeof address, "object address  : %#lx", (unsigned long)(uintptr_t)one);
    SAYS(one, address);
    SAYS(one, "object refcount : 1");
    SAYS(one, "object type name: check.Pair");
    SAYS(one, "object state    : tracked, young");
    Py_INCREF(one);
    PyGC_Collect();
    SAYS(one, "object refcount : 2");
    SAYS(one, "object state    : tracked, old");
    standstill_gc_freeze();
    SAYS(one, "old, frozen");
    standstill_gc_unfreeze();
    PyObject_GC_UnTrack(one);
    SAYS(one, "object state    : untracked");
    SAYS(plain, "object state    : untracked");
    start_raw(&t, dump_on_a_thread, one);
    join(&t);
    SAYS_NO_OBJECT((char *)one + 8, "none starts here");
    SAYS_NO_OBJECT((char *)one + ((size_t)1 << 25), "none starts here");
    one->ob_base.ss_record = (const struct standstill_record *)(uintptr_t)8;
    dumped = one;
    CHECK_INT(lines_of(dumps, "object type     : overwritten by 0x8"), 1);
    one->ob_base.ss_record = plain->ob_base.ss_record;
    SAYS(one, "object type name: check.Leaf");
    one->ob_base.ss_record = record;
    Py_DECREF(one);
    Py_DECREF(one);
    SAYS_NO_OBJECT(one, "");
    SAYS_NO_OBJECT(NULL, "no memory");
    SAYS_NO_OBJECT(8, "no memory");
    SAYS_NO_OBJECT(on_stack, "memory of no heap");
    SAYS_NO_OBJECT((char *)on_stack + 1, "memory of no heap");
    dumped = &Pair_Type;
    CHECK_INT(lines_of(dumps, "object state    : static"), 1);
    CHECK_INT(lines_of(dumps, "object refcount : immortal"), 1);
    Py_DECREF(plain);
}

const struct test diagnose_tests[] = {
    TEST(a_census_counts_objects_by_type_and_its_callback_may_collect),
    TEST(a_question_that_cannot_be_answered_is_an_error),
    TEST(holders_come_with_what_they_retain),
    TEST(a_path_names_the_attributes_on_it),
    TEST(a_snapshot_is_a_whole_file_with_all_objects),
    TEST(a_snapshot_that_cannot_be_written_leaves_nothing),
    TEST(threads_are_listed_with_their_marks_and_delays),
    TEST(times_are_counted_for_young_and_for_full_collections),
    TEST_AS(every_line_goes_to_the_sink, BARE),
    TEST_AS(a_slow_stop_goes_to_the_sink, BARE),
    TEST_AS(a_slow_collection_has_the_largest_types_in_its_line, BARE),
    TEST_AS(a_full_collection_that_is_due_searches_in_a_child, BARE),
    TEST_AS(the_default_heap_has_the_options_that_were_set_before_its_first_use, BARE),
    TEST_AS(the_default_heap_cannot_be_configured_after_its_first_use, BARE),
    TEST_AS(without_options_the_default_heap_has_the_defaults, BARE),
    TEST(a_dump_describes_an_object_and_knows_what_is_none),
    TESTS_END,
};

/* The coordinator without a heap. The threads of these tests are attached to nothing else. */

#include "check.h"

#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static standstill_coordinator *coordinator;
static int running, over, turns;

static void nap(void) {
    struct timespec time = { 0, 100000 };
    nanosleep(&time, NULL);
}

/* `join` would detach this thread from a heap. */
static void until_end(thread *t) { CHECK_INT(pthread_join(t->id, NULL), 0); }

/* A call that fails with this code, and what it leaves in the indicator. */
#define FAILS(call, code)                                                                        \
    do {                                                                                         \
        CHECK_INT(call, -1);                                                                     \
        CHECK_INT(standstill_error_code(), code);                                                \
        PyErr_Clear();                                                                           \
    } while (0)

static standstill_participant *attached(void *data) {
    standstill_participant *me = standstill_participant_new(coordinator, data);
    MUST(me != NULL);
    MUST(standstill_participant_attach(me) == 0);
    return me;
}

static void begin(void) {
    coordinator = standstill_coordinator_new("test", 0);
    MUST(coordinator != NULL);
}

/* Polls, until the test is over. It ends attached, which its end undoes. */
static void computes(void *data) {
    standstill_participant *me = attached(data);
    const volatile uint32_t *word = standstill_participant_poll_word(me);
    MUST(word != NULL);
    ADD(running);
    while (!GET(over)) {
        ADD(turns);
        if (*word != 0)
            CHECK_INT(standstill_participant_park(me), 0);
    }
}

/* Blocks, detached. */
static void blocks(void *data) {
    standstill_participant *me = attached(data);
    CHECK_INT(standstill_participant_detach(me), 0);
    ADD(running);
    while (!GET(over))
        nap();
    CHECK_INT(standstill_participant_free(me), 0);
}

/* Neither polls nor detaches. */
static void is_late(void *data) {
    attached(data);
    ADD(running);
    while (!GET(over))
        nap();
}

static void await(int threads) {
    while (GET(running) != threads)
        nap();
}

static void sum(void *data, void *arg) { *(int *)arg += *(int *)data; }

static void a_stop_stops_threads_and_shows_their_data(void) {
    int data[] = { 1, 10, 100 }, i;
    standstill_participant *me;
    thread threads[2];
    begin();
    start_raw(&threads[0], computes, &data[0]);
    start_raw(&threads[1], blocks, &data[1]);
    await(2);
    me = attached(&data[2]);
    for (i = 0; i < 50; i++) {
        int seen = 0, before, then = GET(turns);
        CHECK_INT(standstill_participant_stop(me), 0);
        before = GET(turns);
        nap();
        CHECK_INT(GET(turns), before);
        CHECK_INT(standstill_participant_threads(me, sum, &seen), 0);
        CHECK_INT(seen, 111);
        CHECK_INT(standstill_participant_resume(me), 0);
        while (GET(turns) == then)
            nap(); /* the thread runs on */
    }
    PUT(over, 1);
    until_end(&threads[0]);
    until_end(&threads[1]);
    CHECK_INT(standstill_participant_stop(me), 0); /* the thread that ended attached is gone */
    CHECK_INT(standstill_participant_resume(me), 0);
    CHECK_INT(standstill_coordinator_free(coordinator), 0);
    CHECK_INT(standstill_participant_free(me), 0);
}

static void a_stop_gives_up_beside_a_late_thread(void) {
    standstill_participant *me;
    thread late;
    begin();
    start_raw(&late, is_late, NULL);
    await(1);
    me = attached(NULL);
    CHECK_INT(standstill_participant_stop_for(me, 0), -1);
    CHECK_INT(standstill_error_code(), STANDSTILL_E_TIMED_OUT);
    CHECK(strstr(standstill_error_message(), "still waited for thread") != NULL);
    PyErr_Clear();
    FAILS(standstill_participant_resume(me), STANDSTILL_E_NOT_ALLOWED_HERE);
    PUT(over, 1);
    until_end(&late);
    CHECK_INT(standstill_participant_stop_for(me, UINT64_MAX), 0);
    CHECK_INT(standstill_participant_resume(me), 0);
}

static standstill_participant *of_main;

static void tries_in_a_stop(void *data) {
    standstill_participant *me = standstill_participant_new(coordinator, data);
    FAILS(standstill_participant_try_stop(me), STANDSTILL_E_NOT_ATTACHED);
    FAILS(standstill_participant_attach(of_main), STANDSTILL_E_FOREIGN_POINTER);
    FAILS(standstill_participant_free(of_main), STANDSTILL_E_FOREIGN_POINTER);
}

static void resumes(void *data, void *arg) {
    (void)data, (void)arg;
    FAILS(standstill_participant_resume(of_main), STANDSTILL_E_NOT_ALLOWED_HERE);
}

static void wrong_calls_change_nothing(void) {
    int seen = 0;
    standstill_participant *me;
    begin();
    of_main = me = standstill_participant_new(coordinator, &seen);
    FAILS(standstill_participant_detach(me), STANDSTILL_E_NOT_ATTACHED);
    FAILS(standstill_participant_park(me), STANDSTILL_E_NOT_ATTACHED);
    FAILS(standstill_participant_stop(me), STANDSTILL_E_NOT_ATTACHED);
    CHECK_INT(standstill_participant_attach(me), 0);
    FAILS(standstill_participant_attach(me), STANDSTILL_E_NOT_ALLOWED_HERE);
    FAILS(standstill_participant_resume(me), STANDSTILL_E_NOT_ALLOWED_HERE);
    FAILS(standstill_participant_threads(me, sum, &seen), STANDSTILL_E_NOT_ALLOWED_HERE);
    CHECK_INT(standstill_participant_try_stop(me), 0);
    FAILS(standstill_participant_stop(me), STANDSTILL_E_NOT_ALLOWED_HERE);
    FAILS(standstill_participant_prepare_fork(me), STANDSTILL_E_NOT_ALLOWED_HERE);
    FAILS(standstill_participant_detach(me), STANDSTILL_E_NOT_ALLOWED_HERE);
    FAILS(standstill_participant_park(me), STANDSTILL_E_NOT_ALLOWED_HERE);
    FAILS(standstill_participant_threads(me, NULL, &seen), STANDSTILL_E_NULL_ARGUMENT);
    CHECK_INT(standstill_participant_threads(me, resumes, NULL), 0);
    {
        thread other;
        start_raw(&other, tries_in_a_stop, &seen);
        until_end(&other);
    }
    CHECK_INT(standstill_participant_resume(me), 0);
    FAILS(standstill_participant_resume(me), STANDSTILL_E_NOT_ALLOWED_HERE);
    CHECK_INT(standstill_participant_free(me), 0);
    FAILS(standstill_participant_free(me), STANDSTILL_E_FOREIGN_POINTER);
    FAILS(standstill_participant_attach(NULL), STANDSTILL_E_NULL_ARGUMENT);
    FAILS(standstill_coordinator_free(NULL), STANDSTILL_E_NULL_ARGUMENT);
    CHECK(standstill_participant_new(NULL, NULL) == NULL);
    CHECK_INT(standstill_error_code(), STANDSTILL_E_NULL_ARGUMENT);
    PyErr_Clear();
}

/* Keeps a stop until the test is over, and then ends with it. */
static void keeps_a_stop(void *data) {
    standstill_participant *me = attached(data);
    CHECK_INT(standstill_participant_stop(me), 0);
    ADD(running);
    while (!GET(over))
        nap();
}

static void tries_beside_a_stop(void *data) {
    standstill_participant *me = attached(data);
    ADD(running);
    while (standstill_participant_try_stop(me) == 0)
        CHECK_INT(standstill_participant_resume(me), 0);
    CHECK_INT(standstill_error_code(), STANDSTILL_E_BUSY);
    PyErr_Clear();
    PUT(over, 1);
    CHECK_INT(standstill_participant_park(me), 0);
}

static void a_stop_that_ends_with_its_thread_lets_the_others_run(void) {
    thread threads[2];
    begin();
    start_raw(&threads[0], tries_beside_a_stop, NULL);
    await(1);
    start_raw(&threads[1], keeps_a_stop, NULL);
    until_end(&threads[0]);
    until_end(&threads[1]);
}

static void a_child_has_one_thread(void) {
    standstill_participant *me;
    thread other;
    int data = 1, i;
    begin();
    start_raw(&other, computes, &data);
    await(1);
    me = attached(&data);
    for (i = 0; i < 10; i++) {
        int status = -1;
        pid_t child;
        CHECK_INT(standstill_participant_prepare_fork(me), 0);
        child = fork();
        if (child == 0) {
            int seen = 0;
            alarm(20);
            if (standstill_participant_resume(me) != 0 || standstill_participant_stop(me) != 0)
                _exit(2);
            standstill_participant_threads(me, sum, &seen);
            _exit(seen == 1 ? standstill_participant_resume(me) : 3);
        }
        CHECK_INT(standstill_participant_resume(me), 0);
        CHECK(child > 0 && waitpid(child, &status, 0) == child);
        CHECK_INT(status, 0);
    }
    PUT(over, 1);
    until_end(&other);
}

const struct test coordinator_tests[] = {
    TEST_AS(a_stop_stops_threads_and_shows_their_data, BARE),
    TEST_AS(a_stop_gives_up_beside_a_late_thread, BARE),
    TEST_AS(wrong_calls_change_nothing, BARE),
    TEST_AS(a_stop_that_ends_with_its_thread_lets_the_others_run, BARE),
    TEST_AS(a_child_has_one_thread, BARE),
    TESTS_END
};

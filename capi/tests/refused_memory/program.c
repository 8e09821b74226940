/* Refuses memory to one call of one function.
 *
 *     program --list                   prints a line for each case: function, case
 *     program CASE once|lasting        plays the case again and again, each time in a forked child
 *
 * The first child is refused its first allocation, the second its second, and so on, until a child needs no more; before these comes one that is
 * refused nothing. "once": the allocations after the refused one succeed. "lasting": they are refused too, on all
 * threads.
 *
 * Each child prints one line:
 *
 *     n  how the call ended  what the checks found afterwards
 *
 * The Rust side (`refused_memory.rs`) knows what is allowed. */
#define _GNU_SOURCE
#include "program.h"

#include "allocator.h"

#include <execinfo.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- the allocator ---- */

static int lasting, used;
static long wanted;

void refuse(void)
{
    if (wanted >= 0) {
        refuse_memory(wanted, lasting);
    }
}

void grant(void)
{
    used |= grant_memory();
}

/* ---- the cases ---- */

enum { MOST = 400 };
static struct refused_case cases[MOST];
static int number;

void refused_add(const struct refused_case *one)
{
    if (number == MOST) {
        abort();
    }
    cases[number++] = *one;
}

void refused_setup(void);
/* 1: the heap is as it should be. */
int refused_check(void);

/* ---- what is reported ---- */

static int told_memory, told_other;
static char told_text[160];

static void on_misuse(const standstill_misuse *report, void *arg)
{
    (void)arg;
    if (report->code == STANDSTILL_E_MEMORY) {
        told_memory = 1;
    } else {
        told_other = 1;
        (void)snprintf(told_text, sizeof told_text, "%s", report->text);
    }
}

static void on_unraisable(const standstill_unraisable *report, void *arg)
{
    (void)arg;
    if (strstr(report->message, "memory") != NULL) {
        told_memory = 1;
    } else {
        told_other = 1;
        (void)snprintf(told_text, sizeof told_text, "%s", report->message);
    }
}

/* ---- a child ---- */

static void dying(int signal)
{
    void *frames[64];
    char line[64 * 20];
    int n, i, at;
    grant();
    n = backtrace(frames, 64);
    at = snprintf(line, sizeof line, "died signal=%d at", signal);
    for (i = 0; i < n; i++) {
        at += snprintf(line + at, sizeof line - (size_t)at, " %lx", (unsigned long)frames[i]);
    }
    line[at++] = '\n';
    (void)!write(1, line, (size_t)at);
    _exit(3);
}

static int open_null(void)
{
    int null = open("/dev/null", O_WRONLY);
    return null < 0 ? 2 : null;
}

static void play(const struct refused_case *one, long n)
{
    static const int deadly[] = { SIGABRT, SIGSEGV, SIGBUS, SIGILL, SIGTRAP };
    char line[400];
    void *warm[4];
    size_t i;
    long result, again = 0;
    int code, next = 0, failed, whole, at;
    alarm(20);
    (void)backtrace(warm, 4); /* the first call loads a library */
    for (i = 0; i < sizeof deadly / sizeof *deadly; i++) {
        signal(deadly[i], dying);
    }
    (void)dup2(open_null(), 2);
    standstill_set_misuse_hook(on_misuse, NULL);
    standstill_set_unraisable_hook(on_unraisable, NULL);
    if (!one->bare) {
        refused_setup();
    }
    one->prepare();
    PyErr_Clear();
    told_memory = told_other = 0;
    wanted = n;
    if (!one->itself) {
        refuse();
    }
    result = one->act();
    grant();
    wanted = -1;
    code = standstill_error_code();
    at = snprintf(line, sizeof line, "used=%d result=%ld code=%d memory=%d other=%d", used, result, code, told_memory, told_other);
    PyErr_Clear();
    /* Without a failure value the error indicator tells. */
    failed = result == one->failure || (one->failure == NO_FAILURE && code == STANDSTILL_E_MEMORY);
    if (used && (failed || told_memory)) {
        /* The same call, with memory. */
        told_other = 0;
        again = one->act();
        next = standstill_error_code();
        PyErr_Clear();
    }
    whole = refused_check();
    (void)snprintf(line + at, sizeof line - (size_t)at, " again=%ld next=%d failure=%d whole=%d text=%s\n", again, next,
                   failed, whole, told_other ? told_text : "");
    (void)!write(1, line, strlen(line));
    _exit(0);
}

int main(int argc, char **argv)
{
    int i;
    long n;
    if (argc == 2 && strcmp(argv[1], "--list") == 0) {
        for (i = 0; i < number; i++) {
            printf("%s %s\n", cases[i].function, cases[i].name);
        }
        return 0;
    }
    if (argc < 3) {
        return 2;
    }
    lasting = strcmp(argv[2], "lasting") == 0;
    for (i = 0; i < number && strcmp(cases[i].name, argv[1]) != 0; i++) {
    }
    if (i == number) {
        return 2;
    }
    if (argc > 3) {
        play(&cases[i], atol(argv[3]));
    }
    for (n = -1; n < 2000; n++) {
        int status, done, ends[2];
        char said[4096];
        size_t got = 0;
        ssize_t more;
        pid_t pid;
        if (pipe(ends) != 0) {
            return 2;
        }
        fflush(stdout);
        pid = fork();
        if (pid < 0) {
            return 2;
        }
        if (pid == 0) {
            (void)dup2(ends[1], 1);
            play(&cases[i], n);
        }
        close(ends[1]);
        while (got < sizeof said - 1 && (more = read(ends[0], said + got, sizeof said - 1 - got)) > 0) {
            got += (size_t)more;
        }
        said[got] = 0;
        close(ends[0]);
        if (waitpid(pid, &status, 0) != pid) {
            return 2;
        }
        if (got == 0) {
            (void)snprintf(said, sizeof said, "ended without a word, status %#x\n", (unsigned)status);
        }
        done = n >= 0 && strncmp(said, "used=0", 6) == 0;
        if (!done) {
            printf("%ld %s", n, said);
        }
        if (done) {
            return 0;
        }
    }
    printf("%ld no end of allocations\n", n);
    return 0;
}

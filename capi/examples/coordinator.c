/* Stops the threads of an interpreter, without objects of the library: one thread computes, one
 * waits for input, and the main thread looks at both while they stand still. */
#include <standstill.h>

#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

/* What a thread shows to the others in a stop. */
typedef struct {
    const char *name;
    long instructions;
} Interpreter;

static standstill_coordinator *coordinator;
static int input[2];

static void *compute(void *arg)
{
    Interpreter *self = arg;
    standstill_participant *me = standstill_participant_new(coordinator, self);
    if (me == NULL || standstill_participant_attach(me) < 0)
        return NULL;
    const volatile uint32_t *poll = standstill_participant_poll_word(me);
    while (self->instructions < 100000000) {
        self->instructions++;
        if (*poll != 0)
            standstill_participant_park(me); /* a safepoint */
    }
    standstill_participant_free(me);
    return self;
}

static void *wait_for_input(void *arg)
{
    Interpreter *self = arg;
    standstill_participant *me = standstill_participant_new(coordinator, self);
    if (me == NULL || standstill_participant_attach(me) < 0)
        return NULL;
    char byte;
    standstill_participant_detach(me); /* around a call that blocks */
    ssize_t bytes = read(input[0], &byte, 1);
    standstill_participant_attach(me); /* waits, if a stop is on */
    self->instructions += bytes;
    standstill_participant_free(me);
    return self;
}

static void show(void *data, void *arg)
{
    (void)arg;
    if (data != NULL)
        printf("  %s: %ld\n", ((Interpreter *)data)->name, ((Interpreter *)data)->instructions);
}

int main(void)
{
    Interpreter first = { "computes", 0 }, second = { "waits", 0 };
    pthread_t threads[2];
    void *ended[2];
    coordinator = standstill_coordinator_new("example", 0);
    standstill_participant *me = standstill_participant_new(coordinator, NULL);
    if (me == NULL || pipe(input) != 0 ||
        pthread_create(&threads[0], NULL, compute, &first) != 0 ||
        pthread_create(&threads[1], NULL, wait_for_input, &second) != 0)
        return 1;
    standstill_participant_attach(me);
    for (int sample = 0; sample < 3; sample++) {
        if (standstill_participant_stop_for(me, 10000000000) < 0) {
            fprintf(stderr, "%s\n", standstill_error_message());
            return 1;
        }
        printf("stopped\n");
        standstill_participant_threads(me, show, NULL);
        standstill_participant_resume(me);
    }
    standstill_participant_free(me);
    if (write(input[1], "x", 1) != 1)
        return 1;
    pthread_join(threads[0], &ended[0]);
    pthread_join(threads[1], &ended[1]);
    standstill_coordinator_free(coordinator);
    return ended[0] == &first && ended[1] == &second && second.instructions == 1 ? 0 : 1;
}

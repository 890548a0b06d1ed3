/* SPDX-License-Identifier: Apache-2.0 */
/* Two threads each store and then load the other's store, one with a light fence in between and one
 * with a heavy fence: at least one sees the other's store. Without the heavy fence both miss it now
 * and then. That is counted first, to detect a machine on which this test proves nothing. */
#include "base/fences.h"

#include <stdalign.h>

#include "check.h"

/* Rounds are short unless others use the cores; then the time limits their number. */
enum { ROUNDS = 300000, TIME_MS = 1000, END = 0 };

static alignas(64) atomic_uint begun;
static alignas(64) atomic_uint flag;
static alignas(64) atomic_uint data;
static alignas(64) atomic_uint seen_flag;
static alignas(64) atomic_uint ended;

static void await(const atomic_uint *word, unsigned before)
{
    while (atomic_load_explicit(word, memory_order_acquire) == before)
        ;
}

/* The thread that checks the flag often, in every round. */
static void *publish(void *unused)
{
    for (unsigned round = END;;) {
        await(&begun, round);
        if ((round = atomic_load_explicit(&begun, memory_order_relaxed)) == END)
            return NULL;
        atomic_store_explicit(&data, round, memory_order_release);
        ddl__fence_light();
        atomic_store_explicit(&seen_flag, atomic_load_explicit(&flag, memory_order_relaxed),
                              memory_order_relaxed);
        atomic_store_explicit(&ended, round, memory_order_release);
    }
}

/* Run one round of the thread that sets the flag rarely. True if both missed the other's store. */
static bool is_missed(unsigned round, bool heavy)
{
    atomic_store_explicit(&begun, round, memory_order_release);
    for (unsigned i = 0; i < round % 64; i++) /* meet at different moments */
        ddl__fence_light();
    atomic_store_explicit(&flag, round, memory_order_relaxed);
    if (heavy)
        ddl__fence_heavy();
    else
        ddl__fence_light();
    unsigned seen = atomic_load_explicit(&data, memory_order_relaxed);
    await(&ended, round - 1);
    return seen != round && atomic_load_explicit(&seen_flag, memory_order_relaxed) != round;
}

static unsigned count_missed(bool heavy)
{
    pthread_t thread;
    unsigned missed = 0, round = 0;
    double end = seconds() + 1e-3 * TIME_MS;
    atomic_store(&ended, 0);
    CHECK(!pthread_create(&thread, NULL, publish, NULL), "no thread");
    while (round++ < ROUNDS && seconds() < end)
        missed += is_missed(round, heavy);
    atomic_store(&begun, END);
    pthread_join(thread, NULL);
    printf("%u rounds with a %s fence: %u missed on both sides\n", round - 1,
           heavy ? "heavy" : "light", missed);
    return missed;
}

int main(void)
{
    ddl__fences fences;
    ddl__fences_start(&fences);
    ddl__fences_stop(&fences);
    if (!ddl__fences_joined(&fences)) {
        printf("this system has no such fences\n");
        return 77;
    }
    count_missed(false);
    CHECK(!count_missed(true), "a heavy fence is none");
}

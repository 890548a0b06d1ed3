/* tuning.h - how a stream's operations are carried out where this is not left to the costs alone:
 * by a mode, by choices that were made before, or by exploring; and what its times were.
 *
 * Exploring: the first operations of a kind and size class go by each candidate in turn. When each
 * has had its share, all ranks take, with an all-reduce between two operations, the longest of
 * their medians, so all choose the same. Reports likewise begin with an all-gather of the ranks'
 * times. Since all ranks count the same operations of a stream, all begin these at the same place.
 */
#ifndef DDL_ENGINE_TUNING_H
#define DDL_ENGINE_TUNING_H

#include "engine/choices.h"
#include "engine/run.h"

enum { DDL__SAMPLES = 5 /* of each candidate */ };

/* A kind and size class that is being explored. */
typedef struct ddl__exploration {
    int n; /* candidates; 0: not yet begun */
    ddl__candidate candidates[DDL__ALGORITHMS];
    int calls;
    float seconds[DDL__ALGORITHMS][DDL__SAMPLES];
} ddl__exploration;

typedef struct ddl__tuning {
    int rank, size;
    char **names;
    void (*keep_choices)(void *context, const ddl__choices *choices);
    void *context;

    ddl__algorithm by; /* a mode's */
    ddl__choices choices;
    ddl__exploration *explorations[DDL__CHOICE_KINDS][DDL__CLASSES]; /* NULL: none yet */
    bool explores;

    int dump_iter;
    int64_t operations; /* since the last report */
    double busy;        /* seconds of them, from their starts to their ends */
    ddl__meter meter;

    /* The present operation. */
    ddl__exploration *sampled; /* of which it is a sample, or NULL */
    int64_t started;

    /* An operation of our own, and whom it holds up; NULL: there is none. */
    ddl_work own, *held;
    ddl__exploration *settled; /* its subject; NULL: a report */
    int settled_kind, settled_class;
    double *values; /* what it takes and brings */
} ddl__tuning;

/* NULL when out of memory. */
ddl__tuning *ddl__tuning_create(int rank, int size, char mode, int dump_iter,
                                const ddl__choices *choices, const ddl__topology *topology);
void ddl__tuning_destroy(ddl__tuning *tuning);

/* The work that has to run before `next`, which it holds up; NULL: none. */
ddl_work *ddl__tuning_due(ddl__tuning *tuning, ddl_work *next);

/* That work is complete; the one that it held up. */
ddl_work *ddl__tuning_settle(ddl__tuning *tuning);

/* The comm is dead: the one that a work of our own held up, or NULL. */
ddl_work *ddl__tuning_drop(ddl__tuning *tuning);

/* The work of this request starts: the algorithm for it, or none. False when out of memory. */
bool ddl__tuning_start(ddl__tuning *tuning, const ddl__request *request, ddl__algorithm *by);

/* It is complete. */
void ddl__tuning_end(ddl__tuning *tuning);

#endif

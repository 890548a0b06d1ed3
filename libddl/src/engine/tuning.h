/* tuning.h - how operations of a stream are carried out if not by the costs alone: by a mode, by
 * earlier choices, or by exploring. Also measures and reports times.
 *
 * Exploring: the first operations of a kind and size class use each candidate in turn. When each
 * candidate has its samples, an all-reduce of the library between two operations finds the maximum
 * of each candidate's median over all ranks, so all ranks choose the same. Reports begin with an
 * all-gather of the ranks' times in the same way. All ranks count the same operations of a stream,
 * so they run these at the same place. */
#ifndef DDL_ENGINE_TUNING_H
#define DDL_ENGINE_TUNING_H

#include "engine/choices.h"
#include "engine/run.h"

enum { DDL__SAMPLES = 5 /* per candidate */ };

/* A kind and size class that is explored. */
typedef struct ddl__exploration {
    int n; /* candidates; 0: not started */
    ddl__candidate candidates[DDL__ALGORITHMS];
    int calls;
    float seconds[DDL__ALGORITHMS][DDL__SAMPLES];
} ddl__exploration;

typedef struct ddl__tuning {
    int rank, size;
    char **names;
    void (*keep_choices)(void *context, const ddl__choices *choices);
    void *context;

    ddl__algorithm by; /* set by the mode */
    ddl__choices choices;
    ddl__exploration *explorations[DDL__CHOICE_KINDS][DDL__CLASSES]; /* NULL: not started */
    bool explores;

    int dump_iter;
    int64_t operations; /* since the last report */
    double busy;        /* seconds of these operations */
    ddl__meter meter;

    /* The current operation. */
    ddl__exploration *sampled; /* the exploration that it is a sample of, or NULL */
    int64_t started;

    /* The operation of the library, and the work that it delays; NULL: none. */
    ddl_work own, *held;
    ddl__exploration *settled; /* what it decides; NULL: it is a report */
    int settled_kind, settled_class;
    double *values; /* its buffer */
} ddl__tuning;

/* NULL when out of memory. */
ddl__tuning *ddl__tuning_create(int rank, int size, char mode, int dump_iter,
                                const ddl__choices *choices, const ddl__topology *topology);
void ddl__tuning_destroy(ddl__tuning *tuning);

/* The operation of the library that has to run before `next`, or NULL. */
ddl_work *ddl__tuning_due(ddl__tuning *tuning, ddl_work *next);

/* That operation is complete. Returns the work that it delayed. */
ddl_work *ddl__tuning_settle(ddl__tuning *tuning);

/* The comm is dead. Returns the work that an operation of the library delayed, or NULL. */
ddl_work *ddl__tuning_drop(ddl__tuning *tuning);

/* A work with this request starts: choose its algorithm, if any is to be used instead of the costs.
 * False when out of memory. */
bool ddl__tuning_start(ddl__tuning *tuning, const ddl__request *request, ddl__algorithm *by);

/* That work is complete. */
void ddl__tuning_end(ddl__tuning *tuning);

#endif

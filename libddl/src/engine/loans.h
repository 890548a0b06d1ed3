/* loans.h - what a work lends: spans that peers read where they lie in the caller's buffers, and
 * results that ranks store where their peers want them (net/lending.h). */
#ifndef DDL_ENGINE_LOANS_H
#define DDL_ENGINE_LOANS_H

#include "engine/run.h"

/* The work starts: find out whether its buffers lie in regions. */
void ddl__loans_find(const ddl__runner *runner, ddl_work *work);

typedef enum ddl__loan_outcome {
    DDL__LOAN_MADE,
    DDL__LOAN_FULL,
    DDL__LOAN_REFUSED
} ddl__loan_outcome;

/* Let the next target read the memory where it is; or tell it that the result is where it wants it.
 */
ddl__loan_outcome ddl__loans_publish(const ddl__runner *runner, const ddl_work *work,
                                     const ddl__step *step, const void *memory, size_t bytes);

/* Of so many next targets, those before one that gets its result back. */
unsigned ddl__loans_count_others(const ddl__runner *runner, unsigned n);

/* Find where targets of a reduction want its result: runner->returns. The operands have been peeked
 * at. False if nowhere. */
bool ddl__loans_find_returns(ddl__runner *runner, ddl_work *work, const ddl__step *step);

/* Whether the memory lies in a region of the work. */
bool ddl__loans_may(const ddl_work *work, const void *memory, size_t bytes);

/* Whether peers have read all that was lent to them. */
bool ddl__loans_flush(const ddl__runner *runner);

/* The caller gets its buffers back although peers may still use them. */
void ddl__loans_abandon(const ddl__runner *runner, const ddl_work *work);

#endif

/* witness.h - the launcher as a witness: it sees the processes of its host end, and tells those who
 * go on, here and on the other hosts. A connection to it stands for this process, whose kernel
 * closes it when the process ends.
 *
 * $DDL_WITNESS names its abstract unix socket. A record is eight characters that say what it is
 * about, and an endpoint's id: "ddlwitn1" (I am this one) and "ddlleave" (this one leaves in good
 * order) go to the witness, "ddlended" (the process of this one has ended) comes from it. */
#ifndef DDL_HEALTH_WITNESS_H
#define DDL_HEALTH_WITNESS_H

#include <stdbool.h>

#include "base/digest.h"

typedef struct ddl__witness ddl__witness;

/* Tell the witness of this endpoint. NULL where `name` is NULL, or, with a warning, where it
 * cannot be had: nothing depends on it. */
ddl__witness *ddl__witness_open(const ddl__digest *endpoint, const char *name);

/* Leave in good order. NULL is fine. */
void ddl__witness_close(ddl__witness *witness);

/* Readable when there is something to take; -1 when the launcher has gone. */
int ddl__witness_fd(const ddl__witness *witness);

/* Take the next endpoint whose process has ended; false when there is none. */
bool ddl__witness_next(ddl__witness *witness, ddl__digest *ended);

/* Whether that was said of this one, as far back as is remembered. NULL is fine. */
bool ddl__witness_saw(const ddl__witness *witness, const ddl__digest *endpoint);

#endif

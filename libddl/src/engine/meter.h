/* meter.h - where the time of operations goes, by the outermost level of the topology that a step
 * reaches. */
#ifndef DDL_ENGINE_METER_H
#define DDL_ENGINE_METER_H

#include "engine/work.h"

/* Times in nanoseconds. */
typedef struct ddl__meter {
    unsigned char *levels;                  /* by rank: 0 same host, 1 same rack, ... */
    int64_t mark;                           /* time until which all is accounted for */
    int64_t spent[DDL__DIMENSIONS], waited; /* waited: with nothing to do */
} ddl__meter;

/* The time since the last call belongs to the current step of the work: it has run, or could not.
 */
void ddl__meter_account(ddl__meter *meter, const ddl_work *work, bool ran);

#endif

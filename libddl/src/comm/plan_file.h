/* plan_file.h - choices of algorithms in a file, for $DDL_PLAN_FILE.
 *
 * A line for each: "4 all-reduce 65536 halving" - in a comm of 4 ranks all-reduces from 65536 bytes
 * up to twice that go by halving. Lines that begin with # are comments. */
#ifndef DDL_COMM_PLAN_FILE_H
#define DDL_COMM_PLAN_FILE_H

#include "base/status.h"
#include "engine/choices.h"

/* Those for comms of so many ranks; none where there is no file. DDL_EINVAL names a line that is
 * wrong. */
ddl_status ddl__plan_file_read(const char *path, int size, ddl__choices *choices);

/* Replace those for comms of so many ranks, and keep what is there for others. */
ddl_status ddl__plan_file_write(const char *path, int size, const ddl__choices *choices);

#endif

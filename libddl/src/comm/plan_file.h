/* SPDX-License-Identifier: Apache-2.0 */
/* plan_file.h - the file $DDL_PLAN_FILE, which stores choices of algorithms.
 *
 * Each line is a choice. "4 all-reduce 65536 halving" means: in a comm of 4 ranks, all-reduces of
 * at least 65536 and less than twice as many bytes use halving. Lines that begin with # are
 * comments. */
#ifndef DDL_COMM_PLAN_FILE_H
#define DDL_COMM_PLAN_FILE_H

#include "base/status.h"
#include "engine/executor/choices.h"

/* Read the choices for comms of `size` ranks; there are none if there is no file. The message of
 * DDL_EINVAL names an invalid line. */
ddl_status ddl__plan_file_read(const char *path, int size, ddl__choices *choices);

/* Replace the choices for comms of `size` ranks; choices for other sizes stay. */
ddl_status ddl__plan_file_write(const char *path, int size, const ddl__choices *choices);

#endif

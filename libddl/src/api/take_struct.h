/* SPDX-License-Identifier: Apache-2.0 */
/* take_struct.h - copies a caller's versioned struct. */
#ifndef DDL_API_TAKE_STRUCT_H
#define DDL_API_TAKE_STRUCT_H

#include "base/status.h"

/* Copy the caller's struct, whose first field is its size, into `ours`. Fields that the caller's
 * version does not have become zero; fields that our version does not have must be zero. NULL gives
 * all zeros. */
ddl_status ddl__take_struct(void *ours, size_t size, const void *theirs, const char *name);

#endif

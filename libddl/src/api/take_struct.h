/* take_struct.h - reading a caller's versioned struct. */
#ifndef DDL_API_TAKE_STRUCT_H
#define DDL_API_TAKE_STRUCT_H

#include "base/status.h"

/* Copy the caller's struct, whose first field is its size, into ours: what the caller does not know
 * becomes zero, what we do not know must be zero. NULL gives all zero. */
ddl_status ddl__take_struct(void *ours, size_t size, const void *theirs, const char *name);

#endif

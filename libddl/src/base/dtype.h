/* dtype.h - the element types: size and name. */
#ifndef DDL_BASE_DTYPE_H
#define DDL_BASE_DTYPE_H

#include <stddef.h>

#include "ddl/ddl.h"

/* 0 for an unknown dtype. */
size_t ddl__dtype_size(unsigned dtype);

/* "f32"; "?" for an unknown dtype. */
const char *ddl__dtype_name(unsigned dtype);

#endif

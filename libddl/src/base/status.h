/* SPDX-License-Identifier: Apache-2.0 */
/* status.h - error reporting: every layer returns a status, and the source of an error sets the
 * message. */
#ifndef DDL_BASE_STATUS_H
#define DDL_BASE_STATUS_H

#include "ddl/ddl.h"

enum { DDL__MESSAGE_MAX = 512 };

/* An internal status, never returned to a caller. Other members have started a later creation of
 * the family, so this attempt must be repeated with a higher number
 * (connect/endpoint/endpoint.h). */
#define DDL__SUPERSEDED ((ddl_status)-1000)

/* Set the calling thread's message and return `status`. The function that detects an error calls
 * this; its callers only pass the status on. */
ddl_status ddl__fail(ddl_status status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Return a static text for a status, never NULL. */
const char *ddl__strerror(ddl_status status);

/* Return the calling thread's message, never NULL. */
const char *ddl__message(void);

/* Clear the calling thread's message. */
void ddl__message_clear(void);

#endif

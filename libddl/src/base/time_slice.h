/* SPDX-License-Identifier: Apache-2.0 */
/* time_slice.h - shorter time slices for a thread that shares its core with another program.
 *
 * Linux gives all threads of a core equal parts of its time, in slices of some milliseconds. A
 * thread that wakes up may have to wait until others have used up their slices, and so may each
 * hop of an operation. A thread with shorter slices is run as soon as it wakes up, unless it has
 * already used more than its part. It gets no larger part. */
#ifndef DDL_BASE_TIME_SLICE_H
#define DDL_BASE_TIME_SLICE_H

enum { DDL__TIME_SLICE_NS = 100000 }; /* the shortest of the kernel */

/* Ask for shorter slices of the calling thread; it keeps them. Its children (fork) do not have
 * them. Does nothing if the thread has another policy or has asked before, and where the kernel is
 * older than Linux 6.12. */
void ddl__time_slice_shorten(void);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* check.h - the standard headers, and the tests' assertions. CHECK(condition, "printf", ...) ends
 * the program on failure. WRAP replaces a function of the library. */
#ifndef DDL_TESTS_CHECK_H
#define DDL_TESTS_CHECK_H

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CHECK(condition, ...)                                                                      \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #condition);                        \
            fprintf(stderr, __VA_ARGS__);                                                          \
            fputc('\n', stderr);                                                                   \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

/* Seconds of the monotonic clock. */
static inline double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Calls of the library that succeed, or are refused with a message that contains these words. */
#define OK(call)                                                                                   \
    do {                                                                                           \
        ddl_status status_ = (call);                                                               \
        CHECK(status_ == DDL_OK, "%d %s: %s", status_, ddl_strerror(status_), ddl_last_error());   \
    } while (0)

#define REFUSED(call, want, words)                                                                 \
    do {                                                                                           \
        ddl_status status_ = (call);                                                               \
        CHECK(status_ == (want), "%s gave %d, message \"%s\"", #call, status_, ddl_last_error());  \
        CHECK(strstr(ddl_last_error(), words), "message \"%s\" lacks \"%s\"", ddl_last_error(),    \
              words);                                                                              \
    } while (0)

#define INVALID(call, words) REFUSED(call, DDL_EINVAL, words)

/* As REFUSED, for the status of a call of this rank of `comm`. */
#define EXPECT(status, want, words)                                                                \
    CHECK((status) == (want) && strstr(ddl_last_error(), words), "rank %d got %d \"%s\"",          \
          ddl_comm_rank(comm), (status), ddl_last_error())

/* WRAP(type, function, (parameters)) { ... } replaces the function in programs for which
 * CMakeLists.txt has wrap(program function). __real_function is the original. */
#define WRAP(type, function, parameters)                                                           \
    type __real_##function parameters;                                                             \
    type __wrap_##function parameters;                                                             \
    type __wrap_##function parameters

#endif

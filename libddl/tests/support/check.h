/* SPDX-License-Identifier: Apache-2.0 */
/* check.h - the tests' assertion: CHECK(condition, "printf", ...) ends the program on failure. WRAP
 * replaces a function of the library. */
#ifndef DDL_TESTS_CHECK_H
#define DDL_TESTS_CHECK_H

#include <stdio.h>
#include <stdlib.h>

#define CHECK(condition, ...)                                                                      \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #condition);                        \
            fprintf(stderr, __VA_ARGS__);                                                          \
            fputc('\n', stderr);                                                                   \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

/* WRAP(type, function, (parameters)) { ... } replaces the function in programs for which
 * CMakeLists.txt has wrap(program function). __real_function is the original. */
#define WRAP(type, function, parameters)                                                           \
    type __real_##function parameters;                                                             \
    type __wrap_##function parameters;                                                             \
    type __wrap_##function parameters

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* check.h - the tests' assertion: CHECK(condition, "printf", ...) ends the program on failure. */
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

#endif

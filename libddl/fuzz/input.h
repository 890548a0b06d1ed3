/* SPDX-License-Identifier: Apache-2.0 */
/* input.h - the fuzzer's bytes as values for a target: numbers, runs, alterations of a valid
 * message. An input that is used up returns zeros, so every input is complete. */
#ifndef DDL_FUZZ_INPUT_H
#define DDL_FUZZ_INPUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A condition that must hold for every input; the fuzzer keeps inputs for which it does not. */
#define REQUIRE(condition, ...)                                                                    \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #condition);                        \
            fprintf(stderr, __VA_ARGS__);                                                          \
            fputc('\n', stderr);                                                                   \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

typedef struct input {
    const uint8_t *at;
    size_t left;
} input;

/* Copy up to n bytes, and return how many there were; the rest is zero. */
static inline size_t input_run(input *in, void *to, size_t n)
{
    size_t there = n < in->left ? n : in->left;
    if (there)
        memcpy(to, in->at, there);
    if (there < n)
        memset((char *)to + there, 0, n - there);
    in->at += there;
    in->left -= there;
    return there;
}

static inline unsigned input_byte(input *in)
{
    uint8_t byte;
    input_run(in, &byte, 1);
    return byte;
}

static inline uint32_t input_word(input *in)
{
    uint8_t b[4];
    input_run(in, b, sizeof b);
    return (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}

/* Read a length of two bytes. */
static inline size_t input_length(input *in, size_t limit)
{
    unsigned low = input_byte(in);
    return (low | input_byte(in) << 8) % limit;
}

/* Overwrite a few short runs of a valid message: their number, then position, length and bytes of
 * each. */
static inline void input_alter(input *in, void *memory, size_t n)
{
    for (unsigned runs = input_byte(in) % 8; runs && n; runs--) {
        size_t at = input_length(in, n), length = 1 + input_byte(in) % 8;
        input_run(in, (char *)memory + at, length < n - at ? length : n - at);
    }
}

#endif

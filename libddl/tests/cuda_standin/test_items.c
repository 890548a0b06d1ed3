/* SPDX-License-Identifier: Apache-2.0 */
/* Items of the stand-in's streams: words in memory and host functions. */
#include "test_standin.h"

enum { ROUNDS = 100 };

/* ------------------------------------------------------------------------------ words in memory */

static void wait_values(void)
{
    static const struct {
        uint32_t before, wanted, after;
    } cases[] = {{0, 5, 5}, {0xfffffffe, 2, 3}}; /* the second across the overflow */
    start_driver();
    CUstream stream = new_stream(CU_STREAM_NON_BLOCKING);
    CUdeviceptr words = device_words();
    uint32_t *word = pinned_words(0), *buffer = pinned_words(0), *result = pinned_words(0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        __atomic_store_n(word, cases[i].before, __ATOMIC_RELEASE);
        CU(cuStreamWaitValue32_v2(stream, address_of(word), cases[i].wanted, 0));
        CU(cuMemcpyHtoDAsync_v2(words, buffer, BYTES, stream));
        check_pending(stream, "a wait value");
        /* The copy comes after the wait, so the buffer may be written until the release. */
        for (int k = 0; k < WORDS; k++)
            buffer[k] = (uint32_t)i + 100;
        __atomic_store_n(word, cases[i].after, __ATOMIC_RELEASE);
        CU(cuMemcpyDtoHAsync_v2(result, words, BYTES, stream));
        CU(cuStreamSynchronize(stream));
        check_words(result, (uint32_t)i + 100, "written before the release");
    }
    CU_IS(CUDA_ERROR_INVALID_VALUE, cuStreamWaitValue32_v2(stream, address_of(word) + 1, 0, 0));
    CU_IS(CUDA_ERROR_INVALID_VALUE, cuStreamWaitValue32_v2(stream, (uintptr_t)&stream, 0, 0));
}

/* ------------------------------------------------------------------------------- host functions */

static int steps[ROUNDS], n_steps;
static CUresult called;

static void add_step(void *data)
{
    steps[n_steps++] = *(int *)data;
    int count;
    called = cuDeviceGetCount(&count);
}

static void host_functions(void)
{
    int numbers[ROUNDS];
    start_driver();
    CUstream stream = new_stream(0);
    for (int i = 0; i < ROUNDS; i++) {
        numbers[i] = i;
        CU(cuLaunchHostFunc(stream, add_step, &numbers[i]));
    }
    CU(cuStreamSynchronize(stream));
    CHECK(n_steps == ROUNDS && called == CUDA_ERROR_NOT_PERMITTED, "%d steps, %d", n_steps, called);
    for (int i = 0; i < ROUNDS; i++)
        CHECK(steps[i] == i, "step %d is %d", i, steps[i]);
}

const test_case item_cases[] = {
    {"wait_values", wait_values, {0}, false},
    {"host_functions", host_functions, {0}, false},
    {NULL, NULL, {0}, false},
};

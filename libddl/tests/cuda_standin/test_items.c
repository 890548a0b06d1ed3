/* SPDX-License-Identifier: Apache-2.0 */
/* Items of the stand-in's streams: words in memory and host functions. */
#include "test_standin.h"

enum { ROUNDS = 100 };

/* ------------------------------------------------------------------------------ words in memory */

static void wait_values(void)
{
    static const struct {
        unsigned flags;
        uint32_t before, wanted, after;
    } cases[] = {{CU_STREAM_WAIT_VALUE_EQ, 6, 5, 5},
                 {CU_STREAM_WAIT_VALUE_GEQ, 0xfffffffe, 2, 3}, /* across the overflow */
                 {CU_STREAM_WAIT_VALUE_AND | CU_STREAM_WAIT_VALUE_FLUSH, 1, 2, 6},
                 {CU_STREAM_WAIT_VALUE_NOR, 0xf0f0f0f0, 0x0f0f0f0f, 0xf0f0f0e0}};
    start_driver();
    CUstream stream = new_stream(CU_STREAM_NON_BLOCKING);
    CUdeviceptr words = device_words();
    uint32_t *word = pinned_words(0), *buffer = pinned_words(0), *result = pinned_words(0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        __atomic_store_n(word, cases[i].before, __ATOMIC_RELEASE);
        CU(cu.cuStreamWaitValue32_v2(stream, address_of(word), cases[i].wanted, cases[i].flags));
        CU(cu.cuMemcpyHtoDAsync_v2(words, buffer, BYTES, stream));
        CU(cu.cuStreamWriteValue32_v2(stream, address_of(word + 1), (uint32_t)i + 1, 0));
        check_pending(stream, "a wait value");
        /* The copy comes after the wait, so the buffer may be written until the release. */
        for (int k = 0; k < WORDS; k++)
            buffer[k] = (uint32_t)i + 100;
        __atomic_store_n(word, cases[i].after, __ATOMIC_RELEASE);
        while (__atomic_load_n(word + 1, __ATOMIC_ACQUIRE) != i + 1)
            ;
        CU(cu.cuMemcpyDtoHAsync_v2(result, words, BYTES, stream));
        CU(cu.cuStreamSynchronize(stream));
        check_words(result, (uint32_t)i + 100, "written before the release");
    }
    CU_IS(CUDA_ERROR_INVALID_VALUE,
          cu.cuStreamWaitValue32_v2(stream, address_of(word) + 1, 0, CU_STREAM_WAIT_VALUE_EQ));
    CU_IS(CUDA_ERROR_INVALID_VALUE,
          cu.cuStreamWaitValue32_v2(stream, (uintptr_t)&stream, 0, CU_STREAM_WAIT_VALUE_EQ));
    /* In device memory, from stream to stream. */
    CUstream other = new_stream(CU_STREAM_NON_BLOCKING);
    fill_words(words, 0, stream);
    CU(cu.cuStreamSynchronize(stream));
    CU(cu.cuStreamWaitValue32_v2(stream, words, 9, CU_STREAM_WAIT_VALUE_EQ));
    check_pending(stream, "a wait value in device memory");
    CU(cu.cuStreamWriteValue32_v2(other, words, 9, CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER));
    CU(cu.cuStreamSynchronize(stream));
}

static void no_wait_value(void)
{
    int value;
    start_driver();
    uint32_t *word = pinned_words(0);
    CU(cu.cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_MEM_OPS_V1, 0));
    CHECK(!value, "%d", value);
    CU_IS(CUDA_ERROR_NOT_SUPPORTED, cu.cuStreamWaitValue32_v2(NULL, address_of(word), 0, 0));
    CU_IS(CUDA_ERROR_NOT_SUPPORTED, cu.cuStreamWriteValue32_v2(NULL, address_of(word), 0, 0));
}

/* ------------------------------------------------------------------------------- host functions */

static int steps[ROUNDS], n_steps;
static CUresult called;

static void add_step(void *data)
{
    steps[n_steps++] = *(int *)data;
    int count;
    called = cu.cuDeviceGetCount(&count);
}

static void host_functions(void)
{
    int numbers[ROUNDS];
    start_driver();
    CUstream stream = new_stream(0);
    for (int i = 0; i < ROUNDS; i++) {
        numbers[i] = i;
        CU(cu.cuLaunchHostFunc(stream, add_step, &numbers[i]));
    }
    CU(cu.cuStreamSynchronize(stream));
    CHECK(n_steps == ROUNDS && called == CUDA_ERROR_NOT_PERMITTED, "%d steps, %d", n_steps, called);
    for (int i = 0; i < ROUNDS; i++)
        CHECK(steps[i] == i, "step %d is %d", i, steps[i]);
}

const test_case item_cases[] = {
    {"wait_values", wait_values, {0}, false},
    {"no_wait_value", no_wait_value, {"DDL_STANDIN_NO_WAIT_VALUE=1"}, false},
    {"host_functions", host_functions, {0}, false},
    {NULL, NULL, {0}, false},
};

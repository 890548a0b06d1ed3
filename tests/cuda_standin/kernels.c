/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels that the stand-in has, as C functions. A kernel gets pointers to its parameters, and
 * does all of its work whatever the grid is. A new kernel is a function and a line of the table. */
#include <string.h>
#include <time.h>

#include "standin.h"

typedef unsigned long long u64;

static const char fill_name[] = "standin_fill_u32", add_name[] = "standin_add_f32",
                  busy_name[] = "standin_busy";

/* standin_fill_u32(CUdeviceptr to, unsigned value, unsigned long long count) */
static void fill_u32(const kernel *k, void *const *arguments, int device, launch_shape shape)
{
    (void)k;
    (void)shape;
    u64 to = *(const u64 *)arguments[0], count = *(const u64 *)arguments[2];
    unsigned value = *(const unsigned *)arguments[1];
    for (size_t left = (size_t)count * sizeof value, n; left; left -= n, to += n) {
        span s = standin_span_take((uintptr_t)to, left, device, CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
                                   fill_name);
        n = s.bytes;
        for (size_t i = 0; i < n / sizeof value; i++)
            ((unsigned *)(void *)s.at)[i] = value;
        standin_span_drop(&s);
    }
}

/* standin_add_f32(CUdeviceptr to, CUdeviceptr from, unsigned long long count): to += from */
static void add_f32(const kernel *k, void *const *arguments, int device, launch_shape shape)
{
    (void)k;
    (void)shape;
    u64 to = *(const u64 *)arguments[0], from = *(const u64 *)arguments[1],
        count = *(const u64 *)arguments[2];
    for (size_t left = (size_t)count * sizeof(float), n; left; left -= n, to += n, from += n) {
        span target = standin_span_take((uintptr_t)to, left, device,
                                        CU_MEM_ACCESS_FLAGS_PROT_READWRITE, add_name);
        span source = standin_span_take((uintptr_t)from, left, device,
                                        CU_MEM_ACCESS_FLAGS_PROT_READ, add_name);
        n = target.bytes < source.bytes ? target.bytes : source.bytes;
        for (size_t i = 0; i < n / sizeof(float); i++)
            ((float *)(void *)target.at)[i] += ((const float *)(void *)source.at)[i];
        standin_span_drop(&target);
        standin_span_drop(&source);
    }
}

/* standin_busy(unsigned us): takes so long. The thread sleeps, since there may be few cores. */
static void busy(const kernel *k, void *const *arguments, int device, launch_shape shape)
{
    (void)k;
    (void)device;
    (void)shape;
    unsigned us = *(const unsigned *)arguments[0];
    struct timespec time = {us / 1000000, us % 1000000 * 1000l};
    nanosleep(&time, NULL);
}

static const kernel kernels[] = {
    {fill_name, 3, {8, 4, 8}, fill_u32},
    {add_name, 3, {8, 8, 8}, add_f32},
    {busy_name, 1, {4}, busy},
};

const kernel *standin_kernel(const char *name, size_t length)
{
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++)
        if (strlen(kernels[i].name) == length && !memcmp(kernels[i].name, name, length))
            return &kernels[i];
    return NULL;
}

const kernel *standin_kernel_of(CUfunction function)
{
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++)
        if ((uintptr_t)&kernels[i] == (uintptr_t)function)
            return &kernels[i];
    return standin_compiled_of(function);
}

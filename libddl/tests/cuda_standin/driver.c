/* SPDX-License-Identifier: Apache-2.0 */
/* The settings of the stand-in for libcuda.so.1, the start and end of its exported functions, the
 * names of errors, devices, and their primary contexts. Each thread has a stack of contexts, whose
 * top is current. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "standin.h"

enum { FAILURES_MAX = 8, STACK_MAX = 32 };

typedef struct failure {
    char name[64];
    unsigned long long at, calls;
} failure;

static settings values;
static bool are_read;
static failure failures[FAILURES_MAX];
static int n_failures;
static unsigned long long n_failed;

pthread_mutex_t standin_mutex = PTHREAD_MUTEX_INITIALIZER;
static context contexts[STANDIN_DEVICES_MAX];

/* is_forked is set in a child of a process that had called cuInit. As with the real driver, the
 * child cannot use CUDA. */
static bool is_initialized, is_forked;
static _Thread_local bool in_host_function;
static _Thread_local context *stack[STACK_MAX];
static _Thread_local int depth;

void standin_die(const char *format, ...)
{
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    fprintf(stderr, "CUDA stand-in: %s\n", text);
    abort();
}

void *standin_new(size_t bytes)
{
    void *memory = calloc(1, bytes);
    if (!memory)
        standin_die("no memory for %zu bytes", bytes);
    return memory;
}

/* ------------------------------------------------------------------------------ the environment */

static unsigned long long read_number(const char *name, unsigned long long otherwise,
                                      unsigned long long most)
{
    const char *text = getenv(name);
    char *end;
    if (!text)
        return otherwise;
    unsigned long long number = strtoull(text, &end, 10);
    if (end == text || *end || number > most)
        standin_die("%s=%s is not a number from 0 to %llu", name, text, most);
    return number;
}

/* Read "function:call", several separated by commas. */
static void read_failures(const char *text)
{
    for (int used = 0; text && *text; text += used + (text[used] == ',')) {
        failure *f = &failures[n_failures++];
        if (n_failures > FAILURES_MAX ||
            sscanf(text, "%63[^:,]:%llu%n", f->name, &f->at, &used) != 2)
            standin_die("DDL_STANDIN_FAIL has no more than %d function:call at %s", FAILURES_MAX,
                        text);
    }
}

const settings *standin_settings(void)
{
    if (are_read)
        return &values;
    are_read = true;
    values.devices = (int)read_number("DDL_STANDIN_DEVICES", 1, STANDIN_DEVICES_MAX);
    values.delay_us = (unsigned)read_number("DDL_STANDIN_DELAY_US", 50, 10000000);
    values.seed = read_number("DDL_STANDIN_SEED", 1, UINT64_MAX);
    values.one_queue = read_number("DDL_STANDIN_ONE_QUEUE", 0, 1) == 1;
    read_failures(getenv("DDL_STANDIN_FAIL"));
    return &values;
}

/* Return true if the function has this name, in which a suffix such as _v2 may be left out. */
static bool is_called(const char *function, const char *name)
{
    size_t length = strlen(name);
    return !strncmp(function, name, length) &&
           (!function[length] || !strcmp(function + length, "_v2"));
}

/* Return true if DDL_STANDIN_FAIL requests a failure of this call of the function. */
static bool fails(const char *function)
{
    bool fails = false;
    for (int i = 0; i < n_failures; i++)
        if (is_called(function, failures[i].name) && ++failures[i].calls == failures[i].at)
            fails = true;
    n_failed += fails;
    return fails;
}

unsigned long long standin_failures(void)
{
    standin_lock();
    unsigned long long n = n_failed;
    standin_unlock();
    return n;
}

/* ---------------------------------------------------------------------------------------- calls */

void standin_lock(void)
{
    standin_hide();
    pthread_mutex_lock(&standin_mutex);
}

void standin_unlock(void)
{
    pthread_mutex_unlock(&standin_mutex);
    standin_show();
}

void standin_in_host_function(bool runs)
{
    in_host_function = runs;
}

/* Enter a function that may be called before cuInit. */
static CUresult enter_early(const char *function)
{
    if (is_forked)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (in_host_function)
        return CUDA_ERROR_NOT_PERMITTED;
    standin_lock();
    standin_settings();
    return fails(function) ? standin_leave(CUDA_ERROR_OUT_OF_MEMORY) : CUDA_SUCCESS;
}

CUresult standin_enter(const char *function)
{
    STANDIN_ENTER_BY(enter_early(function));
    return is_initialized ? CUDA_SUCCESS : standin_leave(CUDA_ERROR_NOT_INITIALIZED);
}

CUresult standin_enter_context(const char *function, context **current)
{
    STANDIN_ENTER_BY(standin_enter(function));
    if (!depth)
        return standin_leave(CUDA_ERROR_INVALID_CONTEXT);
    *current = stack[depth - 1];
    return (*current)->retained ? CUDA_SUCCESS : standin_leave(CUDA_ERROR_CONTEXT_IS_DESTROYED);
}

CUresult standin_enter_stream(const char *function, CUstream handle, stream **s)
{
    context *current;
    STANDIN_ENTER_BY(standin_enter_context(function, &current));
    *s = standin_stream_of(handle, current);
    return *s ? CUDA_SUCCESS : standin_leave(CUDA_ERROR_INVALID_HANDLE);
}

CUresult standin_leave(CUresult result)
{
    standin_unlock();
    return result;
}

static void mark_forked(void)
{
    is_forked = is_initialized;
}

CUresult cuInit(unsigned flags)
{
    STANDIN_ENTER_BY(enter_early(__func__));
    if (flags)
        return standin_leave(CUDA_ERROR_INVALID_VALUE);
    if (is_initialized)
        return standin_leave(CUDA_SUCCESS);
    if (!values.devices)
        return standin_leave(CUDA_ERROR_NO_DEVICE);
    for (int i = 0; i < values.devices; i++) {
        contexts[i].device = i;
        pthread_mutex_init(&contexts[i].host_functions, NULL);
        contexts[i].own = standin_stream_create(&contexts[i]);
    }
    pthread_atfork(NULL, NULL, mark_forked);
    is_initialized = true;
    return standin_leave(CUDA_SUCCESS);
}

/* --------------------------------------------------------------------------------------- errors */

typedef struct error {
    CUresult value;
    const char *name, *text;
} error;

/* The texts are not the real driver's: each names the stand-in. */
#define ERROR(value, text)                                                                         \
    {                                                                                              \
        value, #value, text " (CUDA stand-in)"                                                     \
    }
static const error errors[] = {
    ERROR(CUDA_SUCCESS, "success"),
    ERROR(CUDA_ERROR_INVALID_VALUE, "a value is invalid"),
    ERROR(CUDA_ERROR_OUT_OF_MEMORY, "no memory"),
    ERROR(CUDA_ERROR_NOT_INITIALIZED, "cuInit was not called in this process"),
    ERROR(CUDA_ERROR_NO_DEVICE, "there is no device"),
    ERROR(CUDA_ERROR_INVALID_DEVICE, "there is no such device"),
    ERROR(CUDA_ERROR_INVALID_CONTEXT, "no context is current, or the context is invalid"),
    ERROR(CUDA_ERROR_INVALID_HANDLE, "the handle is invalid"),
    ERROR(CUDA_ERROR_NOT_READY, "it is not complete yet"),
    ERROR(CUDA_ERROR_CONTEXT_IS_DESTROYED, "the context was released"),
    ERROR(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "some of the memory is registered already"),
    ERROR(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "the memory is not registered"),
    ERROR(CUDA_ERROR_NOT_PERMITTED, "a host function must not call CUDA"),
    ERROR(CUDA_ERROR_NOT_SUPPORTED, "it is not supported"),
};

/* Constant, so usable without the lock and in every process. */
static const error *find_error(CUresult value)
{
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].value == value)
            return &errors[i];
    return NULL;
}

CUresult cuGetErrorName(CUresult value, const char **name)
{
    const error *e = find_error(value);
    *name = e ? e->name : NULL;
    return e ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult value, const char **text)
{
    const error *e = find_error(value);
    *text = e ? e->text : NULL;
    return e ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* ------------------------------------------------------------------------------------- devices */

CUresult cuDeviceGetCount(int *count)
{
    STANDIN_ENTER();
    *count = values.devices;
    return standin_leave(CUDA_SUCCESS);
}

#define STANDIN_ENTER_DEVICE(device)                                                               \
    STANDIN_ENTER();                                                                               \
    if ((device) < 0 || (device) >= values.devices)                                                \
    return standin_leave(CUDA_ERROR_INVALID_DEVICE)

CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    STANDIN_ENTER_DEVICE(ordinal);
    *device = ordinal;
    return standin_leave(CUDA_SUCCESS);
}

CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device)
{
    STANDIN_ENTER_DEVICE(device);
    *uuid = (CUuuid){"CUDA stand-in"};
    uuid->bytes[15] = (char)device;
    return standin_leave(CUDA_SUCCESS);
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *handle, CUdevice device)
{
    STANDIN_ENTER_DEVICE(device);
    contexts[device].retained++;
    *handle = (CUcontext)&contexts[device];
    return standin_leave(CUDA_SUCCESS);
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    STANDIN_ENTER_DEVICE(device);
    if (!contexts[device].retained)
        return standin_leave(CUDA_ERROR_INVALID_CONTEXT);
    contexts[device].retained--;
    return standin_leave(CUDA_SUCCESS);
}

/* ------------------------------------------------------------------------------------- contexts */

/* Make the handle's context current, in place of the top of the stack or above it. */
static CUresult push(CUcontext handle, bool replaces)
{
    for (int i = 0; i < values.devices; i++) {
        context *c = &contexts[i];
        if ((CUcontext)c != handle)
            continue;
        if (!c->retained)
            return CUDA_ERROR_CONTEXT_IS_DESTROYED;
        depth -= replaces && depth;
        if (depth == STACK_MAX)
            return CUDA_ERROR_OUT_OF_MEMORY;
        stack[depth++] = c;
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuCtxGetCurrent(CUcontext *handle)
{
    STANDIN_ENTER();
    *handle = depth ? (CUcontext)stack[depth - 1] : NULL;
    return standin_leave(CUDA_SUCCESS);
}

/* Replace the top of the stack. NULL removes it. */
CUresult cuCtxSetCurrent(CUcontext handle)
{
    STANDIN_ENTER();
    if (handle)
        return standin_leave(push(handle, true));
    depth -= depth > 0;
    return standin_leave(CUDA_SUCCESS);
}

CUresult cuCtxPushCurrent_v2(CUcontext handle)
{
    STANDIN_ENTER();
    return standin_leave(push(handle, false));
}

CUresult cuCtxPopCurrent_v2(CUcontext *handle)
{
    STANDIN_ENTER();
    if (!depth)
        return standin_leave(CUDA_ERROR_INVALID_CONTEXT);
    depth--;
    if (handle)
        *handle = (CUcontext)stack[depth];
    return standin_leave(CUDA_SUCCESS);
}

CUresult cuCtxGetDevice(CUdevice *device)
{
    context *current;
    STANDIN_ENTER_CONTEXT(&current);
    *device = current->device;
    return standin_leave(CUDA_SUCCESS);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Begins and ends the exported functions of the stand-in for libcuda.so.1; cuInit. */
#include "standin.h"

pthread_mutex_t standin_mutex = PTHREAD_MUTEX_INITIALIZER;
context standin_contexts[STANDIN_DEVICES_MAX];

/* is_forked is set in a child of a process that had called cuInit. As with the real driver, the
 * child cannot use CUDA. */
static bool is_initialized, is_forked;
static _Thread_local bool in_host_function;

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

bool standin_is_forked(void)
{
    return is_forked;
}

void standin_in_host_function(bool runs)
{
    in_host_function = runs;
}

CUresult standin_enter_early(const char *function)
{
    if (is_forked)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (in_host_function)
        return CUDA_ERROR_NOT_PERMITTED;
    standin_lock();
    standin_settings();
    return standin_fails(function) ? standin_leave(CUDA_ERROR_OUT_OF_MEMORY) : CUDA_SUCCESS;
}

CUresult standin_enter(const char *function)
{
    CUresult result = standin_enter_early(function);
    if (result != CUDA_SUCCESS)
        return result;
    return is_initialized ? CUDA_SUCCESS : standin_leave(CUDA_ERROR_NOT_INITIALIZED);
}

CUresult standin_enter_context(const char *function, context **current)
{
    CUresult result = standin_enter(function);
    if (result != CUDA_SUCCESS)
        return result;
    *current = standin_current();
    if (!*current)
        return standin_leave(CUDA_ERROR_INVALID_CONTEXT);
    return (*current)->retained ? CUDA_SUCCESS : standin_leave(CUDA_ERROR_CONTEXT_IS_DESTROYED);
}

CUresult standin_leave(CUresult result)
{
    standin_unlock();
    return result;
}

/* ------------------------------------------------------------------------------------ the start */

static void mark_forked(void)
{
    is_forked = is_initialized;
}

static CUresult initialize(void)
{
    const settings *set = standin_settings();
    if (!set->valid)
        return CUDA_ERROR_INVALID_VALUE;
    if (!set->devices)
        return CUDA_ERROR_NO_DEVICE;
    for (int i = 0; i < set->devices; i++) {
        context *c = &standin_contexts[i];
        c->device = i;
        pthread_mutex_init(&c->host_functions, NULL);
        c->legacy = standin_stream_create(c, true);
        if (!c->legacy)
            return CUDA_ERROR_OUT_OF_MEMORY;
        c->legacy->legacy = true;
    }
    return pthread_atfork(NULL, NULL, mark_forked) ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

CUresult cuInit(unsigned flags)
{
    CUresult result = standin_enter_early(__func__);
    if (result != CUDA_SUCCESS)
        return result;
    if (flags)
        result = CUDA_ERROR_INVALID_VALUE;
    else if (!is_initialized)
        result = initialize();
    is_initialized |= result == CUDA_SUCCESS && !flags;
    return standin_leave(result);
}

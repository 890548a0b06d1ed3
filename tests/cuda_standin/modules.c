/* SPDX-License-Identifier: Apache-2.0 */
/* Modules and kernel launches. An image is a text: "ddl standin", and then names of kernels with
 * white space between them; or what the stand-in for NVRTC makes. Machine code and PTX are refused.
 */
#include <stdlib.h>
#include <string.h>

#include "standin.h"

#define IMAGE_MARK "ddl standin"
#define SPACE      " \t\r\n"

enum { BLOCK_MAX = 1024 };

typedef struct module {
    struct module *next;
    const kernel *compiled; /* or NULL */
    char names[];
} module;

static module *modules;
static unsigned long long launches;

static module **link_of(CUmodule handle)
{
    module **link = &modules;
    while (*link && (CUmodule)*link != handle)
        link = &(*link)->next;
    return link;
}

CUresult cuModuleLoadData(CUmodule *handle, const void *image)
{
    context *current;
    CUresult result = standin_enter_context(__func__, &current);
    if (result != CUDA_SUCCESS)
        return result;
    if (!handle || !image)
        return standin_leave(CUDA_ERROR_INVALID_VALUE);
    /* An image of another kind need not end with a 0. */
    if (strncmp(image, IMAGE_MARK, strlen(IMAGE_MARK)))
        return standin_leave(CUDA_ERROR_INVALID_IMAGE);
    bool is_compiled = standin_is_compiled(image);
    const char *names = is_compiled ? "" : (const char *)image + strlen(IMAGE_MARK);
    module *m = malloc(sizeof *m + strlen(names) + 1);
    if (!m)
        return standin_leave(CUDA_ERROR_OUT_OF_MEMORY);
    m->compiled = is_compiled ? standin_compiled_load(image) : NULL;
    if (is_compiled && !m->compiled) {
        free(m);
        return standin_leave(CUDA_ERROR_INVALID_IMAGE);
    }
    strcpy(m->names, names);
    m->next = modules;
    modules = m;
    *handle = (CUmodule)m;
    return standin_leave(CUDA_SUCCESS);
}

CUresult cuModuleUnload(CUmodule handle)
{
    context *current;
    CUresult result = standin_enter_context(__func__, &current);
    if (result != CUDA_SUCCESS)
        return result;
    module **link = link_of(handle), *m = *link;
    if (!m)
        return standin_leave(CUDA_ERROR_INVALID_HANDLE);
    *link = m->next;
    if (m->compiled)
        standin_compiled_unload(m->compiled);
    free(m);
    return standin_leave(CUDA_SUCCESS);
}

static bool has_name(const module *m, const char *name)
{
    const char *at = m->names + strspn(m->names, SPACE);
    while (*at) {
        size_t length = strcspn(at, SPACE);
        if (length == strlen(name) && !memcmp(at, name, length))
            return true;
        at += length;
        at += strspn(at, SPACE);
    }
    return false;
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule handle, const char *name)
{
    context *current;
    CUresult result = standin_enter_context(__func__, &current);
    if (result != CUDA_SUCCESS)
        return result;
    const module *m = *link_of(handle);
    if (!m)
        return standin_leave(CUDA_ERROR_INVALID_HANDLE);
    if (!function || !name)
        return standin_leave(CUDA_ERROR_INVALID_VALUE);
    const kernel *k = m->compiled && !strcmp(m->compiled->name, name) ? m->compiled
                      : has_name(m, name) ? standin_kernel(name, strlen(name))
                                          : NULL;
    if (!k)
        return standin_leave(CUDA_ERROR_NOT_FOUND);
    *function = (CUfunction)(uintptr_t)k;
    return standin_leave(CUDA_SUCCESS);
}

static void run_kernel(work *w)
{
    const kernel *k = w->with.launch.kernel;
    k->run(k, w->with.launch.arguments, w->context->device, w->with.launch.shape);
}

/* The parameters are copied during the call. */
CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                        unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                        CUstream handle, void **parameters, void **extra)
{
    context *current;
    (void)shared_bytes;
    CUresult result = standin_enter_context(__func__, &current);
    if (result != CUDA_SUCCESS)
        return result;
    const kernel *k = standin_kernel_of(function);
    stream *s = standin_stream_of(handle, current);
    if (!k || !s || s->context != current)
        return standin_leave(CUDA_ERROR_INVALID_HANDLE);
    if (extra)
        return standin_leave(CUDA_ERROR_NOT_SUPPORTED);
    if (!grid_x || !grid_y || !grid_z || !block_x || !block_y || !block_z ||
        (uint64_t)block_x * block_y > BLOCK_MAX ||
        (uint64_t)block_x * block_y * block_z > BLOCK_MAX || !parameters)
        return standin_leave(CUDA_ERROR_INVALID_VALUE);
    work *w = standin_work_create(run_kernel);
    if (!w)
        return standin_leave(CUDA_ERROR_OUT_OF_MEMORY);
    w->with.launch.kernel = k;
    w->with.launch.shape = (launch_shape){grid_x, grid_y * grid_z, block_x * block_y * block_z};
    for (unsigned i = 0; i < k->count; i++) {
        w->with.launch.arguments[i] = &w->with.launch.values[i];
        memcpy(&w->with.launch.values[i], parameters[i], k->bytes[i]);
    }
    launches++;
    return standin_leave(standin_push(s, w, NULL));
}

unsigned long long standin_launches(void)
{
    standin_lock();
    unsigned long long n = launches;
    standin_unlock();
    return n;
}

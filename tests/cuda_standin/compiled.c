/* SPDX-License-Identifier: Apache-2.0 */
/* Loads kernels that the stand-in for NVRTC (nvrtc/) has compiled with a C compiler. There is one
 * in an image, ddl_reduce of libddl/src/device/reduce.cu. Its parameter holds addresses of the
 * device, which become those where the stand-in accesses the memory. */
#include "compiled.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../../libddl/src/device/reduction.h"
#include "standin.h"

typedef struct code {
    kernel kernel;
    struct code *next;
    void *library;
    int fd; /* of its file, which keeps the name that dlopen has seen */
    size_t element_bytes;
    void (*run)(const ddl__reduction *reduction, unsigned blocks, unsigned threads);
} code;

typedef unsigned long long u64;

static code *loaded;

static span take(u64 *address, size_t bytes, int device, CUmemAccess_flags wanted)
{
    span s = standin_span_take((uintptr_t)*address, bytes, device, wanted, "ddl_reduce");
    if (s.bytes < bytes)
        standin_die("ddl_reduce uses %#llx, which is not one allocation", *address);
    *address = (uintptr_t)s.at;
    return s;
}

static void run(const kernel *k, void *const *arguments, int device, launch_shape shape)
{
    const code *c = (const code *)(const void *)k;
    ddl__reduction reduction;
    span spans[2 * DDL__REDUCTION_MAX];
    unsigned n = 0;
    memcpy(&reduction, arguments[0], sizeof reduction);
    size_t bytes = (size_t)reduction.count * c->element_bytes;
    for (unsigned i = 0; i < reduction.n_in; i++)
        spans[n++] = take(&reduction.in[i], bytes, device, CU_MEM_ACCESS_FLAGS_PROT_READ);
    for (unsigned i = 0; i < reduction.n_out; i++)
        spans[n++] = take(&reduction.out[i], bytes, device, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    c->run(&reduction, shape.blocks, shape.threads);
    while (n)
        standin_span_drop(&spans[--n]);
}

static bool open_library(code *c, const compiled_header *header)
{
    char path[64];
    const char *bytes = (const char *)(header + 1);
    size_t (*element_bytes)(void);
    c->fd = memfd_create("kernel of the CUDA stand-in", MFD_CLOEXEC);
    snprintf(path, sizeof path, "/proc/self/fd/%d", c->fd);
    if (c->fd < 0 || write(c->fd, bytes, header->bytes) != (ssize_t)header->bytes ||
        !(c->library = dlopen(path, RTLD_NOW | RTLD_LOCAL))) {
        standin_say("cannot load a kernel: %s", c->fd < 0 ? "no memory file" : dlerror());
        return false;
    }
    *(void **)&element_bytes = dlsym(c->library, "standin_element_bytes");
    *(void **)&c->run = dlsym(c->library, "standin_run");
    if (!element_bytes || !c->run)
        return false;
    c->element_bytes = element_bytes();
    return true;
}

static void close_library(code *c)
{
    if (c->library)
        dlclose(c->library);
    if (c->fd >= 0)
        close(c->fd);
    free(c);
}

bool standin_is_compiled(const void *image)
{
    return !strncmp(image, COMPILED_MARK, sizeof COMPILED_MARK);
}

const kernel *standin_compiled_load(const void *image)
{
    code *c = calloc(1, sizeof *c);
    if (!c)
        return NULL;
    c->kernel = (kernel){"ddl_reduce", 1, {0}, sizeof(ddl__reduction), run};
    if (!open_library(c, image)) {
        close_library(c);
        return NULL;
    }
    c->next = loaded;
    loaded = c;
    return &c->kernel;
}

void standin_compiled_unload(const kernel *k)
{
    for (code **at = &loaded; *at; at = &(*at)->next)
        if (&(*at)->kernel == k) {
            code *c = *at;
            *at = c->next;
            close_library(c);
            return;
        }
}

const kernel *standin_compiled_of(CUfunction function)
{
    for (const code *c = loaded; c; c = c->next)
        if ((uintptr_t)&c->kernel == (uintptr_t)function)
            return &c->kernel;
    return NULL;
}

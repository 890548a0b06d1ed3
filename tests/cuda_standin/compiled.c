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
    size_t element_bytes, operand_bytes;
    void (*run)(const ddl__reduction *parts, unsigned blocks, unsigned n, unsigned threads);
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

/* Replace the addresses of a part. Returns how many spans that were taken. */
static unsigned take_part(const code *c, ddl__reduction *part, int device, span *spans)
{
    size_t count = (size_t)part->count, bytes = count * c->element_bytes;
    unsigned n = 0;
    for (unsigned i = 0; count && i < part->n_in; i++)
        spans[n++] =
            take(&part->in[i], count * c->operand_bytes, device, CU_MEM_ACCESS_FLAGS_PROT_READ);
    for (unsigned i = 0; count && i < part->n_out; i++)
        spans[n++] = take(&part->out[i], bytes, device, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    return n;
}

static void run(const kernel *k, void *const *arguments, int device, launch_shape shape)
{
    const code *c = (const code *)(const void *)k;
    u64 address = *(const u64 *)arguments[0];
    size_t bytes = shape.parts * sizeof(ddl__reduction);
    ddl__reduction *parts = malloc(bytes);
    span *spans = calloc(shape.parts, 2 * DDL__REDUCTION_MAX * sizeof *spans);
    unsigned n = 0;
    if (!parts || !spans)
        standin_die("no memory for a kernel");
    span table = take(&address, bytes, device, CU_MEM_ACCESS_FLAGS_PROT_READ);
    memcpy(parts, table.at, bytes);
    for (unsigned i = 0; i < shape.parts; i++)
        n += take_part(c, &parts[i], device, &spans[n]);
    c->run(parts, shape.blocks, shape.parts, shape.threads);
    while (n)
        standin_span_drop(&spans[--n]);
    standin_span_drop(&table);
    free(spans);
    free(parts);
}

static bool open_library(code *c, const compiled_header *header)
{
    char path[64];
    const char *bytes = (const char *)(header + 1);
    size_t (*element_bytes)(void), (*operand_bytes)(void);
    c->fd = memfd_create("kernel of the CUDA stand-in", MFD_CLOEXEC);
    snprintf(path, sizeof path, "/proc/self/fd/%d", c->fd);
    if (c->fd < 0 || write(c->fd, bytes, header->bytes) != (ssize_t)header->bytes ||
        !(c->library = dlopen(path, RTLD_NOW | RTLD_LOCAL))) {
        standin_say("cannot load a kernel: %s", c->fd < 0 ? "no memory file" : dlerror());
        return false;
    }
    *(void **)&element_bytes = dlsym(c->library, "standin_element_bytes");
    *(void **)&operand_bytes = dlsym(c->library, "standin_operand_bytes");
    *(void **)&c->run = dlsym(c->library, "standin_run");
    if (!element_bytes || !operand_bytes || !c->run)
        return false;
    c->operand_bytes = operand_bytes();
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
    c->kernel = (kernel){"ddl_reduce", 1, {8}, run};
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

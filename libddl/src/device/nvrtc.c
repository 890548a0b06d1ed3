/* SPDX-License-Identifier: Apache-2.0 */
#include "device/nvrtc.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* -------------------------------------------------------------------------------------- opening */

#define ENTRY(function, symbol, parameters) {#symbol, offsetof(ddl__nvrtc, function)},
static const struct {
    const char *symbol;
    size_t place;
} functions[] = {DDL__NVRTC_FUNCTIONS(ENTRY)};

/* Where it is in the process already, by the packages that have it, no folder need be known. */
static void *open_library(int version)
{
    static const struct {
        const char *name;
        int major;
    } libraries[] = {{"libnvrtc.so.13", 13}, {"libnvrtc.so.12", 12}, {"libnvrtc.so.11.2", 11}};
    for (int loaded = 1; loaded >= 0; loaded--)
        for (size_t i = 0; i < sizeof libraries / sizeof *libraries; i++) {
            int flags = RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE | (loaded ? RTLD_NOLOAD : 0);
            bool suits = libraries[i].major <= version / 1000;
            void *library = suits ? dlopen(libraries[i].name, flags) : NULL;
            if (library)
                return library;
        }
    return NULL;
}

/* The GPU's arch, or the latest one before it: a later GPU takes its PTX. */
static bool choose_arch(ddl__nvrtc *nvrtc, int arch)
{
    int n = 0, *archs;
    if (nvrtc->count_archs(&n) || n <= 0 || !(archs = calloc((size_t)n, sizeof *archs)))
        return false;
    nvrtc->arch = 0;
    if (!nvrtc->archs(archs))
        for (int i = 0; i < n; i++)
            if (archs[i] <= arch && archs[i] > nvrtc->arch)
                nvrtc->arch = archs[i];
    free(archs);
    nvrtc->is_exact = nvrtc->arch == arch;
    return nvrtc->arch;
}

ddl_status ddl__nvrtc_open(ddl__nvrtc *nvrtc, int arch, int version)
{
    void *library = open_library(version);
    if (!library)
        return ddl__fail(DDL_EUNSUPPORTED,
                         "NVRTC is not found, for the driver's CUDA %d (libnvrtc.so.13, .12 or "
                         ".11.2): install it, and put its folder into LD_LIBRARY_PATH",
                         version / 1000);
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *found = dlsym(library, functions[i].symbol);
        if (!found)
            return ddl__fail(DDL_EUNSUPPORTED,
                             "NVRTC has no %s: it is older than that of CUDA 11.2",
                             functions[i].symbol);
        memcpy((char *)nvrtc + functions[i].place, &found, sizeof found);
    }
    if (!choose_arch(nvrtc, arch))
        return ddl__fail(DDL_EUNSUPPORTED, "NVRTC does not know GPUs of compute capability %d.%d",
                         arch / 10, arch % 10);
    nvrtc->library = library;
    return DDL_OK;
}

/* ------------------------------------------------------------------------------------ compiling */

enum { OPTIONS_MAX = 8, LOG_SHOWN = 300 };

static ddl_status compile_failed(const ddl__nvrtc *nvrtc, ddl__nvrtc_program *program)
{
    size_t bytes = 0;
    char *text = NULL;
    if (!nvrtc->log_size(program, &bytes) && (text = calloc(1, bytes + 1)))
        nvrtc->log(program, text);
    ddl__fail(DDL_EUNSUPPORTED, "NVRTC cannot compile the kernel: %.*s", LOG_SHOWN,
              text ? text : "no log");
    free(text);
    return DDL_EUNSUPPORTED;
}

static ddl_status take_image(const ddl__nvrtc *nvrtc, ddl__nvrtc_program *program, char **image)
{
    size_t bytes = 0;
    int error = (nvrtc->is_exact ? nvrtc->image_size : nvrtc->ptx_size)(program, &bytes);
    if (!error && !(*image = calloc(1, bytes + 1)))
        return ddl__fail(DDL_ENOMEM, "no memory for a kernel of %zu bytes", bytes);
    if (!error && !(nvrtc->is_exact ? nvrtc->image : nvrtc->ptx)(program, *image))
        return DDL_OK;
    if (!error)
        free(*image);
    return ddl__fail(DDL_EUNSUPPORTED, "NVRTC does not give the kernel that it has compiled");
}

ddl_status ddl__nvrtc_compile(const ddl__nvrtc *nvrtc, const char *const *macros, int n,
                              char **image)
{
    static const char *const header_names[] = {"reduction.h"};
    const char *const headers[] = {ddl__text_of_reduction_h};
    ddl__nvrtc_program *program;
    char arch[48];
    const char *options[OPTIONS_MAX] = {arch, "--fmad=false"};
    int n_options = 2;
    snprintf(arch, sizeof arch, "--gpu-architecture=%s_%d", nvrtc->is_exact ? "sm" : "compute",
             nvrtc->arch);
    for (int i = 0; i < n && n_options < OPTIONS_MAX; i++)
        options[n_options++] = macros[i];
    if (nvrtc->create(&program, ddl__text_of_reduce_cu, "reduce.cu", 1, headers, header_names))
        return ddl__fail(DDL_ENOMEM, "NVRTC has no memory for a kernel");
    ddl_status status = nvrtc->compile(program, n_options, options)
                            ? compile_failed(nvrtc, program)
                            : take_image(nvrtc, program, image);
    nvrtc->destroy(&program);
    return status;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* A stand-in for libnvrtc.so.12, and not NVIDIA's: it compiles libddl/src/device/reduce.cu, and
 * nothing else, as C, for the stand-in for libcuda.so.1. So tests run the very text of the kernel.
 * Its threads run one after the other, and launches from one image must not run at once. What was
 * compiled stays in a folder of the build, for later processes. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../compiled.h"

#pragma GCC visibility push(default)

enum { SUCCESS, OUT_OF_MEMORY, INVALID_INPUT = 3, INVALID_OPTION = 5, COMPILATION = 6 };
enum { ARGUMENTS_MAX = 24, PATH_BYTES = 1024, LOG_BYTES = 4096, OPTIONS_BYTES = 256 };

typedef struct program {
    const char *text, *name;
    const char *const *headers, *const *header_names;
    int n_headers;
    char log[LOG_BYTES];
    char *image;
    size_t bytes;
} program;

/* What was compiled is kept: the real one needs no other process, which a launcher might kill. */
typedef struct known {
    struct known *next;
    char options[OPTIONS_BYTES];
    size_t bytes;
    char image[];
} known;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static known *all_known;

static const char before[] = "#define __global__\n"
                             "#define __device__\n"
                             "#define __forceinline__ inline\n"
                             "#define __align__(n) __attribute__((aligned(n)))\n"
                             "typedef struct { unsigned x, y, z; } standin_place;\n"
                             "static standin_place blockIdx, blockDim, threadIdx, gridDim;\n";

static const char after[] =
    "unsigned long standin_element_bytes(void) { return sizeof(element); }\n"
    "#ifdef ORDERED\n"
    "typedef value operand;\n"
    "#else\n"
    "typedef element operand;\n"
    "#endif\n"
    "unsigned long standin_operand_bytes(void) { return sizeof(operand); }\n"
    "void standin_run(const ddl__reduction *parts, unsigned blocks, unsigned n, unsigned threads)\n"
    "{\n"
    "    gridDim.x = blocks;\n"
    "    blockDim.x = threads;\n"
    "    for (blockIdx.y = 0; blockIdx.y < n; blockIdx.y++)\n"
    "        for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++)\n"
    "            for (threadIdx.x = 0; threadIdx.x < threads; threadIdx.x++)\n"
    "                ddl_reduce(parts);\n"
    "}\n";

int nvrtcCreateProgram(program **made, const char *text, const char *name, int n_headers,
                       const char *const *headers, const char *const *header_names);
int nvrtcDestroyProgram(program **p);
int nvrtcCompileProgram(program *p, int n, const char *const *options);
int nvrtcGetCUBINSize(program *p, size_t *bytes);
int nvrtcGetCUBIN(program *p, char *image);
int nvrtcGetPTXSize(program *p, size_t *bytes);
int nvrtcGetPTX(program *p, char *image);
int nvrtcGetProgramLogSize(program *p, size_t *bytes);
int nvrtcGetProgramLog(program *p, char *text);
int nvrtcGetNumSupportedArchs(int *n);
int nvrtcGetSupportedArchs(int *archs);

enum { SLOW_US = 500000 };

static bool is_set_to(const char *value)
{
    const char *set = getenv("DDL_STANDIN_NVRTC");
    return set && !strcmp(set, value);
}

int nvrtcCreateProgram(program **made, const char *text, const char *name, int n_headers,
                       const char *const *headers, const char *const *header_names)
{
    program *p = calloc(1, sizeof *p);
    if (!p)
        return OUT_OF_MEMORY;
    *p = (program){.text = text,
                   .name = name,
                   .headers = headers,
                   .header_names = header_names,
                   .n_headers = n_headers};
    *made = p;
    return SUCCESS;
}

int nvrtcDestroyProgram(program **p)
{
    free((*p)->image);
    free(*p);
    *p = NULL;
    return SUCCESS;
}

/* ------------------------------------------------------------------------------------ compiling */

static bool write_file(const char *folder, const char *name, const char *const *texts, int n)
{
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "w");
    bool good = file;
    for (int i = 0; good && i < n; i++)
        good = fputs(texts[i], file) >= 0;
    return file && !fclose(file) && good;
}

static bool write_files(const program *p, const char *folder)
{
    const char *const texts[] = {before, p->text, after};
    bool good = write_file(folder, p->name, texts, 3);
    for (int i = 0; good && i < p->n_headers; i++)
        good = write_file(folder, p->header_names[i], &p->headers[i], 1);
    return good;
}

/* FNV-1a, with the end of each text. */
static uint64_t hash_of(uint64_t hash, const char *const *texts, int n)
{
    for (int i = 0; i < n; i++) {
        const char *text = texts[i];
        do
            hash = (hash ^ (unsigned char)*text) * 1099511628211u;
        while (*text++);
    }
    return hash;
}

/* Where the result for these macros is kept. */
static void name_result(const program *p, const char *const *macros, int n, char *path)
{
    const char *const texts[] = {before, p->text, after};
    uint64_t hash = hash_of(14695981039346656037u, texts, 3);
    hash = hash_of(hash_of(hash, p->headers, p->n_headers), macros, n);
    snprintf(path, PATH_BYTES, "%s/%016llx.so", KERNELS, (unsigned long long)hash);
}

static void remove_files(const program *p, const char *folder, const char *made, const char *log)
{
    char path[PATH_BYTES];
    for (int i = 0; i <= p->n_headers; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, i ? p->header_names[i - 1] : p->name);
        unlink(path);
    }
    unlink(made);
    unlink(log);
    rmdir(folder);
}

/* Whether the program succeeds; what it writes to stderr goes to a file. */
static bool run(const char *const *arguments, const char *log)
{
    extern char **environ;
    pid_t pid;
    int status = -1;
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 2, log, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (!posix_spawnp(&pid, arguments[0], &actions, NULL, (char *const *)(uintptr_t)arguments,
                      environ))
        while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
            ;
    posix_spawn_file_actions_destroy(&actions);
    return status == 0;
}

static void read_log(program *p, const char *path)
{
    FILE *file = fopen(path, "r");
    if (!file)
        return;
    p->log[fread(p->log, 1, sizeof p->log - 1, file)] = 0;
    fclose(file);
}

static int read_image(program *p, const char *path)
{
    struct stat status;
    compiled_header header = {.mark = COMPILED_MARK};
    FILE *file = fopen(path, "r");
    if (!file)
        return COMPILATION;
    bool good = !fstat(fileno(file), &status);
    header.bytes = good ? (size_t)status.st_size : 0;
    p->bytes = sizeof header + header.bytes;
    p->image = malloc(p->bytes);
    if (p->image)
        memcpy(p->image, &header, sizeof header);
    good =
        good && p->image && fread(p->image + sizeof header, 1, header.bytes, file) == header.bytes;
    fclose(file);
    return good ? SUCCESS : OUT_OF_MEMORY;
}

static int compile(program *p, int n, const char *const *options)
{
    char folder[] = KERNELS "/XXXXXX", path[PATH_BYTES], made[PATH_BYTES], log[PATH_BYTES];
    char kept[PATH_BYTES];
    const char *arguments[ARGUMENTS_MAX] = {COMPILER, "-std=gnu11", "-O1", "-w",
                                            "-fPIC",  "-shared",    "-xc", "-ffp-contract=off",
                                            path,     "-o",         made};
    int used = 11;
    if (strlen(SANITIZE))
        arguments[used++] = "-fsanitize=" SANITIZE;
    for (int i = 0; i < n; i++) {
        if (!strncmp(options[i], "-D", 2) && used < ARGUMENTS_MAX - 1)
            arguments[used++] = options[i];
        else if (strncmp(options[i], "--gpu-architecture=", 19) &&
                 strcmp(options[i], "--fmad=false") != 0)
            return INVALID_OPTION;
    }
    name_result(p, &arguments[11], used - 11, kept);
    if (read_image(p, kept) == SUCCESS)
        return SUCCESS;
    if (!mkdtemp(folder))
        return INVALID_INPUT;
    snprintf(path, sizeof path, "%s/%s", folder, p->name);
    snprintf(made, sizeof made, "%s/kernel.so", folder);
    snprintf(log, sizeof log, "%s/log", folder);
    int result = INVALID_INPUT;
    if (write_files(p, folder))
        result = run(arguments, log) ? read_image(p, made) : COMPILATION;
    read_log(p, log);
    if (result == SUCCESS)
        rename(made, kept);
    remove_files(p, folder, made, log);
    return result;
}

static bool find_known(program *p, const char *options)
{
    const known *k = all_known;
    while (k && strcmp(k->options, options) != 0)
        k = k->next;
    if (!k || !(p->image = malloc(k->bytes)))
        return false;
    memcpy(p->image, k->image, k->bytes);
    p->bytes = k->bytes;
    return true;
}

static void keep(const program *p, const char *options)
{
    known *k = malloc(sizeof *k + p->bytes);
    if (!k)
        return;
    strcpy(k->options, options);
    memcpy(k->image, p->image, p->bytes);
    k->bytes = p->bytes;
    k->next = all_known;
    all_known = k;
}

int nvrtcCompileProgram(program *p, int n, const char *const *options)
{
    char text[OPTIONS_BYTES] = "";
    if (is_set_to("broken")) {
        strcpy(p->log, "DDL_STANDIN_NVRTC=broken");
        return COMPILATION;
    }
    if (is_set_to("slow"))
        usleep(SLOW_US);
    for (int i = 0; i < n; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s ", options[i]);
    pthread_mutex_lock(&mutex);
    bool is_known = find_known(p, text);
    int result = is_known ? SUCCESS : compile(p, n, options);
    if (!is_known && result == SUCCESS)
        keep(p, text);
    pthread_mutex_unlock(&mutex);
    return result;
}

/* -------------------------------------------------------------------------------------- results */

int nvrtcGetCUBINSize(program *p, size_t *bytes)
{
    *bytes = p->bytes;
    return p->image ? SUCCESS : INVALID_INPUT;
}

int nvrtcGetCUBIN(program *p, char *image)
{
    if (!p->image)
        return INVALID_INPUT;
    memcpy(image, p->image, p->bytes);
    return SUCCESS;
}

int nvrtcGetPTXSize(program *p, size_t *bytes)
{
    return nvrtcGetCUBINSize(p, bytes);
}

int nvrtcGetPTX(program *p, char *image)
{
    return nvrtcGetCUBIN(p, image);
}

int nvrtcGetProgramLogSize(program *p, size_t *bytes)
{
    *bytes = strlen(p->log) + 1;
    return SUCCESS;
}

int nvrtcGetProgramLog(program *p, char *text)
{
    strcpy(text, p->log);
    return SUCCESS;
}

int nvrtcGetNumSupportedArchs(int *n)
{
    *n = 2;
    return is_set_to("none") ? INVALID_INPUT : SUCCESS;
}

int nvrtcGetSupportedArchs(int *archs)
{
    archs[0] = 50;
    archs[1] = 90; /* that of the stand-in's devices */
    return SUCCESS;
}

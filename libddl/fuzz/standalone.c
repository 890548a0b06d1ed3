/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a target on the named files, and on the files in the named folders: the corpus as a test,
 * for compilers without libFuzzer. */
#include <dirent.h>
#include <errno.h>
#include <sys/stat.h>

#include "input.h"

enum { PATH_BYTES = 4096, INPUT_MAX = 1 << 20 };

static unsigned run_file(const char *path)
{
    FILE *file = fopen(path, "rb");
    uint8_t *bytes = malloc(INPUT_MAX);
    REQUIRE(file && bytes, "%s: %s", path, strerror(errno));
    size_t n = fread(bytes, 1, INPUT_MAX, file);
    fclose(file);
    fprintf(stderr, "%s: %zu bytes\n", path, n);
    /* Allocate the exact size, so that sanitizers detect reads beyond it. */
    uint8_t *exact = malloc(n ? n : 1);
    REQUIRE(exact, "no memory");
    memcpy(exact, bytes, n);
    free(bytes);
    LLVMFuzzerTestOneInput(exact, n);
    free(exact);
    return 1;
}

static unsigned run(const char *path)
{
    struct stat status;
    REQUIRE(!stat(path, &status), "%s: %s", path, strerror(errno));
    if (!S_ISDIR(status.st_mode))
        return run_file(path);
    DIR *folder = opendir(path);
    REQUIRE(folder, "%s: %s", path, strerror(errno));
    unsigned n = 0;
    for (struct dirent *entry; (entry = readdir(folder));) {
        char inside[PATH_BYTES];
        snprintf(inside, sizeof inside, "%s/%s", path, entry->d_name);
        if (entry->d_name[0] != '.')
            n += run_file(inside);
    }
    closedir(folder);
    return n;
}

int main(int argc, char **argv)
{
    unsigned n = 0;
    for (int i = 1; i < argc; i++)
        n += run(argv[i]);
    REQUIRE(n, "no inputs");
    return 0;
}

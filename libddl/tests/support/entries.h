/* SPDX-License-Identifier: Apache-2.0 */
/* entries.h - counts a process's resources by the entries of a folder such as /proc/self/fd. */
#ifndef DDL_TESTS_ENTRIES_H
#define DDL_TESTS_ENTRIES_H

#include "check.h"

static inline int count_entries(const char *path)
{
    int n = 0;
    DIR *folder = opendir(path);
    CHECK(folder, "%s", path);
    while (readdir(folder))
        n++;
    closedir(folder);
    return n;
}

/* Count the descriptors of this process. */
static inline int count_descriptors(void)
{
    return count_entries("/proc/self/fd");
}

#endif

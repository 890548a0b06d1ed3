/* SPDX-License-Identifier: Apache-2.0 */
/* Options with the sizes of other releases: an older caller's are shorter, a newer one's longer. */
#include "ranks.h"

/* The struct of a release ends before the first field of the next release. */
enum { SIZE_0_1 = offsetof(ddl_options, name), SIZE_0_2 = sizeof(ddl_options) };

static void older(ddl_comm *comm)
{
    CHECK(SIZE_0_1 == 32, "ddl_options of 0.1 had 32 bytes, not %d", SIZE_0_1);
    ddl_options options;
    memset(&options, 0xff, sizeof options); /* the bytes behind its end may have any value */
    memset(&options, 0, SIZE_0_1);
    options.struct_size = SIZE_0_1;
    OK(ddl_barrier(comm, &options, NULL));
    options.timeout_ms = -1; /* a field within its size is used */
    CHECK(ddl_barrier(comm, &options, NULL) == DDL_EINVAL, "\"%s\"", ddl_last_error());
}

static void newer(ddl_comm *comm)
{
    struct {
        ddl_options known;
        unsigned char unknown[24];
    } options = {.known = {.struct_size = sizeof options}};
    OK(ddl_barrier(comm, &options.known, NULL));
    for (unsigned i = 0; i < sizeof options.unknown; i++) {
        char words[32];
        sprintf(words, "a nonzero byte at offset %u", SIZE_0_2 + i);
        options.unknown[i] = 1;
        ddl_status status = ddl_barrier(comm, &options.known, NULL);
        REFUSED(status, DDL_EUNSUPPORTED, words);
        options.unknown[i] = 0;
    }
    OK(ddl_barrier(comm, &options.known, NULL));
}

static void reserved(ddl_comm *comm)
{
    ddl_options options = {.struct_size = sizeof options, .reserved = 3};
    REFUSED(ddl_barrier(comm, &options, NULL), DDL_EINVAL, "options.reserved is 3; must be 0");
}

static void absurd(ddl_comm *comm)
{
    static const uint32_t sizes[] = {0, 4, 1u << 20, UINT32_MAX};
    for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        ddl_options options = {.struct_size = sizes[i]};
        ddl_status status = ddl_barrier(comm, &options, NULL);
        REFUSED(status, DDL_EINVAL, "struct_size is");
    }
}

static void all(ddl_comm *comm, void *argument)
{
    older(comm);
    newer(comm);
    reserved(comm);
    absurd(comm);
    OK(ddl_comm_status(comm));
}

int main(void)
{
    run_ranks(2, 0, all, NULL);
}

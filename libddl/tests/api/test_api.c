/* SPDX-License-Identifier: Apache-2.0 */
/* Every rejection of the public interface: the status, a message with the argument and its value,
 * outputs and buffers untouched. */
#include "ranks.h"

/* Check that the call fails with this status and a message that contains these words. */

static void texts(void)
{
    static const ddl_status all[] = {
        DDL_OK,        DDL_INPROGRESS, DDL_EINVAL,       DDL_ESTATE,   DDL_EUNSUPPORTED,
        DDL_ETIMEDOUT, DDL_ENOMEM,     DDL_EUNREACHABLE, DDL_EREFUSED, DDL_ESYSTEM,
        DDL_EPEER,     DDL_EMISMATCH,  DDL_EABORTED,     DDL_EEXPIRED, DDL_EINTERNAL};
    for (unsigned i = 0; i < sizeof all / sizeof *all; i++)
        for (unsigned j = 0; j < i; j++)
            CHECK(strcmp(ddl_strerror(all[i]), ddl_strerror(all[j])), "%d and %d", all[i], all[j]);
    CHECK(!strcmp(ddl_strerror((ddl_status)12345), "unknown status"), "an unknown one");
    CHECK(ddl_version() == (DDL_VERSION_MAJOR << 16 | DDL_VERSION_MINOR << 8 | DDL_VERSION_PATCH),
          "version %u", ddl_version());
    CHECK(ddl_dtype_size(DDL_BF16) == 2 && ddl_dtype_size((ddl_dtype)0) == 0 &&
              ddl_dtype_size((ddl_dtype)-1) == 0 && ddl_dtype_size((ddl_dtype)99) == 0,
          "sizes");
}

static void structs(void)
{
    ddl_endpoint *endpoint = NULL;
    ddl_endpoint_config config = {.struct_size = 4};
    REFUSED(ddl_endpoint_create(&config, &endpoint), DDL_EINVAL, "struct_size is 4");
    REFUSED(ddl_endpoint_create(NULL, NULL), DDL_EINVAL, "endpoint is NULL");

    struct {
        ddl_endpoint_config known;
        char unknown[16];
    } newer = {.known = {.struct_size = sizeof newer}};
    newer.unknown[3] = 1;
    REFUSED(ddl_endpoint_create(&newer.known, &endpoint), DDL_EUNSUPPORTED, "nonzero byte");
    newer.unknown[3] = 0;
    OK(ddl_endpoint_create(&newer.known, &endpoint));
    ddl_endpoint_destroy(endpoint);

    ddl_endpoint_config older = {.struct_size = offsetof(ddl_endpoint_config, host),
                                 .host = "beyond an older caller's struct"};
    OK(ddl_endpoint_create(&older, &endpoint));
    ddl_endpoint_destroy(endpoint);
    config = (ddl_endpoint_config){.struct_size = sizeof config, .host = "here"};
    REFUSED(ddl_endpoint_create(&config, &endpoint), DDL_EINVAL, "\"here\"");
    config = (ddl_endpoint_config){.struct_size = sizeof config, .reserved = 3};
    REFUSED(ddl_endpoint_create(&config, &endpoint), DDL_EINVAL, "reserved is 3; must be 0");
    ddl_endpoint_destroy(NULL);
    ddl_comm_destroy(NULL);
    ddl_work_destroy(NULL);
}

static void creation(void)
{
    ddl_endpoint *endpoint;
    ddl_comm *comm = NULL;
    unsigned char own[DDL_ADDRESS_MAX], other[DDL_ADDRESS_MAX];
    size_t lengths[2], n;
    const void *addresses[2] = {own, other};
    OK(ddl_endpoint_create(NULL, &endpoint));
    REFUSED(ddl_endpoint_address(endpoint, own, 10, &n), DDL_EINVAL, "capacity is 10");
    OK(ddl_endpoint_address(endpoint, own, sizeof own, &lengths[0]));
    CHECK(n == lengths[0], "%zu", n);
    memcpy(other, own, sizeof other);
    lengths[1] = lengths[0];

    REFUSED(ddl_comm_create(endpoint, addresses, lengths, 0, 2, NULL, &comm), DDL_EINVAL,
            "addresses[0] and addresses[1] are equal");
    other[6] ^= 1; /* the endpoint's name */
    REFUSED(ddl_comm_create(endpoint, addresses, lengths, 1, 2, NULL, &comm), DDL_EINVAL,
            "not the address of this endpoint");
    REFUSED(ddl_comm_create(endpoint, addresses, lengths, 2, 2, NULL, &comm), DDL_EINVAL,
            "rank is 2");
    REFUSED(ddl_comm_create(endpoint, addresses, lengths, 0, 0, NULL, &comm), DDL_EINVAL,
            "size is 0");
    REFUSED(ddl_comm_create(NULL, addresses, lengths, 0, 1, NULL, &comm), DDL_EINVAL, "endpoint");
    lengths[1]--;
    REFUSED(ddl_comm_create(endpoint, addresses, lengths, 0, 2, NULL, &comm), DDL_EINVAL,
            "damaged");
    lengths[1] = 3;
    REFUSED(ddl_comm_create(endpoint, addresses, lengths, 0, 2, NULL, &comm), DDL_EINVAL,
            "not a libddl address");
    ddl_comm_config config = {.struct_size = sizeof config, .links = 64};
    REFUSED(ddl_comm_create(endpoint, addresses, lengths, 0, 1, &config, &comm), DDL_EINVAL,
            "links is 0x40");
    config.links = 0;
    config.timeout_ms = -5;
    REFUSED(ddl_comm_create(endpoint, addresses, lengths, 0, 1, &config, &comm), DDL_EINVAL,
            "timeout_ms is -5");
    CHECK(!comm, "an output was touched");

    /* A live duplicate. */
    config.timeout_ms = 0;
    config.tag = 7;
    OK(ddl_comm_create(endpoint, addresses, lengths, 0, 1, &config, &comm));
    ddl_comm *second = NULL;
    REFUSED(ddl_comm_create(endpoint, addresses, lengths, 0, 1, &config, &second), DDL_ESTATE,
            "already exists");
    ddl_comm_destroy(comm);
    OK(ddl_comm_create(endpoint, addresses, lengths, 0, 1, &config, &comm));
    ddl_comm_destroy(comm);

    /* No rank listens there: an error within the limit. */
    config.timeout_ms = 300;
    double start = seconds();
    lengths[1] = lengths[0];
    other[6 + 16] ^= 0xff; /* and another port */
    REFUSED(ddl_comm_create(endpoint, addresses, lengths, 0, 2, &config, &comm), DDL_ETIMEDOUT,
            "did not connect in time: 1 on");
    REFUSED(ddl_rendezvous(endpoint, "tcp://127.0.0.1:1", 1, 2, &config, &comm), DDL_EUNREACHABLE,
            "tcp://127.0.0.1:1: Connection refused");
    REFUSED(ddl_rendezvous(endpoint, "tcp://127.0.0.1:31457", 0, 3, &config, &comm), DDL_ETIMEDOUT,
            "have rank 0 of 3, waiting for 1-2");
    CHECK(seconds() - start < 10, "%g s", seconds() - start);
    REFUSED(ddl_rendezvous(endpoint, "udp://a:1", 0, 2, &config, &comm), DDL_EINVAL, "udp://a:1");
    REFUSED(ddl_rendezvous(endpoint, "tcp://a:70000", 0, 2, &config, &comm), DDL_EINVAL, "70000");
    REFUSED(ddl_rendezvous(endpoint, "tcp://a:1", 5, 2, &config, &comm), DDL_EINVAL, "rank is 5");
    REFUSED(ddl_rendezvous(endpoint, NULL, 0, 2, &config, &comm), DDL_EINVAL, "url is NULL");
    ddl_endpoint_destroy(endpoint);
}

static void calls(ddl_comm *comm, void *argument)
{
    float a[8] = {1, 2, 3, 4, 5, 6, 7, 8}, b[8], kept[8];
    ddl_work *work = NULL;
    int taken;
    void *user;
    memcpy(kept, a, sizeof a);
    REFUSED(ddl_allreduce(NULL, a, b, 1, DDL_F32, DDL_SUM, NULL, NULL), DDL_EINVAL, "comm");
    REFUSED(ddl_allreduce(comm, a, b, -3, DDL_F32, DDL_SUM, NULL, NULL), DDL_EINVAL, "count is -3");
    REFUSED(ddl_allreduce(comm, a, b, INT64_MAX, DDL_F32, DDL_SUM, NULL, NULL), DDL_EINVAL,
            "too large");
    REFUSED(ddl_allreduce(comm, a, b, 1, (ddl_dtype)77, DDL_SUM, NULL, NULL), DDL_EINVAL,
            "dtype is 77");
    REFUSED(ddl_allreduce(comm, a, b, 1, DDL_F32, (ddl_op)11, NULL, NULL), DDL_EINVAL, "op is 11");
    REFUSED(ddl_allreduce(comm, a, b, 1, DDL_C64, (ddl_op)0, NULL, NULL), DDL_EINVAL, "op is 0");
    REFUSED(ddl_allreduce(comm, a, b, 1, DDL_F32, DDL_BIT_AND, NULL, NULL), DDL_EUNSUPPORTED,
            "bit_and of f32 is not supported; f32 supports sum, average, min, max and product");
    REFUSED(ddl_allreduce(comm, a, b, 1, DDL_BOOL, DDL_AVERAGE, NULL, NULL), DDL_EUNSUPPORTED,
            "average of bool is not supported; bool supports all others");
    REFUSED(ddl_reduce_scatter(comm, a, b, 1, DDL_C64, DDL_MAX, NULL, NULL), DDL_EUNSUPPORTED,
            "max of c64 is not supported; c64 supports sum and average");
    REFUSED(ddl_allreduce(comm, a, NULL, 1, DDL_F32, DDL_SUM, NULL, NULL), DDL_EINVAL,
            "recv is NULL");
    REFUSED(ddl_allreduce(comm, a, a + 2, 4, DDL_F32, DDL_SUM, NULL, NULL), DDL_EINVAL, "overlap");
    REFUSED(ddl_allgather(comm, a + 2, a, 4, DDL_F32, NULL, NULL), DDL_EINVAL, "overlap");
    REFUSED(ddl_broadcast(comm, a, 1, DDL_F32, ddl_comm_size(comm), NULL, NULL), DDL_EINVAL,
            "root is 2; must be from 0 to 1");
    REFUSED(ddl_broadcast(comm, a, 1, DDL_F32, -1, NULL, NULL), DDL_EINVAL, "root is -1");
    ddl_options options = {.struct_size = sizeof options, .memory = 2};
    REFUSED(ddl_barrier(comm, &options, NULL), DDL_EINVAL, "memory is 2");
    options = (ddl_options){.struct_size = sizeof options, .queued = 1};
    REFUSED(ddl_barrier(comm, &options, NULL), DDL_EINVAL, "work is NULL");
    options = (ddl_options){.struct_size = sizeof options, .timeout_ms = -1};
    REFUSED(ddl_barrier(comm, &options, NULL), DDL_EINVAL, "timeout_ms is -1");
    REFUSED(ddl_work_wait(NULL, 0), DDL_EINVAL, "work");
    REFUSED(ddl_work_test(NULL), DDL_EINVAL, "work");
    REFUSED(ddl_comm_completed(comm, &work, &user, 0, 0, &taken), DDL_EINVAL, "max is 0");
    REFUSED(ddl_comm_completed(comm, &work, &user, 1, 0, &taken), DDL_ESTATE, "no queued work");
    CHECK(!memcmp(a, kept, sizeof a) && !work, "something was touched");
    OK(ddl_comm_status(comm)); /* rejected calls do not harm the comm */
    OK(ddl_allreduce(comm, NULL, a, 8, DDL_F32, DDL_SUM, NULL, NULL));
    CHECK(a[7] == 16, "%g", (double)a[7]);
}

int main(void)
{
    texts();
    structs();
    creation();
    run_ranks(2, 0, calls, NULL);
    CHECK(ddl_comm_rank(NULL) == -1 && ddl_comm_local_size(NULL) == -1, "NULL comm");
}

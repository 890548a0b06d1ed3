/* SPDX-License-Identifier: Apache-2.0 */
/* test_ordered_failures.c - ordered sums that are rejected, that differ between ranks, and during
 * which a rank dies: its parts can be passed again, to the survivors' comm. */
#include "processes.h"

enum { SIZE = 3, VICTIM = 1, WORKERS = 6, LARGE = 1 << 20 };

static float values[WORKERS][LARGE], result[LARGE], wanted[LARGE];
static const int owners[] = {0, 2, 1, 1, 0, 2};

static void check_orders(void)
{
    int one = 1, firsts[WORKERS], sizes[WORKERS], n = -1, wrong[] = {0, 3};
    ddl_order *order = NULL;
    REFUSED(ddl_order_create(NULL, 1, 1, &order), DDL_EINVAL, "owners is NULL");
    REFUSED(ddl_order_create(&one, 1, 2, NULL), DDL_EINVAL, "order is NULL");
    REFUSED(ddl_order_create(&one, 0, 2, &order), DDL_EINVAL,
            "workers is 0; must be from 1 to 4096");
    REFUSED(ddl_order_create(&one, 4097, 2, &order), DDL_EINVAL, "workers is 4097");
    REFUSED(ddl_order_create(&one, 1, 0, &order), DDL_EINVAL, "ranks is 0");
    REFUSED(ddl_order_create(wrong, 2, 3, &order), DDL_EINVAL,
            "owners[1] is 3; must be from 0 to 2");
    CHECK(!order, "an order was left");

    OK(ddl_order_create(owners, WORKERS, SIZE, &order));
    REFUSED(ddl_order_parts(NULL, 0, firsts, sizes, 1, &n), DDL_EINVAL, "order is NULL");
    REFUSED(ddl_order_parts(order, 3, firsts, sizes, 1, &n), DDL_EINVAL, "rank is 3");
    REFUSED(ddl_order_parts(order, -1, firsts, sizes, 1, &n), DDL_EINVAL, "rank is -1");
    REFUSED(ddl_order_parts(order, 0, NULL, sizes, 1, &n), DDL_EINVAL, "firsts is ");
    REFUSED(ddl_order_parts(order, 0, firsts, sizes, -1, &n), DDL_EINVAL, "capacity is -1");
    REFUSED(ddl_order_parts(order, 0, firsts, sizes, 1, NULL), DDL_EINVAL, "count is ");
    CHECK(n == -1, "a number was left");
    OK(ddl_order_parts(order, 1, NULL, NULL, 0, &n));
    CHECK(n == 1, "%d parts", n);
    firsts[1] = -1;
    OK(ddl_order_parts(order, 0, firsts, sizes, 1, &n)); /* no more than there is room for */
    CHECK(n == 2 && firsts[0] == 0 && sizes[0] == 1 && firsts[1] == -1, "%d parts", n);
    OK(ddl_order_parts(order, 1, firsts, sizes, WORKERS, &n));
    CHECK(n == 1 && firsts[0] == 2 && sizes[0] == 2, "workers %d, %d", firsts[0], sizes[0]);
    ddl_order_destroy(order);
    ddl_order_destroy(NULL);
}

static void check_add(void)
{
    float a[4] = {1, 2, 3, 4}, b[4] = {1, 1, 1, 1};
    REFUSED(ddl_add(a, a, b, 4, (ddl_dtype)99), DDL_EINVAL, "dtype is 99");
    REFUSED(ddl_add(a, a, b, 4, DDL_BF16), DDL_EUNSUPPORTED, "whose parts are f32");
    REFUSED(ddl_add(a, a, b, 4, DDL_BOOL), DDL_EUNSUPPORTED, "bool");
    REFUSED(ddl_add(a, a, b, -1, DDL_F32), DDL_EINVAL, "count is -1");
    REFUSED(ddl_add(NULL, a, b, 4, DDL_F32), DDL_EINVAL, "dst is NULL");
    REFUSED(ddl_add(a, NULL, b, 4, DDL_F32), DDL_EINVAL, "left is NULL");
    REFUSED(ddl_add(a, a, NULL, 4, DDL_F32), DDL_EINVAL, "right is NULL");
    REFUSED(ddl_add(a, a + 1, b, 3, DDL_F32), DDL_EINVAL, "dst and left overlap");
    REFUSED(ddl_add(a, b, a + 1, 3, DDL_F32), DDL_EINVAL, "dst and right overlap");
    OK(ddl_add(NULL, NULL, NULL, 0, DDL_F32));
    OK(ddl_add(a, b, a, 4, DDL_F32));
    CHECK(a[0] == 2 && a[3] == 5, "%g %g", a[0], a[3]);
}

/* Every call below is rejected on all ranks, and the comm works afterwards. */
static void refused(ddl_comm *comm)
{
    const void *parts[] = {values[0], values[1]};
    const void *lacking[] = {values[0], NULL};
    int rank = ddl_comm_rank(comm), brings = rank == 1 ? 1 : 2;
    ddl_order *order, *small, *scattered;
    static int many[4096], few[] = {0, 1};
    ddl_options scaled = {.struct_size = sizeof scaled, .prescale = 0.5};
    ddl_options ungrouped = {.struct_size = sizeof ungrouped, .queued = 1};
    check_orders();
    check_add();
    for (int v = 0; v < 4096; v++)
        many[v] = v % 2;
    OK(ddl_order_create(owners, WORKERS, SIZE, &order));
    OK(ddl_order_create(few, 2, 2, &small));
    OK(ddl_order_create(many, 4096, SIZE, &scattered));
#define SUM(order, parts, recv, count, dtype, op, options)                                         \
    ddl_allreduce_ordered(comm, order, parts, recv, count, dtype, op, options, NULL)
    REFUSED(ddl_allreduce_ordered(NULL, order, parts, result, 1, DDL_F32, DDL_SUM, NULL, NULL),
            DDL_EINVAL, "comm is NULL");
    REFUSED(SUM(NULL, parts, result, 1, DDL_F32, DDL_SUM, NULL), DDL_EINVAL, "order is NULL");
    REFUSED(SUM(small, parts, result, 1, DDL_F32, DDL_SUM, NULL), DDL_EINVAL,
            "the order is for 2 ranks, but the comm has 3");
    REFUSED(SUM(order, parts, result, -1, DDL_F32, DDL_SUM, NULL), DDL_EINVAL, "count is -1");
    REFUSED(SUM(order, parts, result, 1, DDL_F8_E4M3, DDL_SUM, NULL), DDL_EUNSUPPORTED, "f8e4m3");
    REFUSED(SUM(order, parts, result, 1, (ddl_dtype)77, DDL_SUM, NULL), DDL_EINVAL, "dtype is 77");
    REFUSED(SUM(order, parts, result, 1, DDL_F32, DDL_MAX, NULL), DDL_EUNSUPPORTED, "op is max");
    REFUSED(SUM(order, NULL, result, 1, DDL_F32, DDL_SUM, NULL), DDL_EINVAL, "parts is NULL");
    REFUSED(SUM(order, lacking + brings % 2, result, 1, DDL_F32, DDL_SUM, NULL), DDL_EINVAL,
            brings == 1 ? "parts[0] is NULL" : "parts[1] is NULL");
    REFUSED(SUM(order, parts, NULL, 1, DDL_F32, DDL_SUM, NULL), DDL_EINVAL, "recv is NULL");
    REFUSED(SUM(order, parts, values[0], 1, DDL_F32, DDL_SUM, NULL), DDL_EINVAL, "overlap");
    REFUSED(SUM(order, parts, (char *)values[0] + 7, 2, DDL_BF16, DDL_SUM, NULL), DDL_EINVAL,
            "parts[0] and recv overlap: 8 bytes"); /* beyond what as many halves take */
    REFUSED(SUM(order, parts, result, 1, DDL_F32, DDL_SUM, &scaled), DDL_EUNSUPPORTED,
            "options.prescale is 0.5: ordered sums are not scaled");
    REFUSED(SUM(order, parts, result, 1, DDL_F32, DDL_SUM, &ungrouped), DDL_EINVAL, "queued");
    for (int v = 0; v < 4096; v++) /* 2048 parts of a rank are not too many for 3 ranks */
        CHECK(many[v] == v % 2, "changed");
    OK(SUM(order, NULL, NULL, 0, DDL_F32, DDL_SUM, NULL));
    OK(SUM(order, parts, result, LARGE, DDL_F32, DDL_SUM, NULL));
    ddl_order_destroy(order);
    ddl_order_destroy(small);
    ddl_order_destroy(scattered);
    ddl_comm_destroy(comm);
}

/* The most possible parts, with the longest elements. */
static void most_parts(ddl_comm *comm)
{
    enum { MANY = 4096, COUNT = 3 };
    static int of[MANY];
    static double each[MANY / 2][2 * COUNT];
    static const void *parts[MANY / 2];
    double sum[2 * COUNT];
    int rank = ddl_comm_rank(comm);
    for (int v = 0; v < MANY; v++)
        of[v] = v % 2;
    for (int k = 0; k < MANY / 2; k++) {
        for (int i = 0; i < 2 * COUNT; i++)
            each[k][i] = 1;
        parts[k] = each[k];
    }
    ddl_order *order;
    OK(ddl_order_create(of, MANY, SIZE, &order));
    OK(ddl_allreduce_ordered(comm, order, rank == 2 ? NULL : parts, sum, COUNT, DDL_C128, DDL_SUM,
                             NULL, NULL));
    for (int i = 0; i < 2 * COUNT; i++)
        CHECK(sum[i] == MANY, "%g", sum[i]);
    ddl_order_destroy(order);
    ddl_comm_destroy(comm);
}

/* One rank has other owners: the first operation detects it. */
static void other_owners(ddl_comm *comm)
{
    int own[WORKERS], rank = ddl_comm_rank(comm);
    const void *parts[] = {values[0], values[1], values[2], values[3], values[4], values[5]};
    memcpy(own, owners, sizeof own);
    if (rank == 2)
        own[2] = 0;
    ddl_order *order;
    OK(ddl_order_create(own, WORKERS, SIZE, &order));
    ddl_status status =
        ddl_allreduce_ordered(comm, order, parts, result, 100, DDL_F32, DDL_SUM, NULL, NULL);
    while (status == DDL_OK)
        status = ddl_barrier(comm, NULL, NULL);
    CHECK(status == DDL_EMISMATCH && strstr(ddl_last_error(), "ordered all-reduce(f32, 100, sum") &&
              strstr(ddl_last_error(), "owners with digest"),
          "rank %d got %d \"%s\"", rank, status, ddl_last_error());
    ddl_order_destroy(order);
    ddl_comm_destroy(comm);
}

/* An all-reduce does not match an ordered one. */
static void other_operation(ddl_comm *comm)
{
    const void *parts[] = {values[0], values[1]};
    int rank = ddl_comm_rank(comm);
    ddl_order *order;
    OK(ddl_order_create(owners, WORKERS, SIZE, &order));
    ddl_status status =
        rank == 1
            ? ddl_allreduce(comm, values[0], result, 100, DDL_F32, DDL_SUM, NULL, NULL)
            : ddl_allreduce_ordered(comm, order, parts, result, 100, DDL_F32, DDL_SUM, NULL, NULL);
    while (status == DDL_OK)
        status = ddl_barrier(comm, NULL, NULL);
    REFUSED(status, DDL_EMISMATCH, "ordered all-reduce(f32, 100");
    ddl_order_destroy(order);
    ddl_comm_destroy(comm);
}

/* Compute what worker v contributes. */
static void compute(int v)
{
    for (int i = 0; i < LARGE; i++)
        values[v][i] = (float)((i * 31 + v * 17) % 1001) / (float)(3 + v);
}

static void bring(const ddl_order *order, int rank, const void **parts)
{
    int firsts[WORKERS], sizes[WORKERS], n;
    OK(ddl_order_parts(order, rank, firsts, sizes, WORKERS, &n));
    for (int k = 0; k < n; k++) {
        for (int v = firsts[k]; v < firsts[k] + sizes[k]; v++)
            compute(v);
        if (sizes[k] > 2) /* ((0 + 1) + (2 + 3)) */
            OK(ddl_add(values[firsts[k] + 2], values[firsts[k] + 2], values[firsts[k] + 3], LARGE,
                       DDL_F32));
        if (sizes[k] > 1)
            OK(ddl_add(values[firsts[k]], values[firsts[k]], values[firsts[k] + 1], LARGE,
                       DDL_F32));
        if (sizes[k] > 2)
            OK(ddl_add(values[firsts[k]], values[firsts[k]], values[firsts[k] + 2], LARGE,
                       DDL_F32));
        parts[k] = values[firsts[k]];
    }
}

/* One rank dies among many sums. The survivors pass the same memory again, and the dead rank's
 * parts. */
static void killed(ddl_comm *comm)
{
    static const int adopted[] = {0, 1, 0, 0, 0, 1}; /* by the survivors' new ranks */
    const void *parts[WORKERS];
    int rank = ddl_comm_rank(comm);
    ddl_order *order;
    ddl_comm *survivors;
    OK(ddl_order_create(owners, WORKERS, SIZE, &order));
    bring(order, rank, parts);
    OK(ddl_allreduce_ordered(comm, order, parts, wanted, LARGE, DDL_F32, DDL_SUM, NULL, NULL));
    OK(ddl_barrier(comm, NULL, NULL));
    ddl_status status = DDL_OK;
    for (int i = 0; status == DDL_OK; i++) {
        ddl_work *work;
        status =
            ddl_allreduce_ordered(comm, order, parts, result, LARGE, DDL_F32, DDL_SUM, NULL, &work);
        if (rank == VICTIM && i == 5)
            kill(getpid(), SIGKILL);
        if (status == DDL_OK) {
            status = ddl_work_wait(work, -1);
            ddl_work_destroy(work);
        }
    }
    CHECK(status == DDL_EPEER, "rank %d got %d \"%s\"", rank, status, ddl_last_error());
    ddl_order_destroy(order);
    OK(ddl_comm_shrink(comm, NULL, &survivors));
    OK(ddl_order_create(adopted, WORKERS, SIZE - 1, &order));
    if (ddl_comm_rank(survivors) == 0) {
        const void *own = parts[0];
        float *kept = malloc(sizeof values[0]);
        memcpy(kept, own, sizeof values[0]);
        bring(order, 0, parts);
        CHECK(!memcmp(kept, values[0], sizeof values[0]), "what it had brought was written");
        free(kept);
    }
    OK(ddl_allreduce_ordered(survivors, order, parts, result, LARGE, DDL_F32, DDL_SUM, NULL, NULL));
    CHECK(!memcmp(result, wanted, sizeof result), "other bits without the dead");
    ddl_order_destroy(order);
    ddl_comm_destroy(survivors);
    ddl_comm_destroy(comm);
}

static const process_test tests[] = {
    {"refused", refused, 0},           {"most parts", most_parts, 0},
    {"other owners", other_owners, 0}, {"other operation", other_operation, 0},
    {"killed", killed, 1 << VICTIM},
};

int main(int argc, char **argv)
{
    run_process_tests(tests, sizeof tests / sizeof *tests, SIZE, argc, argv);
}

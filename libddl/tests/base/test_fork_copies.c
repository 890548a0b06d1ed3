/* SPDX-License-Identifier: Apache-2.0 */
/* A forked child finds memory of ddl_alloc as it was at the fork, whatever its parent and its
 * parent's peers do afterwards; they never see what the child writes. */
#include <spawn.h>

#include "shared_buffers.h"

enum { SIZE = 2, BYTES = 8 << 20, COUNT = BYTES / 4 };

static void tell(const int pipe[2])
{
    CHECK(write(pipe[1], "x", 1) == 1, "write");
}

static void await(const int pipe[2])
{
    char c;
    CHECK(read(pipe[0], &c, 1) == 1, "read");
}

static void set(float *to, float value)
{
    for (size_t i = 0; i < COUNT; i++)
        to[i] = value;
}

static void check(const float *from, float value)
{
    for (size_t i = 0; i < COUNT; i++)
        CHECK(from[i] == value, "element %zu is %g, not %g", i, (double)from[i], (double)value);
}

static void join(pid_t child)
{
    int status;
    CHECK(child > 0 && waitpid(child, &status, 0) == child && !status, "the child failed");
}

static float *allocate_floats(void)
{
    return (float *)(void *)allocate(BYTES);
}

/* The child runs between two writes of its parent. The second buffer was never written before. */
static void child_run(float *sums, float *zeros, const int parent_wrote[2],
                      const int child_wrote[2])
{
    await(parent_wrote);
    check(sums, 3);
    check(zeros, 0);
    set(sums, 7);
    set(zeros, 7);
    pid_t grandchild = fork();
    if (!grandchild) {
        check(sums, 7);
        set(sums, 8);
        _exit(0);
    }
    join(grandchild);
    check(sums, 7);
    ddl_free(sums);
    ddl_free(zeros);
    tell(child_wrote);
    _exit(0);
}

/* The peer maps the memory from the second round on. After the first barrier, no peer has started
 * to store its results. */
static void apart(ddl_comm *comm)
{
    float *sums = allocate_floats(), *zeros = allocate_floats();
    int parent_wrote[2], child_wrote[2];
    CHECK(!pipe(parent_wrote) && !pipe(child_wrote), "no pipes");
    for (int round = 0; round < 3; round++) {
        set(sums, 3);
        OK(ddl_barrier(comm, NULL, NULL));
        pid_t child = fork();
        if (!child)
            child_run(sums, zeros, parent_wrote, child_wrote);
        OK(ddl_barrier(comm, NULL, NULL));
        set(sums, 1);
        OK(ddl_allreduce(comm, NULL, sums, COUNT, DDL_F32, DDL_SUM, NULL, NULL));
        tell(parent_wrote);
        await(child_wrote);
        join(child);
        check(sums, SIZE);
        check(zeros, 0);
        OK(ddl_allreduce(comm, NULL, sums, COUNT, DDL_F32, DDL_SUM, NULL, NULL));
        check(sums, SIZE * SIZE);
    }
    ddl_comm_destroy(comm);
    ddl_free(sums);
    ddl_free(zeros);
}

typedef struct loop {
    ddl_comm *comm;
    float *buffer;
    int rounds;
} loop;

static void *reduce_repeatedly(void *argument)
{
    const loop *l = argument;
    for (int i = 0; i < l->rounds; i++) {
        set(l->buffer, 1);
        OK(ddl_allreduce(l->comm, NULL, l->buffer, COUNT, DDL_F32, DDL_SUM, NULL, NULL));
        check(l->buffer, SIZE);
    }
    return NULL;
}

/* Fork while another thread reduces: nothing hangs, and other memory is intact. */
static void meanwhile(ddl_comm *comm)
{
    loop l = {comm, allocate_floats(), SANITIZED ? 5 : 30};
    float *still = allocate_floats();
    pthread_t thread;
    set(still, 5);
    CHECK(!pthread_create(&thread, NULL, reduce_repeatedly, &l), "no thread");
    for (int i = 0; i < 5; i++) {
        pid_t child = fork();
        if (!child) {
            check(still, 5);
            set(still, 6);
            set(l.buffer, 6);
            _exit(0);
        }
        ddl_free(allocate(BYTES));
        join(child);
    }
    pthread_join(thread, NULL);
    check(still, 5);
    ddl_comm_destroy(comm);
    ddl_free(l.buffer);
    ddl_free(still);
}

static int copies; /* copies that were read from a file, by this process during a fork */
WRAP(ssize_t, pread, (int fd, void *to, size_t bytes, off_t at))
{
    copies++;
    return __real_pread(fd, to, bytes, at);
}

static pid_t start_by_spawn(void)
{
    char name[] = "true", *arguments[] = {name, NULL};
    pid_t child = -1;
    CHECK(!posix_spawnp(&child, name, NULL, NULL, arguments, environ), "posix_spawn");
    return child;
}

static pid_t start_by_fork(void)
{
    pid_t child = fork();
    if (!child)
        _exit(0);
    return child;
}

/* Only a fork copies, and only what was written. */
static void cost(ddl_comm *comm)
{
    float *memory = allocate_floats();
    copies = 0;
    join(start_by_fork());
    CHECK(!copies, "%d copies of nothing", copies);
    set(memory, 1);
    join(start_by_spawn());
    CHECK(!copies, "%d copies for another program", copies);
    join(start_by_fork());
    CHECK(copies > 0, "no copies");
    ddl_free(memory);
    copies = 0;
    join(start_by_fork());
    CHECK(!copies, "%d copies of what was freed", copies);
    ddl_comm_destroy(comm);
}

/* Limit memory only while the library's handler runs, which makes the copies before the fork,
 * because other threads may need memory. The handler that was registered first runs last. */
static bool is_limited;
static struct rlimit before;
static void limit_memory(void)
{
    const struct rlimit none = {1 << 20, RLIM_INFINITY};
    CHECK(!is_limited || !setrlimit(RLIMIT_AS, &none), "limits");
}
static void free_memory(void)
{
    CHECK(!is_limited || !setrlimit(RLIMIT_AS, &before), "limits");
}

/* Without memory for a copy, a child that touches the memory is killed; its other memory is not
 * affected. */
static void no_memory(ddl_comm *comm)
{
    float *memory = allocate_floats();
    set(memory, 1);
    /* enough heartbeats for the detector's thread to allocate its memory, even with ASan */
    usleep(300000);
    CHECK(!getrlimit(RLIMIT_AS, &before), "limits");
    CHECK(!pthread_atfork(limit_memory, NULL, NULL), "pthread_atfork");
    is_limited = true;
    pid_t child = fork();
    if (!child) {
        for (int i = 0; i < 64; i++) {
            char *other = mmap(NULL, BYTES / 4, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            CHECK(other != MAP_FAILED, "no memory");
            CHECK(other + BYTES / 4 <= (char *)memory || other >= (char *)memory + BYTES,
                  "other memory at its address");
        }
        signal(SIGSEGV, SIG_DFL);
        memory[1] = 2;
        _exit(0);
    }
    int status;
    is_limited = false;
    CHECK(child > 0 && waitpid(child, &status, 0) == child, "the child is gone");
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV, "the child ended with %x", status);
    check(memory, 1);
    ddl_comm_destroy(comm);
    ddl_free(memory);
}

int main(int argc, char **argv)
{
    static const process_test tests[] = {{"apart", apart, 0},
                                         {"meanwhile", meanwhile, 0},
                                         {"cost", cost, 0},
                                         {"no_memory", no_memory, 0}};
    CHECK(!pthread_atfork(free_memory, NULL, NULL), "pthread_atfork");
    run_process_tests(tests, sizeof tests / sizeof *tests, SIZE, argc, argv);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Detection of the launcher by its variables. tests/core/test_environment.py has the same cases for
 * Python: both must agree. */
#include "check.h"
#include "comm/launcher.h"

enum { VARIABLES = 10 };

#define DDLRUN   "DDL_RANK=1", "DDL_SIZE=4", "DDL_RENDEZVOUS=tcp://127.0.0.1:20001"
#define OPEN_MPI "OMPI_COMM_WORLD_RANK=2", "OMPI_COMM_WORLD_SIZE=3"
#define MPICH    "PMI_RANK=2", "PMI_SIZE=3", "MPI_LOCALNRANKS=3"
#define TORCHRUN "RANK=5", "WORLD_SIZE=8", "MASTER_ADDR=node1", "MASTER_PORT=29500"
#define ELASTIC  "TORCHELASTIC_RUN_ID=abc", "TORCHELASTIC_RESTART_COUNT=1"
#define SBATCH   "SLURM_JOB_ID=77", "SLURM_NTASKS=4", "SLURM_PROCID=3"
#define SRUN     SBATCH, "SLURM_STEP_ID=2", "SLURM_STEP_NODELIST=n[08-09]"

static void set(const char *const *variables)
{
    clearenv();
    for (int i = 0; i < VARIABLES && variables[i]; i++)
        CHECK(!putenv((char *)(uintptr_t)variables[i]), "putenv");
}

static void test_found(void)
{
    static const struct {
        const char *variables[VARIABLES], *launcher;
        int rank, size;
        const char *url, *job;
    } cases[] = {
        {{"PATH=/bin"}, "alone", 0, 1, "", ""},
        {{"RANK=0", "WORLD_SIZE=1"}, "alone", 0, 1, "", ""},
        {{"MASTER_ADDR=node1", "MASTER_PORT=29500"}, "alone", 0, 1, "", ""},
        {{"DDL_RENDEZVOUS="}, "alone", 0, 1, "", ""},
        {{SBATCH}, "alone", 0, 1, "", ""},
        {{SBATCH, "DDL_RENDEZVOUS=tcp://h:1"}, "alone", 0, 1, "", ""},
        {{DDLRUN}, "ddlrun", 1, 4, "tcp://127.0.0.1:20001", ""},
        {{"DDL_RANK=0", "DDL_SIZE=1"}, "ddlrun", 0, 1, "", ""},
        {{OPEN_MPI, DDLRUN}, "ddlrun", 1, 4, "tcp://127.0.0.1:20001", ""},
        {{"OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE=1"}, "mpirun", 0, 1, "", ""},
        {{MPICH, "DDL_RENDEZVOUS=tcp://h:1"}, "mpirun", 2, 3, "tcp://h:1", ""},
        {{TORCHRUN, ELASTIC}, "torchrun", 5, 8, "tcp://node1:29517", "abc.1"},
        {{TORCHRUN}, "torchrun", 5, 8, "tcp://node1:29517", "."},
        {{TORCHRUN, "MASTER_PORT=65530"}, "torchrun", 5, 8, "tcp://node1:65513", "."},
        {{TORCHRUN, "MASTER_ADDR=fe80::1"}, "torchrun", 5, 8, "tcp://[fe80::1]:29517", "."},
        {{TORCHRUN, "DDL_SECRET=x"}, "torchrun", 5, 8, "tcp://node1:29517", ""},
        {{TORCHRUN, "DDL_RENDEZVOUS=tcp://h:1"}, "torchrun", 5, 8, "tcp://h:1", "."},
        {{OPEN_MPI, TORCHRUN, ELASTIC}, "torchrun", 5, 8, "tcp://node1:29517", "abc.1"},
        {{SRUN}, "srun", 3, 4, "tcp://n08:22389", "77.2"},
        {{SRUN, "SLURM_JOB_ID=4227858432"}, "srun", 3, 4, "tcp://n08:27394", "4227858432.2"},
        {{SRUN, "SLURM_STEP_NUM_TASKS=8"}, "srun", 3, 8, "tcp://n08:22389", "77.2"},
        {{SRUN, "SLURM_STEP_NODELIST=gpu1,n[1-2]"}, "srun", 3, 4, "tcp://gpu1:22389", "77.2"},
        {{SRUN, "SLURM_STEP_NODELIST=a[3,5]b[07]"}, "srun", 3, 4, "tcp://a3b07:22389", "77.2"},
        {{SRUN, "SLURM_PROCID=0", "SLURM_STEP_NUM_TASKS=1"}, "srun", 0, 1, "", "77.2"},
        {{SRUN, "PMI_RANK=3", "PMI_SIZE=4"}, "srun", 3, 4, "tcp://n08:22389", "77.2"},
        {{SRUN, "WORLD_SIZE=4", "MASTER_ADDR=n08"}, "srun", 3, 4, "tcp://n08:22389", "77.2"},
        {{SRUN, "DDL_SECRET_FILE=/x"}, "srun", 3, 4, "tcp://n08:22389", ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ddl__world world;
        set(cases[i].variables);
        CHECK(ddl__launcher_find(&world) == DDL_OK, "case %zu: %s", i, ddl__message());
        CHECK(!strcmp(world.launcher, cases[i].launcher) && world.rank == cases[i].rank &&
                  world.size == cases[i].size && !strcmp(world.url, cases[i].url) &&
                  !strcmp(world.job, cases[i].job),
              "case %zu: %s, rank %d of %d, \"%s\", \"%s\"", i, world.launcher, world.rank,
              world.size, world.url, world.job);
    }
}

static void test_refused(void)
{
    static const struct {
        const char *variables[VARIABLES];
        ddl_status status;
        const char *words;
    } cases[] = {
        {{"DDL_RANK=0"}, DDL_EINVAL, "DDL_SIZE is not set"},
        {{"DDL_SIZE=2"}, DDL_EINVAL, "DDL_RANK is not set"},
        {{"DDL_RANK=0", "DDL_SIZE=2"}, DDL_EINVAL, "DDL_RENDEZVOUS is not"},
        {{"DDL_RANK=one", "DDL_SIZE=2"}, DDL_EINVAL, "DDL_RANK is \"one\"; must be a number"},
        {{"DDL_RANK=0", "DDL_SIZE=-4"}, DDL_EINVAL, "DDL_SIZE is \"-4\"; must be a number"},
        {{"DDL_RANK=0", "DDL_SIZE="}, DDL_EINVAL, "DDL_SIZE is \"\"; must be a number"},
        {{DDLRUN, "DDL_RANK=4"}, DDL_EINVAL, "ddlrun set rank 4 and size 4"},
        {{DDLRUN, "DDL_SIZE=99999999999"}, DDL_EINVAL, "must be a number"},
        {{"DDL_RENDEZVOUS=tcp://h:1"},
         DDL_EINVAL,
         "DDL_RENDEZVOUS is set, but not DDL_RANK, DDL_SIZE"},
        {{OPEN_MPI}, DDL_EUNSUPPORTED, "ddl_comm_from_mpi"},
        {{MPICH}, DDL_EUNSUPPORTED, "with ddlrun"},
        {{SRUN, MPICH}, DDL_EUNSUPPORTED, "with ddlrun"},
        {{"PMIX_RANK=2"}, DDL_EUNSUPPORTED, "ddl_comm_from_mpi"},
        {{"PMIX_RANK=2", "DDL_RENDEZVOUS=tcp://h:1"}, DDL_EUNSUPPORTED, "ddl_comm_from_mpi"},
        {{"OMPI_COMM_WORLD_RANK=0"}, DDL_EINVAL, "OMPI_COMM_WORLD_SIZE is not set"},
        {{"OMPI_COMM_WORLD_SIZE=2"}, DDL_EINVAL, "is set, but not OMPI_COMM_WORLD_RANK"},
        {{"PMI_SIZE=2"}, DDL_EINVAL, "but not PMI_RANK"},
        {{"RANK=0", "WORLD_SIZE=2"},
         DDL_EINVAL,
         "RANK, WORLD_SIZE is set, but not MASTER_ADDR, MASTER_PORT"},
        {{"WORLD_SIZE=2", "MASTER_PORT=1"}, DDL_EINVAL, "torchrun's variables are incomplete"},
        {{TORCHRUN, "MASTER_PORT=http"}, DDL_EINVAL, "MASTER_PORT is \"http\""},
        {{"SLURM_STEP_ID=2", "SLURM_JOB_ID=77"}, DDL_EINVAL, "but not SLURM_PROCID"},
        {{"SLURM_STEP_ID=2", "SLURM_PROCID=0", "SLURM_NTASKS=2"},
         DDL_EINVAL,
         "SLURM_JOB_ID is not set"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ddl__world world;
        set(cases[i].variables);
        ddl_status status = ddl__launcher_find(&world);
        CHECK(status == cases[i].status && strstr(ddl__message(), cases[i].words),
              "case %zu: %d: %s", i, status, ddl__message());
    }
}

int main(void)
{
    setenv("DDL_LOG", "off", 1);
    test_found();
    test_refused();
}

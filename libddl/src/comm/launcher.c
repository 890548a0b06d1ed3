/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/launcher.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "comm/environment.h"

enum {
    /* The rendezvous uses the port MASTER_PORT plus this offset, because torchrun's store listens
     * at MASTER_PORT itself. If the sum is not a valid port, the offset is subtracted instead. */
    TORCHRUN_PORT_OFFSET = 17,
    /* srun sets no port: use one of these, below Linux's ephemeral ports. */
    SRUN_FIRST_PORT = 20000,
    SRUN_PORTS = 12000,
    DIGITS = 10 /* maximum digits of a number: Slurm's job ids have as many */
};

static bool is_set(const char *name)
{
    return ddl__environment_variable(name) != NULL;
}

static const char *text_or(const char *name, const char *otherwise)
{
    const char *text = ddl__environment_variable(name);
    return text ? text : otherwise;
}

static ddl_status read_number(const char *name, int64_t *number)
{
    const char *text = ddl__environment_variable(name);
    if (!text)
        return ddl__fail(DDL_EINVAL,
                         "%s is not set, but other variables of its launcher are; set all of them, "
                         "or none to run alone",
                         name);
    size_t n = strspn(text, "0123456789");
    if (!n || text[n] || n > DIGITS)
        return ddl__fail(DDL_EINVAL, "%s is \"%s\"; must be a number", name, text);
    *number = strtoll(text, NULL, 10);
    return DDL_OK;
}

/* Read the rank and the size from these variables. */
static ddl_status read_place(ddl__world *world, const char *launcher, const char *rank_name,
                             const char *size_name)
{
    int64_t rank, size;
    world->launcher = launcher;
    ddl_status status = read_number(rank_name, &rank);
    if (status == DDL_OK)
        status = read_number(size_name, &size);
    if (status != DDL_OK)
        return status;
    if (rank >= size || size > INT32_MAX)
        return ddl__fail(DDL_EINVAL,
                         "%s set rank %lld and size %lld; the rank must be less than the size",
                         launcher, (long long)rank, (long long)size);
    world->rank = (int)rank;
    world->size = (int)size;
    return DDL_OK;
}

static ddl_status set_url(ddl__world *world, const char *url)
{
    int n = snprintf(world->url, sizeof world->url, "%s", url);
    if (n >= (int)sizeof world->url)
        return ddl__fail(DDL_EINVAL, "DDL_RENDEZVOUS has %d characters; must have at most %zu", n,
                         sizeof world->url - 1);
    return DDL_OK;
}

/* Set the rendezvous to this host and port, unless the user has chosen another one. */
static ddl_status set_rendezvous(ddl__world *world, const char *host, int64_t port, const char *job)
{
    char url[DDL__URL_MAX];
    const char *brackets = strchr(host, ':') ? "[]" : "";
    snprintf(url, sizeof url, "tcp://%.1s%s%s:%lld", brackets, host, *brackets ? "]" : "",
             (long long)port);
    if (!is_set("DDL_SECRET") && !ddl__environment_text("DDL_SECRET_FILE"))
        snprintf(world->job, sizeof world->job, "%s", job);
    return world->size > 1 ? set_url(world, text_or("DDL_RENDEZVOUS", url)) : DDL_OK;
}

/* ---------------------------------------------------------------------------------- launchers */

/* Return true if srun started this process, or one of its parents. The shells of sbatch and salloc
 * also have Slurm's variables, but belong to no numbered step. */
static bool is_in_srun_step(void)
{
    const char *step = text_or("SLURM_STEP_ID", "");
    return is_set("SLURM_PROCID") && *step && !step[strspn(step, "0123456789")];
}

static bool is_under_ddlrun(void)
{
    return is_set("DDL_RANK") || is_set("DDL_SIZE");
}

static ddl_status find_ddlrun(ddl__world *world)
{
    ddl_status status = read_place(world, "ddlrun", "DDL_RANK", "DDL_SIZE");
    if (status == DDL_OK && world->size != 1 && !is_set("DDL_RENDEZVOUS"))
        return ddl__fail(DDL_EINVAL, "DDL_RANK and DDL_SIZE are set, but DDL_RENDEZVOUS is not: "
                                     "set it to tcp://HOST:PORT of rank 0");
    return status == DDL_OK ? set_url(world, text_or("DDL_RENDEZVOUS", "")) : status;
}

/* Return true if mpirun started this process. srun may set PMI's variables for any program. Under
 * srun, they count as mpirun's only if MPI_LOCALNRANKS is set, too, which mpirun sets. */
static bool is_under_mpirun(void)
{
    /* a torchrun that mpirun started: the variables of mpirun are only inherited */
    if (is_set("TORCHELASTIC_RUN_ID"))
        return false;
    if (is_set("OMPI_COMM_WORLD_RANK"))
        return true;
    bool is_sruns = is_in_srun_step() && !is_set("MPI_LOCALNRANKS");
    return !is_sruns && (is_set("PMI_RANK") || is_set("PMIX_RANK"));
}

static ddl_status find_mpirun(ddl__world *world)
{
    bool knows_size = true;
    ddl_status status = DDL_OK;
    if (is_set("OMPI_COMM_WORLD_RANK"))
        status = read_place(world, "mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE");
    else if (is_set("PMI_RANK"))
        status = read_place(world, "mpirun", "PMI_RANK", "PMI_SIZE");
    else
        knows_size = false;
    if (status != DDL_OK || (knows_size && world->size == 1))
        return status;
    if (knows_size && is_set("DDL_RENDEZVOUS"))
        return set_url(world, text_or("DDL_RENDEZVOUS", ""));
    return ddl__fail(DDL_EUNSUPPORTED,
                     "mpirun started this process, but sets no variable with a rendezvous address: "
                     "use ddl_comm_from_mpi of ddl/ddl_mpi.h instead of "
                     "ddl_rendezvous, start the ranks with ddlrun, or with mpirun -x "
                     "DDL_RENDEZVOUS=tcp://HOST:PORT, where rank 0 runs on HOST");
}

static bool is_under_torchrun(void)
{
    return is_set("RANK") && is_set("WORLD_SIZE") && is_set("MASTER_ADDR") && is_set("MASTER_PORT");
}

static ddl_status find_torchrun(ddl__world *world)
{
    int64_t port;
    char job[DDL__JOB_MAX];
    ddl_status status = read_place(world, "torchrun", "RANK", "WORLD_SIZE");
    if (status == DDL_OK)
        status = read_number("MASTER_PORT", &port);
    if (status != DDL_OK)
        return status;
    port += TORCHRUN_PORT_OFFSET;
    if (port > 65535)
        port -= 2 * TORCHRUN_PORT_OFFSET;
    snprintf(job, sizeof job, "%s.%s", text_or("TORCHELASTIC_RUN_ID", ""),
             text_or("TORCHELASTIC_RESTART_COUNT", ""));
    return set_rendezvous(world, text_or("MASTER_ADDR", ""), port, job);
}

/* Get the first host of a list in Slurm's format: "n07" of "n[07-09,12],gpu1". */
static void get_first_host(const char *nodes, char *host, size_t size)
{
    size_t n = 0;
    for (const char *at = nodes; *at && *at != ',' && n + 1 < size; at++) {
        if (*at != '[') {
            host[n++] = *at;
            continue;
        }
        size_t first = strcspn(at + 1, ",-]"), all = strcspn(at + 1, "]");
        n += (size_t)snprintf(host + n, size - n, "%.*s", (int)first, at + 1);
        n = n < size ? n : size - 1;
        at += all + (at[all + 1] == ']');
    }
    host[n] = 0;
}

static ddl_status find_srun(ddl__world *world)
{
    int64_t job, step;
    char host[DDL__URL_MAX / 2], name[DDL__JOB_MAX];
    const char *tasks = is_set("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
    ddl_status status = read_place(world, "srun", "SLURM_PROCID", tasks);
    if (status == DDL_OK)
        status = read_number("SLURM_JOB_ID", &job);
    if (status == DDL_OK)
        status = read_number("SLURM_STEP_ID", &step);
    if (status != DDL_OK)
        return status;
    get_first_host(text_or("SLURM_STEP_NODELIST", text_or("SLURM_JOB_NODELIST", "127.0.0.1")), host,
                   sizeof host);
    snprintf(name, sizeof name, "%lld.%lld", (long long)job, (long long)step);
    return set_rendezvous(world, host, SRUN_FIRST_PORT + (31 * job + step) % SRUN_PORTS, name);
}

/* ------------------------------------------------------------------------------------- alone */

enum { PART_MAX = 4 };

/* The variables of a launcher. The first n_places variables set a process's rank and size, and
 * require the others. */
static const struct {
    const char *launcher;
    int n_places;
    const char *names[PART_MAX];
} parts[] = {
    {"ddlrun", 1, {"DDL_RENDEZVOUS", "DDL_RANK", "DDL_SIZE"}},
    {"mpirun", 1, {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"}},
    {"mpirun", 1, {"PMI_SIZE", "PMI_RANK"}},
    {"torchrun", 2, {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}},
    {"srun", 1, {"SLURM_STEP_ID", "SLURM_PROCID"}},
};

/* Reject an incomplete set of a launcher's variables, with which each process would run alone. But
 * DDL_RENDEZVOUS alone is allowed in the shells of sbatch and salloc, which export it for srun. */
static ddl_status refuse_part(size_t k)
{
    if (!strcmp(parts[k].launcher, "ddlrun") && ddl__environment_text("SLURM_JOB_ID"))
        return DDL_OK;
    char missing[128] = "", present[128] = "";
    bool gives_place = false;
    for (int i = 0; i < PART_MAX && parts[k].names[i]; i++) {
        const char *name = parts[k].names[i];
        bool has = ddl__environment_text(name);
        char *list = has ? present : missing;
        size_t n = strlen(list);
        snprintf(list + n, sizeof missing - n, "%s%s", n ? ", " : "", name);
        gives_place = gives_place || (has && i < parts[k].n_places);
    }
    if (!*missing || !gives_place || !strcmp(text_or("WORLD_SIZE", ""), "1"))
        return DDL_OK;
    return ddl__fail(DDL_EINVAL,
                     "%s's variables are incomplete: %s is set, but not %s; set all of them, or "
                     "none to run alone",
                     parts[k].launcher, present, missing);
}

static ddl_status find_nothing(void)
{
    ddl_status status = DDL_OK;
    for (size_t k = 0; k < sizeof parts / sizeof *parts && status == DDL_OK; k++)
        status = refuse_part(k);
    const char *tasks = text_or("SLURM_NTASKS", "1");
    char several[64] = "";
    if (strcmp(tasks, "1") != 0)
        snprintf(several, sizeof several, "Slurm's SLURM_NTASKS is %s", tasks);
    else if (ddl__environment_text("DDL_RENDEZVOUS"))
        snprintf(several, sizeof several, "DDL_RENDEZVOUS is set");
    if (status == DDL_OK && *several)
        ddl__log(DDL__WARN,
                 "%s, but srun did not start this process: it runs alone; start it by srun, mpirun "
                 "or ddlrun",
                 several);
    return status;
}

ddl_status ddl__launcher_find(ddl__world *world)
{
    *world = (ddl__world){.launcher = "alone", .rank = 0, .size = 1};
    return is_under_ddlrun()     ? find_ddlrun(world)
           : is_under_mpirun()   ? find_mpirun(world)
           : is_under_torchrun() ? find_torchrun(world)
           : is_in_srun_step()   ? find_srun(world)
                                 : find_nothing();
}

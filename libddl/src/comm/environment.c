/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/environment.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/dtype.h"
#include "base/fold.h"
#include "base/log.h"
#include "comm/location.h"

const char *ddl__environment_text(const char *name)
{
    const char *text = getenv(name);
    return text && *text ? text : NULL;
}

const char *ddl__environment_variable(const char *name)
{
    return getenv(name);
}

static const char *text_or_empty(const char *name)
{
    const char *text = getenv(name);
    return text ? text : "";
}

/* Parse an integer. Return false if the text is not an integer between `least` and `most`. */
static bool parse_whole(const char *text, int64_t least, int64_t most, int64_t *number)
{
    char *end;
    *number = strtoll(text, &end, 10);
    return *text && !*end && *number >= least && *number <= most;
}

/* Check that the file belongs to this user or to root, and that no other user may read it. */
static ddl_status check_secret_file(const char *path, int fd)
{
    struct stat file;
    if (fstat(fd, &file))
        return ddl__fail(DDL_EINVAL, "cannot read DDL_SECRET_FILE=\"%s\": %s", path,
                         strerror(errno));
    if (!S_ISREG(file.st_mode))
        return ddl__fail(DDL_EINVAL, "DDL_SECRET_FILE=\"%s\" is not a regular file", path);
    if (file.st_uid != geteuid() && file.st_uid != 0)
        return ddl__fail(DDL_EINVAL,
                         "DDL_SECRET_FILE=\"%s\" belongs to user %u; must belong to root or to "
                         "user %u, which runs "
                         "this process",
                         path, file.st_uid, geteuid());
    if (file.st_mode & (S_IRWXG | S_IRWXO))
        return ddl__fail(DDL_EINVAL,
                         "DDL_SECRET_FILE=\"%s\" has mode %03o, so others may read or change it: "
                         "set mode 600, and create a new secret",
                         path, file.st_mode & 0777);
    return DDL_OK;
}

/* Read the file's text without its trailing line ends. A NUL byte would truncate it. */
static ddl_status read_secret(const char *path, char secret[DDL__SECRET_MAX])
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return ddl__fail(DDL_EINVAL, "cannot read DDL_SECRET_FILE=\"%s\": %s", path,
                         strerror(errno));
    ddl_status status = check_secret_file(path, fd);
    ssize_t n = status == DDL_OK ? read(fd, secret, DDL__SECRET_MAX) : 0;
    if (n < 0)
        status =
            ddl__fail(DDL_EINVAL, "cannot read DDL_SECRET_FILE=\"%s\": %s", path, strerror(errno));
    close(fd);
    if (status != DDL_OK)
        return status;
    if (n == DDL__SECRET_MAX)
        return ddl__fail(DDL_EINVAL,
                         "DDL_SECRET_FILE=\"%s\" is too long; must have at most %d bytes", path,
                         DDL__SECRET_MAX - 1);
    while (n && (secret[n - 1] == '\n' || secret[n - 1] == '\r'))
        n--;
    secret[n] = 0;
    if (!n || strlen(secret) != (size_t)n)
        return ddl__fail(DDL_EINVAL, "DDL_SECRET_FILE=\"%s\" %s", path,
                         n ? "contains a zero byte: write the secret as text" : "is empty");
    return DDL_OK;
}

ddl_status ddl__environment_endpoint(ddl_endpoint_config *config, char secret[DDL__SECRET_MAX])
{
    const char *path = text_or_empty("DDL_SECRET_FILE");
    secret[0] = 0;
    if (!config->secret)
        config->secret = getenv("DDL_SECRET");
    if (!config->secret) {
        ddl_status status = *path ? read_secret(path, secret) : DDL_OK;
        if (status != DDL_OK)
            return status;
        config->secret = *path ? secret : NULL;
    }
    if (!config->interfaces && !config->host)
        config->interfaces = text_or_empty("DDL_INTERFACES");
    if (!config->ports)
        config->ports = text_or_empty("DDL_PORTS");
    const char *encrypt = text_or_empty("DDL_ENCRYPT");
    if (*encrypt && strcmp(encrypt, "0") != 0 && strcmp(encrypt, "1") != 0)
        return ddl__fail(DDL_EINVAL, "DDL_ENCRYPT=\"%s\": must be 1 or 0", encrypt);
    if (!config->encrypt)
        config->encrypt = *encrypt == '1' ? 1 : -1;
    const char *sockets = text_or_empty("DDL_SOCKETS");
    if (config->sockets || !*sockets)
        return DDL_OK;
    int64_t n;
    if (!parse_whole(sockets, 1, 1 << 20, &n))
        return ddl__fail(DDL_EINVAL, "DDL_SOCKETS=\"%s\" is not a number of sockets", sockets);
    config->sockets = (uint32_t)n;
    return DDL_OK;
}

ddl_status ddl__environment_links(uint32_t *links)
{
    static const struct {
        const char *name;
        uint32_t bit;
    } kinds[] = {{"inproc", DDL_LINK_INPROC},
                 {"shm", DDL_LINK_SHM},
                 {"tcp", DDL_LINK_TCP},
                 {"ucx", DDL_LINK_UCX}};
    const char *list = ddl__environment_text("DDL_LINKS");
    if (!list) {
        *links = DDL_LINK_INPROC | DDL_LINK_SHM | DDL_LINK_TCP;
        return DDL_OK;
    }
    uint32_t bits = 0;
    for (const char *at = list; *at;) {
        size_t n = strcspn(at, ",");
        uint32_t bit = 0;
        for (unsigned i = 0; i < sizeof kinds / sizeof *kinds; i++)
            if (strlen(kinds[i].name) == n && !strncmp(at, kinds[i].name, n))
                bit = kinds[i].bit;
        if (!bit)
            return ddl__fail(DDL_EINVAL,
                             "DDL_LINKS=\"%s\": \"%.*s\" is not inproc, shm, tcp or ucx", list,
                             (int)n, at);
        bits |= bit;
        at += n + (at[n] == ',');
    }
    *links = bits;
    return DDL_OK;
}

/* Parse "A:X[xY[xZ[xW]]]", up to a blank or the end. Return false if it is invalid. */
static bool parse_mode(const char *at, ddl__layout *layout)
{
    if (!*at || !strchr("rdthp", *at) || at[1] != ':')
        return false;
    layout->mode = *at;
    at += 2;
    int64_t product = 1;
    for (int d = 0; d < DDL__DIMENSIONS; d++) {
        bool given = d == 0 || *at == 'x';
        char *end = NULL;
        at += d > 0 && given;
        long n = given ? strtol(at, &end, 10) : 1;
        if (given && (end == at || *at == '+' || *at == ' '))
            return false;
        product *= n > 0 && n <= 1 << 20 ? n : 0;
        layout->dimensions[d] = (int)n;
        at = given ? end : at;
        if (product <= 0 || product > 1 << 20)
            return false;
    }
    return !*at || *at == ' ';
}

/* Parse a number from 0 to `most`, up to a blank or the end. Return -1 if it is invalid. */
static int parse_number(const char *at, int most)
{
    char *end;
    long n = *at >= '0' && *at <= '9' ? strtol(at, &end, 10) : -1;
    return n >= 0 && n <= most && (!*end || *end == ' ') ? (int)n : -1;
}

typedef struct option {
    const char *name;
    int most;         /* the largest number allowed */
    const char *does; /* the expected value, for a message */
} option;

enum { MODE, DUMP_ITER, DBG_LEVEL, REBIND_ITER, DEV_SYNC, OPTIONS };
static const option options[OPTIONS] = {
    [MODE] = {"-mode", 0,
              "a mode such as r:4, one ring of 4 ranks, or d:2x3, 2 ranks on each of 3 "
              "hosts; there are r (ring), d (hierarchical), t (tree), h (halving) and p "
              "(explore)"},
    [DUMP_ITER] = {"-dump_iter", 1 << 30, "a number of operations"},
    [DBG_LEVEL] = {"-dbg_level", 2, "0, 1 or 2"},
    [REBIND_ITER] = {"-rebind_iter", 1 << 30, "a number of operations"},
    [DEV_SYNC] = {"-dev_sync", 2, "0, 1 or 2"},
};

static ddl_status read_option(ddl__layout *layout, int which, const char *at)
{
    int number = which == MODE ? -1 : parse_number(at, options[which].most);
    if (which == MODE ? !parse_mode(at, layout) : number < 0)
        return ddl__fail(DDL_EINVAL, "DDL_OPTIONS=\"%s\": \"%.*s\" is not %s",
                         getenv("DDL_OPTIONS"), (int)strcspn(at, " "), at, options[which].does);
    if (which == DUMP_ITER)
        layout->dump_iter = number;
    if (which == DBG_LEVEL && number)
        ddl__log_more(number == 1 ? DDL__PLAN : DDL__DEBUG);
    if (which == REBIND_ITER && number)
        ddl__log(DDL__WARN, "DDL_OPTIONS: -rebind_iter is ignored: libddl does not bind ranks to "
                            "cores; -dump_iter reports the slow rank");
    if (which == DEV_SYNC && number)
        ddl__log(DDL__WARN, "DDL_OPTIONS: -dev_sync is ignored: operations on a GPU follow the "
                            "order of their stream");
    return DDL_OK;
}

static ddl_status read_options(ddl__layout *layout)
{
    const char *all = text_or_empty("DDL_OPTIONS");
    for (const char *at = all; *at;) {
        size_t n = strcspn(at, " ");
        int which = 0;
        while (which < OPTIONS &&
               (strlen(options[which].name) != n || strncmp(options[which].name, at, n) != 0))
            which++;
        if (n && which == OPTIONS)
            return ddl__fail(DDL_EINVAL,
                             "DDL_OPTIONS=\"%s\": \"%.*s\" is not -mode, -dump_iter or -dbg_level",
                             all, (int)n, at);
        at += n + strspn(at + n, " ");
        if (!n)
            continue;
        ddl_status status = read_option(layout, which, at);
        if (status != DDL_OK)
            return status;
        at += strcspn(at, " ");
    }
    return DDL_OK;
}

ddl_status ddl__environment_layout(ddl__layout *layout)
{
    memset(layout, 0, sizeof *layout);
    const char *topology = text_or_empty("DDL_TOPOLOGY");
    if (strlen(topology) >= sizeof layout->topology)
        return ddl__fail(DDL_EINVAL, "DDL_TOPOLOGY=\"%s\" is longer than %zu characters", topology,
                         sizeof layout->topology - 1);
    strcpy(layout->topology, topology);
    layout->location = ddl__location_own();
    return read_options(layout);
}

static ddl_status read_milliseconds(const char *name, int64_t fallback, int64_t *value)
{
    const char *text = ddl__environment_text(name);
    if (*value)
        return DDL_OK;
    *value = fallback;
    if (text && (!parse_whole(text, INT64_MIN, INT32_MAX, value) || *value == 0))
        return ddl__fail(DDL_EINVAL,
                         "%s=\"%s\" is not a number of milliseconds; must be a nonzero integer, "
                         "negative for never",
                         name, text);
    return DDL_OK;
}

ddl_status ddl__environment_limits(ddl_comm_config *config)
{
    enum { SHORTEST = 10, LONGEST = 3600 * 1000, BEATS = 3 };
    ddl_status status = read_milliseconds("DDL_HEARTBEAT_MS", 100, &config->heartbeat_ms);
    if (status == DDL_OK)
        status = read_milliseconds("DDL_SUSPECT_MS", 1000, &config->suspect_ms);
    if (status == DDL_OK)
        status = read_milliseconds("DDL_DEAD_MS", 3000, &config->dead_ms);
    if (status == DDL_OK)
        status = read_milliseconds("DDL_STALL_WARN_MS", 10000, &config->stall_warn_ms);
    if (status == DDL_OK && (config->heartbeat_ms < SHORTEST || config->heartbeat_ms > LONGEST))
        return ddl__fail(DDL_EINVAL, "heartbeat_ms is %lld; must be from %d to %d",
                         (long long)config->heartbeat_ms, SHORTEST, LONGEST);
    if (status == DDL_OK && config->dead_ms > 0 && config->dead_ms < BEATS * config->heartbeat_ms)
        return ddl__fail(
            DDL_EINVAL,
            "dead_ms is %lld and heartbeat_ms is %lld; dead_ms must be at least %d times "
            "heartbeat_ms",
            (long long)config->dead_ms, (long long)config->heartbeat_ms, BEATS);
    return status;
}

ddl_status ddl__environment_wire(uint32_t *wire)
{
    const char *text = text_or_empty("DDL_WIRE");
    for (uint32_t w = DDL_WIRE_F32; !*wire && w <= DDL_WIRE_BF16; w++)
        if (!*text || !strcmp(text, ddl__wire_name(w)))
            *wire = w;
    return *wire ? DDL_OK
                 : ddl__fail(DDL_EINVAL, "DDL_WIRE=\"%s\": must be f32, bf16, int8 or int4", text);
}

ddl_status ddl__environment_invariant(int32_t *invariant)
{
    const char *text = text_or_empty("DDL_INVARIANT"), ranks[] = "ranks:";
    int64_t workers = 0;
    if (*invariant)
        return DDL_OK;
    if (!*text || !strcmp(text, "none"))
        *invariant = DDL_INVARIANT_NONE;
    else if (!strcmp(text, "size"))
        *invariant = DDL_INVARIANT_SIZE;
    else if (!strncmp(text, ranks, strlen(ranks)) &&
             parse_whole(text + strlen(ranks), 1, DDL__WORKERS_MAX, &workers))
        *invariant = (int32_t)workers;
    else
        return ddl__fail(DDL_EINVAL,
                         "DDL_INVARIANT=\"%s\": must be size, none, or ranks:N with N from 1 to %d",
                         text, DDL__WORKERS_MAX);
    return DDL_OK;
}

ddl_status ddl__environment_gpu(uint64_t *direct_bytes, bool *uses_nccl)
{
    const char *text = ddl__environment_text("DDL_GPU_DIRECT_BYTES");
    int64_t bytes = 256 << 10, uses = 1;
    if (text && !parse_whole(text, 0, INT64_MAX, &bytes))
        return ddl__fail(DDL_EINVAL, "DDL_GPU_DIRECT_BYTES=\"%s\" is not a number of bytes", text);
    text = ddl__environment_text("DDL_GPU_NCCL");
    if (text && !parse_whole(text, 0, 1, &uses))
        return ddl__fail(DDL_EINVAL, "DDL_GPU_NCCL=\"%s\": must be 1 or 0", text);
    /* for NCCL, this variable overrides the setting in the call */
    const char *blocking = ddl__environment_text("NCCL_COMM_BLOCKING");
    *direct_bytes = (uint64_t)bytes;
    *uses_nccl = uses && !(blocking && !strcmp(blocking, "1"));
    return DDL_OK;
}

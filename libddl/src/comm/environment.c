#include "comm/environment.h"

#include <stdlib.h>
#include <string.h>

const char *ddl__environment_secret(void)
{
    const char *secret = getenv("DDL_SECRET");
    return secret ? secret : "";
}

ddl_status ddl__environment_links(uint32_t *links)
{
    static const struct {
        const char *name;
        uint32_t bit;
    } kinds[] = {{"inproc", DDL_LINK_INPROC}, {"shm", DDL_LINK_SHM}, {"tcp", DDL_LINK_TCP}};
    const char *list = getenv("DDL_LINKS");
    if (!list || !*list) {
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
            return ddl__fail(DDL_EINVAL, "DDL_LINKS=\"%s\": \"%.*s\" is not inproc, shm or tcp",
                             list, (int)n, at);
        bits |= bit;
        at += n + (at[n] == ',');
    }
    *links = bits;
    return DDL_OK;
}

static ddl_status number(const char *name, int *value)
{
    const char *text = getenv(name);
    char *end;
    long n = text ? strtol(text, &end, 10) : -1;
    if (!text || !*text || *end || n < 0 || n > 1 << 24)
        return ddl__fail(DDL_EINVAL, "DDL_RENDEZVOUS is set, but %s is \"%s\"", name,
                         text ? text : "");
    *value = (int)n;
    return DDL_OK;
}

ddl_status ddl__environment_world(const char **url, int *rank, int *size)
{
    *url = getenv("DDL_RENDEZVOUS");
    *rank = 0;
    *size = 1;
    if (!*url)
        return DDL_OK;
    ddl_status status = number("DDL_RANK", rank);
    return status == DDL_OK ? number("DDL_SIZE", size) : status;
}

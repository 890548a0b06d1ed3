/* SPDX-License-Identifier: Apache-2.0 */
/* Packed: an all-reduce of f32 that sends spans between hosts in a wire format of fewer bytes.
 *
 * Every rank owns a part of the buffer. A host packs the sum of its operands for a part once, and
 * sends it to the owner. The owner adds the sums in f32: first its own host's sum, which was never
 * packed, then the others in the order of the rounds (hosts.c). It rounds the result to the wire
 * format, and all hosts receive the same bytes. So every element is rounded twice for any number of
 * hosts, and all ranks get the same bits. Spans within a host are not packed.
 *
 * Steps, messages and bytes: as a reduce-scatter and an all-gather over hosts; a span between hosts
 * has 0.5 (bf16), 0.252 (int8) or 0.127 (int4) of the bytes. */
#include "plan/builder.h"

/* Minimum numbers of elements of a packed sum: in total, and for each host. A shorter sum, such as
 * the average of a loss, takes hardly any time on the wire, so it keeps its precision. Each rank
 * also sends a message to each host, so a part must not be too short. */
enum { LEAST = 4096, LEAST_FOR_HOST = 2048 };

int64_t ddl__packs_from(const ddl__request *request)
{
    int64_t hosts = request->topology ? request->topology->groups[DDL__HOSTS] : 1;
    return hosts * LEAST_FOR_HOST > LEAST ? hosts * LEAST_FOR_HOST : LEAST;
}

static bool fits(const ddl__request *request)
{
    const ddl__topology *t = request->topology;
    return request->wire > DDL_WIRE_F32 && t && t->groups[DDL__HOSTS] > 1 && !request->among &&
           !request->order && ddl__hosts_fit(request);
}

static void cost(ddl__cost *c)
{
    double bits = ddl__wire_bits(c->request->wire);
    for (int way = 0; way < 2; way++)
        ddl__hosts_cost(c, bits / 32);
}

const ddl__algorithm_descriptor ddl__packed = {.name = "packed",
                                               .kinds = DDL__KIND(ALLREDUCE),
                                               .fits = fits,
                                               .cost = cost,
                                               .build = ddl__hosts_build};

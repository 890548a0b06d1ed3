/* SPDX-License-Identifier: Apache-2.0 */
/* Packed: operations on f32 that send spans between hosts in a wire format of fewer bytes.
 *
 * In a reduce-scatter, a host packs the sum of its operands for a block once, and sends it to the
 * owner. The owner adds the sums in f32: first its own host's sum, which was never packed, then the
 * others in the order of the rounds (hosts.c). So every element is rounded once for any number of
 * hosts. In an all-gather, the owner of a block rounds it to the wire format, and all ranks,
 * including the owner, get the rounded values. Spans within a host are not packed.
 *
 * An all-reduce is a reduce-scatter of parts of the buffer, whose owners round the results, and an
 * all-gather of these parts. So every element is rounded twice, and all ranks get the same bits.
 *
 * Steps, messages and bytes: as a reduce-scatter and an all-gather over hosts; a span between hosts
 * has 0.5 (bf16), 0.252 (int8) or 0.127 (int4) of the bytes. */
#include "base/dtype.h"
#include "plan/builder.h"

/* Minimum numbers of elements of a packed buffer: in total, and for each host. A shorter buffer,
 * such as the average of a loss, takes hardly any time on the wire, so it keeps its precision. Each
 * rank also sends a message to each host, so a part must not be too short. */
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
    for (int way = c->request->kind == DDL__ALLREDUCE ? 2 : 1; way > 0; way--)
        ddl__hosts_cost(c, bits / 32);
}

const ddl__algorithm_descriptor ddl__packed = {.name = "packed",
                                               .kinds = DDL__KIND(ALLREDUCE) | DDL__BLOCK_KINDS,
                                               .fits = fits,
                                               .cost = cost,
                                               .build = ddl__hosts_build};

/* SPDX-License-Identifier: Apache-2.0 */
/* test_packing.c - ddl_pack, ddl_unpack and ddl_packed_size: the same bytes in every floating-point
 * mode, by pieces and when packed again; errors within the bounds of ddl.h; the refusals. The bytes
 * themselves are compared with a reference in test_reduce_pack.c. */
#include "fp_modes.h"

enum { COUNT = 1003, PIECE = 384, ROOM = 4 * COUNT };

static const ddl_wire wires[] = {DDL_WIRE_F32, DDL_WIRE_INT8, DDL_WIRE_INT4, DDL_WIRE_BF16};
static const double limits[] = {[DDL_WIRE_INT8] = 127, [DDL_WIRE_INT4] = 7, [DDL_WIRE_BF16] = 256};

static float values[COUNT], unpacked[COUNT];
static unsigned char packed[ROOM], again[ROOM];

static void check_wire(ddl_wire wire)
{
    const ddl__fp_mode modes[] = {MODE_FLUSH, MODE_UP, MODE_FLUSH_UP};
    size_t bytes = ddl_packed_size(COUNT, wire);
    CHECK(bytes && bytes <= ROOM, "wire %d: %zu bytes", wire, bytes);
    OK(ddl_pack(packed, values, COUNT, wire));
    OK(ddl_unpack(unpacked, packed, COUNT, wire));
    for (int i = 0; i < COUNT; i++) {
        double bound = wire == DDL_WIRE_F32 ? 0 : 4 / limits[wire];
        CHECK(fabs((double)values[i] - (double)unpacked[i]) <= bound, "wire %d: %g became %g", wire,
              (double)values[i], (double)unpacked[i]);
    }
    OK(ddl_pack(again, unpacked, COUNT, wire));
    CHECK(!memcmp(packed, again, bytes), "wire %d: other bytes when packed again", wire);
    for (int m = 0; m < 3; m++) {
        memset(again, 0, bytes);
        ddl__fp_set(modes[m]);
        ddl_status status = ddl_pack(again, values, COUNT, wire);
        ddl__fp_set(DDL__FP_STANDARD);
        CHECK(status == DDL_OK && !memcmp(packed, again, bytes), "wire %d: mode %d", wire, m);
    }
    for (int64_t i = 0; i < COUNT; i += PIECE) {
        int64_t n = COUNT - i < PIECE ? COUNT - i : PIECE;
        OK(ddl_pack(again + ddl_packed_size(i, wire), values + i, n, wire));
    }
    CHECK(!memcmp(packed, again, bytes), "wire %d: other bytes when packed by pieces", wire);
}

static void check_refusals(void)
{
    REFUSED(ddl_pack(packed, values, 1, (ddl_wire)0), DDL_EINVAL, "wire is 0");
    REFUSED(ddl_unpack(values, packed, 1, (ddl_wire)5), DDL_EINVAL, "wire is 5");
    REFUSED(ddl_pack(packed, values, -1, DDL_WIRE_INT8), DDL_EINVAL, "count is -1");
    REFUSED(ddl_pack(NULL, values, 1, DDL_WIRE_INT8), DDL_EINVAL, "packed is NULL");
    REFUSED(ddl_unpack(NULL, packed, 1, DDL_WIRE_INT8), DDL_EINVAL, "values is NULL");
    REFUSED(ddl_pack(values + 1, values, 128, DDL_WIRE_INT4), DDL_EINVAL, "overlap");
    OK(ddl_pack(NULL, NULL, 0, DDL_WIRE_INT4));
    CHECK(ddl_packed_size(128, DDL_WIRE_INT8) == 129 && ddl_packed_size(128, DDL_WIRE_INT4) == 65 &&
              ddl_packed_size(3, DDL_WIRE_BF16) == 6 && ddl_packed_size(3, DDL_WIRE_F32) == 12,
          "sizes");
    CHECK(!ddl_packed_size(0, DDL_WIRE_INT8) && !ddl_packed_size(-1, DDL_WIRE_INT8) &&
              !ddl_packed_size(1, (ddl_wire)9),
          "sizes of nothing");
}

int main(void)
{
    fill_mixed(DDL_F32, (char *)values, COUNT);
    for (int i = 0; i < COUNT; i++)
        while (fabsf(values[i]) > 4)
            values[i] /= 2;
    for (size_t i = 0; i < sizeof wires / sizeof *wires; i++)
        check_wire(wires[i]);
    check_refusals();
    printf("all wire formats: equal bytes, bounded errors\n");
    return 0;
}

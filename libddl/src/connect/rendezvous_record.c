#include "connect/rendezvous_record.h"

#include <stdio.h>
#include <string.h>

#include "connect/address.h"
#include "connect/hello.h"

_Static_assert(sizeof(ddl__rendezvous_record) % 8 == 0, "padding would send uninitialized memory");

bool ddl__rendezvous_record_check(ddl__rendezvous_record *record, int size)
{
    ddl__address address;
    char why[sizeof record->text] = "";
    if (record->protocol != DDL__PROTOCOL)
        snprintf(why, sizeof why, "rank 0 speaks protocol %d, this one %u", DDL__PROTOCOL,
                 record->protocol);
    else if (record->size != size)
        snprintf(why, sizeof why, "size is %d here and %d at rank 0", record->size, size);
    else if (record->rank < 1 || record->rank >= size)
        snprintf(why, sizeof why, "rank %d is outside 0 to %d", record->rank, size - 1);
    else if (record->length > DDL_ADDRESS_MAX)
        snprintf(why, sizeof why, "an address of %u bytes", record->length);
    else if (ddl__address_decode(&address, record->address, record->length) != DDL_OK)
        snprintf(why, sizeof why, "%s", ddl__message());
    memcpy(record->text, why, sizeof why);
    record->status = why[0] ? DDL_EREFUSED : DDL_OK;
    return !why[0];
}

ddl_status ddl__rendezvous_record_accept(ddl__rendezvous_record *record, int rank)
{
    ddl__sanitize_text(record->text, sizeof record->text);
    if (record->status == DDL_ETIMEDOUT)
        return ddl__fail(DDL_ETIMEDOUT, "%s",
                         record->text[0] ? record->text
                                         : "the rendezvous ended before all ranks had joined");
    if (record->status != DDL_OK)
        return ddl__fail(DDL_EREFUSED, "the rendezvous refused rank %d: %s", rank, record->text);
    if (record->length > DDL_ADDRESS_MAX)
        return ddl__fail(DDL_EREFUSED, "the rendezvous gave rank %d an address of %u bytes", rank,
                         record->length);
    return DDL_OK;
}

#include "topo/locality.h"

#include <stddef.h>

ddl__locality ddl__locality_of(const unsigned char *shared, int rank, int size)
{
    ddl__locality locality = {.all_shared = true};
    for (int i = 0; i < size; i++)
        for (int j = 0; j < size; j++)
            if (i != j && !shared[(size_t)i * (size_t)size + (size_t)j])
                locality.all_shared = false;
    for (int i = 0; i < size; i++) {
        if (i == rank)
            locality.local_rank = locality.local_size;
        if (i == rank || shared[(size_t)rank * (size_t)size + (size_t)i])
            locality.local_size++;
    }
    return locality;
}

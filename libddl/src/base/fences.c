#include "base/fences.h"

#include <sys/syscall.h>
#include <unistd.h>

#include "base/forks.h"

/* The kernel's numbers, which not every C library has. */
enum { GLOBAL_EXPEDITED = 1 << 1, REGISTER_GLOBAL_EXPEDITED = 1 << 2 };

/* The kernel waits for all processors when a process with threads registers, even if it has done so
 * before; once is enough for a process, and a forked child registers itself. */
bool ddl__fences_join(void)
{
    static atomic_uint joined; /* the generation that has, + 1 */
    unsigned generation = ddl__generation() + 1;
    if (atomic_load_explicit(&joined, memory_order_relaxed) == generation)
        return true;
    if (syscall(SYS_membarrier, REGISTER_GLOBAL_EXPEDITED, 0, 0))
        return false;
    atomic_store_explicit(&joined, generation, memory_order_relaxed);
    return true;
}

void ddl__fence_heavy(void)
{
    syscall(SYS_membarrier, GLOBAL_EXPEDITED, 0, 0);
}

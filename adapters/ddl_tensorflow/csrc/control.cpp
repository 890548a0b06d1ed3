// SPDX-License-Identifier: Apache-2.0
// Functions that open and close worlds, called from Python by ctypes.
#include "world.hpp"

#define EXPORT extern "C" __attribute__((visibility("default")))

using ddl_tensorflow::World;

// Let operations use the comm, which the caller keeps, under a number that was not used before.
EXPORT void ddl_tensorflow_open(int64_t number, ddl_comm *comm)
{
    World::open(number, comm);
}

// End all operations. The comms may be destroyed afterwards.
EXPORT void ddl_tensorflow_close(void)
{
    World::close_all();
}

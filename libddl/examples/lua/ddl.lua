-- SPDX-License-Identifier: Apache-2.0
-- The part of ddl.h that the example calls, by LuaJIT's FFI, as Torch 7 programs run it. Arrays are
-- C arrays of floats: ffi.new's, or a torch.FloatTensor's, whose contiguous memory is tensor:data().

local ffi = require "ffi"

ffi.cdef [[
typedef struct ddl_endpoint ddl_endpoint;
typedef struct ddl_comm ddl_comm;
const char *ddl_strerror(int status);
const char *ddl_last_error(void);
int ddl_endpoint_create(const void *config, ddl_endpoint **endpoint);
void ddl_endpoint_destroy(ddl_endpoint *endpoint);
int ddl_rendezvous(ddl_endpoint *endpoint, const char *url, int rank, int size, const void *config,
                   ddl_comm **comm);
void ddl_comm_destroy(ddl_comm *comm);
int ddl_comm_rank(const ddl_comm *comm);
int ddl_comm_size(const ddl_comm *comm);
int ddl_allreduce(ddl_comm *comm, const void *send, void *recv, int64_t count, int dtype, int op,
                  const void *options, void **work);
int ddl_broadcast(ddl_comm *comm, void *buffer, int64_t count, int dtype, int root,
                  const void *options, void **work);
]]

local lib = ffi.load("libddl.so.1")
local F32 = 12
local ops = { sum = 1, average = 2 }

local function check(status)
    if status ~= 0 then
        local kind, reason = ffi.string(lib.ddl_strerror(status)), ffi.string(lib.ddl_last_error())
        error(kind .. ": " .. reason, 0)
    end
end

local Comm = {}
Comm.__index = Comm

-- The comm of all ranks that a launcher has started, such as ddlrun; without one, of this process alone.
-- Raises an error, with the library's message, as all calls do.
function Comm.new()
    local endpoint, comm = ffi.new("ddl_endpoint *[1]"), ffi.new("ddl_comm *[1]")
    check(lib.ddl_endpoint_create(nil, endpoint))
    local self = { endpoint = ffi.gc(endpoint[0], lib.ddl_endpoint_destroy) }
    check(lib.ddl_rendezvous(self.endpoint, nil, -1, 0, nil, comm))
    self.comm = comm[0]
    self.rank, self.size = lib.ddl_comm_rank(self.comm), lib.ddl_comm_size(self.comm)
    return setmetatable(self, Comm)
end

-- Combine the ranks' arrays of `count` floats in place. op: "sum" or "average".
function Comm:allreduce(array, count, op)
    check(lib.ddl_allreduce(self.comm, array, array, count, F32, ops[op or "sum"], nil, nil))
end

-- Give all ranks the root's `count` floats, in place.
function Comm:broadcast(array, count, root)
    check(lib.ddl_broadcast(self.comm, array, count, F32, root, nil, nil))
end

-- Leave. The comm goes before its endpoint, which the garbage collector would not promise.
function Comm:close()
    lib.ddl_comm_destroy(self.comm)
    lib.ddl_endpoint_destroy(ffi.gc(self.endpoint, nil))
end

return Comm

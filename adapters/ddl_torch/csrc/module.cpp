// SPDX-License-Identifier: Apache-2.0
// The Python module, which creates process groups.
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/utils/pybind.h>

#include <pybind11/chrono.h>

#include "backend.hpp"
#include "callbacks.hpp"
#include "shared_memory.hpp"

namespace
{

using ddl_torch::Backend;
using ddl_torch::Group;
using ddl_torch::share;
using ddl_torch::Sharing;
using BackendPtr = c10::intrusive_ptr<c10d::Backend>;

// With the options filled in as PyTorch fills in those of Gloo.
BackendPtr named(c10::intrusive_ptr<Backend> backend, const std::vector<int> &ranks,
                 const std::string &name)
{
    backend->getBackendOptions()->group_name = name;
    backend->getBackendOptions()->global_ranks_in_group.assign(ranks.begin(), ranks.end());
    return backend;
}

// `ranks` are the members' ranks in the default group, empty for that group itself. The default
// group knows its members' addresses, so a subgroup of it needs no exchange through the store.
// PyTorch ensures that either all members have that default group or none has.
BackendPtr create(const c10::intrusive_ptr<c10d::Store> &store, int rank, int size,
                  std::chrono::milliseconds timeout, const std::vector<int> &ranks,
                  const std::string &name, bool reconfigurable, int invariant)
{
    if (reconfigurable) {
        auto backend = c10::make_intrusive<Backend>(store, std::make_unique<ddl_torch::Roster>(),
                                                    rank, size, timeout, invariant);
        return named(std::move(backend), ranks, name);
    }
    std::shared_ptr<Group> group, world = ranks.empty() ? nullptr : Group::world(ranks.at(rank));
    if (world)
        group = world->derive(ranks, name, timeout, invariant);
    if (!group)
        group = Group::join(*store, rank, size, timeout, invariant);
    if (ranks.empty())
        Group::set_world(rank, group);
    return named(
        c10::make_intrusive<Backend>(store, std::move(group), rank, size, timeout, invariant),
        ranks, name);
}

Backend &ours(const BackendPtr &backend)
{
    auto *found = dynamic_cast<Backend *>(backend.get());
    TORCH_CHECK_TYPE(found, "the backend is ", backend->getBackendName(), ", not ddl");
    return *found;
}

} // namespace

PYBIND11_MODULE(_ddl_torch, m)
{
    namespace py = pybind11;
    using no_gil = py::call_guard<py::gil_scoped_release>; // blocking calls must not hold the GIL
    // For ddl_core's metrics and dump: a comm may be read while a Use of its group exists.
    py::class_<Group, std::shared_ptr<Group>>(m, "Group")
        .def_property_readonly("rank", &Group::rank)
        .def_property_readonly("size", &Group::size)
        .def_property_readonly("closed", &Group::closed)
        .def(
            "use",
            [](Group &group) {
                auto use = std::make_unique<Group::Use>(group);
                return *use ? std::move(use) : nullptr;
            },
            py::keep_alive<0, 1>());
    py::class_<Group::Use>(m, "Use").def_property_readonly(
        "comm", [](const Group::Use &use) { return uintptr_t(use.comm()); });
    m.def("groups", &Group::all);
    // The same as PyTorch's own Python types, except for the order of callbacks, and the type of
    // memory that allocateTensor returns to the Reducer.
    using ddl_torch::Callbacks;
    py::class_<Callbacks, std::shared_ptr<Callbacks>>(m, "Callbacks")
        .def("then", &Callbacks::then)
        .def("add_done_callback", &Callbacks::add_done_callback);
    py::class_<ddl_torch::Work, c10::intrusive_ptr<ddl_torch::Work>, c10d::Work>(m, "Work").def(
        "get_future", &ddl_torch::future_of);
    // Gloo's class has `options` and `_set_default_timeout` in addition to the common methods.
    py::class_<Backend, c10::intrusive_ptr<Backend>, c10d::Backend>(m, "Backend")
        .def_property_readonly("options", &Backend::getBackendOptions)
        .def_property_readonly("invariant", &Backend::invariant)
        .def("_set_default_timeout", &Backend::setTimeout, py::arg("timeout"))
        .def(
            "allocate_tensor",
            [](Backend &, int64_t elements, at::ScalarType dtype, const at::Device &device) {
                return ddl_torch::empty_shared(elements, at::device(device).dtype(dtype));
            },
            py::arg("size"), py::kw_only(), py::arg("dtype"), py::arg("device"))
        .def(
            "reduce_parts",
            [](Backend &backend, const ddl_torch::Tensors &parts, const at::Tensor &output,
               uintptr_t order, int op, bool scatters) {
                return backend.reduce_parts(parts, output, reinterpret_cast<ddl_order *>(order),
                                            ddl_op(op), scatters);
            },
            no_gil(), py::arg("parts"), py::arg("output"), py::arg("order"), py::arg("op"),
            py::arg("scatters"))
        .def(
            "allreduce_packed",
            [](Backend &backend, const at::Tensor &tensor, const at::Tensor &residual, int op,
               int wire) {
                return backend.allreduce_packed(tensor, residual, ddl_op(op), uint32_t(wire));
            },
            no_gil(), py::arg("tensor"), py::arg("residual"), py::arg("op"), py::arg("wire"))
        .def(
            "reduce_scatter_packed",
            [](Backend &backend, const at::Tensor &input, const at::Tensor &output,
               const at::Tensor &residual, int op, int wire) {
                return backend.reduce_scatter_packed(input, output, residual, ddl_op(op),
                                                     uint32_t(wire));
            },
            no_gil(), py::arg("input"), py::arg("output"), py::arg("residual"), py::arg("op"),
            py::arg("wire"));
    m.def("create", &create, no_gil(), py::arg("store"), py::arg("rank"), py::arg("size"),
          py::arg("timeout"), py::arg("ranks"), py::arg("name"), py::arg("reconfigurable"),
          py::arg("invariant"));
    // A group that torch.distributed does not know, so that no subgroup is derived from it.
    // torchft's chains of callbacks need those of complete futures to run at once.
    m.def(
        "join",
        [](const c10::intrusive_ptr<c10d::Store> &store, int rank, int size,
           std::chrono::milliseconds timeout, const std::string &name, int invariant) {
            auto group = Group::join(*store, rank, size, timeout, invariant);
            group->run_callbacks_at_once();
            return named(c10::make_intrusive<Backend>(store, std::move(group), rank, size, timeout,
                                                      invariant),
                         {}, name);
        },
        no_gil(), py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("timeout"),
        py::arg("name"), py::arg("invariant"));
    m.def(
        "local", [](const BackendPtr &backend) { return ours(backend).local(); }, no_gil(),
        py::arg("backend"));
    m.def(
        "store", [](const BackendPtr &backend) { return ours(backend).store(); },
        py::arg("backend"));
    m.def(
        "share", [](int what) { share(Sharing(what)); }, py::arg("what"));
    m.def("shares", [] { return ddl_torch::shared() != Sharing::none; });
    m.def(
        "empty_shared",
        [](int64_t elements, const at::Tensor &like) {
            return ddl_torch::empty_shared(elements, like.options());
        },
        py::arg("elements"), py::arg("like"));
    m.def("close_all", &Group::close_all, no_gil());
    m.def("library_version", &ddl_version);
}

# SPDX-License-Identifier: Apache-2.0
"""Blocks of a model: modules whose parameters have memory only while they are used.

When a block is not in use, the memory of the parts that this rank does not hold is returned to the
system, but the addresses stay the same, see pages.py. So all views of the parameters stay valid.

A block is in use in its forward pass, and from the moment when its backward pass reads a parameter
until the gradients of all its parameters are computed. Hooks of its modules and of the tensors that
autograd saves read the missing parts from other ranks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from ddl_elastic.sharded.cut import TensorPiece
from ddl_elastic.sharded.reads import Span, merge, subtract
from ddl_elastic.sharded.shards import Shards
from ddl_torch.elastic.block_calls import BlockForward, find_tensors, is_in_backward
from ddl_torch.elastic.guards import FUSED
from ddl_torch.elastic.pages import Pages


class Block:
    """A module whose parameters have memory only while it is used.

    spans     the parts of the arrays with its parameters
    lacking   the parts of the spans that this rank does not hold
    is_whole  True if this rank has all its parameters
    """

    def __init__(self, name: str, module: nn.Module) -> None:
        self.name, self.module = name, module
        self.parameters: list[nn.Parameter] = []  # those that are trained
        self.spans: list[Span] = []
        self.lacking: list[Span] = []
        self.is_whole = True
        self.addresses: list[tuple[int, int]] = []  # of its spans
        self.missing: set[nn.Parameter] = set()  # those without a gradient in this backward pass

    def contains(self, tensor: Tensor) -> bool:
        """Return True if the tensor is in the memory of the block's parameters."""
        if tensor.layout is not torch.strided or not tensor.is_cpu:
            return False
        address = tensor.data_ptr()
        return any(begin <= address < end for begin, end in self.addresses)


class ModelBlocks:
    """The blocks of a model; implements ddl_elastic.sharded.protocol.ParameterBlocks."""

    def __init__(self, model: nn.Module, modules: Iterable[nn.Module], shards: Shards) -> None:
        self._shards = shards
        self._lock = threading.Lock()  # replies have no number, so only one thread may read
        names = {module: name for name, module in model.named_modules()}
        self._blocks = [Block(names[each], each) for each in modules]
        self.rest: list[Span] = []
        self._arrays: Sequence[Pages] = ()
        self._starts: list[list[int]] = []  # by array, of each tensor
        self._parameters: set[nn.Parameter] = set()
        self.are_whole = True  # True while all parameters are kept in memory; equal on all ranks
        for each in self._blocks:
            self._hook(each)

    def lay_out(
        self,
        arrays: Sequence[Pages],
        lengths: Sequence[Sequence[int]],
        at: Mapping[nn.Parameter, tuple[int, int]],
    ) -> None:
        """Set the arrays, the lengths of the tensors in them, and the array and the tensor of each
        parameter."""
        self._arrays, self._starts = arrays, [[0, *accumulate(each)] for each in lengths]
        place = {
            parameter: Span(array, *self._starts[array][tensor : tensor + 2])
            for parameter, (array, tensor) in at.items()
        }
        for block in self._blocks:
            block.parameters = [p for p in block.module.parameters() if p in place]
            block.missing = {*block.parameters}
            self._parameters |= block.missing
            block.spans = merge(place.pop(each) for each in block.parameters)
            for array, begin, end in block.spans:
                part = arrays[array].tensor[begin:end]
                block.addresses.append((part.data_ptr(), part.data_ptr() + part.nbytes))
            for parameter in block.parameters:
                parameter.register_post_accumulate_grad_hook(self._make_accumulated(block))
        self.rest = merge(place.values())

    def hold(self, pieces: Iterable[TensorPiece]) -> None:
        """Set the pieces that this rank holds, and that are kept when a block is not in use."""
        starts = [(each, self._starts[each.array][each.tensor]) for each in pieces]
        held = merge(Span(p.array, start + p.begin, start + p.end) for p, start in starts)
        for block in self._blocks:
            block.lacking = subtract(block.spans, held)
            if not block.is_whole:
                block.is_whole = True
                self._drop(block)

    def __contains__(self, parameter: nn.Parameter) -> bool:
        return parameter in self._parameters

    # ---- the memory of the blocks ----

    def gathered(self) -> None:
        self.are_whole = True
        for block in self._blocks:
            block.is_whole = True

    def drop(self) -> None:
        self.are_whole = False
        self.end()

    def end(self) -> None:
        """End the use of all blocks, after a backward pass."""
        for block in self._blocks:
            block.missing = {*block.parameters}
            self._drop(block)

    def _drop(self, block: Block) -> None:
        if block.is_whole and block.lacking and not self.are_whole:
            block.is_whole = False
            for array, begin, end in block.lacking:
                self._arrays[array].drop(begin, end)

    def use(self, block: Block) -> None:
        """Read the parameters of the block that this rank lacks. Raises RuntimeError outside of a
        step."""
        with self._lock:
            if block.is_whole:
                return
            if self._shards.is_hidden or not self._shards.reads.is_serving:
                raise RuntimeError(
                    f"the block {block.name} is used outside of a step, where this process has"
                    " only its ranges of the parameters. The whole model is there in job.map and"
                    " after job.state()"
                )
            self._shards.read(block.spans)
            block.is_whole = True

    # ---- hooks, as functions that copies of the model can share ----

    def _hook(self, block: Block) -> None:
        fused = (each for each in block.module.modules() if isinstance(each, FUSED))
        inner = {*block.module.modules()} - {part for each in fused for part in each.modules()}
        # By call, with the nodes of its inputs in autograd's graph.
        opened: list[tuple[saved_tensors_hooks, dict[Tensor, Any]]] = []

        def use(*_: Any) -> None:
            self.use(block)

        def use_part(*_: Any) -> None:
            if not (opened or self.are_whole or is_in_backward()):
                raise RuntimeError(
                    f"a part of the block {block.name} is called outside of the block's forward,"
                    " where its parameters have no memory. Call the block, or make the part a block"
                )
            self.use(block)

        def enter(_module: nn.Module, *inputs: Any) -> None:
            self.use(block)
            watch = self._watch_saved(block)
            opened.append((watch, {each: each.grad_fn for each in find_tensors(inputs)}))
            watch.__enter__()

        def close() -> dict[Tensor, Any]:
            watch, inputs = opened.pop()
            watch.__exit__()
            if not (opened or is_in_backward()):  # a block may call itself
                self._drop(block)
            return inputs

        def leave(_module: nn.Module, _inputs: Any, output: Any) -> None:
            if not opened:  # `enter` has failed
                return
            inputs = close()
            known = {None, *inputs.values()}
            for each in (*inputs, *find_tensors(output)):  # inputs may be changed in place
                if each.grad_fn not in known:
                    each.register_hook(use)  # for checkpoints inside of the block

        # The hooks of the program may use parameters, too.
        for each in inner - {block.module}:
            each.register_forward_pre_hook(use_part, prepend=True)
        block.module.register_forward_pre_hook(enter, prepend=True, with_kwargs=True)
        block.module.register_forward_hook(leave, always_call=True)
        block.module.forward = BlockForward(block.module, close)

    def _watch_saved(self, block: Block) -> saved_tensors_hooks:
        """Return hooks that read the block's parameters when its backward pass uses one of them.
        Other tensors are saved by the hooks that the program has set, such as checkpoints."""
        outer = torch._C._autograd._top_saved_tensors_default_hooks(False)

        def pack(tensor: Tensor) -> Any:
            # The tensor itself may refer to the graph, which then would never be freed.
            return tensor.detach(), tensor._version

        def unpack(saved: tuple[Tensor, int]) -> Any:
            tensor, version = saved
            if tensor._version != version:  # autograd does not check it if there are hooks
                raise RuntimeError(
                    f"a tensor of shape {tuple(tensor.shape)} that was saved by the block"
                    f" {block.name} for its backward pass was changed in place: it has version"
                    f" {tensor._version}, not {version}"
                )
            return tensor

        outer_pack, outer_unpack = outer or (pack, unpack)

        def save(tensor: Tensor) -> Any:
            own = block.contains(tensor)
            return own, pack(tensor) if own else outer_pack(tensor)

        def load(saved: tuple[bool, Any]) -> Any:
            own, value = saved
            if own:
                self.use(block)
            return unpack(value) if own else outer_unpack(value)

        return saved_tensors_hooks(save, load)

    def _make_accumulated(self, block: Block) -> Callable[[nn.Parameter], None]:
        def accumulated(parameter: nn.Parameter) -> None:
            if not block.is_whole:
                raise RuntimeError(
                    f"the block {block.name} has computed a gradient without its parameters: use"
                    " them only in its forward, and in checkpoints with use_reentrant=False"
                )
            block.missing.discard(parameter)
            if not block.missing:
                block.missing = {*block.parameters}
                self._drop(block)

        return accumulated

# SPDX-License-Identifier: Apache-2.0
"""Shares and states of frameworks that return their tensors as NumPy arrays."""

import ml_dtypes
import numpy as np
import pytest

from ddl_elastic.frameworks import flat
from ddl_elastic.frameworks.flat import Flat, Spec
from ddl_elastic.frameworks.protocol import Tensor, digest

pytestmark = pytest.mark.pure

SPECS = [
    Spec((2, 3), "float32"),
    Spec((4,), "int32"),
    Spec((), ml_dtypes.bfloat16),
    Spec((2,), "float32", "sum"),
    Spec((0,), "float64"),
]


def tensors(number: float) -> list[np.ndarray]:
    return [np.full(each.shape, number, each.dtype) for each in SPECS]


def test_a_share_has_an_array_for_each_type_and_op() -> None:
    half = Flat()
    half.lay_out(SPECS)
    share = half.take(tensors(3), 0.25, 2)
    assert half.ops() == half.result().ops == ["average", "average", "sum", "average"]
    assert [each.dtype.name for each in share] == ["float32", "int64", "float32", "float64"]
    assert [len(each) for each in share] == [6 + 1 + 2, 4, 2, 0]
    assert all((part == 3).all() for part in share.parts)
    assert share.numbers.tolist() == [0.25, 2]


def test_results_are_in_their_own_types_and_memory() -> None:
    half = Flat()
    half.lay_out(SPECS)
    for array in half.result():
        array.fill(2)
    found = half.results()
    assert [each.dtype for each in found] == [np.dtype(each.dtype) for each in SPECS]
    assert [each.shape for each in found] == [each.shape for each in SPECS]
    assert not any(np.shares_memory(each, array) for each in found for array in half.result())
    assert half.loss == 1  # 2 / 2


def test_shares_that_are_free_are_used_again() -> None:
    half = Flat()
    half.lay_out(SPECS)
    first, second = half.take(tensors(1), 0), half.take(tensors(2), 0)
    assert not np.shares_memory(first[0], second[0])
    half.free(first)
    assert half.take(tensors(3), 0) is first


def test_numbers_without_a_gradient_have_an_array() -> None:
    half = Flat()
    half.lay_out([])
    assert [each.dtype.name for each in half.take([], 1)] == ["float64"]


def test_what_cannot_be_added() -> None:
    half = Flat()
    with pytest.raises(NotImplementedError, match="does not support tensors of complex64"):
        half.lay_out([Spec((1,), "complex64")])
    half.lay_out([])
    with pytest.raises(ValueError, match="weight is -1"):
        half.take([], 0, -1)
    with pytest.raises(NotImplementedError, match="loader_workers is 2"):
        half.prefetch({}, [], 2)


def test_samples_make_a_batch() -> None:
    samples = [{"x": (np.ones(2), number), "y": [float(number)]} for number in range(3)]
    batch = flat.stack(samples)
    assert batch["x"][0].shape == (3, 2)
    assert batch["x"][1].tolist() == [0, 1, 2]
    assert batch["y"][0].tolist() == [0.0, 1.0, 2.0]


def test_a_state_is_read_as_it_was_written() -> None:
    values = {"a": np.arange(6.0).reshape(2, 3).T, "b": np.array(True), "c": np.zeros((0, 2))}
    values["d"] = np.array([1.5, -2], ml_dtypes.bfloat16)
    found = flat.unpack(flat.pack(values), values)
    for name, value in values.items():
        assert found[name].dtype == value.dtype
        np.testing.assert_array_equal(found[name], value)


def test_the_loss_is_in_the_state() -> None:
    first, second = Flat(), Flat()
    first.loss, second.loss = 0.1, 1.0
    plain = flat.pack({"a": np.ones(2)})
    state = first.add_loss(plain)
    assert digest(state) == digest(plain)
    assert flat.unpack(state, {"a": np.ones(2)}).keys() == {"a"}
    second.load_loss(state)
    assert second.loss == 0.1
    second.load_loss(plain)  # of an older version
    assert np.isnan(second.loss)


def test_states_of_other_models() -> None:
    here = {"a": np.zeros(2, np.float32)}
    with pytest.raises(ValueError, match="only one of them has a, b"):
        flat.unpack(flat.pack({"b": here["a"]}), here)
    with pytest.raises(ValueError, match=r"a is float32 \(3,\), here float32 \(2,\)"):
        flat.unpack({"a": Tensor("float32", (3,), np.zeros(12, np.uint8))}, here)

"""The final state's bits do not depend on how many processes there are and who computes what."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest


def test_parts_of_a_model_with_everything(members: Any) -> None:
    """Convolution, batch norm, dropout, augmented samples, AdamW and a schedule; 3 ranks, each of
    whose steps has another map."""
    members.check(members=3, owners="changing")


@pytest.mark.slow
@pytest.mark.parametrize(("model", "optimizer"), [("mlp", "SGD"), ("mlp", "AdamW"), ("cnn", "SGD")])
@pytest.mark.parametrize("owners", ["even", "random", "changing"])
@pytest.mark.parametrize("size", [2, 3, 4])
def test_bits(members: Any, model: str, optimizer: str, owners: str, size: int) -> None:
    members.check(members=size, model=model, optimizer=optimizer, owners=owners)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("owners", "size", "links"),
    [*product(["even", "random", "changing"], [2, 3, 4], ["shm", "tcp"])],
)
def test_bits_of_batch_norm_and_dropout(members: Any, owners: str, size: int, links: str) -> None:
    members.check(members=size, owners=owners, links=[links])


@pytest.mark.slow
@pytest.mark.parametrize("logical", [1, 3, 5, 12])
def test_numbers_of_workers_that_are_no_powers_of_two(members: Any, logical: int) -> None:
    members.check(members=3, logical=logical, batch=2 * logical, owners="changing")


def test_weighted_losses(members: Any) -> None:
    members.check(members=3, owners="changing", weighted=True)


def test_unequal_starts_are_refused(members: Any) -> None:
    case = {"model": "mlp", "batch": 16, "logical": 8, "passes": 1}
    codes, logs = members.run(members=2, initial=[0, 1], **case)
    assert codes == [1, 1]
    for log in logs:
        assert "rank 1 on " in log[-1][1]
        assert "starts from another state than rank 0 on " in log[-1][1]
        assert "Seed the generators before the model is made" in log[-1][1]

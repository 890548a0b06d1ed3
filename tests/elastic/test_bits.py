# SPDX-License-Identifier: Apache-2.0
"""The final state's bits do not depend on the number of processes, nor on which one computes
what."""

from typing import Any

import pytest


def test_parts_of_a_model_with_everything(members: Any) -> None:
    """Convolution, batch norm, dropout, augmented samples, AdamW and a schedule; 3 ranks, with
    another assignment of shares in each step."""
    members.check(members=3, owners="changing")


LOOPS = ["clip", "bf16", "scale", "accumulate", "schedule", "average"]


@pytest.mark.parametrize("loop", LOOPS)
def test_what_programs_do_with_gradients(members: Any, loop: str) -> None:
    case = {"model": "mlp", "batch": 64, "logical": 4, "passes": 2, "loop": loop}
    for size in (2, 3):
        members.check(members=size, bucket_bytes=1, **case)


def test_buffers_as_the_first_share_leaves_them(members: Any) -> None:
    members.check(members=3, owners="changing", buffers="first")


def test_any_buckets(members: Any) -> None:
    for bucket_bytes in (1, 300):
        members.check(members=3, owners="changing", bucket_bytes=bucket_bytes)


@pytest.mark.slow
@pytest.mark.parametrize("links", ["shm", "tcp"])
@pytest.mark.parametrize("owners", ["even", "random", "changing"])
@pytest.mark.parametrize("size", range(1, 9))
@pytest.mark.parametrize("model", ["mlp", "cnn", "transformer"])
def test_bits(members: Any, model: str, size: int, owners: str, links: str) -> None:
    bucket_bytes = 2000 if size % 2 else 25 << 20
    members.check(
        members=size, model=model, owners=owners, links=[links], bucket_bytes=bucket_bytes
    )


@pytest.mark.slow
@pytest.mark.parametrize("model", ["mlp", "cnn", "transformer"])
def test_another_map_in_each_of_200_steps(members: Any, model: str) -> None:
    """32 passes of 203 samples in batches of 32."""
    members.check(members=4, model=model, owners="changing", passes=32)


@pytest.mark.slow
@pytest.mark.parametrize("owners", ["even", "changing"])
@pytest.mark.parametrize("model", ["mlp", "cnn", "transformer"])
def test_bits_of_another_optimizer(members: Any, model: str, owners: str) -> None:
    members.check(members=3, model=model, owners=owners, optimizer="SGD")


@pytest.mark.slow
@pytest.mark.parametrize("model", ["cnn", "transformer"])
@pytest.mark.parametrize("loop", LOOPS)
def test_larger_models_in_any_loop(members: Any, loop: str, model: str) -> None:
    for size in (2, 3):
        members.check(members=size, model=model, loop=loop, bucket_bytes=2000)


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
        assert "start from different states" in log[-1][1]
        assert "Seed the random generators before you make the model" in log[-1][1]

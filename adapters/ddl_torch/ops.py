# SPDX-License-Identifier: Apache-2.0
"""The reductions: libddl's names and the names in torch.distributed.ReduceOp."""

OPS = {
    "sum": "SUM",
    "average": "AVG",
    "min": "MIN",
    "max": "MAX",
    "product": "PRODUCT",
    "bit_and": "BAND",
    "bit_or": "BOR",
    "bit_xor": "BXOR",
}

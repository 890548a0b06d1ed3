# SPDX-License-Identifier: Apache-2.0
"""Compare what libddl takes for NCCL's binary interface with NVIDIA's own header and library, which
need no GPU for that. They are those of the package nvidia-nccl-cu12, or another one of its kind.

    python tests/check_nccl.py
"""

from __future__ import annotations

import ctypes
import importlib.util
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
OURS = ROOT / "libddl/src/device/nccl/nccl.h"

# The header includes two headers of CUDA, of which it uses one type.
CUDA = "#pragma once\ntypedef struct CUstream_st *cudaStream_t;\n"

COMPARISON = """
#include <stddef.h>
#include <nccl.h>
#include "device/nccl/nccl.h"
#define SAME(ours, theirs) _Static_assert((long long)(ours) == (long long)(theirs), #theirs)
SAME(DDL__NCCL_SUCCESS, ncclSuccess);
SAME(DDL__NCCL_IN_PROGRESS, ncclInProgress);
SAME(DDL__NCCL_I8, ncclInt8);
SAME(DDL__NCCL_U8, ncclUint8);
SAME(DDL__NCCL_I32, ncclInt32);
SAME(DDL__NCCL_U32, ncclUint32);
SAME(DDL__NCCL_I64, ncclInt64);
SAME(DDL__NCCL_U64, ncclUint64);
SAME(DDL__NCCL_F16, ncclFloat16);
SAME(DDL__NCCL_F32, ncclFloat32);
SAME(DDL__NCCL_F64, ncclFloat64);
SAME(DDL__NCCL_BF16, ncclBfloat16);
SAME(DDL__NCCL_SUM, ncclSum);
SAME(DDL__NCCL_PRODUCT, ncclProd);
SAME(DDL__NCCL_MAX, ncclMax);
SAME(DDL__NCCL_MIN, ncclMin);
SAME(DDL__NCCL_AVERAGE, ncclAvg);
SAME(sizeof(ddl__nccl_id), sizeof(ncclUniqueId));
SAME(offsetof(ddl__nccl_config, size), offsetof(ncclConfig_t, size));
SAME(offsetof(ddl__nccl_config, magic), offsetof(ncclConfig_t, magic));
SAME(offsetof(ddl__nccl_config, version), offsetof(ncclConfig_t, version));
SAME(offsetof(ddl__nccl_config, blocking), offsetof(ncclConfig_t, blocking));
static const ncclConfig_t initial = NCCL_CONFIG_INITIALIZER;
int compare_magic(void) { return initial.magic == (unsigned)DDL__NCCL_MAGIC; }
SAME(DDL__NCCL_CONFIG, NCCL_VERSION(2, 14, 0));
SAME(DDL__NCCL_OLDEST, NCCL_VERSION(2, 27, 0));
"""


def package() -> Path:
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        if (found := Path(folder) / "nccl").is_dir():
            return found
    sys.exit("NCCL is not found: pip install nvidia-nccl-cu12")


def parameters(text: str, symbol: str) -> int:
    """Return the number of the function's parameters in this header."""
    found = re.search(rf"\b{symbol}\b\s*,?\s*\(([^;]*?)\)[;)]", text)
    assert found, f"{symbol} is not in the header"
    return 0 if found[1].strip() in ("", "void") else found[1].count(",") + 1


def main() -> None:
    nccl = package()
    header = (nccl / "include/nccl.h").read_text()
    with tempfile.TemporaryDirectory() as folder:
        for name in ("cuda_runtime.h", "cuda_fp16.h", "cuda_bf16.h"):
            Path(folder, name).write_text(CUDA)
        source, library = Path(folder, "comparison.c"), Path(folder, "comparison.so")
        source.write_text(COMPARISON)
        includes = [f"-I{each}" for each in (folder, nccl / "include", ROOT / "libddl/src")]
        includes.append(f"-I{ROOT / 'libddl/include'}")
        subprocess.run(["cc", "-shared", "-fPIC", *includes, source, "-o", library], check=True)
        assert ctypes.CDLL(str(library)).compare_magic(), "another magic number"
    real = ctypes.CDLL(str(nccl / "lib/libnccl.so.2"))
    symbols = re.findall(r"X\([\w *]+, \w+, (nccl\w+),", OURS.read_text().replace("\\\n", " "))
    assert len(symbols) > 15, symbols
    for symbol in symbols:
        getattr(real, symbol)
        ours = parameters(OURS.read_text().replace("\\\n", " "), symbol)
        theirs = parameters(header, symbol)
        assert ours == theirs, f"{symbol} has {theirs} parameters, not {ours}"
    version = ctypes.c_int()
    assert real.ncclGetVersion(ctypes.byref(version)) == 0
    print(f"NCCL {version.value}: {len(symbols)} functions are as libddl takes them")


if __name__ == "__main__":
    main()

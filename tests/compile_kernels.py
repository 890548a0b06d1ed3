# SPDX-License-Identifier: Apache-2.0
"""Compile libddl's kernel for GPUs with NVIDIA's compiler, NVRTC, which needs no GPU.

    python tests/compile_kernels.py [ARCH...]    as 80 or 90; default: the oldest and the newest one
                                                 that NVRTC knows, 80 and 90

All pairs of dtype and op must compile without a warning, and load operands in packs of 16 bytes,
except in ordered sums.
NVRTC is that of the package nvidia-cuda-nvrtc-cu12, or another one of its kind.
"""

from __future__ import annotations

import ctypes
import re
import sys
from pathlib import Path

from tqdm import tqdm

from ddl_core.gpu import load_libraries

SOURCES = Path(__file__).resolve().parent.parent / "libddl/src/device"
FLOATS = ("f16", "bf16", "f32", "f64", "f8e4m3", "f8e5m2")
INTEGERS = ("i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64")
ORDERED = ("f16", "bf16", "f32", "f64", *INTEGERS)  # which ordered sums have
OF_ALL = ("sum", "average", "min", "max", "product")
OF_INTEGERS = ("bit_and", "bit_or", "bit_xor", "all", "any", "odd")


def open_nvrtc() -> ctypes.CDLL:
    load_libraries()
    for name in ("libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2"):
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    sys.exit("NVRTC is not found: pip install nvidia-cuda-nvrtc-cu12")


def kernels() -> list[tuple[str, ...]]:
    """The macros of each kernel, as device/reducer.c names them."""
    plain: list[tuple[str, ...]] = [(t, op) for t in FLOATS + INTEGERS for op in OF_ALL]
    plain += [(t, op) for t in INTEGERS for op in OF_INTEGERS]
    ordered = [(t, op, "-DORDERED") for t in ORDERED for op in ("sum", "average")]
    return [(f"-DDTYPE_{t}", f"-DOP_{op}", *more) for t, op, *more in plain + ordered]


def sample_of_archs(nvrtc: ctypes.CDLL) -> list[int]:
    count = ctypes.c_int()
    nvrtc.nvrtcGetNumSupportedArchs(ctypes.byref(count))
    archs = (ctypes.c_int * count.value)()
    nvrtc.nvrtcGetSupportedArchs(archs)
    return sorted({min(archs), 80, 90, max(archs)} & set(archs))


def compile_kernel(nvrtc: ctypes.CDLL, arch: int, macros: tuple[str, ...]) -> str:
    """What is wrong with it; "" if nothing."""
    program = ctypes.c_void_p()
    headers = (ctypes.c_char_p * 1)((SOURCES / "reduction.h").read_bytes())
    names = (ctypes.c_char_p * 1)(b"reduction.h")
    text = (SOURCES / "reduce.cu").read_bytes()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), text, b"reduce.cu", 1, headers, names)
    options = [f"--gpu-architecture=sm_{arch}", "--fmad=false", *macros]
    encoded = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    result = nvrtc.nvrtcCompileProgram(program, len(options), encoded)
    log = text_of(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program)
    ptx = "" if result else text_of(nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX, program)
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    if result or log.strip():
        return f"result {result}: {log}"
    packs = re.search(r"\bld(\.global)?(\.nc)?\.v[24]", ptx)
    return "" if packs or "-DORDERED" in macros else "it loads no packs"


def text_of(size_of: ctypes._FuncPointer, get: ctypes._FuncPointer, program: object) -> str:
    size = ctypes.c_size_t()
    size_of(program, ctypes.byref(size))
    text = ctypes.create_string_buffer(size.value + 1)
    get(program, text)
    return text.value.decode()


def main(names: list[str]) -> int:
    nvrtc = open_nvrtc()
    failed = 0
    wanted = [
        (arch, k) for arch in [int(n) for n in names] or sample_of_archs(nvrtc) for k in kernels()
    ]
    for arch, macros in tqdm(wanted, unit="kernel", disable=None):
        if fault := compile_kernel(nvrtc, arch, macros):
            failed += 1
            print(f"sm_{arch} {' '.join(macros)}: {fault}", flush=True)
    print(f"{len(wanted) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

# SPDX-License-Identifier: Apache-2.0
"""Words of the field that readers search for, and the page that answers. The search lists this page
first, even if the word is not on it."""

from __future__ import annotations

TERMS = {
    "choosing": ["macOS", "Mac", "Windows", "WSL", "InfiniBand", "RDMA", "Gloo or NCCL"],
    "installing": ["pip", "wheel", "conda", "Spack", "Docker", "Python 3.14", "CPU build", "NFS"],
    "launching": ["mpirun", "srun", "Slurm", "torchrun", "multi-node", "hostfile", "ssh"],
    "operating": ["systemd", "upgrade", "helm", "backup", "probe", "daemon"],
    "scheduler": ["queue", "priority", "multi-tenant"],
    "elastic/tutorial": ["fault tolerance", "spot instances", "preemption"],
    "elastic/notebook": ["notebook", "Jupyter", "Colab", "IPython"],
    "elastic/guide": ["checkpoint", "resume"],
    "elastic/rounds": ["DiLoCo", "local SGD", "federated averaging", "slow network"],
    "debugging": [
        "hang",
        "deadlock",
        "stuck",
        "straggler",
        "slow rank",
        "profiler",
        "Perfetto",
        "wrong loss",
    ],
    "faster": ["tuning", "slow", "bucket_cap_mb", "gradient accumulation", "speed up", "bandwidth"],
    "wire": ["gigabit", "compression", "quantization", "fp16_compress_hook", "int8", "bf16"],
    "coming-from": [
        *("autotune", "horovodrun", "NCCL_DEBUG", "NCCL_SOCKET_IFNAME", "NCCL_ALGO"),
        *("GLOO_SOCKET_IFNAME", "HOROVOD_TIMELINE", "MPI_Allreduce", "ncclAllReduce", "mpi4py"),
    ],
    "troubleshooting": ["SIGKILL", "error message", "connection refused", "out of memory"],
    "gpu": ["CUDA", "GPU", "NCCL"],
    "security": ["encryption", "TLS", "token"],
    "reliability": ["timeout", "heartbeat", "metrics", "Prometheus"],
    "languages": ["Fortran", "Rust", "Go", "Lua"],
    "wheel": ["header", "pkg-config", "static library", "find_package", "deb"],
}


def with_terms(page: str, source: str) -> str:
    """Return a page's source with an index entry for each of its terms."""
    terms = TERMS.get(page, [])
    return source + "".join(f"\n```{{index}} ! {term}\n```\n" for term in terms)

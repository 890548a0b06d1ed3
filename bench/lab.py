# SPDX-License-Identifier: Apache-2.0
"""Measure all-reduce between hosts of a lab (tests/lab/lab.py): a single ring and the default
algorithm.

    python3 bench/lab.py --build DIR [--hosts 2,2] [--bytes 67108864] [--rate 1gbit]
                         [--seconds 8] [--rounds 2] [--modes ring,default] [--gloo PYTHON]
                         [--nics 1gbit,500mbit] [--sockets 1,2]

DIR is a build folder of libddl, --hosts the number of ranks on each host. For each round and mode,
prints the best and the median time, and the bytes that a host's links sent for one all-reduce.
--nics gives each host several links, and measures over the first one alone and over all of them.
--sockets lists numbers of sockets for each pair of interfaces. --gloo also measures PyTorch's Gloo,
with the interpreter PYTHON that has it. Needs root.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "lab"))

from lab import Lab  # noqa: E402

GLOO = """
import os, sys, time, torch
import torch.distributed as dist
dist.init_process_group("gloo", init_method="env://")
n, seconds = int(sys.argv[1]) // 4, float(sys.argv[2])
samples, end, go = [], time.time() + seconds, torch.ones(1)
while go.item():
    x = torch.full((n,), dist.get_rank() + 1.0)
    dist.barrier()
    start = time.time()
    dist.all_reduce(x)
    samples.append(time.time() - start)
    assert x[0].item() == x[-1].item() == dist.get_world_size() * (dist.get_world_size() + 1) / 2
    go = torch.ones(1) if time.time() < end else torch.zeros(1)
    dist.broadcast(go, 0)
samples.sort()
if dist.get_rank() == 0:
    best, median = 1e6 * samples[0], 1e6 * samples[len(samples) // 2]
    print(f"best {best:.2f} us, median {median:.2f} us ({len(samples)} samples)")
dist.destroy_process_group()
"""

STREAM = """
import socket, sys, time
size = 1 << 27
if sys.argv[1] == "take":
    s = socket.create_server((sys.argv[2], 7001))
    c, _ = s.accept()
    buffer, got, start = bytearray(1 << 20), 0, None
    while True:
        n = c.recv_into(buffer)
        if not n:
            break
        start = start or time.time()
        got += n
    print(got / (time.time() - start))
else:
    for _ in range(100):
        try:
            c = socket.create_connection((sys.argv[2], 7001))
            break
        except ConnectionRefusedError:
            time.sleep(0.05)
    c.sendall(bytes(size))
"""


def compile_bench(build: Path, to: Path) -> str:
    program = to / "allreduce"
    include = ROOT / "libddl" / "include"
    flags = [f"-I{include}", f"-L{build}", "-lddl", f"-Wl,-rpath,{build}"]
    source = str(ROOT / "bench" / "allreduce.c")
    subprocess.run(["cc", "-O2", source, *flags, "-o", str(program)], check=True)
    return str(program)


def host_of_rank(hosts: list[int]) -> list[int]:
    return [h for h, ranks in enumerate(hosts) for _ in range(ranks)]


def run(lab: Lab, hosts: list[int], command: list[str], env: dict[str, str], limit: float) -> str:
    size = sum(hosts)
    processes = []
    for rank, host in enumerate(host_of_rank(hosts)):
        own = {
            "DDL_RENDEZVOUS": f"tcp://{lab.address(0)}:7000",
            "DDL_RANK": str(rank),
            "DDL_SIZE": str(size),
            "MASTER_ADDR": lab.address(0),
            "MASTER_PORT": "7002",
            "RANK": str(rank),
            "WORLD_SIZE": str(size),
            "GLOO_SOCKET_IFNAME": "eth0",
            "OMP_NUM_THREADS": "1",
        }
        processes.append(lab.start(host, command, {**own, **env}))
    return lab.finish(processes, limit)[0]


def stream_rate(lab: Lab) -> float:
    take = lab.start(0, [sys.executable, "-c", STREAM, "take", lab.address(0)], {})
    give = lab.start(1, [sys.executable, "-c", STREAM, "give", lab.address(0)], {})
    return float(lab.finish([take, give], 60)[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument("--hosts", default="2,2")
    parser.add_argument("--bytes", type=int, default=64 << 20)
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--modes", default="ring,default")
    parser.add_argument("--gloo", metavar="PYTHON")
    parser.add_argument("--nics", metavar="RATES", help="the rate of each interface of a host")
    parser.add_argument("--sockets", default="1")
    arguments = parser.parse_args()
    hosts = [int(n) for n in arguments.hosts.split(",")]
    size, limit = sum(hosts), 60 + 10 * arguments.seconds
    amount = [str(arguments.bytes), str(arguments.seconds)]
    rates = (arguments.nics or arguments.rate).split(",")
    links = [None if rate == "none" else rate for rate in rates]
    with tempfile.TemporaryDirectory() as folder, Lab(len(hosts), links) as lab:
        program = compile_bench(arguments.build.resolve(), Path(folder))
        commands: dict[str, tuple[list[str], dict[str, str]]] = {}
        for mode in arguments.modes.split(","):
            options = {"ring": f"-mode r:{size}", "default": ""}.get(mode, f"-mode {mode}")
            for used in ["eth0", "eth"] if len(links) > 1 else ["eth0"]:
                for sockets in arguments.sockets.split(","):
                    env = {"DDL_OPTIONS": options, "DDL_INTERFACES": used, "DDL_SOCKETS": sockets}
                    name = f"{mode}, {used}, {sockets} socket{'s' if sockets != '1' else ''}"
                    commands[name] = ([program, "0", *amount], env)
        if arguments.gloo:
            commands["gloo"] = ([arguments.gloo, "-c", GLOO, *amount], {})
        if len(hosts) > 1:
            print(f"plain stream: {stream_rate(lab) * 8 / 1e9:.3f} Gbit/s of payload", flush=True)
        best: dict[str, float] = {}
        for number in range(arguments.rounds):
            for name, (command, env) in commands.items():
                before = [lab.sent(h) for h in range(len(hosts))]
                said = run(lab, hosts, command, env, limit)
                carried = max(lab.sent(h) - b for h, b in enumerate(before))
                found = re.search(r"best ([\d.]+) us, median ([\d.]+) us.*\((\d+) samples", said)
                if not found:
                    raise RuntimeError(f"{name}: no result in {said!r}")
                fastest, median, n = float(found[1]), float(found[2]), int(found[3])
                best[name] = min(fastest, best.get(name, fastest))
                print(
                    f"round {number}, hosts {arguments.hosts}, {arguments.bytes} bytes, {name}: "
                    f"best {fastest / 1e3:.2f} ms, median {median / 1e3:.2f} ms, {n} samples; "
                    f"a link sent {carried / n / arguments.bytes:.3f} N each at most",
                    flush=True,
                )
        first = next(iter(best.values()))
        for name, fastest in best.items():
            print(f"{name}: {first / fastest:.2f} times as fast as the first of these")


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""One of several ranks. The last one kills itself while the GPU works; the others get an error,
shrink and continue. The GPU is this machine's, or a stand-in.

    gpu_kills.py FILE

FILE gets the time of the kill. Each survivor prints how long after it was told.
"""

import os
import random
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
import standin_arrays
from standin_arrays import CudaInterfaceArray, Stream

import ddl_core

WORDS = 1 << 20
signal.signal(signal.SIGTERM, signal.SIG_IGN)  # otherwise ddlrun would end the other ranks first
comm = ddl_core.init(ddl_core.Config(timeout=20, operation_timeout=20))
standin_arrays.start()
stream = Stream()
arrays = [CudaInterfaceArray(np.ones(WORDS, np.uint32)) for _ in range(4)]


def die() -> None:
    time.sleep(random.uniform(0, 0.05))
    Path(sys.argv[1]).write_text(repr(time.monotonic()))
    os.kill(os.getpid(), signal.SIGKILL)


comm.allreduce(arrays[0], stream=stream)
try:
    comm.barrier()
    if comm.rank == comm.size - 1:
        threading.Thread(target=die).start()
    while True:
        for work in [comm.allreduce_async(array, stream=stream) for array in arrays]:
            work.wait()
except ddl_core.errors.PeerLost as error:
    told = time.monotonic()
    assert f"rank {comm.size - 1} on " in str(error), error
stream.synchronize()  # it was released
following = comm.shrink()
comm.close()
for array in arrays:
    array.fill(following.rank + 1, stream)
    following.allreduce(array, stream=stream)
    total = following.size * (following.size + 1) // 2
    assert (array.read_in(stream) == total).all(), array.read_in(stream)
print(f"told after {told - float(Path(sys.argv[1]).read_text()):.4f} s", flush=True)
following.close()

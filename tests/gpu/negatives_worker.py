"""One of two ranks that make a communicator, add numbers up, and leave. Started by negatives.py with the environment to be tested.

    python negatives_worker.py RANK WORLD STORE [--late JSON]

``--late``: variables that are set after the first communicator was made, before a second one is.
"""

from __future__ import annotations

import json
import os
import sys

import torch
import torch.distributed as dist


def add(rank: int, world: int, group: object = None) -> None:
    data = torch.full((1 << 14,), rank + 1, dtype=torch.float32, device="cuda")
    dist.all_reduce(data, group=group)
    torch.cuda.synchronize()
    if not bool((data == world * (world + 1) / 2).all()):
        raise SystemExit(f"rank {rank}: wrong sum")


def main() -> None:
    rank, world, store = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method=f"file://{store}", rank=rank, world_size=world)
    add(rank, world)
    if "--late" in sys.argv:
        os.environ.update(json.loads(sys.argv[sys.argv.index("--late") + 1]))
        add(rank, world, dist.new_group(list(range(world))))
    print(f"rank {rank}: sum right", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

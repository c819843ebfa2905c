"""The work of bench/ddp_mlp.toml with PyTorch's DistributedDataParallel over gloo; prints steps/s.

    python3 bench/peers/ddp_mlp.py [PROCESSES [STEPS]]
"""
import os
import socket
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

BATCH, INPUTS, WIDTH, CLASSES, WARM_UP = 64, 784, 1024, 10, 10


def work(rank, processes, steps, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(max(1, os.cpu_count() // processes))
    dist.init_process_group("gloo", rank=rank, world_size=processes)
    torch.manual_seed(1)
    model = torch.nn.Sequential(
        torch.nn.Linear(INPUTS, WIDTH), torch.nn.ReLU(),
        torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU(),
        torch.nn.Linear(WIDTH, CLASSES))
    if processes > 1:
        model = DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs = torch.randn(steps + WARM_UP, BATCH, INPUTS)
    targets = torch.randint(0, CLASSES, (steps + WARM_UP, BATCH))
    for i in range(steps + WARM_UP):
        if i == WARM_UP:
            dist.barrier()
            start = time.perf_counter()
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs[i]), targets[i]).backward()
        optimizer.step()
    dist.barrier()
    if rank == 0:
        print(f"{steps / (time.perf_counter() - start):.1f}", flush=True)
    dist.destroy_process_group()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


if __name__ == "__main__":
    processes = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 200
    mp.spawn(work, args=(processes, steps, free_port()), nprocs=processes)

"""Rotary embedding of DTensors over two processes: rows split by batch, sequence or heads, and nothing is gathered."""

import os
import tempfile

import torch
import torch.distributed as dist
from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh
from torch.distributed.tensor.debug import CommDebugMode

import gyrograd.torch as gt


def run(rank, world_size, file):
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=world_size)
    mesh = init_device_mesh("cpu", (world_size,))
    torch.manual_seed(0)  # the same tensors on every rank
    x, dy = torch.randn(2, 4, 16, 4, 64)  # [B, S, N, D] each
    angles = torch.outer(torch.arange(16.0), 10000.0 ** (-torch.arange(0, 64, 2) / 64))
    cos, sin = (torch.cat([table, table], -1)[None, :, None] for table in (angles.cos(), angles.sin()))

    alone = [tensor.clone().requires_grad_() for tensor in (x, cos, sin)]
    gt.rotary(*alone).backward(dy)
    for name, axis in (("batch", 0), ("sequence", 1), ("heads", 2)):
        rows = distribute_tensor(x, mesh, [Shard(axis)]).requires_grad_()
        tables = [distribute_tensor(table, mesh, [Replicate()]).requires_grad_() for table in (cos, sin)]
        incoming = distribute_tensor(dy, mesh, [Shard(axis)])
        with CommDebugMode() as watched:
            gt.rotary(rows, *tables).backward(incoming)
        dx, dcos = rows.grad.full_tensor(), tables[0].grad.full_tensor()
        is_same = torch.equal(dx, alone[0].grad)
        is_close = torch.allclose(dcos, alone[1].grad, rtol=1e-5, atol=1e-5)
        if rank == 0:
            sums = tables[0].grad.placements[0]
            print(f"{name:8}  collectives {watched.get_total_counts()}  dx the same bits: {is_same}  "
                  f"dcos {sums}, close: {is_close}")  # fmt: skip
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as directory:
        arguments = (2, os.path.join(directory, "meeting"))
        torch.multiprocessing.start_processes(run, arguments, 2, start_method="fork")

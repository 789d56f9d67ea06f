"""A small transformer with gyrograd.torch in its attention, trained by one process or by several."""

import functools

import torch
import torch.distributed as dist
import torch.nn.functional as F
from sharded_checks import mesh_of
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import gyrograd.torch as gt

HEADS, DIM, ROWS, WORDS, BATCH = 4, 8, 6, 11, 8
WIDTH = HEADS * DIM


class Attention(nn.Module):
    """Queries and keys are normed by norm_rope, then turned by rotary_qk with frequencies that are learned."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.q_norm, self.k_norm = (nn.Parameter(torch.rand(DIM) + 0.5) for _ in range(2))
        self.frequencies = nn.Parameter(1000.0 ** -torch.linspace(0, 1, DIM // 2))
        self.register_buffer("positions", torch.arange(float(ROWS)))

    def forward(self, x):
        q, k, v = (layer(x).unflatten(-1, (-1, DIM)) for layer in (self.q, self.k, self.v))
        q = gt.norm_rope(q, self.q_norm, norm_type="rms_affine").y
        k = gt.norm_rope(k, self.k_norm, norm_type="rms_affine").y
        angles = self.positions[:, None] * self.frequencies[None]
        cos, sin = angles.cos()[None, None], angles.sin()[None, None]
        q, k = gt.rotary_qk(q, k, cos, sin, per_pair_tables=True)
        weights = (q @ k.transpose(-1, -2) * DIM**-0.5).softmax(-1)
        rows = (weights @ v.transpose(1, 2)).transpose(1, 2)
        return self.out(rows.flatten(2))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = Attention()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        x = x + self.attention(x)
        return x + self.down(F.silu(self.up(x)))


class Transformer(nn.Module):
    def __init__(self, dtype=torch.float32):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.Sequential(Block(), Block())
        self.head = nn.Linear(WIDTH, WORDS)
        self.to(dtype)

    def forward(self, tokens):
        return self.head(self.blocks(self.embedding(tokens)))


def batches(steps):
    """Words that say the next one: w, 2w + 1, ..."""
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        words = [torch.randint(WORDS, (BATCH,), generator=generator)]
        while len(words) <= ROWS:
            words.append((2 * words[-1] + 1) % WORDS)
        rows = torch.stack(words, 1)
        yield rows[:, :-1], rows[:, 1:]


def train(model, loss_of, steps):
    """The loss of each step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.8)
    losses = []
    for tokens, targets in batches(steps):
        loss = loss_of(model, tokens, targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return losses


def loss_of_all(model, tokens, targets):
    return F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())


def loss_of_part(model, tokens, targets):
    """Of this rank's sequences."""
    rank, count = dist.get_rank(), dist.get_world_size()
    return loss_of_all(model, tokens.chunk(count)[rank], targets.chunk(count)[rank])


def mean_of_ranks(losses):
    losses = torch.stack(losses)
    dist.all_reduce(losses)
    return (losses / dist.get_world_size()).tolist()


def alone(steps):
    return [loss.item() for loss in train(Transformer(), loss_of_all, steps)]


def data_parallel(steps):
    return mean_of_ranks(train(DistributedDataParallel(Transformer()), loss_of_part, steps))


def fully_sharded(steps):
    model = Transformer()
    mesh = mesh_of((dist.get_world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return mean_of_ranks(train(model, loss_of_part, steps))


def with_split_heads(model, mesh):
    """Tensor parallel: columns of q, k, v and up, rows of out and down; all activations are DTensors."""
    columns = functools.partial(ColwiseParallel, use_local_output=False)
    rows = functools.partial(RowwiseParallel, use_local_output=False)
    for block in model.blocks:
        plan = {f"attention.{name}": columns() for name in "qkv"} | {"up": columns()}
        parallelize_module(block, mesh, plan | {"attention.out": rows(), "down": rows()})
    return distribute_module(model, mesh)


def tensor_parallel(steps):
    mesh = mesh_of((dist.get_world_size(),))

    def loss_of(model, tokens, targets):
        tokens, targets = (distribute_tensor(part, mesh, [Replicate()]) for part in (tokens, targets))
        return loss_of_all(model, tokens, targets)

    losses = train(with_split_heads(Transformer(), mesh), loss_of, steps)
    return [loss.full_tensor().item() for loss in losses]

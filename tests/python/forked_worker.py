"""A program of its own: a DataLoader's worker, forked after this process has used its threads, turns rows and gives
the same bits. A worker that waited for its parent's threads would hang.
"""

import torch

import gyrograd as gg
import gyrograd.torch as gt


def results(seed):
    """Of the differentiable call, and of a plain one that asks for two threads; rows enough for both to work."""
    generator = torch.Generator().manual_seed(seed)
    x, dy = torch.randn(2, 4, 128, 4, 64, generator=generator)
    cos, sin = torch.randn(2, 1, 128, 1, 64, generator=generator)
    leaves = [tensor.clone().requires_grad_() for tensor in (x, cos, sin)]
    y = gt.rotary(*leaves)
    gradients = torch.autograd.grad(y, leaves, dy)
    return [y.detach(), *gradients, *gg.rotary_backward(dy, cos, sin, x, threads=2)]


class Turned(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, i):
        return results(i)


if __name__ == "__main__":
    want = [results(i) for i in range(4)]
    loader = torch.utils.data.DataLoader(
        Turned(), batch_size=None, num_workers=1, multiprocessing_context="fork", timeout=60
    )
    for got, expected in zip(loader, want, strict=True):
        assert all(map(torch.equal, got, expected))
    print("the same bits")

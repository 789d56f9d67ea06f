"""The gradients of rotary position embedding for PyTorch tensors in bfloat16, checked against autograd."""

import torch

import gyrograd as gg

torch.manual_seed(0)
x = torch.randn(2, 16, 4, 64, dtype=torch.bfloat16)
dy = torch.randn_like(x)
angles = torch.outer(torch.arange(16.0), 10000.0 ** (-torch.arange(0, 64, 2) / 64))
angles = torch.cat([angles, angles], dim=-1)[None, :, None, :]
cos, sin = angles.cos(), angles.sin()  # float32 tables beside bfloat16 tensors

dx, dcos, dsin = gg.rotary_backward(dy, cos, sin, x, mode="half")
print(dx.dtype, tuple(dx.shape), dcos.dtype, tuple(dcos.shape))

# The same by autograd, in float32.
leaf = x.float().requires_grad_()
x1, x2 = leaf.chunk(2, dim=-1)
y = leaf * cos + torch.cat([-x2, x1], dim=-1) * sin
y.backward(dy.float())
print("largest difference from autograd:", (dx.float() - leaf.grad).abs().max().item())
assert torch.equal(dx, leaf.grad.bfloat16())

"""The gradients of rotary position embedding for NumPy arrays, checked against a finite difference."""

import numpy as np

import gyrograd as gg

# A small batch as attention sees it: [batch, sequence, heads, head_dim]; one table row for every position.
rng = np.random.default_rng(0)
x = rng.standard_normal((2, 16, 4, 64))
frequencies = 10000.0 ** (-np.arange(0, 64, 2) / 64)
angles = np.outer(np.arange(16), frequencies)
angles = np.concatenate([angles, angles], axis=-1)[None, :, None, :]  # half mode: both members of a pair turn alike
cos, sin = np.cos(angles), np.sin(angles)

y = gg.rotary(x, cos, sin, mode="half")
dy = y  # the gradient of the loss sum(y**2) / 2
dx, dcos, dsin = gg.rotary_backward(dy, cos, sin, x, mode="half")

step = 1e-6
bumped = x.copy()
bumped[1, 3, 2, 5] += step
change = np.sum(gg.rotary(bumped, cos, sin) ** 2 - y**2) / 2 / step
print(f"dx {dx.shape}, dcos {dcos.shape}, dsin {dsin.shape}")
print(f"one element of dx: {dx[1, 3, 2, 5]:.4f}; by finite difference: {change:.4f}")
assert abs(dx[1, 3, 2, 5] - change) < 1e-3

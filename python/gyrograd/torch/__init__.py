"""Differentiable operators for PyTorch on the CPU: rotary position embedding, and norm + rotary + concatenation.

Importing this module registers torch.ops.gyrograd; `import gyrograd` alone imports no PyTorch.
"""

from gyrograd.torch._norm_rope import norm_rope, norm_rope_concat
from gyrograd.torch._rotary import npu_rotary_mul, rotary, rotary_qk

__all__ = ["norm_rope", "norm_rope_concat", "npu_rotary_mul", "rotary", "rotary_qk"]

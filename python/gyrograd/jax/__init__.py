"""Differentiable operators for JAX on the CPU: rotary position embedding, and norm + rotary + concatenation.

Importing this module registers the operators' custom calls with XLA; `import gyrograd` alone imports no JAX.
"""

from gyrograd.jax._norm_rope import norm_rope, norm_rope_concat
from gyrograd.jax._rotary import rotary, rotary_qk

__all__ = ["norm_rope", "norm_rope_concat", "rotary", "rotary_qk"]

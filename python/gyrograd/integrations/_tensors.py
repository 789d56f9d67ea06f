"""Which tensors gyrograd takes; others are the stock functions'."""

from typing import Any

import torch
from torch.autograd import forward_ad

_TYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
_PLAIN = (torch.Tensor, torch.nn.Parameter)
# Stand for plain tensors while a program is traced.
_TRACED = ("torch._subclasses.fake_tensor", "torch._subclasses.functional_tensor")


def is_taken(*tensors: Any) -> bool:
    """Whether gyrograd takes tensors of this kind: strided, on the CPU, of its types, no subclass, no tangents."""
    if forward_ad._current_level >= 0:
        return False
    for tensor in tensors:  # no generator: small calls are measured in microseconds
        kind = type(tensor)
        if kind not in _PLAIN and not (isinstance(tensor, torch.Tensor) and kind.__module__ in _TRACED):
            return False
        if not tensor.is_cpu or tensor.dtype not in _TYPES:
            return False
        if tensor.layout is not torch.strided or tensor.is_nested:
            return False
    return True


def fits(x: torch.Tensor, table: torch.Tensor) -> bool:
    """Whether a table of x's rank broadcasts to x's rows."""
    rows, extents = x.shape, table.shape
    for axis in range(len(rows) - 1):  # noqa: SIM110 - as above
        if extents[axis] != 1 and extents[axis] != rows[axis]:
            return False
    return True


def with_rank(table: torch.Tensor, rank: int) -> torch.Tensor:
    """As broadcasting reads it: with axes of extent 1 before its own."""
    return table[(None,) * (rank - table.dim())] if table.dim() < rank else table

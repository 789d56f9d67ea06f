"""DTensors as the operators meet them: when their sharding rules are registered, and where their sums are rounded."""

import functools
import importlib
import sys
from typing import Any

import torch

_MODULE = "torch.distributed.tensor"
_NARROW = (torch.bfloat16, torch.float16)


def is_sharded(tensor: object) -> bool:
    """Whether it is a DTensor. There is none before its module is imported, which takes longer than all of ours."""
    module = sys.modules.get(_MODULE)
    return module is not None and isinstance(tensor, module.DTensor)


def register_rules_once() -> None:
    """Registers the sharding rules, where DTensor's module has been imported."""
    if _MODULE in sys.modules:
        _register_rules()


@functools.cache
def _register_rules() -> None:
    importlib.import_module("gyrograd.torch._sharding_rules")


# ---- gradients of tables and weights of 16 bits: float32 on each rank, reduced, then rounded once


def widened_if_sharded(*tensors: torch.Tensor | None) -> list[torch.Tensor | None]:
    """DTensors of 16 bits as float32, which changes no value; others as they are."""
    return [
        tensor.float() if tensor is not None and tensor.dtype in _NARROW and is_sharded(tensor) else tensor
        for tensor in tensors
    ]


def reduced(gradient: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor | None:
    """A widened tensor's gradient in the tensor's own type. One of that type already stays, Partial or not."""
    if gradient is None or gradient.dtype == dtype:
        return gradient
    from torch.distributed.tensor import Replicate

    placements = [Replicate() if placement.is_partial() else placement for placement in gradient.placements]
    return gradient.redistribute(placements=placements).to(dtype)


class _AsFloat32(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        ctx.dtype = tensor.dtype
        return tensor.float()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor | None:
        return reduced(gradient, ctx.dtype)


def as_float32(tensor: torch.Tensor) -> torch.Tensor:
    """tensor.float(), differentiable."""
    if tensor.dtype in _NARROW and is_sharded(tensor):
        return _AsFloat32.apply(tensor)
    return tensor.float()

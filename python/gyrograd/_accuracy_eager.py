"""The usual formulas in PyTorch's eager operators, and their gradients by autograd, for `gyrograd accuracy` to compare
with. NumPy arrays in and out.
"""

from typing import Any

import ml_dtypes
import numpy as np
import torch

from gyrograd._accuracy_families import Arrays
from gyrograd._check_norm_rope_concat import EPS, Problem
from gyrograd._norm_rope_names import JOINTS, NORMS


def rotary_gradients(tensors: Arrays, mode: str) -> Arrays:
    """dx, dcos and dsin."""
    dy, x, cos, sin = (_tensor(tensors[name]) for name in ("dy", "x", "cos", "sin"))
    leaves = [tensor.requires_grad_() for tensor in (x, cos, sin)]
    gradients = torch.autograd.grad(_rotated(x, cos, sin, mode), leaves, dy)
    return dict(zip(("dx", "dcos", "dsin"), map(_array, gradients), strict=True))


def joint_gradients(problem: Problem, arrays: Arrays) -> Arrays:
    """Every gradient of the problem's rows, weights and biases, for the joints whose incoming gradients are there."""
    joints = [joint for joint in JOINTS if f"grad_{joint}_output" in arrays]
    leaves = _leaves(problem, arrays)
    outputs = [_joint(problem, joint, leaves, arrays) for joint in joints]
    incoming = [_tensor(arrays[f"grad_{joint}_output"]) for joint in joints]
    gradients = torch.autograd.grad(outputs, list(leaves.values()), incoming)
    return dict(zip(leaves, map(_array, gradients), strict=True))


def _leaves(problem: Problem, arrays: Arrays) -> dict[str, Any]:
    leaves = {name: _tensor(arrays[name]) for name in arrays if name in NORMS or name.endswith("_weight")}
    for name in [name for name in leaves if name.endswith("_weight") and problem.norm_type == "layer_affine"]:
        leaves[name.replace("weight", "bias")] = torch.zeros_like(leaves[name])
    for stream in ("", "encoder_"):
        if "grad_value_output" in arrays and f"{stream}key" in leaves:
            leaves[f"{stream}value"] = torch.zeros_like(leaves[f"{stream}key"])
    return {name: leaf.requires_grad_() for name, leaf in leaves.items()}


def _joint(problem: Problem, joint: str, leaves: dict[str, Any], arrays: Arrays) -> Any:
    """The forward of one joint sequence, [B, N, S, D]."""
    streams = [name for name in (joint, f"encoder_{joint}") if name in leaves]
    if problem.concat_order == "encoder_first":
        streams.reverse()
    rows = torch.cat([_normed(problem, stream, leaves, arrays) for stream in streams], dim=1).transpose(1, 2)
    if joint == "value" or problem.rope_type == "none":
        return rows
    cos, sin = (_tensor(arrays[name]) for name in ("rope_cos", "rope_sin"))
    turned = _rotated(rows[:, :, : problem.seq_rope], cos, sin, problem.rope_type)
    return torch.cat([turned, rows[:, :, problem.seq_rope :]], dim=2)


def _normed(problem: Problem, stream: str, leaves: dict[str, Any], statistics: Arrays) -> Any:
    rows = leaves[stream]
    if not problem.is_normed(stream):
        return rows
    weight, bias = (leaves.get(f"{NORMS[stream]}_{parameter}") for parameter in ("weight", "bias"))
    if problem.norm_type.startswith("layer"):
        mean, rstd = (statistics[f"{NORMS[stream]}_{name}"] for name in ("mean", "rstd"))
        return _LayerNorm.apply(rows, weight, bias, mean, rstd)
    wide = rows.double() if rows.dtype == torch.float64 else rows.float()
    normed = (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPS)).to(rows.dtype)
    return normed if weight is None else (weight * normed).to(rows.dtype)


class _LayerNorm(torch.autograd.Function):
    """PyTorch's layer norm. Its backward is PyTorch's, with the mean and rstd that the library is given, in the type
    that PyTorch saves its own in.
    """

    @staticmethod
    def forward(context: Any, rows: Any, weight: Any, bias: Any, *statistics: np.ndarray) -> Any:
        y, mean, _ = torch.native_layer_norm(rows, rows.shape[-1:], weight, bias, EPS)
        context.save_for_backward(rows, weight, bias, *(_tensor(array).to(mean.dtype) for array in statistics))
        return y

    @staticmethod
    def backward(context: Any, dy: Any) -> Any:
        rows, weight, bias, mean, rstd = context.saved_tensors
        wanted = [True, weight is not None, bias is not None]
        gradients = torch.ops.aten.native_layer_norm_backward(
            dy, rows, rows.shape[-1:], mean, rstd, weight, bias, wanted
        )
        return *gradients, None, None


def _rotated(x: Any, cos: Any, sin: Any, mode: str) -> Any:
    if mode == "interleave-half":
        x, mode = torch.cat([x[..., ::2], x[..., 1::2]], dim=-1), "half"
    if mode == "interleave":
        partner = torch.stack([-x[..., 1::2], x[..., ::2]], dim=-1).flatten(-2)
    else:
        parts = x.chunk(4 if mode == "quarter" else 2, dim=-1)
        partner = torch.cat([part for a, b in zip(parts[::2], parts[1::2], strict=True) for part in (-b, a)], dim=-1)
    return (x * cos + partner * sin).to(x.dtype)


def _tensor(array: np.ndarray) -> Any:
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(np.ascontiguousarray(array).view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(array.copy())


def _array(tensor: Any) -> np.ndarray:
    if tensor.dtype == torch.bfloat16:
        return tensor.contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()

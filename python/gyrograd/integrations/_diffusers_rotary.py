"""The rotary embeddings of diffusers by gyrograd: each `make` takes the stock function and returns its replacement.

What gyrograd does not take (other devices, float64, 16-bit tables beside float32, tensor subclasses, forward-mode
tangents) goes to the stock function.
"""

from collections.abc import Callable
from typing import Any

import torch

from gyrograd.integrations._switch import otherwise
from gyrograd.integrations._tensors import fits, is_taken
from gyrograd.torch import rotary

Call = Callable[..., Any]

TYPES = (torch.float32, torch.bfloat16, torch.float16)  # float64 is computed in float32 by diffusers


def are_rows(*tensors: Any) -> bool:
    """Whether they are activations of one type that gyrograd takes in the stock functions' meaning."""
    first = tensors[0]
    return is_taken(*tensors) and first.dtype in TYPES and all(one.dtype == first.dtype for one in tensors)


def projected_type(rows: torch.Tensor) -> torch.dtype:
    """The type that projections of these rows have; autocast leaves float64."""
    casts = torch.is_autocast_enabled("cpu") and rows.dtype != torch.float64
    return torch.get_autocast_dtype("cpu") if casts else rows.dtype


def are_tables(rows: torch.dtype, cos: Any, sin: Any) -> bool:
    """Whether they are a pair of tables whose type goes with that of the rows."""
    return (
        is_taken(cos, sin) and cos.shape == sin.shape and cos.dtype == sin.dtype and cos.dtype in (rows, torch.float32)
    )


def parts(tables: Any) -> tuple[torch.Tensor, torch.Tensor] | None:
    """cos and sin, views of complex64 tables, float32 copies of complex128 ones; None where they are something else."""
    if not isinstance(tables, torch.Tensor) or tables.dtype not in (torch.complex64, torch.complex128):
        return None
    return tables.real.float(), tables.imag.float()


def _turned(rows: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, mode: str, per_pair: bool) -> torch.Tensor | None:
    """The rows turned, or None where gyrograd does not take them; tables of the rows' rank."""
    if not (are_rows(rows) and are_tables(rows.dtype, cos, sin)) or cos.dim() != rows.dim() or not fits(rows, cos):
        return None
    if rows.shape[-1] % 2 or rows.shape[-1] != cos.shape[-1] * (2 if per_pair else 1):
        return None
    swaps = rows.dim() == 4 and rows.stride(1) < rows.stride(2)  # the result has the rows' memory order, as stock's has
    if swaps:
        rows, cos, sin = (one.transpose(1, 2) for one in (rows, cos, sin))
    turned = rotary(rows, cos, sin, mode, per_pair_tables=per_pair)
    return turned.transpose(1, 2) if swaps else turned


# ---- embeddings.apply_rotary_emb, and Qwen-Image's copy of its complex form

_REAL_MODES = {-1: "interleave", -2: "half"}


def _real(x: Any, tables: Any, unbind_dim: int, sequence_dim: int) -> torch.Tensor | None:
    if not (isinstance(tables, (tuple, list)) and len(tables) == 2) or unbind_dim not in _REAL_MODES:
        return None
    cos, sin = tables
    if sequence_dim not in (1, 2) or not is_taken(x, cos, sin) or x.dim() != 4 or cos.dim() != 2 or sin.dim() != 2:
        return None
    axis = 0 if sequence_dim == 2 else 1  # of the heads, beside the positions
    return _turned(x, cos.unsqueeze(axis)[None], sin.unsqueeze(axis)[None], _REAL_MODES[unbind_dim], False)


def _complex(x: Any, tables: Any, heads_axis: int) -> torch.Tensor | None:
    """heads_axis: where the tables get an axis for heads."""
    pair = parts(tables)
    if pair is None or x.dim() != 4 or tables.dim() != heads_axis + 1:
        return None
    cos, sin = (part.unsqueeze(heads_axis) for part in pair)
    if heads_axis == 1:
        cos, sin = cos[None], sin[None]
    return _turned(x, cos, sin, "interleave", True)


def embeddings_rotary(stock: Call) -> Call:
    """Real tables [S, D] of neighbours or halves, or complex ones [B, S, D/2]."""

    @otherwise(stock)
    def apply_rotary_emb(
        x: Any, freqs_cis: Any, use_real: bool = True, use_real_unbind_dim: int = -1, sequence_dim: int = 2
    ) -> Any:
        return _real(x, freqs_cis, use_real_unbind_dim, sequence_dim) if use_real else _complex(x, freqs_cis, 2)

    return apply_rotary_emb


def qwen_rotary(stock: Call) -> Call:
    """Complex tables [S, D/2]; the real form, which no model calls, stays stock."""

    @otherwise(stock)
    def apply_rotary_emb_qwen(x: Any, freqs_cis: Any, use_real: bool = True, use_real_unbind_dim: int = -1) -> Any:
        return None if use_real else _complex(x, freqs_cis, 1)

    return apply_rotary_emb_qwen


# ---- LTX: tables over all channels of a position, before the heads are split


def ltx_rotary(stock: Call) -> Call:
    @otherwise(stock)
    def apply_rotary_emb(x: Any, freqs: Any) -> Any:
        if isinstance(freqs, (tuple, list)) and len(freqs) == 2 and isinstance(x, torch.Tensor) and x.dim() == 3:
            return _turned(x, *freqs, "interleave", False)
        return None

    return apply_rotary_emb


# ---- Wan: one cos and one sin for a pair, in tables of full width


def wan_turned(rows: torch.Tensor, cos: Any, sin: Any) -> torch.Tensor | None:
    """rows [B, S, N, D]; cos of the pairs' first members, sin of their second; None where gyrograd takes none of it."""
    if not is_taken(cos, sin) or rows.dim() != 4:
        return None
    return _turned(rows, cos[..., 0::2], sin[..., 1::2], "interleave", True)

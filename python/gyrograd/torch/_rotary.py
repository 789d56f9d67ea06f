"""Differentiable rotary position embedding: of one tensor, of queries and keys, and under torch_npu's name."""

from collections.abc import Iterable
from typing import Any

import torch

from gyrograd import _core
from gyrograd._types import Mode
from gyrograd.torch._options import ROWS, in_schema, name_of
from gyrograd.torch._paths import (
    PLAIN_TYPES,
    NotPlain,
    check_tensors,
    is_direct_backward,
    is_unobserved,
    is_unobserved_backward,
    plain_apply,
    refuse_whole_shapes,
    renamed,
    require_tensors,
)
from gyrograd.torch._rotary_operators import (
    OPTIONS,
    ROTARY,
    compute_rotary,
    compute_rotary_backward,
    differentiable_backward,
)

_plain_rotary = _core.plain_rotary
_plain_rotary_backward = _core.plain_rotary_backward
_plain_rotary_qk = _core.plain_rotary_qk
_plain_rotary_qk_backward = _core.plain_rotary_qk_backward
_num_threads = torch.get_num_threads
_is_grad_enabled = torch.is_grad_enabled
_MODES = ("half", "interleave", "quarter", "interleave-half")
_REFUSALS = (TypeError, ValueError, NotImplementedError, MemoryError)


def rotary(
    x: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    mode: Mode = "half",
    *,
    per_pair_tables: bool = False,
    rotary_dim: int | None = None,
    rotary_offset: int = 0,
) -> torch.Tensor:
    """Rotary position embedding, differentiable in x, cos and sin, any number of times.

    Args:
      x: the tensor to rotate, any rank >= 1, channels last. Any strides: views are read in place.
      cos, sin: the tables; x's rank, each extent x's or 1, the last one R (R/2 with per_pair_tables).
      mode: "half" (0), "interleave" (1), "quarter" (2) or "interleave-half" (3): which channels pair.
      per_pair_tables: one table value for both members of a pair.
      rotary_dim: R, the number of channels that turn (default: all); the others pass.
      rotary_offset: the first channel that turns.

    Types: x is float64, float32, float16 or bfloat16; the tables of the same type, or float32 beside float16 and
    bfloat16. All on the CPU.

    Returns:
      A new contiguous tensor with x's shape and type. Gradients have the types and shapes of their tensors, those of
      the tables summed over every axis where the tables have extent 1; only those that are asked for are computed.

    Raises:
      TypeError: an argument is no tensor of the types above, or types do not go together.
      ValueError: a shape or an option is refused, or a tensor is not on the CPU.
      NotImplementedError: a tensor carries a forward-mode tangent.
    """
    options = (mode, per_pair_tables, rotary_dim, rotary_offset)
    if is_unobserved() and type(x) in PLAIN_TYPES and type(cos) in PLAIN_TYPES and type(sin) in PLAIN_TYPES:
        try:
            if _is_grad_enabled():
                follows_tables = cos.requires_grad or sin.requires_grad
                if follows_tables or x.requires_grad:
                    return _apply_rotary(x, cos, sin, follows_tables, options)
            return _turn_plain(x, cos, sin, options)
        except NotPlain:
            pass
    require_tensors("rotary", x=x, cos=cos, sin=sin)
    check_tensors("rotary", x=x, cos=cos, sin=sin)
    return _turn_registered(x, cos, sin, *options)


def rotary_qk(
    q: torch.Tensor,
    k: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    mode: Mode = "half",
    *,
    per_pair_tables: bool = False,
    rotary_dim: int | None = None,
    rotary_offset: int = 0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """rotary of queries and keys by the same tables, as one node of autograd's graph.

    Args:
      q, k: of one rank; head counts and any other extents may differ as long as the tables broadcast to both.
      cos, sin, mode, per_pair_tables, rotary_dim, rotary_offset: as in rotary.

    Returns:
      (rotary(q, ...), rotary(k, ...)). The tables' gradients are the sums of both.

    Raises:
      TypeError, ValueError, NotImplementedError: as rotary.
    """
    options = (mode, per_pair_tables, rotary_dim, rotary_offset)
    if is_unobserved() and PLAIN_TYPES.issuperset((type(q), type(k), type(cos), type(sin))):
        try:
            if _is_grad_enabled() and (q.requires_grad or k.requires_grad or cos.requires_grad or sin.requires_grad):
                return _apply_rotary_pair(q, k, cos, sin, options)
            return _turn_plain_pair(_plain_rotary_qk, q, k, cos, sin, options)
        except NotPlain:
            pass
    require_tensors("rotary_qk", q=q, k=k, cos=cos, sin=sin)
    check_tensors("rotary_qk", q=q, k=k, cos=cos, sin=sin)
    rows = "q"
    try:
        of_q = _turn_registered(q, cos, sin, *options)
        rows = "k"
        return of_q, _turn_registered(k, cos, sin, *options)
    except _REFUSALS as error:
        raise renamed(error, "rotary_qk", {"x": rows}) from None


def npu_rotary_mul(input: torch.Tensor, r1: torch.Tensor, r2: torch.Tensor, rotary_mode: str = "half") -> torch.Tensor:
    """torch_npu.npu_rotary_mul on the CPU: r1 * input + r2 * rotated(input), differentiable in all three.

    Args:
      input: [B, N, S, D], [B, S, N, D] or [S, B, N, D]; any other rank, too.
      r1, r2: cos and sin; each extent input's or 1, the last one D.
      rotary_mode: "half", rotated(x) = cat(-x2, x1) of the halves, or "interleave", the same of neighbours.

    Returns:
      A new tensor with input's shape and type.

    Raises:
      ValueError: rotary_mode is another. TypeError, ValueError, NotImplementedError: as rotary.
    """
    if not isinstance(rotary_mode, str) or rotary_mode not in _MODES[:2]:
        raise ValueError(f"npu_rotary_mul: rotary_mode is {rotary_mode!r}; it must be 'half' or 'interleave'")
    try:
        return rotary(input, r1, r2, rotary_mode)
    except _REFUSALS as error:
        raise renamed(error, "npu_rotary_mul", {"x": "input", "cos": "r1", "sin": "r2"}) from None


def _turn_plain(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, options: tuple[Any, ...]) -> torch.Tensor:
    y: torch.Tensor = _plain_rotary(x, cos, sin, options, _num_threads())
    if y is NotImplemented:
        raise NotPlain
    return y


def _turn_plain_pair(turn: Any, q: Any, k: Any, cos: Any, sin: Any, options: tuple[Any, ...]) -> tuple[Any, Any]:
    """Both side by side, which reads the tables once."""
    pair: tuple[torch.Tensor, torch.Tensor] = turn(q, k, cos, sin, options, _num_threads())
    if pair is NotImplemented:
        raise NotPlain
    return pair


def _turn_registered(x: Any, cos: Any, sin: Any, *options: Any) -> torch.Tensor:
    refuse_whole_shapes(lambda *shapes: _core.trace_rotary(*shapes, *options), (x, cos, sin))
    result: torch.Tensor = ROTARY(x, cos, sin, *_in_schema(options))
    return result


def _in_schema(options: tuple[Any, ...]) -> Iterable[Any]:
    """The operator's options."""
    named = dict(zip(OPTIONS, (name_of(options[0], _MODES), *options[1:]), strict=True))
    return in_schema("rotary", OPTIONS, named, lambda: compute_rotary(ROWS, ROWS, ROWS, *options)).values()


class _Rotary(torch.autograd.Function):
    """rotary of plain tensors. Small calls are measured in function calls: there are few here."""

    @staticmethod
    def forward(ctx: Any, x: Any, cos: Any, sin: Any, follows_tables: bool, options: tuple[Any, ...]) -> torch.Tensor:
        ctx.save_for_backward(cos, sin, x if follows_tables else None)
        ctx.options = options
        return _turn_plain(x, cos, sin, options)

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        cos, sin, x = ctx.saved_tensors
        if x is None and is_unobserved_backward():  # dx alone
            dx = _plain_rotary_backward(dy, cos, sin, ctx.options, _num_threads())
            if dx is not NotImplemented:
                return dx, None, None, None, None
        return *_backward(dy, cos, sin, x, ctx.needs_input_grad[:3], ctx.options), None, None


class _RotaryPair(torch.autograd.Function):
    """rotary_qk of plain tensors."""

    @staticmethod
    def forward(ctx: Any, q: Any, k: Any, cos: Any, sin: Any, options: tuple[Any, ...]) -> tuple[torch.Tensor, ...]:
        needs = ctx.needs_input_grad
        rows = (q, k) if needs[2] or needs[3] else (None, None)
        ctx.save_for_backward(cos, sin, *rows)
        ctx.set_materialize_grads(False)
        ctx.options = options
        results = _turn_plain_pair(_plain_rotary_qk, q, k, cos, sin, options)
        if not ((needs[0] and needs[1]) or needs[2] or needs[3]):  # as two calls would
            ctx.mark_non_differentiable(results[1] if needs[0] else results[0])
        return results

    @staticmethod
    def backward(ctx: Any, dq: torch.Tensor | None, dk: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        cos, sin, q, k = ctx.saved_tensors
        needs_q, needs_k, *needs_tables = ctx.needs_input_grad[:4]
        if needs_q and needs_k and q is None and dq is not None and dk is not None and is_unobserved_backward():
            try:
                return *_turn_plain_pair(_plain_rotary_qk_backward, dq, dk, cos, sin, ctx.options), None, None, None
            except NotPlain:
                pass
        of_q = of_k = (None, None, None)
        if dq is not None:
            of_q = _backward(dq, cos, sin, q, (needs_q, *needs_tables), ctx.options)
        if dk is not None:
            of_k = _backward(dk, cos, sin, k, (needs_k, *needs_tables), ctx.options)
        return of_q[0], of_k[0], _sum(of_q[1], of_k[1]), _sum(of_q[2], of_k[2]), None


def _sum(first: torch.Tensor | None, second: torch.Tensor | None) -> torch.Tensor | None:
    return first if second is None else second if first is None else first + second


def _backward(
    dy: torch.Tensor, cos: Any, sin: Any, x: torch.Tensor | None, wanted: tuple[bool, ...], options: tuple[Any, ...]
) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
    """dx, dcos, dsin; None where not wanted. By a differentiable operator where the backward's graph is asked for."""
    if not any(wanted):
        return None, None, None
    if is_direct_backward(dy, cos, sin, x):
        return compute_rotary_backward(dy, cos, sin, x, wanted, *options)
    return differentiable_backward(dy, cos, sin, x, wanted, tuple(_in_schema(options)))


_apply_rotary = plain_apply(_Rotary)
_apply_rotary_pair = plain_apply(_RotaryPair)

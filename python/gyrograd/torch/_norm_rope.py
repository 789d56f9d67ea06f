"""Differentiable norm + rotary of attention's rows, and of the query, key and value of two streams."""

from typing import Any

import torch

from gyrograd._norm_rope import NormRope, NormRopeConcat
from gyrograd._types import ConcatOrder, Layout, NormType, RopeType
from gyrograd.torch._library import named_results
from gyrograd.torch._norm_rope_operators import (
    CONCAT,
    CONCAT_OPERATOR,
    SEGMENT,
    SEGMENT_OPERATOR,
    NormedOperator,
    Options,
)
from gyrograd.torch._options import name_of
from gyrograd.torch._paths import check_tensors, is_direct, is_direct_backward, plain_apply, refuse_whole_shapes

_NORM_TYPES = ("none", "layer", "layer_affine", "rms", "rms_affine")
_ROPE_TYPES = ("none", "interleave", "half")
_CONCAT_ORDERS = ("stream_first", "encoder_first")


def norm_rope(
    x: torch.Tensor,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    cos: torch.Tensor | None = None,
    sin: torch.Tensor | None = None,
    *,
    norm_type: NormType | None = None,
    rope_type: RopeType | None = None,
    eps: float = 1e-5,
    per_pair_tables: bool = False,
    rotary_dim: int | None = None,
    rotary_offset: int = 0,
    rope_start: int = 0,
    out_layout: Layout = "BNSD",
) -> NormRope[torch.Tensor]:
    """Norm, then rotary position embedding, of attention's rows (QK-norm), differentiable in x, weight and bias.

    Args:
      x: [B, S, N, D], any strides.
      weight, bias: [D]; for "layer_affine" both, for "rms_affine" weight.
      cos, sin: the tables, where rope_type is not "none": [L, R], or rank 4 that broadcasts to [B, N, L, R]
        (R/2 with per_pair_tables). Positions beyond their L rows pass unturned.
      norm_type, rope_type, eps, per_pair_tables, rotary_dim, rotary_offset, rope_start, out_layout: as in
        gyrograd.norm_rope, and so are types.

    Returns:
      NormRope(y, mean, rstd): y, new and contiguous, [B, N, S, D], or [B, S, N, D] where out_layout is "BSND". mean and
      rstd are not differentiable; None where the norm has none.

    Raises:
      TypeError: an argument is no tensor of the types above, or types do not go together.
      ValueError: a shape or an option is refused, or a tensor is not on the CPU; a table requires grad.
      NotImplementedError: a tensor carries a forward-mode tangent; in the backward: its gradients are differentiated
        again.
    """
    options = {
        "norm_type": name_of(norm_type, _NORM_TYPES),
        "eps": eps,
        "rope_type": name_of(rope_type, _ROPE_TYPES),
        "per_pair_tables": per_pair_tables,
        "rotary_dim": rotary_dim,
        "rotary_offset": rotary_offset,
        "rope_start": rope_start,
        "out_layout": out_layout,
    }
    return NormRope._make(_call(SEGMENT, SEGMENT_OPERATOR, (x, weight, bias, cos, sin), options))


def norm_rope_concat(
    query: torch.Tensor | None,
    key: torch.Tensor | None = None,
    value: torch.Tensor | None = None,
    encoder_query: torch.Tensor | None = None,
    encoder_key: torch.Tensor | None = None,
    encoder_value: torch.Tensor | None = None,
    norm_query_weight: torch.Tensor | None = None,
    norm_query_bias: torch.Tensor | None = None,
    norm_key_weight: torch.Tensor | None = None,
    norm_key_bias: torch.Tensor | None = None,
    norm_added_query_weight: torch.Tensor | None = None,
    norm_added_query_bias: torch.Tensor | None = None,
    norm_added_key_weight: torch.Tensor | None = None,
    norm_added_key_bias: torch.Tensor | None = None,
    rope_sin: torch.Tensor | None = None,
    rope_cos: torch.Tensor | None = None,
    norm_type: NormType | None = None,
    norm_added_type: NormType | None = None,
    rope_type: RopeType | None = None,
    concat_order: ConcatOrder = "stream_first",
    eps: float = 1e-5,
    *,
    encoder_rope_sin: torch.Tensor | None = None,
    encoder_rope_cos: torch.Tensor | None = None,
    per_pair_tables: bool = False,
    rotary_dim: int | None = None,
    rotary_offset: int = 0,
    rope_start: int = 0,
    out_layout: Layout = "BNSD",
) -> NormRopeConcat[torch.Tensor]:
    """Query, key and value of two streams as attention takes them, differentiable in all rows, weights and biases.

    Args:
      query: [B, Sq, N, D].
      key, value: [B, Sk, N, D]; each may be None. Query, key and value may differ in their head counts.
      encoder_query: [B, Seq, N, D]. encoder_key, encoder_value: [B, Sek, N, D]. None: that stream is absent.
      norm_query_weight, norm_query_bias ...: [D]; as norm_type and norm_added_type say.
      rope_sin, rope_cos, encoder_rope_sin, encoder_rope_cos: the tables, as in norm_rope; mind the order.
      norm_type, norm_added_type, rope_type, concat_order, eps, per_pair_tables, rotary_dim, rotary_offset, rope_start,
        out_layout: as in gyrograd.norm_rope_concat, and so are types.

    Returns:
      NormRopeConcat: query, key, value over the joint sequences, new and contiguous, and the means and rstds, which are
      not differentiable. Rows that do not reach the loss, and weights of absent streams, get no gradient.

    Raises:
      TypeError, ValueError, NotImplementedError: as norm_rope.
    """
    tensors = (
        query,
        key,
        value,
        encoder_query,
        encoder_key,
        encoder_value,
        norm_query_weight,
        norm_query_bias,
        norm_key_weight,
        norm_key_bias,
        norm_added_query_weight,
        norm_added_query_bias,
        norm_added_key_weight,
        norm_added_key_bias,
        rope_sin,
        rope_cos,
        encoder_rope_sin,
        encoder_rope_cos,
    )
    options = {
        "norm_type": name_of(norm_type, _NORM_TYPES),
        "norm_added_type": name_of(norm_added_type, _NORM_TYPES),
        "concat_order": name_of(concat_order, _CONCAT_ORDERS),
        "eps": eps,
        "rope_type": name_of(rope_type, _ROPE_TYPES),
        "per_pair_tables": per_pair_tables,
        "rotary_dim": rotary_dim,
        "rotary_offset": rotary_offset,
        "rope_start": rope_start,
        "out_layout": out_layout,
    }
    return NormRopeConcat._make(_call(CONCAT, CONCAT_OPERATOR, tensors, options))


def _call(
    rules: NormedOperator, operator: Any, tensors: tuple[torch.Tensor | None, ...], options: Options
) -> tuple[torch.Tensor | None, ...]:
    """The results, None where there are none, by one way or the other."""
    named = dict(zip(rules.tensors, tensors, strict=True))
    is_empty = all(tensor is None for tensor in tensors)  # the core's to refuse
    if is_empty or is_direct(*tensors):
        if torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors):
            return _apply_normed(rules, options, *tensors)
        return rules.compute(tensors, options)
    check_tensors(rules.name, **named)
    options = rules.in_schema(options)
    refuse_whole_shapes(lambda *shapes: rules.trace(shapes, options), tensors)
    there = rules.are_there(named, options)
    if not any(there):  # no rows: a compiler would drop what gives nothing
        return rules.compute(tensors, options)
    return named_results(operator(*tensors, *options.values()), there)


class _Normed(torch.autograd.Function):
    """One of the operators on plain tensors."""

    @staticmethod
    def forward(
        ctx: Any, rules: NormedOperator, options: Options, *tensors: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, ...]:
        results = rules.compute(tensors, options)
        ctx.rules = rules
        rules.save(ctx, ctx.needs_input_grad[2:], tensors, results, options)
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        rules = ctx.rules
        incoming = gradients[: len(rules.joints)]
        nothing = (None,) * (len(rules.tensors) - len(rules.gradients))
        wanted = rules.wanted(ctx, ctx.needs_input_grad[2:], incoming)
        if not any(wanted):
            return (None, None) + (None,) * len(rules.tensors)
        incoming = rules.complete(ctx, incoming)
        saved = ctx.saved_tensors
        if is_direct_backward(*incoming, *saved):
            results = rules.compute_backward((*incoming, *saved), wanted, ctx.options)
        else:
            results = rules.backward(ctx, wanted, incoming)
        return None, None, *results, *nothing


_apply_normed = plain_apply(_Normed)

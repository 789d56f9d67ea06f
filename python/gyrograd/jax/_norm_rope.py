"""Differentiable norm + rotary of attention's rows, and of the query, key and value of two streams."""

from typing import Any

import jax

from gyrograd import _core
from gyrograd._norm_rope import NormRope, NormRopeConcat
from gyrograd._types import ConcatOrder, Layout, NormType, RopeType
from gyrograd.jax._arrays import hinted, shapes, taken, untraced, varying
from gyrograd.jax._norm_rope_calls import CONCAT, SEGMENT, NormedOperator, normed


def norm_rope(
    x: Any,
    weight: Any = None,
    bias: Any = None,
    cos: Any = None,
    sin: Any = None,
    *,
    norm_type: NormType | None = None,
    rope_type: RopeType | None = None,
    eps: float = 1e-5,
    per_pair_tables: bool = False,
    rotary_dim: int | None = None,
    rotary_offset: int = 0,
    rope_start: int = 0,
    out_layout: Layout = "BNSD",
) -> NormRope[jax.Array]:
    """Norm, then rotary position embedding, of attention's rows (QK-norm), differentiable in x, weight and bias.

    Args:
      x: [B, S, N, D].
      weight, bias: [D]; for "layer_affine" both, for "rms_affine" weight.
      cos, sin: the tables, where rope_type is not "none": [L, R], or rank 4 that broadcasts to [B, N, L, R]
        (R/2 with per_pair_tables). Positions beyond their L rows pass unturned.
      norm_type, rope_type, eps, per_pair_tables, rotary_dim, rotary_offset, rope_start, out_layout: as in
        gyrograd.norm_rope, and so are types.

    Returns:
      NormRope(y, mean, rstd): y, [B, N, S, D], or [B, S, N, D] where out_layout is "BSND". mean and rstd are not
      differentiable; None where the norm has none.

    Raises:
      TypeError: an argument is no array of the types above, or types do not go together; forward-mode differentiation.
      ValueError: a shape or an option is refused, or an array is not on the CPU; a table is differentiated.
      NotImplementedError: its gradients are differentiated again.
    """
    tensors = {"x": x, "weight": weight, "bias": bias, "cos": cos, "sin": sin}
    options = {
        "norm_type": norm_type,
        "eps": eps,
        "rope_type": rope_type,
        "per_pair_tables": per_pair_tables,
        "rotary_dim": rotary_dim,
        "rotary_offset": rotary_offset,
        "rope_start": rope_start,
        "out_layout": out_layout,
    }
    return NormRope._make(_call(SEGMENT, _core.trace_norm_rope, tensors, options))


def norm_rope_concat(
    query: Any,
    key: Any = None,
    value: Any = None,
    encoder_query: Any = None,
    encoder_key: Any = None,
    encoder_value: Any = None,
    norm_query_weight: Any = None,
    norm_query_bias: Any = None,
    norm_key_weight: Any = None,
    norm_key_bias: Any = None,
    norm_added_query_weight: Any = None,
    norm_added_query_bias: Any = None,
    norm_added_key_weight: Any = None,
    norm_added_key_bias: Any = None,
    rope_sin: Any = None,
    rope_cos: Any = None,
    norm_type: NormType | None = None,
    norm_added_type: NormType | None = None,
    rope_type: RopeType | None = None,
    concat_order: ConcatOrder = "stream_first",
    eps: float = 1e-5,
    *,
    encoder_rope_sin: Any = None,
    encoder_rope_cos: Any = None,
    per_pair_tables: bool = False,
    rotary_dim: int | None = None,
    rotary_offset: int = 0,
    rope_start: int = 0,
    out_layout: Layout = "BNSD",
) -> NormRopeConcat[jax.Array]:
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
      NormRopeConcat: query, key, value over the joint sequences, and the means and rstds, which are not differentiable.

    Raises:
      TypeError, ValueError, NotImplementedError: as norm_rope.
    """
    tensors = {
        "query": query,
        "key": key,
        "value": value,
        "encoder_query": encoder_query,
        "encoder_key": encoder_key,
        "encoder_value": encoder_value,
        "norm_query_weight": norm_query_weight,
        "norm_query_bias": norm_query_bias,
        "norm_key_weight": norm_key_weight,
        "norm_key_bias": norm_key_bias,
        "norm_added_query_weight": norm_added_query_weight,
        "norm_added_query_bias": norm_added_query_bias,
        "norm_added_key_weight": norm_added_key_weight,
        "norm_added_key_bias": norm_added_key_bias,
        "rope_sin": rope_sin,
        "rope_cos": rope_cos,
        "encoder_rope_sin": encoder_rope_sin,
        "encoder_rope_cos": encoder_rope_cos,
    }
    options = {
        "norm_type": norm_type,
        "norm_added_type": norm_added_type,
        "concat_order": concat_order,
        "eps": eps,
        "rope_type": rope_type,
        "per_pair_tables": per_pair_tables,
        "rotary_dim": rotary_dim,
        "rotary_offset": rotary_offset,
        "rope_start": rope_start,
        "out_layout": out_layout,
    }
    return NormRopeConcat._make(_call(CONCAT, _core.trace_norm_rope_concat, tensors, options))


_ALL = {"outputs": None, "out": None, "threads": None, "cpu_target": None}


def _call(
    operator: NormedOperator, trace: Any, tensors: dict[str, Any], options: dict[str, Any]
) -> list[jax.Array | None]:
    """The results, None where there are none. What the types do not use is left out."""
    arrays = taken(operator.name, **tensors)
    untraced(operator.name, **options)
    try:
        numbers, there = trace(shapes(arrays) | options | _ALL)
    except ValueError as error:
        raise hinted(error, arrays) from None
    used = {name: array if operator.uses(name, numbers) else None for name, array in arrays.items()}
    used = varying(used, (operator.parameters, operator.tables))
    wanted = tuple(shape is not None for shape in there)
    results = iter(normed(operator, tuple(numbers.items()), wanted, used))
    named = {
        name: next(results) if is_wanted else None for name, is_wanted in zip(operator.results, wanted, strict=True)
    }
    fixed = {name: array for name, array in named.items() if name not in operator.joints and array is not None}
    return list((named | jax.lax.stop_gradient(fixed)).values())

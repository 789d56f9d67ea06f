"""Norm and rotary of attention's rows, and of the query, key and value of two streams: forwards and gradients."""

from collections.abc import Mapping
from typing import Any, Generic, NamedTuple, Unpack, overload

from gyrograd import _core
from gyrograd._types import (
    Array,
    Array_co,
    ConcatForwardOptions,
    ConcatOptions,
    ConcatOrder,
    Layout,
    Names,
    NormType,
    RopeType,
    SegmentForwardOptions,
    SegmentOptions,
    Target,
)

Out = Mapping[str, Any] | None


class NormRope(NamedTuple, Generic[Array_co]):
    """Results of norm_rope; None for what was not asked for, and for statistics that the norm has not."""

    y: Array_co
    mean: Array_co | None
    rstd: Array_co | None

    @property
    def statistics(self) -> dict[str, Any]:
        """The mean and rstd that are there, as keywords of norm_rope_backward: `**result.statistics`."""
        return _present(self, ("mean", "rstd"))


class NormRopeGradients(NamedTuple, Generic[Array_co]):
    """Results of norm_rope_backward; None for what was not asked for, and for parameters that the norm has not."""

    dx: Array_co
    dweight: Array_co | None
    dbias: Array_co | None


class NormRopeConcat(NamedTuple, Generic[Array_co]):
    """Results of norm_rope_concat: the joint query, key and value, and the statistics that the backward takes; None for
    what was not asked for, and for what the arguments do not define.
    """

    query: Array_co
    key: Array_co
    value: Array_co
    norm_query_mean: Array_co | None
    norm_query_rstd: Array_co | None
    norm_key_mean: Array_co | None
    norm_key_rstd: Array_co | None
    norm_added_query_mean: Array_co | None
    norm_added_query_rstd: Array_co | None
    norm_added_key_mean: Array_co | None
    norm_added_key_rstd: Array_co | None

    @property
    def statistics(self) -> dict[str, Any]:
        """The means and rstds that are there, as keywords of norm_rope_concat_backward: `**result.statistics`."""
        return _present(self, self._fields[3:])


class NormRopeConcatGradients(NamedTuple, Generic[Array_co]):
    """Results of norm_rope_concat_backward: every input's gradient under its name; None for what was not asked for, and
    for what the arguments do not define.
    """

    query: Array_co
    key: Array_co
    value: Array_co
    encoder_query: Array_co | None
    encoder_key: Array_co | None
    encoder_value: Array_co | None
    norm_query_weight: Array_co | None
    norm_query_bias: Array_co | None
    norm_key_weight: Array_co | None
    norm_key_bias: Array_co | None
    norm_added_query_weight: Array_co | None
    norm_added_query_bias: Array_co | None
    norm_added_key_weight: Array_co | None
    norm_added_key_bias: Array_co | None


def _present(results: Any, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(results, name) for name in names if getattr(results, name) is not None}


@overload
def norm_rope(
    x: Array,
    weight: Any = None,
    bias: Any = None,
    cos: Any = None,
    sin: Any = None,
    **options: Unpack[SegmentForwardOptions],
) -> NormRope[Array]: ...
@overload
def norm_rope(
    x: Array,
    weight: Any = None,
    bias: Any = None,
    cos: Any = None,
    sin: Any = None,
    *,
    outputs: Names = None,
    out: Out = None,
    **options: Unpack[SegmentForwardOptions],
) -> NormRope[Array | None]: ...
def norm_rope(
    x: Array,
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
    outputs: Names = None,
    out: Out = None,
    threads: int | None = None,
    cpu_target: Target | None = None,
) -> NormRope[Array | None]:
    """Norm, then rotary position embedding, of attention's rows: an LLM's QK-norm.

    Args:
      x: [B, S, N, D].
      weight, bias: [D]; for "layer_affine" both, for "rms_affine" weight.
      cos, sin: the tables, where rope_type is not "none": [L, R], or rank 4 that broadcasts to [B, N, L, R]
        (R/2 with per_pair_tables). Positions beyond their L rows pass unturned.
      norm_type: "none" (0), "layer" (1), "layer_affine" (2), "rms" (3) or "rms_affine" (4). Over the D
        channels of a row: layer norms make (x - mean) * rstd with rstd = 1 / sqrt(mean((x - mean)**2) + eps), RMS norms
        x * rstd with rstd = 1 / sqrt(mean(x**2) + eps).
      rope_type: "none" (0), "interleave" (1), "half" (2), "quarter" or "interleave-half": which channels pair.
      eps: at least 0.
      per_pair_tables: one table value for both members of a pair.
      rotary_dim, rotary_offset: channels rotary_offset .. rotary_offset + R - 1 turn; R is all of them unless given.
      rope_start: the tables turn positions rope_start .. rope_start + L - 1; the others pass.
      out_layout: y is [B, N, S, D] ("BNSD") or [B, S, N, D] ("BSND").
      outputs: names of the results wanted. Default, without outputs and out: all that the types define.
      out: a dict from results' names to arrays to write; y may be x, the same element in the same place. A result given
        here is wanted, and without outputs no other is: out={"y": array} gives rstd None. What outputs names and out
        lacks is a new array.
      threads, cpu_target: as in rotary_backward; neither changes a bit of the result.
    What the chosen types do not use is ignored. A type that is not chosen (None) is "none", and then its arrays are
    refused: weight and bias without norm_type, tables without rope_type. Types and arrays: as in norm_rope_concat.

    Returns:
      y in x's type, and the statistics that norm_rope_backward takes, [B, S, N, 1] in float32 (float64 beside float64):
      mean for layer norms, rstd for all norms. A named tuple, of arrays of x's library.

    Raises:
      TypeError, ValueError, MemoryError: as norm_rope_concat.
    """
    return NormRope._make(_core.norm_rope(locals()))


@overload
def norm_rope_backward(
    dy: Array,
    x: Any = None,
    weight: Any = None,
    mean: Any = None,
    rstd: Any = None,
    cos: Any = None,
    sin: Any = None,
    **options: Unpack[SegmentOptions],
) -> NormRopeGradients[Array]: ...
@overload
def norm_rope_backward(
    dy: Array,
    x: Any = None,
    weight: Any = None,
    mean: Any = None,
    rstd: Any = None,
    cos: Any = None,
    sin: Any = None,
    *,
    outputs: Names = None,
    out: Out = None,
    **options: Unpack[SegmentOptions],
) -> NormRopeGradients[Array | None]: ...
def norm_rope_backward(
    dy: Array,
    x: Any = None,
    weight: Any = None,
    mean: Any = None,
    rstd: Any = None,
    cos: Any = None,
    sin: Any = None,
    *,
    norm_type: NormType | None = None,
    rope_type: RopeType | None = None,
    per_pair_tables: bool = False,
    rotary_dim: int | None = None,
    rotary_offset: int = 0,
    rope_start: int = 0,
    out_layout: Layout = "BNSD",
    outputs: Names = None,
    out: Out = None,
    threads: int | None = None,
    cpu_target: Target | None = None,
) -> NormRopeGradients[Array | None]:
    """Gradients of norm_rope.

    Args:
      dy: gradient of y, [B, N, S, D], or [B, S, N, D] where out_layout is "BSND".
      x: [B, S, N, D]; for every norm.
      weight: [D]; for the affine norms (dx alone needs it).
      mean, rstd: as norm_rope gave them (its result's `statistics`), [B, S, N, 1]; mean for layer norms, rstd for every
        norm.
      outputs: names of the results wanted. Default, without outputs and out: all that the types define.
      out: a dict from results' names to arrays to write; dx may be x or dy, dweight weight, the same element in the
        same place. A result given here is wanted, and without outputs no other is: out={"dx": array} gives dweight
        None. What outputs names and out lacks is a new array.
      cos, sin and the other keywords: as in norm_rope. mean and rstd, too, are refused without norm_type.

    Returns:
      dx, [B, S, N, D] in dy's type; dweight and dbias, [D] in weight's type, where norm_type has them. A named tuple,
      of arrays of dy's library. Without a norm dx equals the formula bit for bit; the bounds of the others are those
      of norm_rope_concat_backward.

    Raises:
      TypeError, ValueError, MemoryError: as norm_rope_concat.
    """
    return NormRopeGradients._make(_core.norm_rope_backward(locals()))


@overload
def norm_rope_concat(
    query: Array,
    key: Array,
    value: Array,
    encoder_query: Any = None,
    encoder_key: Any = None,
    encoder_value: Any = None,
    **options: Unpack[ConcatForwardOptions],
) -> NormRopeConcat[Array]: ...
@overload
def norm_rope_concat(
    query: Array | None,
    key: Array | None = None,
    value: Array | None = None,
    encoder_query: Any = None,
    encoder_key: Any = None,
    encoder_value: Any = None,
    *,
    outputs: Names = None,
    out: Out = None,
    **options: Unpack[ConcatForwardOptions],
) -> NormRopeConcat[Array | None]: ...
def norm_rope_concat(
    query: Array | None,
    key: Array | None = None,
    value: Array | None = None,
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
    outputs: Names = None,
    out: Out = None,
    threads: int | None = None,
    cpu_target: Target | None = None,
) -> NormRopeConcat[Array | None]:
    """Query, key and value of two streams (an image's, and a text's called the encoder's) as attention takes them:
    norm of queries and keys, concatenation along the sequence, transposition, rotary position embedding of queries
    and keys.

    Args:
      query: [B, Sq, N, D].
      key, value: [B, Sk, N, D]; each may be None. Query, key and value may differ in their head counts.
      encoder_query: [B, Seq, N, D]. encoder_key, encoder_value: [B, Sek, N, D]. None: that stream is absent.
      norm_query_weight, norm_query_bias ...: [D]; needed as norm_type (of query and key) and norm_added_type (of the
        encoder's query and key, "added") say: "layer_affine" takes both, "rms_affine" the weight.
      rope_sin, rope_cos: the tables, where rope_type is not "none": [L, R], or rank 4 that broadcasts to [B, N, L, R]
        (R/2 with per_pair_tables). Positions beyond their L rows pass unturned. Mind the order.
      norm_type, norm_added_type, rope_type, eps, per_pair_tables, rotary_dim, rotary_offset: as in norm_rope.
      concat_order: "stream_first" (0), the encoder's rows last, or "encoder_first" (1).
      rope_start: the tables turn positions rope_start .. rope_start + L - 1 of the joint sequences; the others pass.
      encoder_rope_sin, encoder_rope_cos: the encoder streams' own tables; then both pairs of tables cover positions
        rope_start and on of their own stream.
      out_layout: the joint results are [B, N, S, D] ("BNSD") or [B, S, N, D] ("BSND").
      outputs: names of the results wanted. Default, without outputs and out: all that the arguments define.
      out: a dict from results' names to arrays to write. A joint result may lie on its rows of its inputs, the same
        element in the same place. A result given here is wanted, and without outputs no other is: out={"query": array}
        gives no statistics. What outputs names and out lacks is a new array.
      threads, cpu_target: as in rotary_backward; neither changes a bit of the result.
    What the chosen types do not use is ignored. A type that is not chosen (None) is "none", and then its arrays are
    refused: weights and biases without norm_type or norm_added_type, tables without rope_type.

    Types: all rows of one type: float64, float32, float16 or bfloat16 (ml_dtypes.bfloat16 in NumPy); tables of that
    type, or float32 beside float16 and bfloat16; weights and biases likewise, all of one type; statistics float32
    (float64 beside float64). Arrays: NumPy, or anything on the CPU that offers DLPack (PyTorch, JAX). Any strides; no
    input is copied or changed.

    Returns:
      query, key, value, [B, N, S, D] over the joint sequences in the inputs' type, and for every normed stream its
      mean (layer norms) and rstd, [B, S, N, 1]. A named tuple, of arrays of the first input's library.

    Raises:
      TypeError: an array or its type is not among those above, or types do not go together.
      ValueError: a shape, option or array is refused, or one that the types need is missing; an input requires grad
        while PyTorch records gradients.
      MemoryError: memory for a result or for the workspace was refused.
      Nothing is written where an argument is refused.
    """
    return NormRopeConcat._make(_core.norm_rope_concat(locals()))


@overload
def norm_rope_concat_backward(
    grad_query_output: Array,
    grad_key_output: Array,
    grad_value_output: Array,
    query: Any = None,
    key: Any = None,
    encoder_query: Any = None,
    encoder_key: Any = None,
    **options: Unpack[ConcatOptions],
) -> NormRopeConcatGradients[Array]: ...
@overload
def norm_rope_concat_backward(
    grad_query_output: Array | None,
    grad_key_output: Array | None = None,
    grad_value_output: Array | None = None,
    query: Any = None,
    key: Any = None,
    encoder_query: Any = None,
    encoder_key: Any = None,
    *,
    outputs: Names = None,
    out: Out = None,
    **options: Unpack[ConcatOptions],
) -> NormRopeConcatGradients[Array | None]: ...
def norm_rope_concat_backward(
    grad_query_output: Array | None,
    grad_key_output: Array | None = None,
    grad_value_output: Array | None = None,
    query: Any = None,
    key: Any = None,
    encoder_query: Any = None,
    encoder_key: Any = None,
    norm_query_weight: Any = None,
    norm_query_mean: Any = None,
    norm_query_rstd: Any = None,
    norm_key_weight: Any = None,
    norm_key_mean: Any = None,
    norm_key_rstd: Any = None,
    norm_added_query_weight: Any = None,
    norm_added_query_mean: Any = None,
    norm_added_query_rstd: Any = None,
    norm_added_key_weight: Any = None,
    norm_added_key_mean: Any = None,
    norm_added_key_rstd: Any = None,
    rope_sin: Any = None,
    rope_cos: Any = None,
    norm_type: NormType | None = None,
    norm_added_type: NormType | None = None,
    rope_type: RopeType | None = None,
    concat_order: ConcatOrder = "stream_first",
    *,
    encoder_rope_sin: Any = None,
    encoder_rope_cos: Any = None,
    per_pair_tables: bool = False,
    rotary_dim: int | None = None,
    rotary_offset: int = 0,
    rope_start: int = 0,
    out_layout: Layout = "BNSD",
    outputs: Names = None,
    out: Out = None,
    threads: int | None = None,
    cpu_target: Target | None = None,
) -> NormRopeConcatGradients[Array | None]:
    """Gradients of norm_rope_concat.

    Args:
      grad_query_output, grad_key_output, grad_value_output: gradients of its results, [B, N, S, D] over the joint
        sequences, or [B, S, N, D] where out_layout is "BSND". Each may be None: then its streams have no gradients.
      query, key, encoder_query, encoder_key: the forward's inputs. The norms read them, and their lengths cut the joint
        sequences: without a norm they may be None, an encoder's then is absent and the other has what is left.
      norm_query_weight, norm_query_mean, norm_query_rstd ...: the forward's weights, [D], and the statistics it gave
        (its result's `statistics`), [B, S, N, 1]; needed as norm_type and norm_added_type say: mean for layer norms,
        rstd for every norm, weight for the affine ones.
      outputs: names of the results wanted. Default, without outputs and out: all that the arguments define. A weight's
        or bias's gradient of an absent stream is given, as zeros, only where named.
      out: a dict from results' names to arrays to write. A gradient may be its input, or lie on its own rows of the
        incoming gradient; a weight's gradient may be the weight; the same element in the same place. A result given
        here is wanted, and without outputs no other is: out={"query": array} gives no weight's gradient. What outputs
        names and out lacks is a new array.
      rope_sin, rope_cos and the other keywords, and types: as in norm_rope_concat. Means and rstds, too, are refused
        where their norm's type is not chosen.

    Returns:
      The gradient of every input of that name: query, key, value, encoder_query, encoder_key, encoder_value in the
      incoming gradients' type, and norm_query_weight, norm_query_bias ... in the weights'. The tables get none. A named
      tuple, of arrays of the first gradient's library.
      Streams without a norm equal the formula bit for bit. Through a norm a gradient is within 6e-6 (float64: 2e-14) of
      rstd * (G + mean(G) + |x_hat| * mean(G * |x_hat|)), where G is what |weight * dy| would be had nothing cancelled;
      the sums of weights and biases are within 1.25e-6 (1e-14) of the sum of their terms' magnitudes.

    Raises:
      TypeError, ValueError, MemoryError: as norm_rope_concat.
    """
    return NormRopeConcatGradients._make(_core.norm_rope_concat_backward(locals()))

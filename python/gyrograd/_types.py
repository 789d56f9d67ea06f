"""The names that the signatures of the package are written with."""

from collections.abc import Collection
from typing import Any, Literal, TypedDict, TypeVar

Array = TypeVar("Array")
Array_co = TypeVar("Array_co", covariant=True)  # a result's: an array or, where outputs= or out= choose, None
Mode = Literal["half", "interleave", "quarter", "interleave-half", 0, 1, 2, 3]
NormType = Literal["none", "layer", "layer_affine", "rms", "rms_affine", 0, 1, 2, 3, 4]
RopeType = Literal["none", "interleave", "half", "quarter", "interleave-half", 0, 1, 2]
ConcatOrder = Literal["stream_first", "encoder_first", 0, 1]
Layout = Literal["BNSD", "BSND"]
Target = Literal["best", "avx512", "avx2", "neon", "portable"]
RotaryName = Literal["dx", "dcos", "dsin"]
RotaryOut = Any | tuple[Any | None] | tuple[Any | None, Any | None, Any | None]
Names = Collection[str] | None


class Execution(TypedDict, total=False):
    """Keywords of every call."""

    threads: int | None
    cpu_target: Target | None


class _Rotation(Execution, total=False):
    per_pair_tables: bool
    rotary_dim: int | None
    rotary_offset: int


class RotaryOptions(_Rotation, total=False):
    """Keywords of the rotary calls that do not choose results."""

    mode: Mode


class SegmentOptions(_Rotation, total=False):
    """Keywords of norm_rope_backward that do not choose results."""

    norm_type: NormType | None
    rope_type: RopeType | None
    rope_start: int
    out_layout: Layout


class SegmentForwardOptions(SegmentOptions, total=False):
    """The same of norm_rope."""

    eps: float


class _ConcatOptions(SegmentOptions, total=False):
    norm_query_weight: Any
    norm_key_weight: Any
    norm_added_query_weight: Any
    norm_added_key_weight: Any
    rope_sin: Any
    rope_cos: Any
    norm_added_type: NormType | None
    concat_order: ConcatOrder
    encoder_rope_sin: Any
    encoder_rope_cos: Any


class ConcatOptions(_ConcatOptions, total=False):
    """Keywords of norm_rope_concat_backward that do not choose results, but for the rows."""

    norm_query_mean: Any
    norm_query_rstd: Any
    norm_key_mean: Any
    norm_key_rstd: Any
    norm_added_query_mean: Any
    norm_added_query_rstd: Any
    norm_added_key_mean: Any
    norm_added_key_rstd: Any


class ConcatForwardOptions(_ConcatOptions, total=False):
    """The same of norm_rope_concat."""

    norm_query_bias: Any
    norm_key_bias: Any
    norm_added_query_bias: Any
    norm_added_key_bias: Any
    eps: float

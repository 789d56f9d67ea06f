# Types of the extension module. Arrays come as NumPy arrays or through DLPack; results are of the first one's kind.
from collections.abc import Collection, Sequence
from typing import Any, Literal, TypeVar, overload

_Array = TypeVar("_Array")
_Mode = Literal["half", "interleave", "quarter", "interleave-half", 0, 1, 2, 3]
_Name = Literal["dx", "dcos", "dsin"]
_Target = Literal["best", "avx512", "avx2", "neon", "portable"]
_Out = Any | tuple[Any | None] | tuple[Any | None, Any | None, Any | None]

@overload
def rotary_backward(
    dy: _Array,
    cos: Any,
    sin: Any,
    x: None = None,
    *,
    mode: _Mode = "half",
    per_pair_tables: bool = False,
    rotary_dim: int | None = None,
    rotary_offset: int = 0,
    outputs: None = None,
    out: None = None,
    threads: int | None = None,
    cpu_target: _Target | None = None,
) -> _Array: ...
@overload
def rotary_backward(
    dy: _Array,
    cos: Any,
    sin: Any,
    x: None = None,
    *,
    mode: _Mode = "half",
    per_pair_tables: bool = False,
    rotary_dim: int | None = None,
    rotary_offset: int = 0,
    outputs: Collection[_Name] | None = None,
    out: _Out | None = None,
    threads: int | None = None,
    cpu_target: _Target | None = None,
) -> _Array | None: ...
@overload
def rotary_backward(
    dy: _Array,
    cos: Any,
    sin: Any,
    x: _Array,
    *,
    mode: _Mode = "half",
    per_pair_tables: bool = False,
    rotary_dim: int | None = None,
    rotary_offset: int = 0,
    outputs: None = None,
    out: None = None,
    threads: int | None = None,
    cpu_target: _Target | None = None,
) -> tuple[_Array, _Array, _Array]: ...
@overload
def rotary_backward(
    dy: _Array,
    cos: Any,
    sin: Any,
    x: _Array,
    *,
    mode: _Mode = "half",
    per_pair_tables: bool = False,
    rotary_dim: int | None = None,
    rotary_offset: int = 0,
    outputs: Collection[_Name] | None = None,
    out: _Out | None = None,
    threads: int | None = None,
    cpu_target: _Target | None = None,
) -> tuple[_Array | None, _Array | None, _Array | None]: ...
def rotary(
    x: _Array,
    cos: Any,
    sin: Any,
    *,
    mode: _Mode = "half",
    per_pair_tables: bool = False,
    rotary_dim: int | None = None,
    rotary_offset: int = 0,
    out: Any | None = None,
    threads: int | None = None,
    cpu_target: _Target | None = None,
) -> _Array: ...
def describe_rotary_backward(
    dy_shape: Sequence[int],
    cos_shape: Sequence[int],
    dtype: str,
    table_dtype: str,
    *,
    with_x: bool = True,
    outputs: Collection[_Name] | None = None,
    mode: _Mode = "half",
    per_pair_tables: bool = False,
    rotary_dim: int | None = None,
    rotary_offset: int = 0,
    threads: int | None = None,
    cpu_target: _Target | None = None,
) -> str: ...
def explain_rotary_backward(
    dy_shape: Sequence[int],
    cos_shape: Sequence[int],
    dtype: str,
    table_dtype: str,
    *,
    table_gradients: bool = True,
    mode: _Mode = "half",
    per_pair_tables: bool = False,
    rotary_dim: int | None = None,
) -> list[dict[str, Any]]: ...
def norm_rope(keywords: dict[str, Any]) -> tuple[Any, ...]: ...
def norm_rope_backward(keywords: dict[str, Any]) -> tuple[Any, ...]: ...
def norm_rope_concat(keywords: dict[str, Any]) -> tuple[Any, ...]: ...
def norm_rope_concat_backward(keywords: dict[str, Any]) -> tuple[Any, ...]: ...
def describe_norm_rope_concat_backward(keywords: dict[str, Any]) -> str: ...
def explain_norm_rope_concat_backward(
    sizes: dict[str, int],
    dtype: str,
    table_dtype: str,
    weight_dtype: str,
    *,
    norm_type: str | int = "none",
    norm_added_type: str | int = "none",
    rope_type: str | int = "none",
    concat_order: str | int = "stream_first",
) -> list[dict[str, Any]]: ...
def version() -> str: ...
def default_threads() -> int: ...
def cpu_targets() -> list[str]: ...

# Types of the extension module. Arrays come as NumPy arrays or through DLPack; results are of the first one's kind.
from collections.abc import Collection, Sequence
from typing import Any

from gyrograd._types import Mode, RotaryName, Target

def rotary_backward(
    dy: Any,
    cos: Any,
    sin: Any,
    x: Any,
    mode: Any,
    per_pair_tables: Any,
    rotary_dim: Any,
    rotary_offset: Any,
    outputs: Any,
    out: Any,
    threads: Any,
    cpu_target: Any,
) -> Any: ...
def rotary(
    x: Any,
    cos: Any,
    sin: Any,
    mode: Any,
    per_pair_tables: Any,
    rotary_dim: Any,
    rotary_offset: Any,
    out: Any,
    threads: Any,
    cpu_target: Any,
) -> Any: ...
def plain_rotary(x: Any, cos: Any, sin: Any, options: tuple[Any, ...], threads: int, /) -> Any: ...
def plain_rotary_backward(dy: Any, cos: Any, sin: Any, options: tuple[Any, ...], threads: int, /) -> Any: ...
def plain_rotary_qk(q: Any, k: Any, cos: Any, sin: Any, options: tuple[Any, ...], threads: int, /) -> Any: ...
def plain_rotary_qk_backward(
    dq: Any, dk: Any, cos: Any, sin: Any, options: tuple[Any, ...], threads: int, /
) -> Any: ...
def trace_rotary(
    x: Any, cos: Any, sin: Any, mode: Any, per_pair_tables: Any, rotary_dim: Any, rotary_offset: Any
) -> dict[str, int]: ...
def describe_rotary_backward(
    dy_shape: Sequence[int],
    cos_shape: Sequence[int],
    dtype: str,
    table_dtype: str,
    *,
    with_x: bool = True,
    outputs: Collection[RotaryName] | None = None,
    mode: Mode = "half",
    per_pair_tables: bool = False,
    rotary_dim: int | None = None,
    rotary_offset: int = 0,
    threads: int | None = None,
    cpu_target: Target | None = None,
) -> str: ...
def explain_rotary_backward(
    dy_shape: Sequence[int],
    cos_shape: Sequence[int],
    dtype: str,
    table_dtype: str,
    *,
    table_gradients: bool = True,
    mode: Mode = "half",
    per_pair_tables: bool = False,
    rotary_dim: int | None = None,
) -> list[dict[str, Any]]: ...
def norm_rope(keywords: dict[str, Any]) -> tuple[Any, ...]: ...
def norm_rope_backward(keywords: dict[str, Any]) -> tuple[Any, ...]: ...
def norm_rope_concat(keywords: dict[str, Any]) -> tuple[Any, ...]: ...
def norm_rope_concat_backward(keywords: dict[str, Any]) -> tuple[Any, ...]: ...
def trace_norm_rope(keywords: dict[str, Any]) -> tuple[dict[str, int | float], list[list[int] | None]]: ...
def trace_norm_rope_concat(keywords: dict[str, Any]) -> tuple[dict[str, int | float], list[list[int] | None]]: ...
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
    per_pair_tables: bool = False,
    rotary_dim: int | None = None,
    rope_start: int = 0,
) -> list[dict[str, Any]]: ...
def xla_handlers() -> dict[str, Any]: ...
def are_plain_tensors(*objects: Any) -> bool: ...
def version() -> str: ...
def default_threads() -> int: ...
def cpu_targets() -> list[str]: ...

"""Rotary position embedding and its gradients."""

from collections.abc import Collection
from typing import Any, Unpack, overload

from gyrograd import _core
from gyrograd._types import Array, Mode, RotaryName, RotaryOptions, RotaryOut, Target


def rotary(
    x: Array,
    cos: Any,
    sin: Any,
    *,
    mode: Mode = "half",
    per_pair_tables: bool = False,
    rotary_dim: int | None = None,
    rotary_offset: int = 0,
    out: Any = None,
    threads: int | None = None,
    cpu_target: Target | None = None,
) -> Array:
    """Rotary position embedding.

    Args:
      x: the tensor to rotate, any rank >= 1, channels last.
      cos, sin: the tables; x's rank, each extent x's or 1, the last one R (R/2 with per_pair_tables).
      out: where to write y; may be x.
      mode, per_pair_tables, rotary_dim, rotary_offset, threads, cpu_target: as in rotary_backward.

    Returns:
      y, with x's shape and type, of x's library. It equals the formula in float32 (float64 for float64) bit for bit,
      rounded once at the end.

    Raises:
      TypeError, ValueError, MemoryError: as rotary_backward.
    """
    result: Array = _core.rotary(
        x, cos, sin, mode, per_pair_tables, rotary_dim, rotary_offset, out, threads, cpu_target
    )
    return result


@overload
def rotary_backward(dy: Array, cos: Any, sin: Any, x: None = None, **options: Unpack[RotaryOptions]) -> Array: ...
@overload
def rotary_backward(
    dy: Array, cos: Any, sin: Any, x: Any, **options: Unpack[RotaryOptions]
) -> tuple[Array, Array, Array]: ...
@overload
def rotary_backward(
    dy: Array,
    cos: Any,
    sin: Any,
    x: None = None,
    *,
    outputs: Collection[RotaryName] | None = None,
    out: RotaryOut | None = None,
    **options: Unpack[RotaryOptions],
) -> Array | None: ...
@overload
def rotary_backward(
    dy: Array,
    cos: Any,
    sin: Any,
    x: Any,
    *,
    outputs: Collection[RotaryName] | None = None,
    out: RotaryOut | None = None,
    **options: Unpack[RotaryOptions],
) -> tuple[Array | None, Array | None, Array | None]: ...
def rotary_backward(
    dy: Array,
    cos: Any,
    sin: Any,
    x: Any = None,
    *,
    mode: Mode = "half",
    per_pair_tables: bool = False,
    rotary_dim: int | None = None,
    rotary_offset: int = 0,
    outputs: Collection[RotaryName] | None = None,
    out: RotaryOut | None = None,
    threads: int | None = None,
    cpu_target: Target | None = None,
) -> Array | tuple[Array | None, Array | None, Array | None] | None:
    """Gradients of rotary position embedding.

    Args:
      dy: gradient of the rotated tensor, any rank >= 1, channels last.
      cos, sin: the tables; dy's rank, each extent dy's or 1, the last one R (R/2 with per_pair_tables).
      x: the tensor that was rotated, shaped as dy. Needed for dcos and dsin.
      mode: "half" (0), "interleave" (1), "quarter" (2) or "interleave-half" (3): which channels pair.
      per_pair_tables: one table value for both members of a pair; the tables then have width R/2.
      rotary_dim: R, the number of channels that turn (default: all); the others pass. Even; "quarter": a multiple of 4.
      rotary_offset: the first channel that turns.
      outputs: names of the results wanted, out of "dx", "dcos", "dsin". Default, without outputs and out: all that the
        arguments define.
      out: where to write: dx, or (dx, dcos, dsin) with None where there is no array. dx may be dy or x, dcos cos, dsin
        sin. A result given here is wanted, and without outputs no other is: out=dx with x gives (dx, None, None). What
        outputs names and out lacks is a new array.
      threads: at most so many (default: OpenMP's number). Does not change a bit of the result.
      cpu_target: "best", "avx512", "avx2", "neon" or "portable". Does not change a bit of the result.

    Types: dy and x of one type: float64, float32, float16 or bfloat16 (ml_dtypes.bfloat16 in NumPy); the tables of the
    same type, or float32 beside float16 and bfloat16. Arrays: NumPy, or anything on the CPU that offers DLPack
    (PyTorch, JAX). Any strides; no input is copied or changed. Masked arrays and other subclasses of numpy.ndarray are
    refused, but for numpy.memmap.

    Returns:
      Without x, dx. With x, (dx, dcos, dsin), None where not wanted. dx has dy's shape and type; dcos and dsin have the
      tables', summed over every axis where the tables have extent 1. The arrays are of dy's library.
      dx equals the formula in float32 (float64 for float64) bit for bit, rounded once at the end. dcos and dsin are
      within 1e-6 (float64: 1e-14) times the sum of the terms' magnitudes of the exact sum, then rounded once.

    Raises:
      TypeError: an array or its type is not among those above, or types do not go together.
      ValueError: a shape, option or array is refused; an input requires grad while PyTorch records gradients.
      MemoryError: memory for a result or for the workspace was refused.
      Nothing is written where an argument is refused.
    """
    results: Array | tuple[Array | None, Array | None, Array | None] | None = _core.rotary_backward(
        dy, cos, sin, x, mode, per_pair_tables, rotary_dim, rotary_offset, outputs, out, threads, cpu_target
    )
    return results

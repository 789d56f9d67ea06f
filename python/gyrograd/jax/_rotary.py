"""Differentiable rotary position embedding."""

from collections.abc import Callable, Sequence
from functools import cache, lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero

from gyrograd import _core
from gyrograd._types import Mode
from gyrograd.jax._arrays import (
    flagged,
    flags_of,
    hinted,
    required,
    shapes,
    shardings,
    split_as,
    taken,
    untraced,
    varying,
)
from gyrograd.jax._custom_calls import Arrays, Axes, CustomCall, Numbers, Result, Shapes

Gradients = tuple[jax.Array | None, jax.Array | None, jax.Array | None]


def rotary(
    x: Any,
    cos: Any,
    sin: Any,
    mode: Mode = "half",
    *,
    per_pair_tables: bool = False,
    rotary_dim: int | None = None,
    rotary_offset: int = 0,
    in_place: bool = False,
) -> jax.Array:
    """Rotary position embedding, differentiable in x, cos and sin, to any order, in reverse mode.

    Args:
      x: the array to rotate, any rank >= 1, channels last.
      cos, sin: the tables; x's rank, each extent x's or 1, the last one R (R/2 with per_pair_tables).
      mode: "half" (0), "interleave" (1), "quarter" (2) or "interleave-half" (3): which channels pair.
      per_pair_tables: one table value for both members of a pair.
      rotary_dim: R, the number of channels that turn (default: all); the others pass.
      rotary_offset: the first channel that turns.
      in_place: the result takes x's memory, and in the backward dx takes dy's: for donated arguments and for values
        that are needed nowhere else. XLA copies first what is needed further on.

    Types: x is float64 (where x64 is on), float32, float16 or bfloat16; the tables of the same type, or float32 beside
    float16 and bfloat16. All on the CPU.

    Returns:
      An array with x's shape and type. Gradients have the types and shapes of their arrays, those of the tables summed
      over every axis where the tables have extent 1; only those that are asked for are computed.

    Raises:
      TypeError: an argument is no array of the types above, or types do not go together; forward-mode differentiation.
      ValueError: a shape or an option is refused, or an array is not on the CPU.
    """
    arrays = taken("rotary", x=x, cos=cos, sin=sin)
    required("rotary", arrays)
    options = (mode, per_pair_tables, rotary_dim, rotary_offset, in_place)
    try:
        chosen = _chosen(*shapes(arrays).values(), *options)
    except TypeError:  # an option that cannot be looked up is the core's to refuse, or to take
        untraced("rotary", **dict(zip(_OPTIONS, options, strict=True)))
        chosen = _chosen.__wrapped__(*shapes(arrays).values(), *options)
    except ValueError as error:
        raise hinted(error, arrays) from None
    arrays = varying(arrays, [("cos", "sin")])
    return _turn_compiled(chosen, *arrays.values())


def rotary_qk(
    q: Any,
    k: Any,
    cos: Any,
    sin: Any,
    mode: Mode = "half",
    *,
    per_pair_tables: bool = False,
    rotary_dim: int | None = None,
    rotary_offset: int = 0,
    in_place: bool = False,
) -> tuple[jax.Array, jax.Array]:
    """rotary of queries and keys by the same tables.

    Args:
      q, k: head counts and any other extents may differ as long as the tables broadcast to both.
      cos, sin, mode, per_pair_tables, rotary_dim, rotary_offset, in_place: as in rotary.

    Returns:
      (rotary(q, ...), rotary(k, ...)). The tables' gradients are the sums of both.

    Raises:
      TypeError, ValueError: as rotary.
    """
    options = {"per_pair_tables": per_pair_tables, "rotary_dim": rotary_dim, "rotary_offset": rotary_offset}
    options["in_place"] = in_place
    return rotary(q, cos, sin, mode, **options), rotary(k, cos, sin, mode, **options)


_OPTIONS = ("mode", "per_pair_tables", "rotary_dim", "rotary_offset", "in_place")


class _Options(NamedTuple):
    numbers: Numbers
    in_place: bool


@lru_cache(maxsize=1024, typed=True)  # True is no number, and 1 is no truth
def _chosen(x: Any, cos: Any, sin: Any, mode: Any, per_pair: Any, dim: Any, offset: Any, in_place: Any) -> _Options:
    """The options, or the core's refusal, for arrays of these (shape, type)."""
    numbers = _core.trace_rotary(x, cos, sin, mode, per_pair, dim, offset)
    if not isinstance(in_place, bool | np.bool_):
        raise TypeError(f"rotary: in_place is {in_place!r}; it must be True or False")
    return _Options(tuple(numbers.items()), bool(in_place))


# ---- the custom calls


def _axes(operands: Shapes, is_backward: bool, wanted: Sequence[bool]) -> Axes:
    """Those of (x or dy, cos, sin) and, backward, x. Tables have names of their own where they have extent 1."""
    shape, table = operands[:2]
    rows = (*(f"a{i}" for i in range(len(shape) - 1)), "d")
    axes = (*(f"a{i}" if n == m else f"t{i}" for i, (n, m) in enumerate(zip(table[:-1], shape[:-1], strict=True))), "r")
    summed = tuple(name for name in rows[:-1] if name not in axes)
    results = [Result(rows), Result(axes, 1, summed=summed), Result(axes, 2, summed=summed)]
    given = (rows, axes, axes, *[rows] * (len(operands) - 3))
    there = tuple(result for result, is_wanted in zip(results, wanted, strict=True) if is_wanted)
    return Axes(given, there if is_backward else (Result(rows),), frozenset({"d", "r"}), {})


def _expanded(array: jax.Array, samples: int, is_batched: bool) -> jax.Array:
    return array if is_batched else jnp.broadcast_to(array, (samples, *array.shape))


def _batch(each: bool) -> Callable[..., Arrays]:
    """The rule of vmap: one call. Tables that no sample has of its own get an axis of extent 1, unless `each` sample
    needs their gradient of its own.
    """

    def rule(
        function: Callable[..., Arrays], samples: int, batched: Sequence[bool], operands: Sequence[jax.Array]
    ) -> Arrays:
        pairs = list(zip(operands, batched, strict=True))
        tables = pairs[1:3]
        if each or any(is_batched for _, is_batched in tables):
            tables = [_expanded(table, samples, is_batched) for table, is_batched in tables]
        else:
            tables = [table[None] for table, _ in tables]
        rows = [_expanded(array, samples, is_batched) for array, is_batched in (pairs[0], *pairs[3:])]
        return function(rows[0], *tables, *rows[1:])

    return rule


@cache
def _forward_call(options: _Options) -> Callable[..., Arrays]:
    axes = partial(_axes, is_backward=False, wanted=(True, False, False))
    aliases = ((0, 0),) if options.in_place else ()
    return CustomCall("rotary", options.numbers, axes, aliases=aliases).build(_batch(False))


@cache
def _backward_call(options: _Options, wanted: tuple[bool, ...], has_x: bool) -> Callable[..., Arrays]:
    bits = sum(1 << i for i, is_wanted in enumerate(wanted) if is_wanted)
    numbers = (*options.numbers, ("given", int(has_x)), ("wanted", bits))
    axes = partial(_axes, is_backward=True, wanted=wanted)
    aliases = ((0, 0),) if options.in_place and wanted[0] else ()
    return CustomCall("rotary_backward", numbers, axes, (1, 2), aliases).build(_batch(wanted[1] or wanted[2]))


# ---- forward


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _turn(options: _Options, x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    return _forward_call(options)(x, cos, sin)[0]


def _turn_forward(options: _Options, x: Any, cos: Any, sin: Any) -> tuple[jax.Array, Any]:
    y = _turn(options, x.value, cos.value, sin.value)
    asked = flagged(array.perturbed for array in (x, cos, sin))
    return y, (asked, shardings(x.value, cos.value, sin.value), cos.value, sin.value, x.value)


def _turn_backward(options: _Options, saved: Any, dy: Any) -> Gradients:
    flags, splits, cos, sin, x = saved
    wanted = flags_of(flags)
    if isinstance(dy, SymbolicZero) or not any(wanted):
        return None, None, None
    gradients = _gradients_compiled(options, wanted, dy, cos, sin, x if wanted[1] or wanted[2] else None)
    return tuple(map(split_as, gradients, splits))


_turn.defvjp(_turn_forward, _turn_backward, symbolic_zeros=True)
_turn_compiled = jax.jit(_turn, static_argnums=0, inline=True)


# ---- backward


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _gradients(
    options: _Options, wanted: tuple[bool, ...], dy: jax.Array, cos: jax.Array, sin: jax.Array, x: jax.Array | None
) -> Gradients:
    """dx, dcos, dsin; None where not wanted. x is needed for dcos and dsin alone."""
    operands = (dy, cos, sin) if x is None else (dy, cos, sin, x)
    results = iter(_backward_call(options, wanted, x is not None)(*operands))
    return tuple(next(results) if is_wanted else None for is_wanted in wanted)


def _gradients_forward(
    options: _Options, wanted: tuple[bool, ...], dy: Any, cos: Any, sin: Any, x: Any
) -> tuple[Gradients, Any]:
    arrays = (dy, cos, sin, x)
    values = tuple(None if array is None else array.value for array in arrays)
    asked = flagged(array is not None and array.perturbed for array in arrays)
    return _gradients(options, wanted, *values), (asked, shardings(*values), *values)


def _gradients_backward(options: _Options, wanted: tuple[bool, ...], saved: Any, gradients: Any) -> tuple[Any, ...]:
    """The gradients of the backward, which is linear in dy, in the tables and in x each. With

        L = <gdx, dx> + <gdcos, dcos> + <gdsin, dsin>

    L is <rotary(gdx, cos, sin), dy> + <rotary(x, gdcos, gdsin), dy>, the second over the channels that turn.
    """
    asked, splits, dy, cos, sin, x = saved
    needs_dy, needs_cos, needs_sin, needs_x = flags_of(asked)
    gdx, gdcos, gdsin = (None if isinstance(gradient, SymbolicZero) else gradient for gradient in gradients)
    options = options._replace(in_place=False)
    ddy = dcos = dsin = dx = None
    if gdx is not None:
        if needs_dy:
            ddy = _turn_compiled(options, gdx, cos, sin)
        if needs_cos or needs_sin:
            _, dcos, dsin = _gradients_compiled(options, (False, needs_cos, needs_sin), dy, cos, sin, gdx)
    if gdcos is not None or gdsin is not None:
        gdcos = jnp.zeros_like(cos) if gdcos is None else gdcos
        gdsin = jnp.zeros_like(sin) if gdsin is None else gdsin
        numbers, width = dict(options.numbers), dy.shape[-1]
        first, turning = numbers["rotary_offset"], numbers["rotary_dim"]
        turning = width if turning < 0 else turning
        row = _alone(options)  # only the channels that turn, as a row of their own
        margins = [(0, 0)] * (dy.ndim - 1) + [(first, width - first - turning)]
        if needs_dy:
            turned = jnp.pad(_turn_compiled(row, x[..., first : first + turning], gdcos, gdsin), margins)
            ddy = turned if ddy is None else ddy + turned
        if needs_x:
            part = dy[..., first : first + turning]
            dx = jnp.pad(_gradients_compiled(row, (True, False, False), part, gdcos, gdsin, None)[0], margins)
    return tuple(map(split_as, (ddy, dcos, dsin, dx), splits))


def _alone(options: _Options) -> _Options:
    numbers = dict(options.numbers) | {"rotary_dim": -1, "rotary_offset": 0}
    return _Options(tuple(numbers.items()), False)


_gradients.defvjp(_gradients_forward, _gradients_backward, symbolic_zeros=True)
# shard_map outside of jit takes no custom_vjp with symbolic zeros but within a compiled function.
_gradients_compiled = jax.jit(_gradients, static_argnums=(0, 1), inline=True)

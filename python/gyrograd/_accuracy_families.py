"""The data of `gyrograd accuracy`: families of numbers on which sums, products and norms are hard to get right.

Every family keeps inside what the bounds are promised for: inputs are finite, and neither results nor what they are
made of leave their types' range.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import ml_dtypes
import numpy as np

from gyrograd._check_norm_rope_concat import EPS
from gyrograd._inputs import DTYPES, Kind

Arrays = dict[str, np.ndarray]
MEAN_OVER_DEVIATION = 1e4  # of large means
_HEAD_DIMS = (32, 80, 128, 520)


@dataclass(frozen=True)
class Draw:
    """What a family's numbers are drawn for: rows and their gradients, both [B, S, N, D], tables [S, D], a weight [D].

    mode: which channels pair, or "none" where nothing turns; norm: its type, "none" where nothing is normed.
    """

    numbers: np.random.Generator
    kind: Kind
    mode: str
    norm: str
    batch: int
    length: int
    heads: int
    head_dim: int

    @property
    def rows(self) -> tuple[int, int, int, int]:
        return self.batch, self.length, self.heads, self.head_dim

    @property
    def table(self) -> tuple[int, int]:
        return self.length, self.head_dim

    @cached_property
    def limits(self) -> ml_dtypes.finfo:
        """Of the rows' type."""
        return ml_dtypes.finfo(DTYPES[self.kind.rows])

    @cached_property
    def members(self) -> tuple[np.ndarray, np.ndarray]:
        """The channels of the pairs' first and second members, in gradients and tables."""
        channels = np.arange(self.head_dim)
        if self.mode == "interleave":
            return channels[::2], channels[1::2]
        parts = np.split(channels, 4 if self.mode == "quarter" else 2)
        return np.concatenate(parts[::2]), np.concatenate(parts[1::2])

    def rounded(self, values: np.ndarray) -> np.ndarray:
        """The values that the rows' type has for these."""
        return values.astype(DTYPES[self.kind.rows]).astype(np.float64)

    def normal(self) -> Arrays:
        shapes = {"dy": self.rows, "x": self.rows, "cos": self.table, "sin": self.table, "weight": (self.head_dim,)}
        return {name: self.numbers.standard_normal(shape) for name, shape in shapes.items()}

    def spread(self, shape: tuple[int, ...], low: float, high: float) -> np.ndarray:
        """Magnitudes uniform in a range, of either sign."""
        return self.numbers.choice((-1.0, 1.0), shape) * self.numbers.uniform(low, high, shape)


def _normal(draw: Draw) -> Arrays:
    return draw.normal()


def _cancellation(draw: Draw) -> Arrays:
    """Batches of the second half take back what those of the first half add, all but a few units in the last place."""
    half = draw.batch // 2
    x = draw.rounded(draw.spread((half, *draw.rows[1:]), 0.5, 2))
    back = -x * (1 + 2 * float(draw.limits.eps) * draw.numbers.choice((-1, 1), x.shape))
    arrays = draw.normal() | {"x": np.concatenate([x, back]), "weight": draw.spread((draw.head_dim,), 0.5, 2)}
    dy = _rotated_away(draw, half, arrays) if draw.mode != "none" else _normed_away(draw, x, arrays["weight"])
    return arrays | {"dy": np.concatenate([dy, dy])}


def _rotated_away(draw: Draw, half: int, arrays: Arrays) -> np.ndarray:
    """Gradients of half the batches, and tables for them, with cos*dy and sin*dy of the partner nearly opposite."""
    first, second = draw.members
    base = draw.rounded(draw.spread(draw.table, 0.5, 2))
    cos, sin = draw.rounded(draw.spread(draw.table, 0.5, 2)), np.empty(draw.table)
    sin[:, second] = -cos[:, first] * base[:, first] / base[:, second]
    sin[:, first] = cos[:, second] * base[:, second] / base[:, first]
    arrays.update(cos=cos, sin=sin)
    scales = draw.numbers.choice((-1, 1, 2, -0.5), (half, 1, draw.heads, 1))  # exact in every type
    return scales * base[:, None]


def _normed_away(draw: Draw, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Gradients of half the batches that the norm's backward takes away again: the parts along 1 and along x_hat."""
    if draw.norm == "none":
        return draw.spread(x.shape, 0.5, 2)
    centred = x - x.mean(-1, keepdims=True) if draw.norm.startswith("layer") else x
    x_hat = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + EPS)
    away = draw.spread((*x.shape[:3], 1), 0.5, 2) * x_hat
    if draw.norm.startswith("layer"):
        away += draw.spread((*x.shape[:3], 1), 0.5, 2)
    return away / weight if draw.norm.endswith("affine") else away


def _huge(draw: Draw) -> Arrays:
    """For each head a row with a huge gradient, and one of huge x."""
    arrays = draw.normal() | {name: draw.spread(draw.table, 0.25, 1) for name in ("cos", "sin")}
    arrays["weight"] = draw.spread((draw.head_dim,), 0.25, 1)
    largest = float(draw.limits.max)
    high_dy, high_x = largest / 2, largest / 2
    if draw.norm != "none":  # sums over a row, and over rows, must not overflow; nor float64's squares of x
        arithmetic = np.finfo(np.float64 if draw.kind.rows == "f64" else np.float32).max
        high_dy = min(largest / 32, float(arithmetic) / (16 * draw.head_dim)) / draw.heads
        high_x = min(largest / 4, 1e150)
    for name, high, other in (("dy", high_dy, "x"), ("x", high_x, "dy")):
        for head in range(draw.heads):
            row = draw.numbers.integers(draw.batch), draw.numbers.integers(draw.length), head
            arrays[name][row] = draw.spread((draw.head_dim,), high / 2, high)
            if draw.norm == "none":
                arrays[other][row] = draw.spread((draw.head_dim,), 1 / 128, 1 / 64) / draw.heads
    return arrays


def _tiny(draw: Draw) -> Arrays:
    """Gradients of even batches and x of odd ones a little above the least normal number."""
    arrays = draw.normal()
    least = float(draw.limits.smallest_normal)
    for name, batches in (("dy", slice(0, None, 2)), ("x", slice(1, None, 2))):
        arrays[name][batches] = draw.spread(arrays[name][batches].shape, least, 16 * least)
    return arrays


def _denormals(draw: Draw) -> Arrays:
    """Gradients of even batches, x of odd ones and tables of odd positions."""
    arrays = draw.normal()
    odd, even = slice(1, None, 2), slice(0, None, 2)
    for name, which in (("dy", even), ("x", odd), ("cos", odd), ("sin", odd)):
        limits = draw.limits if name in ("dy", "x") else ml_dtypes.finfo(DTYPES[draw.kind.tables])
        least, shape = float(limits.smallest_subnormal), arrays[name][which].shape
        highest = round(float(limits.smallest_normal) / least)
        arrays[name][which] = draw.numbers.integers(1, highest, shape) * draw.numbers.choice((-1, 1), shape) * least
    return arrays


def _same_sign(draw: Draw) -> Arrays:
    """Every term of a sum has the sign of the others."""
    uniform = draw.numbers.uniform
    arrays = {name: uniform(0.25, 0.75, draw.table) for name in ("cos", "sin")}
    if draw.mode != "none":
        arrays["sin"][:, draw.members[0]] *= -1  # so that both products of a rotation have the sign of the gradients
    signs = draw.numbers.permutation(np.resize((-1, 1), draw.head_dim))
    return arrays | {
        "dy": uniform(0.5, 1.5, draw.rows),
        "x": signs * uniform(1, 1.25, draw.rows),
        "weight": draw.spread((draw.head_dim,), 0.5, 2),
    }


def _mixed_scales(draw: Draw) -> Arrays:
    arrays = draw.normal()
    exponent = {"f64": 100, "f16": 4}.get(draw.kind.rows, 20)
    for name in ("dy", "x"):
        scales = np.exp2(draw.numbers.integers(-exponent, exponent, draw.rows, endpoint=True))
        arrays[name] = draw.spread(draw.rows, 1, 2) * scales
    return arrays | {name: draw.spread(draw.table, 0.25, 1) for name in ("cos", "sin")}


def _zero_variance(draw: Draw) -> Arrays:
    arrays = draw.normal()
    arrays["x"][:] = arrays["x"][..., :1]
    arrays["x"][draw.numbers.random(draw.rows[:3]) < 0.25] = 0
    return arrays


def _large_means(draw: Draw) -> Arrays:
    arrays = draw.normal()
    arrays["x"] = draw.spread((*draw.rows[:3], 1), 1, 100) * (1 + arrays["x"] / MEAN_OVER_DEVIATION)
    return arrays


@dataclass(frozen=True)
class Family:
    """`make` draws its numbers, float64 that are yet to be rounded."""

    words: str
    make: Callable[[Draw], Arrays]
    of_norms: bool = False  # alone
    is_long: bool = False


FAMILIES = {
    "normal": Family("standard normal numbers", _normal),
    "cancellation": Family(
        "the two products of a rotation are nearly opposite (without rotation: the norm's backward takes nearly all of "
        "the gradient away), and the second half of a sum takes back the first",
        _cancellation,
    ),
    "huge": Family("rows as near to the largest number as sums and results that must not overflow allow", _huge),
    "tiny": Family("rows of numbers at the least normal one", _tiny),
    "denormals": Family("denormal gradients, x and tables, beside normal ones", _denormals),
    "same sign": Family(
        "thousands of terms of one sign in every sum (rotary: 16384; norms: 4096 or 8192)", _same_sign, is_long=True
    ),
    "mixed scales": Family("2^-20 to 2^20 in one row (f64: 2^-100 to 2^100; f16: 2^-4 to 2^4)", _mixed_scales),
    "zero variance": Family("rows of x of one number each, some of zeros", _zero_variance, of_norms=True),
    "large means": Family("rows of x whose mean is 10^4 deviations", _large_means, of_norms=True),
}


def sizes(numbers: np.random.Generator) -> dict[str, int]:
    """Of a Draw; long families have their operator's."""
    return {
        "batch": 2 * int(numbers.integers(2, 5)),
        "length": int(numbers.integers(4, 9)),
        "heads": int(numbers.integers(1, 4)),
        "head_dim": int(numbers.choice(_HEAD_DIMS)),
    }

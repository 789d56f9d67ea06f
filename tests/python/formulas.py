"""Rotary position embedding in plain NumPy, and comparisons that know the promises. Shares no code with the library."""

import ml_dtypes
import numpy as np

MODES = ("half", "interleave", "quarter", "interleave-half")
BF16 = ml_dtypes.bfloat16
DTYPES = (np.float64, np.float32, np.float16, BF16)


def pairs(mode, width):
    """The channels of the first and the second members: in x, then in y (and in the tables)."""
    channels = np.arange(width)
    halves = (channels[: width // 2], channels[width // 2 :])
    evens = (channels[0::2], channels[1::2])
    if mode == "half":
        return (*halves, *halves)
    if mode == "interleave":
        return (*evens, *evens)
    if mode == "interleave-half":
        return (*evens, *halves)
    q1, q2, q3, q4 = np.split(channels, 4)
    quarters = (np.concatenate([q1, q3]), np.concatenate([q2, q4]))
    return (*quarters, *quarters)


def wide(*arrays):
    """float64 stays, everything else is computed in float32."""
    return [array.astype(np.float64 if array.dtype == np.float64 else np.float32) for array in arrays]


def full_tables(table, mode, per_pair, width):
    """Tables per pair, repeated for both members."""
    if not per_pair:
        return table
    _, _, y0, y1 = pairs(mode, width)
    full = np.empty((*table.shape[:-1], width), table.dtype)
    full[..., y0] = table
    full[..., y1] = table
    return full


def rotary(x, cos, sin, mode):
    """The forward, in wide arithmetic, rounded once."""
    x0, x1, y0, y1 = pairs(mode, x.shape[-1])
    v, c, s = wide(x, cos, sin)
    y = np.empty(x.shape, v.dtype)
    y[..., y0] = v[..., x0] * c[..., y0] - v[..., x1] * s[..., y0]
    y[..., y1] = v[..., x1] * c[..., y1] + v[..., x0] * s[..., y1]
    return y.astype(x.dtype)


def backward_input(dy, cos, sin, mode):
    """dx, in wide arithmetic, rounded once."""
    x0, x1, y0, y1 = pairs(mode, dy.shape[-1])
    g, c, s = wide(dy, cos, sin)
    dx = np.empty(dy.shape, g.dtype)
    dx[..., x0] = c[..., y0] * g[..., y0] + s[..., y1] * g[..., y1]
    dx[..., x1] = c[..., y1] * g[..., y1] - s[..., y0] * g[..., y0]
    return dx.astype(dy.dtype)


def partial(function, x, cos, sin, mode, rotary_dim, rotary_offset):
    """`function` on some channels; the others pass."""
    turned = slice(rotary_offset, rotary_offset + rotary_dim)
    y = np.array(x)
    y[..., turned] = function(x[..., turned], cos, sin, mode)
    return y


def table_terms(dy, x, mode):
    """The terms of dcos and of dsin, in more precision than they are promised in."""
    x0, x1, y0, y1 = pairs(mode, dy.shape[-1])
    g, v = dy.astype(np.longdouble), x.astype(np.longdouble)
    dcos, dsin = np.empty_like(g), np.empty_like(g)
    dcos[..., y0], dcos[..., y1] = g[..., y0] * v[..., x0], g[..., y1] * v[..., x1]
    dsin[..., y0], dsin[..., y1] = g[..., y0] * -v[..., x1], g[..., y1] * v[..., x0]
    return dcos, dsin


def sum_to(terms, shape, mode, per_pair):
    """The sum over every axis along which the tables have extent 1, and over a pair's members."""
    if per_pair:
        _, _, y0, y1 = pairs(mode, terms.shape[-1])
        terms = terms[..., y0] + terms[..., y1]
    axes = tuple(axis for axis, extent in enumerate(shape) if extent != terms.shape[axis])
    return terms.sum(axis=axes, keepdims=True)


def assert_same_bits(got, want):
    """Equal type, shape and bits; any NaN equals any NaN."""
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    bits = f"u{got.dtype.itemsize}"
    same = np.ascontiguousarray(got).view(bits) == np.ascontiguousarray(want).view(bits)
    same |= np.isnan(got) & np.isnan(want)
    assert same.all(), f"{np.count_nonzero(~same)} of {got.size} elements differ, first at {np.argwhere(~same)[0]}"


def assert_table_gradient(got, terms, shape, mode, activations, per_pair=False):
    """Within the promised bound of the exact sum, and then rounded once."""
    exact = sum_to(terms, shape, mode, per_pair)
    magnitude = sum_to(np.abs(terms), shape, mode, per_pair)
    count = terms.size // max(exact.size, 1)
    factor, tiny = (1e-14, 2.0**-1073) if activations == np.float64 else (1e-6, 2.0**-149)
    info = ml_dtypes.finfo(got.dtype)
    half_ulp = np.maximum(np.abs(exact) * float(info.eps) / 2, float(info.smallest_subnormal) / 2)
    bound = factor * magnitude + count * tiny + half_ulp
    assert got.shape == tuple(shape)
    error = np.abs(got.astype(np.longdouble) - exact)
    assert (error <= bound).all(), f"worst error is {np.max(error / bound)} times the bound"


def random(rng, shape, dtype, low=-2.0, high=2.0):
    """Uniform values of a type."""
    return rng.uniform(low, high, shape).astype(dtype)


def problem(seed, shape, table_shape, dtype=np.float32, table_dtype=None):
    """dy, cos, sin, x with values that differ everywhere."""
    rng = np.random.default_rng(seed)
    table_dtype = table_dtype or dtype
    return (
        random(rng, shape, dtype),
        random(rng, table_shape, table_dtype),
        random(rng, table_shape, table_dtype),
        random(rng, shape, dtype),
    )

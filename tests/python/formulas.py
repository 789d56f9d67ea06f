"""The operators in plain NumPy, and comparisons that know the promises. Shares no code with the library."""

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


def assert_table_gradient(got, terms, shape, mode, activations, per_pair=False, ranks=0):
    """Within the promised bound of the exact sum, with float32 sums of several ranks added, and then rounded once."""
    exact = sum_to(terms, shape, mode, per_pair)
    magnitude = sum_to(np.abs(terms), shape, mode, per_pair)
    count = terms.size // max(exact.size, 1)
    factor, tiny = (1e-14, 2.0**-1073) if activations == np.float64 else (1e-6, 2.0**-149)
    info = ml_dtypes.finfo(got.dtype)
    half_ulp = np.maximum(np.abs(exact) * float(info.eps) / 2, float(info.smallest_subnormal) / 2)
    bound = (factor + ranks * 2.0**-24) * magnitude + count * tiny + half_ulp
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


# ---- norm, rotary and concatenation, in float64; arrays are [B, S, N, D] but for joint ones, [B, N, S, D]

NORM_TYPES = ("none", "layer", "layer_affine", "rms", "rms_affine")
ROPE_TYPES = ("none", "interleave", "half")
EPS = 1e-5


def f64(array):
    return None if array is None else np.asarray(array).astype(np.float64)


def has_mean(norm):
    return norm.startswith("layer")


def is_affine(norm):
    return norm.endswith("affine")


def statistics(x, norm, eps=EPS):
    """Mean (0 where the norm has none) and rstd of the rows (1 without norm)."""
    x = f64(x)
    mean = x.mean(-1, keepdims=True) if has_mean(norm) else np.zeros((*x.shape[:-1], 1))
    rstd = np.ones_like(mean) if norm == "none" else 1 / np.sqrt(((x - mean) ** 2).mean(-1, keepdims=True) + eps)
    return mean, rstd


def norm_forward(x, norm, weight=None, bias=None, eps=EPS):
    mean, rstd = statistics(x, norm, eps)
    y = (f64(x) - mean) * rstd
    if is_affine(norm):
        y = y * f64(weight)
    return y + f64(bias) if norm == "layer_affine" else y


def norm_backward(g, x, norm, weight, mean, rstd):
    """dx, dweight and dbias of one stream from the saved statistics; g is the gradient of the normed rows."""
    if norm == "none":
        return g, None, None
    x_hat = (f64(x) - (f64(mean) if has_mean(norm) else 0)) * f64(rstd)
    h = g * f64(weight) if is_affine(norm) else g
    inner = h - x_hat * (h * x_hat).mean(-1, keepdims=True)
    if has_mean(norm):
        inner = inner - h.mean(-1, keepdims=True)
    axes = tuple(range(g.ndim - 1))
    dweight = (g * x_hat).sum(axes) if is_affine(norm) else None
    return f64(rstd) * inner, dweight, g.sum(axes) if norm == "layer_affine" else None


def turn(joint, cos, sin, rope, start=0, function=rotary, per_pair=False, rotary_dim=None, rotary_offset=0):
    """`function` at positions `start` and on of a joint sequence, [B, N, S, D]; cos and sin are [L, R] or rank 4."""
    if rope == "none":
        return joint
    width = joint.shape[-1] if rotary_dim is None else rotary_dim
    cos, sin = (full_tables(f64(table), rope, per_pair, width) for table in (cos, sin))
    turned = np.array(joint)
    rows = slice(start, start + cos.shape[-2])
    turned[:, :, rows] = partial(function, joint[:, :, rows], cos, sin, rope, width, rotary_offset)
    return turned


def concat(stream, encoder, order):
    """Two streams, one of which may be None, as one joint sequence, [B, N, S, D]."""
    streams = [s for s in ((stream, encoder) if order == "stream_first" else (encoder, stream)) if s is not None]
    return np.concatenate(streams, axis=1).swapaxes(1, 2)


def split(joint, rows, encoder_rows, order):
    """The opposite of concat."""
    joint = joint.swapaxes(1, 2)
    if order == "stream_first":
        return joint[:, :rows], joint[:, rows:]
    return joint[:, encoder_rows:], joint[:, :encoder_rows]


def assert_close(got, want, dtype):
    """One rounding to `dtype` and the arithmetic's errors from `want`, relative to the largest value."""
    assert got.dtype == dtype
    assert got.shape == want.shape
    got = f64(got)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    relative = 0.505 * float(ml_dtypes.finfo(dtype).eps) + (1e-13 if dtype == np.float64 else 5e-6)
    largest = np.nanmax(np.abs(want), initial=0)
    assert np.nanmax(np.abs(got - want), initial=0) <= relative * largest

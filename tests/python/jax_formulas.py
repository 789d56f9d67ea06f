"""The operators as people write them in JAX, and what its tests share."""

import contextlib
import re

import jax
import jax.numpy as jnp
import numpy as np
from formulas import assert_same_bits, has_mean, is_affine, pairs
from test_frameworks import to_numpy


def as_jax(*arrays):
    return [jnp.asarray(array) for array in arrays]


def assert_equal(got, want):
    """Equal types, shapes and bits of two sequences of arrays; None equals None."""
    for a, b in zip(got, want, strict=True):
        assert (a is None) == (b is None)
        if b is not None:
            assert_same_bits(to_numpy(a), to_numpy(b))


def assert_close(got, want, tolerance):
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(np.asarray(a, np.float64), np.asarray(b, np.float64), tolerance, tolerance)


@contextlib.contextmanager
def x64():
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    try:
        yield
    finally:
        jax.config.update("jax_enable_x64", before)


def custom_calls(function, *arguments):
    """The targets of the compiled program's custom calls, and its text."""
    text = jax.jit(function).lower(*arguments).compile().as_text()
    return sorted(re.findall(r'custom_call_target="([^"]*)"', text)), text


def rotary(x, cos, sin, mode="half"):
    """The formula, by pairs, in the arrays' type."""
    x0, x1, y0, y1 = pairs(mode, x.shape[-1])
    first = x[..., x0] * cos[..., y0] - x[..., x1] * sin[..., y0]
    second = x[..., x1] * cos[..., y1] + x[..., x0] * sin[..., y1]
    y = jnp.zeros(first.shape[:-1] + x.shape[-1:], first.dtype)
    return y.at[..., y0].set(first).at[..., y1].set(second)


def norm(x, kind, weight=None, bias=None, eps=1e-5):
    if kind != "none":
        mean = x.mean(-1, keepdims=True) if has_mean(kind) else 0
        x = (x - mean) / jnp.sqrt(((x - mean) ** 2).mean(-1, keepdims=True) + eps)
    if is_affine(kind):
        x = x * weight
    return x + bias if kind == "layer_affine" else x

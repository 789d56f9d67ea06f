"""PyTorch and JAX: against automatic differentiation, kinds of results, gradients that would be lost."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from formulas import BF16, MODES, assert_same_bits, problem
from torch_ways import to_numpy, to_torch

import gyrograd as gg
from gyrograd import _core

SHAPE, TABLE = (2, 5, 3, 16), (1, 5, 1, 16)
TORCH = {torch.float64: np.float64, torch.float32: np.float32, torch.float16: np.float16, torch.bfloat16: BF16}
JAX = {jnp.float32: np.float32, jnp.float16: np.float16, jnp.bfloat16: BF16}


def torch_rotary(x, cos, sin, mode):
    """The forward as the formulas print it, mode by mode."""
    if mode == "half":
        x1, x2 = x.chunk(2, -1)
        return x * cos + torch.cat([-x2, x1], -1) * sin
    if mode == "quarter":
        x1, x2, x3, x4 = x.chunk(4, -1)
        return x * cos + torch.cat([-x2, x1, -x4, x3], -1) * sin
    x1, x2 = x[..., 0::2], x[..., 1::2]
    if mode == "interleave":
        return x * cos + torch.stack([-x2, x1], -1).flatten(-2) * sin
    return torch.cat([x1, x2], -1) * cos + torch.cat([-x2, x1], -1) * sin


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("table_shape", [TABLE, SHAPE, (2, 5, 1, 16), (1, 1, 1, 16)])
def test_against_torch_autograd(mode, table_shape):
    dy, cos, sin, x = map(to_torch, problem(1, SHAPE, table_shape, np.float64))
    leaves = [tensor.clone().requires_grad_() for tensor in (x, cos, sin)]
    y = torch_rotary(*leaves, mode)
    y.backward(dy)
    for got, leaf in zip(gg.rotary_backward(dy, cos, sin, x, mode=mode), leaves, strict=True):
        assert isinstance(got, torch.Tensor)
        torch.testing.assert_close(got, leaf.grad, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gg.rotary(x, cos, sin, mode=mode), y.detach(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("table_shape", [TABLE, SHAPE])
def test_against_jax_vjp(mode, table_shape):
    dy, cos, sin, x = problem(2, SHAPE, table_shape)

    def forward(x, cos, sin):
        rows = x.reshape(*x.shape[:-1], -1)
        if mode == "half":
            x1, x2 = jnp.split(rows, 2, -1)
            turned = jnp.concatenate([-x2, x1], -1)
        elif mode == "quarter":
            x1, x2, x3, x4 = jnp.split(rows, 4, -1)
            turned = jnp.concatenate([-x2, x1, -x4, x3], -1)
        elif mode == "interleave":
            turned = jnp.stack([-rows[..., 1::2], rows[..., 0::2]], -1).reshape(rows.shape)
        else:
            turned = jnp.concatenate([-rows[..., 1::2], rows[..., 0::2]], -1)
            rows = jnp.concatenate([rows[..., 0::2], rows[..., 1::2]], -1)
        return rows * cos + turned * sin

    _, pull = jax.vjp(forward, jnp.asarray(x), jnp.asarray(cos), jnp.asarray(sin))
    got = gg.rotary_backward(*map(jnp.asarray, (dy, cos, sin, x)), mode=mode)
    for result, want in zip(got, pull(jnp.asarray(dy)), strict=True):
        assert isinstance(result, jax.Array)
        np.testing.assert_allclose(result, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", TORCH)
def test_torch_equals_numpy(dtype):
    arrays = problem(3, SHAPE, TABLE, TORCH[dtype])
    tensors = list(map(to_torch, arrays))
    for got, want in zip(gg.rotary_backward(*tensors), gg.rotary_backward(*arrays), strict=True):
        assert isinstance(got, torch.Tensor)
        assert got.dtype == dtype
        assert_same_bits(to_numpy(got), want)
    dy, cos, sin, x = tensors
    assert_same_bits(to_numpy(gg.rotary_backward(dy, cos, sin)), gg.rotary_backward(*arrays[:3]))
    assert_same_bits(to_numpy(gg.rotary(x, cos, sin)), gg.rotary(arrays[3], *arrays[1:3]))


@pytest.mark.parametrize("dtype", JAX)
def test_jax_equals_numpy(dtype):
    arrays = problem(4, SHAPE, TABLE, JAX[dtype])
    for got, want in zip(gg.rotary_backward(*map(jnp.asarray, arrays)), gg.rotary_backward(*arrays), strict=True):
        assert isinstance(got, jax.Array)
        assert got.dtype == dtype
        assert_same_bits(np.asarray(got), want)


@pytest.mark.parametrize("convert", [to_torch, jnp.asarray], ids=["torch", "jax"])
def test_float32_tables_beside_bfloat16(convert):
    arrays = problem(5, SHAPE, TABLE, BF16, np.float32)
    for got, want in zip(gg.rotary_backward(*map(convert, arrays)), gg.rotary_backward(*arrays), strict=True):
        assert_same_bits(to_numpy(got), want)


@pytest.mark.parametrize("convert", [to_torch, jnp.asarray], ids=["torch", "jax"])
@pytest.mark.parametrize("shape", [(0, 5, 16), (3, 0, 16), (3, 5, 0)])
def test_zero_size(convert, shape):
    arrays = problem(6, shape, (1, 1, shape[-1]))
    dx, dcos, dsin = gg.rotary_backward(*map(convert, arrays))
    assert tuple(dx.shape) == shape
    assert type(dx) is type(convert(arrays[0]))
    for gradient in (dcos, dsin):
        assert tuple(gradient.shape) == arrays[1].shape
        assert not to_numpy(gradient).any()


def test_torch_views():
    """Transposed, narrowed, expanded and sliced tensors equal their contiguous copies."""
    dy, cos, sin, x = map(to_torch, problem(7, (2, 3, 5, 16), (1, 1, 5, 16)))
    views = [
        (dy.transpose(1, 2), cos.transpose(1, 2), sin.transpose(1, 2), x.transpose(1, 2)),
        (dy[..., ::2], cos[..., ::2], sin[..., ::2], x[..., ::2]),
        (torch.ones(()).expand(2, 3, 5, 16), cos.expand(2, 3, 5, 16), sin.expand(2, 3, 5, 16), x),
        (dy[1:, :, 2:], cos[:, :, 2:], sin[:, :, 2:], x[1:, :, 2:]),
    ]
    for tensors in views:
        got = gg.rotary_backward(*tensors)
        want = gg.rotary_backward(*(tensor.contiguous() for tensor in tensors))
        for result, expected in zip(got, want, strict=True):
            assert torch.equal(result, expected)


def test_torch_complex_tables():
    """Tables per pair as PyTorch keeps them: the parts of a complex64 tensor."""
    dy, cos, sin, x = map(to_torch, problem(8, SHAPE, (1, 5, 1, 8)))
    turns = torch.complex(cos, sin)
    got = gg.rotary_backward(dy, turns.real, turns.imag, x, mode="interleave", per_pair_tables=True)
    want = gg.rotary_backward(dy, cos, sin, x, mode="interleave", per_pair_tables=True)
    for result, expected in zip(got, want, strict=True):
        assert torch.equal(result, expected)


@pytest.mark.parametrize("position", range(4))
def test_tensors_that_require_grad(position):
    tensors = list(map(to_torch, problem(9, SHAPE, TABLE)))
    want = gg.rotary_backward(*tensors)
    tensors[position].requires_grad_()
    name = ("dy", "cos", "sin", "x")[position]
    with pytest.raises(ValueError, match=f"rotary_backward: {name} requires grad.*detach"):
        gg.rotary_backward(*tensors)
    with torch.no_grad():
        got = gg.rotary_backward(*tensors)
    for result, expected in zip(got, want, strict=True):
        assert not result.requires_grad
        assert torch.equal(result, expected)


def test_torch_out():
    dy, cos, sin, x = map(to_torch, problem(10, SHAPE, TABLE, BF16, np.float32))
    want = gg.rotary_backward(dy, cos, sin, x)
    out = (torch.empty_like(dy), torch.empty_like(cos), None)
    results = gg.rotary_backward(dy, cos, sin, x, out=out)
    assert results[0] is out[0]
    assert results[1] is out[1]
    assert results[2] is None
    assert torch.equal(out[0], want[0])
    assert torch.equal(out[1], want[1])
    with pytest.raises(ValueError, match=r"out \(dx\) requires grad"):
        gg.rotary_backward(dy, cos, sin, out=torch.empty_like(dy).requires_grad_())


def test_autograd_notices_what_out_overwrites():
    weight = torch.ones(SHAPE, requires_grad=True)
    saved = torch.ones(SHAPE)
    loss = (weight * saved).sum()
    gg.rotary_backward(*map(to_torch, problem(11, SHAPE, TABLE)[:3]), out=saved)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_jax_out_is_refused():
    dy, cos, sin, _ = map(jnp.asarray, problem(12, SHAPE, TABLE))
    with pytest.raises(ValueError, match=r"rotary_backward: out \(dx\) is a JAX array"):
        gg.rotary_backward(dy, cos, sin, out=jnp.zeros(SHAPE))


def test_jax_tracers_are_refused():
    _, cos, sin, _ = problem(13, SHAPE, TABLE)
    with pytest.raises(TypeError, match=r"dy is traced by JAX .*outside jit"):
        jax.jit(lambda dy: gg.rotary_backward(dy, cos, sin))(jnp.zeros(SHAPE))


def test_other_torch_tensors_are_refused():
    dy, cos, sin, x = map(to_torch, problem(14, SHAPE, TABLE))
    with pytest.raises(TypeError, match="dy has type int64"):
        gg.rotary_backward(dy.long(), cos, sin)
    with pytest.raises(ValueError, match="x cannot be read through DLPack"):
        gg.rotary_backward(dy, cos, sin, x.to_sparse())
    with pytest.raises(ValueError, match=r"rotary_backward: dy is on device meta; .* move it with \.cpu\(\)"):
        gg.rotary_backward(dy.to("meta"), cos, sin)


class Wrapper(torch.Tensor):
    """Without memory of its own, as a DTensor is."""

    @staticmethod
    def __new__(cls, tensor):
        return torch.Tensor._make_wrapper_subclass(cls, tensor.shape, dtype=tensor.dtype)

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        return Wrapper(args[0])


@pytest.mark.parametrize("position", range(4))
def test_tensors_without_memory_of_their_own_are_refused(position):
    tensors = [to_torch(array) for array in problem(14, SHAPE, TABLE)]
    tensors[position] = Wrapper(tensors[position])
    name = ("dy", "cos", "sin", "x")[position]
    words = (
        f"rotary_backward: {name} is a .*Wrapper, a subclass of torch.Tensor without memory .* gyrograd.torch.*to_local"
    )
    with pytest.raises(TypeError, match=words):
        gg.rotary_backward(*tensors)


class Subclass(torch.Tensor):
    """Read through DLPack's Python methods, since it may mean more than its memory."""


READINGS = {
    "plain": lambda tensor: tensor,
    "parameter": torch.nn.Parameter,
    "subclass": lambda tensor: tensor.as_subclass(Subclass),
    "inference": lambda tensor: torch.inference_mode()(tensor.clone)(),
}


@pytest.mark.parametrize("reading", READINGS)
@pytest.mark.parametrize("dtype", TORCH)
def test_ways_of_reading_are_equal(reading, dtype):
    """Shapes, strides, offsets and types, whoever reads them; an axis of one row has any stride."""
    arrays = problem(17, (3, 2, 5, 16), (1, 1, 5, 16), TORCH[dtype])
    dy, cos, sin, x = map(to_torch, arrays)
    for view in (
        lambda t: t,
        lambda t: t[..., 8:],
        lambda t: t.transpose(1, 2),
        lambda t: t.as_strided(t.shape, t.stride()),
    ):
        tensors = [READINGS[reading](view(tensor).detach()) for tensor in (dy, cos, sin, x)]
        assert _core.are_plain_tensors(*tensors) == (reading != "subclass")
        with torch.no_grad():
            results = gg.rotary_backward(*tensors)
        want = gg.rotary_backward(*(to_numpy(view(tensor)) for tensor in (dy, cos, sin, x)))
        for got, expected in zip(results, want, strict=True):
            assert_same_bits(to_numpy(got.as_subclass(torch.Tensor)), expected)


def test_what_is_a_plain_tensor():
    x = torch.ones(2, 4)
    assert _core.are_plain_tensors()
    assert _core.are_plain_tensors(x, None, torch.nn.Parameter(x), x[:, ::2], torch.empty(0, 4))
    for other in (
        x.as_subclass(Subclass),
        x.to("meta"),
        x.to_sparse(),
        torch._neg_view(x),
        torch._efficientzerotensor(2),
        x.numpy(),
    ):
        assert not _core.are_plain_tensors(x, other)
    wrapped = []
    torch.func.vmap(lambda row: wrapped.append(_core.are_plain_tensors(row)) or row)(x)
    assert wrapped == [False]


def test_mixed_kinds_follow_dy():
    arrays = problem(15, SHAPE, TABLE)
    want = gg.rotary_backward(*arrays)
    dy, cos, sin, x = arrays
    results = gg.rotary_backward(to_torch(dy), cos, jnp.asarray(sin), x)
    for got, expected in zip(results, want, strict=True):
        assert isinstance(got, torch.Tensor)
        assert_same_bits(to_numpy(got), expected)
    assert isinstance(gg.rotary_backward(dy, to_torch(cos), to_torch(sin)), np.ndarray)
    out = np.empty(SHAPE, np.float32)
    assert gg.rotary_backward(*map(to_torch, arrays[:3]), out=out) is out
    assert_same_bits(out, want[0])


@pytest.mark.parametrize("convert", [to_torch, jnp.asarray], ids=["torch", "jax"])
def test_large_results(convert):
    """Of more than 4 MiB, for which memory is asked for in large pages."""
    arrays = problem(19, (2, 1030, 4, 130), (1, 1030, 1, 130))
    for got, want in zip(gg.rotary_backward(*map(convert, arrays)), gg.rotary_backward(*arrays), strict=True):
        assert_same_bits(to_numpy(got), want)


def test_results_own_their_memory():
    """JAX and PyTorch results outlive everything that made them."""
    arrays = problem(16, SHAPE, TABLE)
    want = gg.rotary_backward(*arrays)
    for convert in (to_torch, jnp.asarray):
        results = [gg.rotary_backward(*map(convert, arrays)) for _ in range(20)]
        for result in results:
            for got, expected in zip(result, want, strict=True):
                assert_same_bits(to_numpy(got), expected)


def test_no_framework_is_imported():
    code = (
        "import sys, numpy as np, gyrograd as gg\n"
        "a = np.ones((2, 4), np.float32)\n"
        "gg.rotary_backward(a, a, a, a)\n"
        "assert not {'torch', 'jax', 'rich', 'gyrograd._reference'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_torch_views_that_negate_their_memory_are_refused():
    x = torch.arange(8.0).reshape(1, 8)
    cos, sin = torch.full_like(x, 0.5), torch.full_like(x, 0.25)
    table = torch.complex(cos, sin)
    for arguments in ((torch._neg_view(x), cos, sin), (x, cos, table.conj().imag)):
        with pytest.raises(ValueError, match="resolve_neg"):
            gg.rotary(*arguments)
    out = torch._neg_view(torch.full_like(x, 7.0))
    with pytest.raises(ValueError, match="resolve_neg"):
        gg.rotary(x, cos, sin, out=out)
    assert torch.equal(out, torch.full_like(x, -7.0))
    resolved = gg.rotary(x, cos, table.conj().imag.resolve_neg())
    assert torch.equal(resolved, gg.rotary(x, cos, -sin))

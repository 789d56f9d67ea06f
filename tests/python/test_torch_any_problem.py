"""gyrograd.torch on drawn problems: shapes, views, broadcasts, options. The judge is autograd of the formulas."""

import pytest
import torch
from formulas import MODES
from hypothesis import given, settings
from hypothesis import strategies as st
from test_frameworks import torch_rotary
from torch_ways import WAYS, grads, leaves, way

import gyrograd.torch as gt

VIEWS = ("contiguous", "transposed", "every second row", "part of wider rows", "expanded")


def viewed(draw, shape):
    """Random numbers of this shape, in some view of more memory."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    kind = draw(st.sampled_from(VIEWS)) if len(shape) > 1 else "contiguous"

    def random(*extents):
        return torch.randn(extents, generator=generator, dtype=torch.float64)

    if kind == "transposed":
        return random(*shape[-2::-1], shape[-1]).permute(*range(len(shape) - 2, -1, -1), len(shape) - 1)
    if kind == "every second row":
        return random(2 * shape[0], *shape[1:])[::2]
    if kind == "part of wider rows":
        return random(*shape[:-1], shape[-1] + 3)[..., 2:-1]
    if kind == "expanded":
        return random(1, *shape[1:]).expand(*shape)
    return random(*shape)


@st.composite
def rotary_problems(draw):
    mode = draw(st.sampled_from(MODES))
    unit = 4 if mode == "quarter" else 2
    turning = unit * draw(st.integers(1, 10))
    offset, behind = draw(st.tuples(st.integers(0, 3), st.integers(0, 3)))
    outer = draw(st.lists(st.integers(1, 5), max_size=4))
    table = [draw(st.sampled_from((1, extent))) for extent in outer]
    x, dy = (viewed(draw, (*outer, offset + turning + behind)) for _ in range(2))
    cos, sin = (viewed(draw, (*table, turning)) for _ in range(2))
    return mode, offset, (x, cos, sin), dy


def formula(x, cos, sin, mode, offset):
    turning = cos.shape[-1]
    parts = x[..., :offset], x[..., offset : offset + turning], x[..., offset + turning :]
    return torch.cat((parts[0], torch_rotary(parts[1], cos, sin, mode), parts[2]), -1)


@pytest.mark.parametrize("way_name", WAYS)
@settings(max_examples=100, deadline=None)
@given(rotary_problems())
def test_rotary(way_name, drawn):
    mode, offset, inputs, dy = drawn
    own, judges = ([tensor.detach().requires_grad_() for tensor in inputs] for _ in range(2))
    with way(way_name):
        y = gt.rotary(*own, mode, rotary_dim=inputs[1].shape[-1], rotary_offset=offset)
        got = (y, *grads(y, own, dy))
    want = formula(*judges, mode, offset)
    for one, other in zip(got, (want, *grads(want, judges, dy)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-13, atol=1e-13)


@st.composite
def norm_problems(draw):
    batch, sequence, heads = draw(st.tuples(st.integers(1, 3), st.integers(1, 5), st.integers(1, 3)))
    head_dim = 4 * draw(st.integers(1, 10))
    norm = draw(st.sampled_from(("none", "layer", "layer_affine", "rms", "rms_affine")))
    rope = draw(st.sampled_from(("half", "interleave", "quarter")))
    x = viewed(draw, (batch, sequence, heads, head_dim)).contiguous()
    dy = viewed(draw, (batch, heads, sequence, head_dim))
    weight, bias = (viewed(draw, (head_dim,)) for _ in range(2))
    cos, sin = (viewed(draw, (sequence, head_dim)) for _ in range(2))
    return norm, rope, x, weight, bias, cos, sin, dy


@pytest.mark.parametrize("way_name", WAYS)
@settings(max_examples=100, deadline=None)
@given(norm_problems())
def test_norm_rope(way_name, drawn):
    norm, rope, x, weight, bias, cos, sin, dy = drawn
    given_weight = weight if norm.endswith("affine") else None
    given_bias = bias if norm == "layer_affine" else None
    own, judges = (leaves(*(one for one in (x, given_weight, given_bias) if one is not None)) for _ in range(2))
    with way(way_name):
        parameters = dict(zip(("weight", "bias"), own[1:], strict=False))
        y = gt.norm_rope(own[0], **parameters, cos=cos, sin=sin, norm_type=norm, rope_type=rope).y
        got = (y, *grads(y, own, dy))
    want = torch_rotary(normed(norm, *judges), cos[:, None], sin[:, None], rope).transpose(1, 2)
    for one, other in zip(got, (want, *grads(want, judges, dy)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)


def normed(norm, x, weight=None, bias=None):
    """The norm of the last axis, by PyTorch's operators."""
    if norm == "none":
        return x
    if norm.startswith("layer"):
        return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, 1e-5)
    return torch.nn.functional.rms_norm(x, x.shape[-1:], weight, 1e-5)

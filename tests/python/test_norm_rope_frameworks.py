"""PyTorch and JAX tensors in the norm and rotary calls: autograd as a witness, kinds of results, refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from attention import NORM_OF, STREAMS, Problem
from formulas import BF16, NORM_TYPES, assert_same_bits
from test_frameworks import to_numpy, to_torch, torch_rotary

import gyrograd as gg

FULL = {"norm": "layer_affine", "added": "rms_affine", "rope": "half"}
CONVERT = {"torch": to_torch, "jax": jnp.asarray}
KIND = {"torch": torch.Tensor, "jax": jax.Array}


def torch_norm(x, norm, weight, bias, eps):
    if norm.startswith("layer"):
        return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, eps)
    if norm.startswith("rms"):
        return torch.nn.functional.rms_norm(x, x.shape[-1:], weight, eps)
    return x


def torch_forward(problem, leaves):
    """The three joint tensors, as a model's code computes them."""
    joint = {}
    for stream in STREAMS:
        parts = []
        for name in (stream, f"encoder_{stream}"):
            norm = NORM_OF.get(name)
            weight, bias = (leaves.get(f"{norm}_{member}") for member in ("weight", "bias"))
            parts.append(torch_norm(leaves[name], problem.norm_of(name), weight, bias, problem.eps))
        parts = parts if problem.order == "stream_first" else parts[::-1]
        y = torch.cat(parts, 1).transpose(1, 2)
        if stream != "value" and problem.rope != "none":
            cos, sin = (to_torch(problem.tables[f"rope_{name}"]) for name in ("cos", "sin"))
            rows = len(cos)
            y = torch.cat([torch_rotary(y[:, :, :rows], cos, sin, problem.rope), y[:, :, rows:]], 2)
        joint[stream] = y
    return joint


@pytest.mark.parametrize("order", ["stream_first", "encoder_first"])
@pytest.mark.parametrize("rope", ["none", "interleave", "half"])
@pytest.mark.parametrize(("norm", "added"), [(norm, NORM_TYPES[-1 - i]) for i, norm in enumerate(NORM_TYPES)])
def test_against_torch_autograd(norm, added, rope, order):
    """Rope type 2 is the true gradient of rotate-half."""
    problem = Problem(seed=1, dtype=np.float64, norm=norm, added=added, rope=rope, order=order)
    leaves = {name: to_torch(a).requires_grad_() for name, a in (problem.inputs | problem.weights).items()}
    joint = torch_forward(problem, leaves)
    torch.autograd.backward(list(joint.values()), [to_torch(problem.grads[stream]) for stream in joint])
    forward, backward = problem.forward(), problem.backward()
    for stream, y in joint.items():
        np.testing.assert_allclose(getattr(forward, stream), y.detach(), rtol=1e-11, atol=1e-11)
    for name, leaf in leaves.items():
        np.testing.assert_allclose(getattr(backward, name), leaf.grad, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("library", CONVERT)
@pytest.mark.parametrize("dtype", [np.float32, np.float16, BF16])
def test_equals_numpy(library, dtype):
    problem = Problem(seed=2, dtype=dtype, table_dtype=np.float32, weight_dtype=np.float32, **FULL)
    convert = CONVERT[library]
    arrays = {name: None if a is None else convert(a) for name, a in problem.backward_arrays().items()}
    forward = {name: convert(a) for name, a in (problem.inputs | problem.weights | problem.tables).items()}
    for got, want in (
        (gg.norm_rope_concat_backward(**arrays, **problem.options), problem.backward()),
        (problem.forward(**forward), problem.forward()),
    ):
        for name, result in got._asdict().items():
            expected = getattr(want, name)
            assert (result is None) == (expected is None), name
            if result is not None:
                assert isinstance(result, KIND[library])
                assert_same_bits(to_numpy(result), expected)


@pytest.mark.parametrize("library", CONVERT)
def test_segments_equal_numpy(library):
    problem = Problem(seed=3, dtype=BF16, lengths=(5, None, None, None), norm="rms_affine", rope="interleave")
    convert = CONVERT[library]
    x, dy, weight = problem.inputs["query"], problem.grads["query"], problem.weights["norm_query_weight"]
    tables = (problem.tables["rope_cos"], problem.tables["rope_sin"])
    options = {"norm_type": "rms_affine", "rope_type": "interleave"}
    got = gg.norm_rope(convert(x), convert(weight), None, *map(convert, tables), **options)
    want = gg.norm_rope(x, weight, None, *tables, **options)
    assert_same_bits(to_numpy(got.y), want.y)
    grads = gg.norm_rope_backward(convert(dy), convert(x), convert(weight), None, got.rstd, *tables, **options)
    expected = gg.norm_rope_backward(dy, x, weight, None, want.rstd, *tables, **options)
    for result, value in zip(grads[:2], expected[:2], strict=True):
        assert isinstance(result, KIND[library])
        assert_same_bits(to_numpy(result), value)


def test_results_are_of_the_first_arrays_kind():
    problem = Problem(seed=4, **FULL)
    arrays = problem.backward_arrays()
    mixed = arrays | {"grad_query_output": to_torch(arrays["grad_query_output"]), "query": jnp.asarray(arrays["query"])}
    got = gg.norm_rope_concat_backward(**mixed, **problem.options)
    assert all(isinstance(result, torch.Tensor) for result in got if result is not None)
    without = mixed | {"grad_query_output": None}
    got = gg.norm_rope_concat_backward(**without, **problem.options)
    assert isinstance(got.key, np.ndarray)


def test_results_are_trees_of_jax():
    problem = Problem(seed=5, **FULL)
    doubled = jax.tree.map(lambda leaf: 2 * leaf, problem.backward())
    assert isinstance(doubled, type(problem.backward()))
    np.testing.assert_array_equal(doubled.query, 2 * problem.backward().query)
    assert doubled.norm_added_query_bias is None


def test_tensors_that_require_grad():
    problem = Problem(seed=6, **FULL)
    arrays = problem.backward_arrays() | {"norm_query_weight": to_torch(problem.weights["norm_query_weight"])}
    arrays["norm_query_weight"].requires_grad_()
    with pytest.raises(ValueError, match="norm_rope_concat_backward: norm_query_weight requires grad"):
        gg.norm_rope_concat_backward(**arrays, **problem.options)
    with torch.no_grad():
        got = gg.norm_rope_concat_backward(**arrays, **problem.options)
    assert_same_bits(got.norm_query_weight, problem.backward().norm_query_weight)


def test_out():
    problem = Problem(seed=7, dtype=BF16, **FULL)
    want = problem.backward()
    weight = torch.ones(2, 5, 3, 8, requires_grad=True)
    query = torch.zeros(2, 5, 3, 8, dtype=torch.bfloat16)
    loss = (weight * query).sum()
    got = problem.backward(out={"query": query})
    assert got.query is query
    assert_same_bits(to_numpy(query), want.query)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    with pytest.raises(ValueError, match=r"out\['query'\] is a JAX array"):
        problem.backward(out={"query": jnp.zeros((2, 5, 3, 8), jnp.bfloat16)})


def test_torch_gradients_as_attention_returns_them():
    """PyTorch's CPU attention gives gradients of [B, N, S, D] that lie in memory as [B, S, N, D]."""
    problem = Problem(seed=8, **FULL)
    grads = {f"grad_{s}_output": to_torch(g.swapaxes(1, 2)).transpose(1, 2) for s, g in problem.grads.items()}
    assert not any(grad.is_contiguous() for grad in grads.values())
    got, want = problem.backward(**grads), problem.backward()
    for name, value in want._asdict().items():
        if value is not None:
            assert_same_bits(to_numpy(getattr(got, name)), value)

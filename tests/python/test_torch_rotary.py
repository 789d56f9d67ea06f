"""gyrograd.torch.rotary, rotary_qk and npu_rotary_mul: gradients of all orders, the same bits on both ways, what is
saved and what is computed.
"""

import enum
import gc
import re
import weakref

import numpy as np
import pytest
import torch
from formulas import BF16, MODES, problem
from test_frameworks import to_torch, torch_rotary
from torch.autograd import gradcheck, gradgradcheck
from torch_ways import WAYS, assert_equal, grads, leaves, raised, way

import gyrograd as gg
import gyrograd.torch as gt

SHAPE, TABLE = (2, 5, 3, 16), (1, 5, 1, 16)
# Options, and the width of the tables beside 8 channels.
OPTIONS = [
    ({}, 8),
    ({"per_pair_tables": True}, 4),
    ({"rotary_dim": 4, "rotary_offset": 2}, 4),
    ({"rotary_dim": 4, "rotary_offset": 3, "per_pair_tables": True}, 2),
]
TABLES = [(1, 3, 1), (2, 1, 1), (2, 3, 2), (1, 1, 1), (1, 3, 2)]


def tensors(seed, shape=SHAPE, table=TABLE, dtype=np.float32, table_dtype=None):
    """dy, cos, sin, x."""
    return list(map(to_torch, problem(seed, shape, table, dtype, table_dtype)))


# ---- gradients


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("options", "width"), OPTIONS)
def test_gradcheck_and_gradgradcheck(mode, options, width):
    """Also of batched gradients, which PyTorch's vmap of the backward makes."""
    _, cos, sin, x = tensors(1, (2, 3, 2, 8), (1, 3, 1, width), np.float64)

    def function(x, cos, sin):
        return gt.rotary(x, cos, sin, mode, **options)

    inputs = leaves(x, cos, sin)
    assert gradcheck(function, inputs, check_batched_grad=True)
    assert gradgradcheck(function, inputs)


@pytest.mark.parametrize("table", TABLES)
def test_gradgradcheck_of_broadcasts(table):
    _, cos, sin, x = tensors(2, (2, 3, 2, 4), (*table, 4), np.float64)
    inputs = leaves(x, cos, sin)
    assert gradcheck(gt.rotary, inputs)
    assert gradgradcheck(gt.rotary, inputs)


@pytest.mark.parametrize("needs", [(1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 0, 1), (0, 1, 1)])
@pytest.mark.parametrize("way_name", WAYS)
def test_gradgradcheck_of_some(needs, way_name):
    _, *inputs = tensors(3, (2, 3, 2, 4), (1, 3, 1, 4), np.float64)
    x, cos, sin = (
        tensor.requires_grad_(bool(need)) for tensor, need in zip((inputs[2], *inputs[:2]), needs, strict=True)
    )
    with way(way_name):
        assert gradcheck(gt.rotary, (x, cos, sin))
        assert gradgradcheck(gt.rotary, (x, cos, sin))


def test_third_order():
    _, cos, sin, x = tensors(4, (1, 2, 1, 4), (1, 2, 1, 4), np.float64)

    def second(x, cos, sin):
        first = torch.autograd.grad((gt.rotary(x, cos, sin) ** 3).sum(), (x, cos, sin), create_graph=True)
        return torch.autograd.grad(sum((g**2).sum() for g in first), (x, cos, sin), create_graph=True)

    assert gradcheck(second, leaves(x, cos, sin))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("way_name", WAYS)
def test_against_autograd_of_the_formula(mode, way_name):
    dy, cos, sin, x = tensors(5, dtype=np.float64)
    ours, theirs = leaves(x, cos, sin), leaves(x, cos, sin)
    with way(way_name):
        y = gt.rotary(*ours, mode)
        got = grads(y, ours, dy)
    want = torch_rotary(*theirs, mode)
    torch.testing.assert_close(y, want, rtol=1e-12, atol=1e-12)
    for a, b in zip(got, grads(want, theirs, dy), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


# ---- both ways have the bits of the plain calls


@pytest.mark.parametrize("way_name", WAYS)
@pytest.mark.parametrize(("dtype", "table_dtype"), [(np.float64, None), (np.float32, None), (BF16, None),
                                                    (BF16, np.float32), (np.float16, np.float32)])  # fmt: skip
@pytest.mark.parametrize("mode", MODES)
def test_bits(way_name, dtype, table_dtype, mode):
    dy, cos, sin, x = tensors(6, dtype=dtype, table_dtype=table_dtype)
    inputs = leaves(x, cos, sin)
    with way(way_name) as watched:
        y = gt.rotary(*inputs, mode)
        got = grads(y, inputs, dy)
    if watched:
        assert watched.calls == ["rotary", "rotary_backward"]
    assert_equal([y], [gg.rotary(x, cos, sin, mode=mode)])
    assert_equal(got, gg.rotary_backward(dy, cos, sin, x, mode=mode))


def test_direct_calls_are_direct():
    """No operator of ours, and one node of autograd."""
    dy, cos, sin, x = tensors(7)
    (leaf,) = leaves(x)
    with torch.profiler.profile() as profile:
        y = gt.rotary(leaf, cos, sin)
        y.backward(dy)
    names = {event.name for event in profile.events()}
    assert not any("gyrograd::" in name for name in names)
    assert type(y.grad_fn).__name__ == "_RotaryBackward"
    assert y.grad_fn.next_functions[0][0].variable is leaf


def test_without_grad_there_is_no_graph():
    _, cos, sin, x = tensors(8)
    assert gt.rotary(x, cos, sin).grad_fn is None
    (leaf,) = leaves(x)
    for context in (torch.no_grad(), torch.inference_mode()):
        with context:
            y = gt.rotary(leaf, cos, sin)
        assert not y.requires_grad
        assert torch.equal(y, gg.rotary(x, cos, sin))


# ---- strides


def views(seed):
    """dy, cos, sin, x as models have them: packed QKV, transposed views, an expanded gradient, complex tables."""
    dy, cos, sin, _ = tensors(seed, (2, 3, 5, 16), (1, 1, 5, 16))
    rng = torch.Generator().manual_seed(seed)
    packed = torch.randn(2, 5, 3, 3, 16, generator=rng)  # batch, sequence, q / k / v, heads, channels
    x = packed[:, :, 1].transpose(1, 2)
    half = torch.polar(torch.ones(1, 1, 5, 16), torch.randn(1, 1, 5, 16, generator=rng))
    return {
        "packed": (dy, cos, sin, x),
        "transposed": (dy.transpose(1, 2).contiguous().transpose(1, 2), cos, sin, x),
        "expanded": (torch.tensor(0.5).expand(2, 3, 5, 16), cos, sin, x),
        "complex tables": (dy, half.real, half.imag, x),
        "expanded tables": (dy, cos.expand(2, 3, 5, 16), sin.expand(2, 3, 5, 16), x),
        "sliced channels": (dy, cos, sin, torch.randn(2, 3, 5, 32, generator=rng)[..., ::2]),
    }


@pytest.mark.parametrize("way_name", WAYS)
@pytest.mark.parametrize("name", views(9))
def test_views_are_read_in_place(way_name, name):
    """The results are contiguous and have the bits of contiguous inputs, and no copy of an input is made."""
    dy, cos, sin, x = views(9)[name]
    want = gg.rotary_backward(*(tensor.contiguous() for tensor in (dy, cos, sin, x)))
    inputs = [tensor.detach().requires_grad_() for tensor in (x, cos, sin)]
    with way(way_name), torch.profiler.profile() as profile:
        y = gt.rotary(*inputs)
        got = grads(y, inputs, dy)
    names = {event.name for event in profile.events()}
    assert not names & {"aten::contiguous", "aten::clone", "aten::copy_"}
    assert all(tensor.is_contiguous() for tensor in (y, *got))
    assert_equal([y], [gg.rotary(x.contiguous(), cos.contiguous(), sin.contiguous())])
    assert_equal(got, want)


def test_gradient_of_a_sum_is_read_in_place():
    _, cos, sin, x = tensors(10)
    (leaf,) = leaves(x)
    with torch.profiler.profile() as profile:
        gt.rotary(leaf, cos, sin).sum().backward()
    assert not {event.name for event in profile.events()} & {"aten::contiguous", "aten::clone", "aten::copy_"}
    assert torch.equal(leaf.grad, gg.rotary_backward(torch.ones_like(x), cos, sin))


# ---- what autograd asks for, and no more


@pytest.mark.parametrize("way_name", WAYS)
@pytest.mark.parametrize("needs", [(1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 0), (0, 1, 1), (1, 1, 1)])
def test_only_what_is_asked_for_is_computed(way_name, needs, monkeypatch):
    """No gradient for an input that asked for none, and none is missing."""
    from gyrograd import _core

    dy, cos, sin, x = tensors(11)
    asked = []
    backward, plain_backward = _core.rotary_backward, _core.plain_rotary_backward

    def spy(*arguments):
        asked.append(("x" if arguments[3] is not None else "", arguments[8]))
        return backward(*arguments)

    def spy_plain(*arguments):
        asked.append(("", None))
        return plain_backward(*arguments)

    monkeypatch.setattr(_core, "rotary_backward", spy)
    monkeypatch.setattr("gyrograd.torch._rotary._plain_rotary_backward", spy_plain)
    inputs = [t.clone().requires_grad_(bool(need)) for t, need in zip((x, cos, sin), needs, strict=True)]
    with way(way_name):
        gt.rotary(*inputs).backward(dy)
    for tensor, need in zip(inputs, needs, strict=True):
        assert (tensor.grad is not None) == bool(need)
    names = [name for name, need in zip(("dx", "dcos", "dsin"), needs, strict=True) if need]
    assert asked == ([("", None)] if needs == (1, 0, 0) else [("x", names)])
    want = dict(zip(("dx", "dcos", "dsin"), backward(dy, cos, sin, x, "half", False, None, 0, None, None, None, None),
                    strict=True))  # fmt: skip
    assert_equal([tensor.grad for tensor in inputs if tensor.requires_grad], [want[name] for name in names])


@pytest.mark.parametrize("way_name", WAYS)
def test_x_is_saved_only_where_tables_need_it(way_name):
    """Its memory goes with it unless a table requires grad."""
    dy, cos, sin, x = tensors(12)
    for tables_need in (False, True):
        with way(way_name):
            y = gt.rotary(x.requires_grad_(), cos.clone().requires_grad_(tables_need), sin)
        saved = [tensor.data_ptr() for tensor in y.grad_fn.saved_tensors if tensor is not None]
        assert (x.data_ptr() in saved) == tables_need
        y.backward(dy)


@pytest.mark.parametrize("way_name", WAYS)
@pytest.mark.parametrize("changed", ["x", "cos"])
def test_overwritten_saved_tensors_are_noticed(way_name, changed):
    dy, cos, sin, x = tensors(13)
    x, cos = (tensor.clone().requires_grad_() for tensor in (x, cos))
    with way(way_name):
        y = gt.rotary(x, cos, sin)
        with torch.no_grad():
            {"x": x, "cos": cos}[changed].mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.backward(dy)


@pytest.mark.parametrize("way_name", WAYS)
def test_two_backward_passes_are_equal(way_name):
    dy, cos, sin, x = tensors(14, (2, 64, 3, 16), (1, 64, 1, 16))
    inputs = leaves(x, cos, sin)
    with way(way_name):
        y = gt.rotary(*inputs)
        first = grads(y, inputs, dy, retain_graph=True)
        assert_equal(grads(y, inputs, dy), first)
        with pytest.raises(RuntimeError, match="second time"):
            grads(y, inputs, dy)


@pytest.mark.parametrize("way_name", WAYS)
def test_float32_tables_beside_bfloat16(way_name):
    dy, cos, sin, x = tensors(15, dtype=BF16, table_dtype=np.float32)
    inputs = leaves(x, cos, sin)
    with way(way_name):
        gt.rotary(*inputs).backward(dy)
    assert [tensor.grad.dtype for tensor in inputs] == [torch.bfloat16, torch.float32, torch.float32]
    assert_equal([tensor.grad for tensor in inputs], gg.rotary_backward(dy, cos, sin, x))


@pytest.mark.parametrize("way_name", WAYS)
def test_tables_with_a_batch_axis(way_name):
    dy, cos, sin, x = tensors(16, (3, 5, 2, 16), (3, 5, 1, 16))
    inputs = leaves(x, cos, sin)
    with way(way_name):
        got = grads(gt.rotary(*inputs), inputs, dy)
    assert got[1].shape == cos.shape
    assert_equal(got, gg.rotary_backward(dy, cos, sin, x))


def test_graphs_are_freed():
    """Nothing but a cycle would keep a result alive."""
    _, cos, sin, x = tensors(17)
    gc.disable()
    try:
        inputs = leaves(x, cos, sin)
        y = gt.rotary(*inputs)
        y.sum().backward()
        alive = [weakref.ref(tensor) for tensor in (y, *inputs)]
        del y, inputs
        assert [reference() for reference in alive] == [None] * 4
    finally:
        gc.enable()


# ---- queries and keys


def qk_problem(seed, dtype=np.float32):
    """Four query heads and one key head."""
    dq, cos, sin, q = tensors(seed, (2, 4, 5, 16), (1, 1, 5, 16), dtype)
    dk, _, _, k = tensors(seed + 1, (2, 1, 5, 16), (1, 1, 5, 16), dtype)
    return q, k, cos, sin, dq, dk


@pytest.mark.parametrize("way_name", WAYS)
@pytest.mark.parametrize("mode", MODES)
def test_queries_and_keys(way_name, mode):
    q, k, cos, sin, dq, dk = qk_problem(18)
    inputs = leaves(q, k, cos, sin)
    with way(way_name):
        results = gt.rotary_qk(*inputs, mode)
        got = grads(results, inputs, (dq, dk))
    assert_equal(results, (gg.rotary(q, cos, sin, mode=mode), gg.rotary(k, cos, sin, mode=mode)))
    dq, dcos, dsin = gg.rotary_backward(dq, cos, sin, q, mode=mode)
    dk, more_cos, more_sin = gg.rotary_backward(dk, cos, sin, k, mode=mode)
    assert_equal(got, (dq, dk, dcos + more_cos, dsin + more_sin))


@pytest.mark.parametrize("way_name", WAYS)
@pytest.mark.parametrize("used", [0, 1])
def test_only_queries_or_only_keys_reach_the_loss(way_name, used):
    q, k, cos, sin, *dys = qk_problem(20)
    inputs = leaves(q, k, cos, sin)
    with way(way_name):
        got = grads(gt.rotary_qk(*inputs)[used], inputs, dys[used])
    dx, dcos, dsin = gg.rotary_backward(dys[used], cos, sin, (q, k)[used])
    assert_equal([got[used], got[2], got[3]], [dx, dcos, dsin])
    other = got[1 - used]
    assert other is None or not other.any()


def test_gradgradcheck_of_queries_and_keys():
    q, k, cos, sin, *_ = qk_problem(22, np.float64)
    q, k, cos, sin = leaves(q[:, :2, :2, :4], k[:, :, :2, :4], cos[:, :, :2, :4], sin[:, :, :2, :4])
    assert gradcheck(gt.rotary_qk, (q, k, cos, sin))
    assert gradgradcheck(gt.rotary_qk, (q, k, cos, sin))


# ---- torch_npu's name


@pytest.mark.parametrize("mode", ["half", "interleave"])
def test_npu_rotary_mul(mode):
    dy, cos, sin, x = tensors(24, dtype=np.float64)
    ours, theirs = leaves(x, cos, sin), leaves(x, cos, sin)
    input, r1, r2 = theirs
    if mode == "half":
        x1, x2 = torch.chunk(input, 2, -1)
        turned = torch.cat((-x2, x1), dim=-1)
    else:
        turned = torch.stack((-input[..., 1::2], input[..., ::2]), dim=-1).flatten(-2)
    want = r1 * input + r2 * turned
    got = gt.npu_rotary_mul(ours[0], r1=ours[1], r2=ours[2], rotary_mode=mode)
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)
    for a, b in zip(grads(got, ours, dy), grads(want, theirs, dy), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_npu_rotary_mul_defaults_to_half_and_knows_two_modes():
    _, cos, sin, x = tensors(25)
    assert torch.equal(gt.npu_rotary_mul(x, cos, sin), gg.rotary(x, cos, sin, mode="half"))
    for mode in ("quarter", 1, None):
        with pytest.raises(ValueError, match="npu_rotary_mul: rotary_mode is"):
            gt.npu_rotary_mul(x, cos, sin, mode)


# ---- refusals


def bad_arguments():
    _, cos, sin, x = tensors(26)
    return {
        "device": ((x.to("meta"), cos, sin), {}, ValueError, r"rotary: x is on device meta.*\.cpu\(\)"),
        "table's device": ((x, cos, sin.to("meta")), {}, ValueError, r"rotary: sin is on device meta.*\.cpu\(\)"),
        "layout": ((x.to_sparse(), cos, sin), {}, ValueError, "rotary: x has layout torch.sparse_coo.*to_dense"),
        "array": ((x, cos.numpy(), sin), {}, TypeError, "rotary: cos is a ndarray; it must be a torch.Tensor"),
        "type": ((x.long(), cos, sin), {}, TypeError, "rotary: x has type int64"),
        "types": ((x, cos.bfloat16(), sin.bfloat16()), {}, TypeError, "rotary: cos has type bf16"),
        "shape": ((x, cos[..., :8], sin[..., :8]), {}, ValueError, r"rotary: cos has shape \[1, 5, 1, 8\]"),
        "mode": ((x, cos, sin, "halves"), {}, ValueError, "rotary: mode is 'halves'"),
        "option": ((x, cos, sin), {"rotary_dim": 3}, ValueError, "rotary: rotary_dim"),
    }


@pytest.mark.parametrize("needs_grad", [False, True])
@pytest.mark.parametrize("way_name", WAYS)
@pytest.mark.parametrize("name", bad_arguments())
def test_refusals(name, way_name, needs_grad):
    arguments, options, error, message = bad_arguments()[name]
    if needs_grad and isinstance(arguments[0], torch.Tensor) and arguments[0].is_floating_point():
        arguments[0].requires_grad_()
    with way(way_name), pytest.raises(error, match=message):
        gt.rotary(*arguments, **options)


@pytest.mark.parametrize("way_name", WAYS)
def test_modes_by_number(way_name):
    _, cos, sin, x = tensors(27)
    with way(way_name):
        for number, mode in enumerate(MODES):
            inputs = leaves(x, cos, sin)
            assert_equal([gt.rotary(*inputs, number)], [gg.rotary(x, cos, sin, mode=mode)])


def test_forward_mode_tangents_are_refused():
    _, cos, sin, x = tensors(28)
    with pytest.raises(NotImplementedError, match="rotary: cos carries a forward-mode tangent"):
        torch.func.jvp(lambda cos: gt.rotary(x, cos, sin), (cos,), (cos,))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, x)
        with pytest.raises(NotImplementedError, match="rotary: x carries a forward-mode tangent"):
            gt.rotary(dual, cos, sin)
        assert torch.equal(gt.rotary(x, cos, sin), gg.rotary(x, cos, sin))
    inputs = leaves(x, cos, sin)
    y = gt.rotary(*inputs)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, x)
        with pytest.raises(NotImplementedError, match="rotary_backward: dy carries a forward-mode tangent"):
            grads(y, inputs, dual)


@pytest.mark.parametrize("position", range(3))
def test_views_that_negate_their_memory(position):
    """Their values count, on the way in and on the way back."""
    dy, cos, sin, x = tensors(29)
    inputs = [x, cos, sin]
    want = gg.rotary(*(tensor.neg() if i == position else tensor for i, tensor in enumerate(inputs)))
    inputs[position] = torch._neg_view(inputs[position])
    assert torch.equal(gt.rotary(*inputs), want)
    got = leaves(x, cos, sin)
    gradients = grads(gt.rotary(*got), got, torch._neg_view(dy))
    assert_equal(gradients, gg.rotary_backward(-dy, cos, sin, x))


@pytest.mark.parametrize("name", ["x", "cos", "sin"])
def test_tangents_over_a_gradient_are_refused(name):
    """Of a function that is not linear: a lost tangent would leave zeros."""
    values = dict(zip(("x", "cos", "sin"), torch.randn(3, 2, 4, dtype=torch.float64).unbind(), strict=True))

    def loss(value):
        return (gt.rotary(**values | {name: value}) ** 2).sum()

    with pytest.raises(NotImplementedError, match=f"rotary: {name} carries a forward-mode tangent"):
        torch.func.hessian(loss)(values[name])


def test_what_is_no_plain_tensor_is_refused_by_name():
    x = torch.randn(2, 4)
    with pytest.raises(TypeError, match="rotary: cos is None"):
        gt.rotary(x, None, x)
    with pytest.raises(TypeError, match="rotary_qk: k is None"):
        gt.rotary_qk(x, None, x, x)
    with pytest.raises(ValueError, match="rotary: x is a quantized tensor"):
        gt.rotary(torch.quantize_per_tensor(x, 0.1, 0, torch.qint8), x, x)


WRONG_OPTIONS = [
    *(
        ("mode", value)
        for value in (1.5, None, True, 7, -1, np.int64(4), "x", "it's x", "half\0x", "\ud800", np.ones(2))
    ),
    *(("per_pair_tables", value) for value in ("yes", 1, np.int64(0), None)),
    *(
        ("rotary_dim", value)
        for value in ("8", 8.0, True, np.True_, np.float32(8), 2**70, torch.tensor(8.0), np.ones(()), 3)
    ),
    *(("rotary_offset", value) for value in (None, "0", False, np.float64(0), -(2**70), [0])),
]


@pytest.mark.parametrize("way_name", WAYS)
@pytest.mark.parametrize(("name", "value"), WRONG_OPTIONS)
def test_wrong_options_are_refused_in_the_words_of_the_plain_calls(way_name, name, value):
    _, cos, sin, x = tensors(30)
    error, words = raised(lambda: gg.rotary(x, cos, sin, **{name: value}))
    for rows in (x, x.clone().requires_grad_()):
        with way(way_name):
            assert raised(lambda rows=rows: gt.rotary(rows, cos, sin, **{name: value})) == (error, words)
            of_pair = raised(lambda rows=rows: gt.rotary_qk(rows, rows, cos, sin, **{name: value}))
        assert of_pair == (error, re.sub("^rotary:", "rotary_qk:", words))


class Mode(enum.IntEnum):
    INTERLEAVE = 1


@pytest.mark.parametrize("way_name", WAYS)
@pytest.mark.parametrize("mode", [np.int64(1), np.uint8(1), Mode.INTERLEAVE, torch.tensor(1), np.str_("interleave")])
@pytest.mark.parametrize("integer", [np.int32, np.uint64, torch.tensor])
def test_options_of_other_types_that_the_plain_calls_take(way_name, mode, integer):
    """Gradients of both orders, too."""
    dy, cos, sin, x = tensors(31, (2, 3, 2, 8), (1, 3, 1, 2), np.float64)
    options = {"mode": mode, "per_pair_tables": np.True_, "rotary_dim": integer(4), "rotary_offset": integer(2)}
    inputs = leaves(x, cos, sin)
    with way(way_name):
        y = gt.rotary(*inputs, **options)
        got = grads(y, inputs, dy, create_graph=True)
        second = grads(sum((g**2).sum() for g in got), inputs, None)
        pair = gt.rotary_qk(inputs[0], *inputs, **options)
    plain = {"mode": "interleave", "per_pair_tables": True, "rotary_dim": 4, "rotary_offset": 2}
    want = gg.rotary(x, cos, sin, **plain)
    assert_equal([y, *pair], [want] * 3)
    assert_equal(got, gg.rotary_backward(dy, cos, sin, x, **plain))
    firsts = grads(gt.rotary(*inputs, **plain), inputs, dy, create_graph=True)
    assert_equal(second, grads(sum((g**2).sum() for g in firsts), inputs, None))


@pytest.mark.parametrize("way_name", WAYS)
@pytest.mark.parametrize("needs_grad", [False, True])
def test_refusals_name_what_the_caller_passed(way_name, needs_grad):
    _, cos, sin, x = tensors(32)
    x.requires_grad_(needs_grad)
    narrow, integers = x[..., :8], x.detach().long()
    with way(way_name):
        with pytest.raises(ValueError, match=r"^rotary_qk: cos has shape \[1, 5, 1, 16\]; .* must equal k's, 8"):
            gt.rotary_qk(x, narrow, cos, sin)
        with pytest.raises(ValueError, match=r"^rotary_qk: cos has shape \[1, 5, 1, 16\]; .* must equal q's, 8"):
            gt.rotary_qk(narrow, x, cos, sin)
        with pytest.raises(TypeError, match=r"^rotary_qk: k has type int64"):
            gt.rotary_qk(x, integers, cos, sin)
        with pytest.raises(TypeError, match=r"^rotary_qk: sin is a ndarray"):
            gt.rotary_qk(x, x, cos, sin.numpy())
        with pytest.raises(TypeError, match=r"^rotary_qk: k is None"):
            gt.rotary_qk(x, None, cos, sin)
        with pytest.raises(ValueError, match=r"^npu_rotary_mul: r1 has shape .* must equal input's, 8"):
            gt.npu_rotary_mul(narrow, cos, sin)
        with pytest.raises(TypeError, match=r"^npu_rotary_mul: input has type int64"):
            gt.npu_rotary_mul(integers, cos, sin)
        with pytest.raises(TypeError, match=r"^npu_rotary_mul: r2 is None"):
            gt.npu_rotary_mul(x, cos, None)
    with pytest.raises(NotImplementedError, match=r"^rotary_qk: k carries a forward-mode tangent"):
        torch.func.jvp(lambda k: gt.rotary_qk(x, k, cos, sin), (x.detach(),), (x.detach(),))


@pytest.mark.parametrize("way_name", WAYS)
def test_the_first_wrong_argument_is_named(way_name):
    """In the plain calls' order, and before memory is asked for."""
    x, tables, huge = torch.ones(4, 8), torch.ones(1, 8), torch.ones(1, 8).expand(2**37, 8)
    integers = x.int(), tables.int(), tables.int()
    for inputs in (integers, (huge, torch.ones(1, 6), torch.ones(1, 6)), (huge, tables.double(), tables.double())):
        error, words = raised(lambda inputs=inputs: gg.rotary(*inputs))
        with way(way_name):
            assert raised(lambda inputs=inputs: gt.rotary(*inputs)) == (error, words)
            of_pair = raised(lambda inputs=inputs: gt.rotary_qk(inputs[0], *inputs))
        assert of_pair[0] is error
        assert of_pair[1].startswith("rotary_qk: ")
    with way(way_name), pytest.raises(TypeError, match=r"^rotary: x has type float8_e4m3fn;"):
        gt.rotary(x.to(torch.float8_e4m3fn), tables, tables)


@pytest.mark.parametrize("error", [ValueError, TypeError, NotImplementedError])
def test_what_a_callers_hook_raises_comes_through(error):
    """Once; the call is not tried again."""
    _, cos, sin, x = tensors(34)
    packed = []

    def pack(tensor):
        packed.append(tensor)
        raise error("disk full")

    x.requires_grad_()
    for call in (lambda: gt.rotary(x, cos, sin), lambda: gt.rotary_qk(x, x, cos, sin)):
        packed.clear()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor), pytest.raises(error, match="disk"):
            call()
        assert len(packed) == 1


@pytest.mark.parametrize("way_name", WAYS)
def test_sparse_gradients(way_name):
    dy, cos, sin, x = tensors(35)
    inputs = leaves(x, cos, sin)
    with way(way_name):
        got = grads(gt.rotary(*inputs), inputs, dy.to_sparse())
    assert_equal(got, gg.rotary_backward(dy, cos, sin, x))


def test_compiled_autograd_goes_through_both_calls():
    """Their backward is traced as the registered operator."""
    compiled_autograd = pytest.importorskip("torch._dynamo.compiled_autograd")
    dy, cos, sin, x = tensors(36)
    dx = gg.rotary_backward(dy, cos, sin)
    for call, want in ((gt.rotary, dx), (lambda x, cos, sin: sum(gt.rotary_qk(x, x, cos, sin)), dx + dx)):
        (leaf,) = leaves(x)
        y = call(leaf, cos, sin)
        with compiled_autograd._enable(lambda graph: torch.compile(graph, backend="eager", fullgraph=True)):
            y.backward(dy)
        assert torch.equal(leaf.grad, want)


@pytest.mark.parametrize("way_name", WAYS)
@pytest.mark.parametrize("needs", [(1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 0), (0, 0, 0)])
def test_which_results_of_a_pair_require_grad(way_name, needs):
    q, k, cos, sin, *_ = qk_problem(33)
    tables_need = bool(needs[2])
    with way(way_name):
        results = gt.rotary_qk(
            q.requires_grad_(bool(needs[0])), k.requires_grad_(bool(needs[1])), cos, sin.requires_grad_(tables_need)
        )
    assert [result.requires_grad for result in results] == [bool(need) or tables_need for need in needs[:2]]

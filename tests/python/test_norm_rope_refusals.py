"""What the norm and rotary calls refuse: the message names Python's argument, the rule and the value."""

import inspect
import re

import numpy as np
import pytest
from attention import Problem
from dlpack_producer import Producer
from formulas import random

import gyrograd as gg

FULL = {"norm": "layer_affine", "added": "rms_affine", "rope": "half"}


@pytest.fixture
def problem():
    return Problem(seed=1, **FULL)


def refused(error, *fragments):
    return pytest.raises(error, match=".*".join(map(re.escape, fragments)))


def array(*shape, dtype=np.float32):
    return random(np.random.default_rng(0), shape, dtype)


# Of the problem: query [2, 5, 3, 8], key 4, encoder query 3, encoder key 2 rows; tables [4, 8].
BACKWARD = [
    ({"norm_type": "batch"}, ValueError, ("norm_type is 'batch'", "'none' (0)", "'rms_affine' (4)")),
    ({"norm_added_type": 5}, ValueError, ("norm_added_type is 5", "'layer' (1)")),
    ({"norm_type": 2.0}, TypeError, ("norm_type is 2.0", "'layer_affine' (2)")),
    ({"rope_type": 3}, ValueError, ("rope_type is 3", "'half' (2), 'quarter' or 'interleave-half'")),
    ({"norm_type": True}, TypeError, ("norm_type is True", "'layer' (1)")),
    ({"norm_added_type": False}, TypeError, ("norm_added_type is False", "'none' (0)")),
    ({"rope_type": np.True_}, TypeError, ("rope_type is np.True_", "'interleave' (1)")),
    ({"concat_order": True}, TypeError, ("concat_order is True", "'encoder_first' (1)")),
    ({"concat_order": None}, TypeError, ("concat_order is None", "'encoder_first' (1)")),
    ({"rope_start": False}, TypeError, ("rope_start is False", "integer")),
    ({"concat_order": "text_first"}, ValueError, ("concat_order is 'text_first'", "'encoder_first' (1)")),
    ({"concat_order": 2}, ValueError, ("concat_order is 2",)),
    ({"out_layout": "SBND"}, ValueError, ("out_layout is 'SBND'", "'BNSD' or 'BSND'")),
    ({"out_layout": 0}, TypeError, ("out_layout is 0",)),
    ({"rope_start": -1}, ValueError, ("rope_start is -1", "0")),
    ({"rope_start": 3}, ValueError, ("rope_cos has shape [4, 8]", "rope_start, 3, and its 4 rows", "6")),
    ({"rope_start": "1"}, TypeError, ("rope_start is '1'", "integer")),
    ({"per_pair_tables": 1}, TypeError, ("per_pair_tables is 1",)),
    ({"rotary_dim": 7}, ValueError, ("rotary_dim is 7", "divisible by 2")),
    ({"rotary_dim": 8, "rotary_offset": 1}, ValueError, ("rotary_offset is 1", "8")),
    ({"threads": 0}, ValueError, ("threads is 0",)),
    ({"cpu_target": "sse"}, ValueError, ("cpu_target is 'sse'",)),
    ({"outputs": ["dquery"]}, ValueError, ("outputs names 'dquery'", "'norm_added_key_bias'")),
    ({"outputs": [1]}, TypeError, ("outputs names 1",)),
    ({"outputs": 3}, TypeError, ("outputs is 3", "collection")),
    ({"out": array(2)}, TypeError, ("out is a numpy.ndarray", "dict")),
    ({"out": {"dx": None}}, ValueError, ("out names 'dx'", "'query'")),
    ({"out": {"query": [1.0]}}, TypeError, ("out['query'] is a list",)),
    (
        {"outputs": ["norm_added_query_bias"]},
        ValueError,
        ("norm_added_query_bias's gradient", "rms_affine has no bias"),
    ),
    (
        {"grad_query_output": None, "outputs": ["query"]},
        ValueError,
        ("grad_query_output is missing", "query's gradient"),
    ),
    (
        {"grad_query_output": None, "grad_key_output": None, "grad_value_output": None},
        ValueError,
        ("grad_query_output is missing",),
    ),
    ({"query": None}, ValueError, ("query is missing", "norm_type layer_affine")),
    ({"encoder_key": None}, ValueError, ("grad_key_output has shape [2, 3, 6, 8]", "encoder_key is absent")),
    ({"norm_query_mean": None}, ValueError, ("norm_query_mean is missing", "norm_type layer_affine")),
    ({"norm_key_rstd": None}, ValueError, ("norm_key_rstd is missing", "norm_type layer_affine")),
    ({"norm_added_query_rstd": None}, ValueError, ("norm_added_query_rstd is missing", "norm_added_type rms_affine")),
    ({"norm_added_key_weight": None}, ValueError, ("norm_added_key_weight is missing", "norm_added_type rms_affine")),
    ({"rope_cos": None}, ValueError, ("rope_cos is missing", "rope_sin needs it")),
    ({"rope_sin": None}, ValueError, ("rope_sin is missing", "rope_cos needs it")),
    ({"rope_cos": None, "rope_sin": None}, ValueError, ("rope_cos is missing", "rope_type half needs it")),
    ({"encoder_rope_cos": array(2, 8)}, ValueError, ("encoder_rope_sin is missing", "encoder_rope_cos")),
    ({"grad_query_output": array(2, 3, 64)}, ValueError, ("grad_query_output has shape [2, 3, 64]", "rank", "4")),
    ({"grad_key_output": array(1, 3, 6, 8)}, ValueError, ("grad_key_output has shape [1, 3, 6, 8]", "batch")),
    (
        {"grad_value_output": array(2, 3, 7, 8)},
        ValueError,
        ("grad_value_output has shape [2, 3, 7, 8]", "grad_key_output"),
    ),
    ({"query": array(2, 5, 4, 8)}, ValueError, ("query has shape [2, 5, 4, 8]", "[2, 5, 3, 8]")),
    ({"query": array(2, 6, 3, 8)}, ValueError, ("grad_query_output has shape [2, 3, 8, 8]", "6 (query)")),
    ({"norm_query_weight": array(7)}, ValueError, ("norm_query_weight has shape [7]", "[8]")),
    ({"norm_key_mean": array(2, 4, 3)}, ValueError, ("norm_key_mean has shape [2, 4, 3]", "[2, 4, 3, 1]")),
    ({"rope_sin": array(4, 4)}, ValueError, ("rope_sin has shape [4, 4]", "rope_cos's")),
    ({"rope_cos": array(3, 4, 8)}, ValueError, ("rope_cos has shape [3, 4, 8]", "rank must be 2 or 4")),
    (
        {"rope_cos": array(4, 4), "rope_sin": array(4, 4)},
        ValueError,
        ("rope_cos has shape [4, 4]", "8; hint: per_pair_tables"),
    ),
    ({"key": array(2, 4, 3, 8, dtype=np.float16)}, TypeError, ("key has type f16", "f32")),
    ({"norm_query_rstd": array(2, 5, 3, 1, dtype=np.float64)}, TypeError, ("norm_query_rstd has type f64", "f32")),
    ({"norm_key_weight": array(8, dtype=np.float64)}, TypeError, ("norm_key_weight has type f64", "f32")),
    ({"rope_cos": array(4, 8, dtype=np.float64)}, TypeError, ("rope_cos has type f64", "f32")),
    ({"encoder_query": [1.0]}, TypeError, ("encoder_query is a list", "NumPy array")),
    ({"grad_value_output": np.ma.ones((2, 3, 6, 8), np.float32)}, TypeError, ("grad_value_output is a masked array",)),
    ({"out": {"query": array(2, 5, 3, 9)}}, ValueError, ("out['query'] has shape [2, 5, 3, 9]", "[2, 5, 3, 8]")),
    ({"out": {"query": array(2, 5, 3, 8, dtype=np.float64)}}, TypeError, ("out['query'] has type f64", "f32")),
    ({"out": {"norm_query_weight": array(9)}}, ValueError, ("out['norm_query_weight'] has shape [9]", "[8]")),
    ({"out": {"query": array(2, 5, 3, 8)}, "outputs": ["zz"]}, ValueError, ("outputs names 'zz'", "'query'")),
    ({"out": {"query": Producer(array(2, 5, 3, 8), flags=1)}}, ValueError, ("out['query'] is a read-only array",)),
    ({"unknown": 2}, TypeError, ("unknown",)),
]


@pytest.mark.parametrize(("change", "error", "fragments"), BACKWARD, ids=lambda value: str(value)[:40])
def test_backward_refused(problem, change, error, fragments):
    with refused(error, "norm_rope_concat_backward", *fragments):
        problem.backward(**change)


def test_nothing_is_written_where_something_is_refused(problem):
    out = {name: np.full_like(a, 9) for name, a in problem.backward()._asdict().items() if a is not None}
    for change, error, _ in BACKWARD:
        if "out" in change or "outputs" in change:
            continue
        with pytest.raises(error):
            problem.backward(**change, out=out)
        assert all((array == 9).all() for array in out.values())


FORWARD = [
    ({"eps": -1e-5}, ValueError, ("eps is -1e-05", "0")),
    ({"eps": np.nan}, ValueError, ("eps is nan", "0")),
    ({"eps": "small"}, TypeError, ("eps is 'small'", "number")),
    ({"eps": False}, TypeError, ("eps is False", "number")),
    ({"outputs": ["zz"], "out": {"query": None}}, ValueError, ("outputs names 'zz'", "'query'")),
    ({"eps": None}, TypeError, ("eps is None", "number")),
    ({"eps": np.ones(2)}, TypeError, ("eps is array", "number")),
    ({"query": array(2, 5, 24)}, ValueError, ("query has shape [2, 5, 24]", "rank must be 4")),
    ({"encoder_query": array(2, 3, 4, 8)}, ValueError, ("encoder_query has shape [2, 3, 4, 8]", "must be query's, 3")),
    ({"value": array(2, 3, 3, 8)}, ValueError, ("value has shape [2, 3, 3, 8]; its sequence extent", "key's, 4")),
    ({"value": None}, ValueError, ("value is missing; key has 4 rows, and it must have as many",)),
    ({"encoder_value": None}, ValueError, ("encoder_value is missing; encoder_key has 2 rows",)),
    ({"encoder_key": None}, ValueError, ("encoder_key is missing; encoder_value has 2 rows",)),
    ({"key": array(1, 4, 3, 8)}, ValueError, ("key has shape [1, 4, 3, 8]; its batch must be query's, 2",)),
    ({"key": array(2, 4, 3, 6)}, ValueError, ("key has shape [2, 4, 3, 6]; its last extent must be query's, 8",)),
    ({"norm_query_bias": None}, ValueError, ("norm_query_bias is missing", "norm_type layer_affine")),
    ({"norm_key_bias": array(7)}, ValueError, ("norm_key_bias has shape [7]", "[D] of key, [8]")),
    ({"outputs": ["norm_added_key_mean"]}, ValueError, ("norm_added_key_mean is asked for", "rms_affine has no mean")),
    ({"outputs": ["encoder_query"]}, ValueError, ("outputs names 'encoder_query'", "'norm_query_mean'")),
    ({"out": {"query": array(2, 3, 7, 8)}}, ValueError, ("out['query'] has shape [2, 3, 7, 8]", "5 (query)", "3")),
    ({"out": {"value": array(2, 3, 6, 8, dtype=np.float16)}}, TypeError, ("out['value'] has type f16",)),
    ({"rotary_dim": 10}, ValueError, ("rotary_offset is 0 and rotary_dim is 10", "query's last extent, 8")),
    (
        {"query": None, "key": None, "value": None, "encoder_query": None, "encoder_key": None, "encoder_value": None},
        ValueError,
        ("query is missing",),
    ),
]


@pytest.mark.parametrize(("change", "error", "fragments"), FORWARD, ids=lambda value: str(value)[:40])
def test_forward_refused(problem, change, error, fragments):
    with refused(error, "norm_rope_concat: ", *fragments):
        problem.forward(**change)


SEGMENT = [
    ({"x": None}, TypeError, ("x is missing",)),
    ({"x": array(2, 8)}, ValueError, ("x has shape [2, 8]", "rank must be 4")),
    ({"cos": None}, ValueError, ("cos is missing", "rope_type half needs it")),
    ({"sin": array(3, 8)}, ValueError, ("sin has shape [3, 8]", "cos's")),
    ({"cos": array(4, 6), "sin": array(4, 6)}, ValueError, ("cos has shape [4, 6]", "x's, 8; hint: rotary_dim = 6")),
    ({"sin": array(2, 8)}, ValueError, ("sin has shape [2, 8]; it must be cos's, [4, 8]",)),
    (
        {"cos": array(2, 4, 8)},
        ValueError,
        ("cos has shape [2, 4, 8]; its rank must be 2 or 4; hint: add axes, such as cos[:, None, :, :]",),
    ),
    ({"cos": array(7, 4, 8)}, ValueError, ("cos has shape [7, 4, 8]; its rank must be 2 or 4; hint: add axes",)),
    ({"cos": array(8)}, ValueError, ("its rank must be 2 or 4; hint: add axes, such as cos[None, :]",)),
    ({"rope_start": 3}, ValueError, ("cos has shape [4, 8]", "its 4 rows and rope_start, 3", "x's sequence extent, 5")),
    ({"rotary_dim": 5}, ValueError, ("rotary_dim is 5", "2")),
    ({"weight": None}, ValueError, ("weight is missing", "norm_type layer_affine")),
    ({"bias": array(9)}, ValueError, ("bias has shape [9]", "x, [8]")),
    ({"eps": -1}, ValueError, ("eps is -1",)),
    ({"outputs": ["dx"]}, ValueError, ("outputs names 'dx'", "'y', 'mean', 'rstd'")),
    (
        {"out": {"y": array(2, 5, 3, 8)}},
        ValueError,
        ("out['y'] has shape [2, 5, 3, 8]", "[B, N, S, D] of x, [2, 3, 5, 8]; hint: out_layout='BSND'"),
    ),
    (
        {"out": {"y": array(2, 3, 5, 8)}, "out_layout": "BSND"},
        ValueError,
        ("out['y'] has shape [2, 3, 5, 8]", "[B, S, N, D] of x, [2, 5, 3, 8]; hint: out_layout='BNSD'"),
    ),
    ({"out": {"rstd": array(2, 5, 3, 1, dtype=np.float64)}}, TypeError, ("out['rstd'] has type f64", "f32")),
]


@pytest.mark.parametrize(("change", "error", "fragments"), SEGMENT, ids=lambda value: str(value)[:40])
def test_segment_refused(change, error, fragments):
    arrays = {"x": array(2, 5, 3, 8), "weight": array(8), "bias": array(8), "cos": array(4, 8), "sin": array(4, 8)}
    options = {"norm_type": "layer_affine", "rope_type": "half"}
    with refused(error, "norm_rope: ", *fragments):
        gg.norm_rope(**(arrays | options | change))


def test_segment_backward_refused():
    x, dy = array(2, 5, 3, 8), array(2, 3, 5, 8)
    with refused(ValueError, "norm_rope_backward: x is missing; norm_type rms needs it"):
        gg.norm_rope_backward(dy, norm_type="rms")
    with refused(ValueError, "norm_rope_backward: dweight is asked for; norm_type rms has no weight"):
        gg.norm_rope_backward(dy, x, rstd=array(2, 5, 3, 1), norm_type="rms", outputs=["dweight"])
    with refused(
        ValueError, "norm_rope_backward: x has shape [2, 5, 3, 9]; it must be [B, S, N, D] of dy, [2, 5, 3, 8]"
    ):
        gg.norm_rope_backward(dy, array(2, 5, 3, 9), rstd=array(2, 5, 3, 1), norm_type="rms")
    rstd = array(2, 5, 3, 1)
    for layout, other, wrong in [("BNSD", "BSND", x), ("BSND", "BNSD", dy)]:
        with refused(ValueError, f"hint: exchange axes 1 and 2 of x, or out_layout='{other}' for dy"):
            gg.norm_rope_backward(wrong, x, rstd=rstd, norm_type="rms", out_layout=layout)
        gg.norm_rope_backward(wrong, x, rstd=rstd, norm_type="rms", out_layout=other)
    with refused(ValueError, "norm_rope_backward: dy has shape [2, 3, 40]; its rank must be 4"):
        gg.norm_rope_backward(dy.reshape(2, 3, 40))
    with refused(ValueError, "norm_rope_backward: out['dx'] shares memory with mean"):
        memory = array(2, 5, 3, 8)
        saved = memory[..., :1]
        gg.norm_rope_backward(dy, x, None, saved, array(2, 5, 3, 1), norm_type="layer", out={"dx": memory})


def test_shapes_in_messages_are_the_callers():
    """Of arrays that are read in another order of axes."""
    dy = array(2, 5, 3, 7)
    with refused(ValueError, "dy has shape [2, 5, 3, 7]; in mode half its last extent"):
        gg.norm_rope_backward(dy, cos=array(4, 7), sin=array(4, 7), rope_type="half", out_layout="BSND")
    problem = Problem(seed=2)
    grads = {f"grad_{s}_output": g.swapaxes(1, 2) for s, g in problem.grads.items()}
    grads["grad_value_output"] = grads["grad_value_output"][:1]
    with refused(ValueError, "grad_value_output has shape [1, 6, 3, 8]; its batch"):
        problem.backward(**grads, out_layout="BSND")
    shared = np.lib.stride_tricks.as_strided(np.zeros(4, np.float32), (2, 8, 3, 8), (0, 0, 0, 4))
    with refused(ValueError, "out['query'] has shape [2, 8, 3, 8] and strides [0, 0, 0, 1]; its elements share memory"):
        problem.forward(out={"query": shared}, out_layout="BSND")


def test_memory_that_outputs_may_not_share(problem):
    arrays = problem.backward_arrays()
    memory = np.zeros(2 * 5 * 3 * 8 + 1, np.float32)
    shifted = {"query": memory[1:].reshape(2, 5, 3, 8)}
    with refused(ValueError, "out['query'] shares memory with query; it may do so only with the same address"):
        problem.backward(query=memory[:-1].reshape(2, 5, 3, 8), out=shifted)
    with refused(ValueError, "out['encoder_query'] shares memory with out['query']"):
        problem.backward(out={"query": shifted["query"], "encoder_query": shifted["query"][:, :3]})
    with refused(ValueError, "out['norm_query_weight'] shares memory with norm_key_weight"):
        problem.backward(
            out={"norm_query_weight": arrays["norm_key_weight"]}, norm_key_weight=arrays["norm_key_weight"]
        )
    with refused(ValueError, "out['value'] shares memory with grad_key_output"):
        rows = arrays["grad_key_output"].swapaxes(1, 2)[:, :4]
        problem.backward(grad_key_output=arrays["grad_key_output"], out={"value": rows})
    with refused(ValueError, "norm_rope_concat: out['query'] shares memory with norm_query_weight"):
        memory = np.zeros((2, 3, 8, 8), np.float32)
        problem.forward(norm_query_weight=memory[0, 0, 0], out={"query": memory})


def test_names_are_whole_words():
    """The y of "memory" is no result."""
    x, memory = array(2, 5, 3, 8), np.zeros((2, 3, 5, 8), np.float32)
    with refused(ValueError, "norm_rope: out['y'] shares memory with weight; it may not"):
        gg.norm_rope(x, memory[0, 0, 0], norm_type="rms_affine", out={"y": memory})


def test_what_the_types_do_not_use_is_ignored():
    problem = Problem(seed=3)
    nonsense = {name: object() for name in ("norm_query_mean", "norm_key_weight", "rope_sin", "encoder_rope_cos")}
    want = problem.backward()
    for got, expected in zip(problem.backward(**nonsense), want, strict=True):
        assert (got is None) == (expected is None)
    problem.forward(norm_query_bias=object(), rope_cos=3)
    problem.forward(norm_added_type="none", norm_added_key_bias=object())
    options = {"norm_type": "none", "rope_type": 0}
    gg.norm_rope_backward(array(2, 3, 5, 8), x=object(), mean=3, cos="c", rope_start=7, **options)


# What waits for each type, in the calls that have it.
WAITING = {
    "norm_type": ("weight", "bias", "mean", "rstd", "norm_query_", "norm_key_"),
    "norm_added_type": ("norm_added_",),
    "rope_type": ("cos", "sin", "rope_cos", "rope_sin", "encoder_rope_"),
}
UNCHOSEN = [
    (function, kind, name)
    for function in (gg.norm_rope, gg.norm_rope_backward, gg.norm_rope_concat, gg.norm_rope_concat_backward)
    for kind, starts in WAITING.items()
    for name in inspect.signature(function).parameters
    if name.startswith(starts) and name not in WAITING
]


def test_all_that_waits_for_a_type_is_tested():
    counts = {}
    for function, *_ in UNCHOSEN:
        counts[function.__name__] = counts.get(function.__name__, 0) + 1
    assert list(counts.values()) == [2 + 2, 3 + 2, 8 + 4, 12 + 4]


@pytest.mark.parametrize(("function", "kind", "name"), UNCHOSEN, ids=lambda value: getattr(value, "__name__", value))
def test_arrays_whose_type_is_not_chosen_are_refused(function, kind, name):
    """Whatever they are; an explicit "none" ignores them."""
    shape = (2, 3, 5, 8)
    with refused(ValueError, f"{function.__name__}: {name} is given without {kind}; {kind} must be 'none' (0), '"):
        function(array(*shape), **{name: array(8)})
    others = {other: "none" for other in WAITING if other != kind and other in inspect.signature(function).parameters}
    with refused(ValueError, f"{name} is given without {kind}"):
        function(array(*shape), **{name: array(8)}, **others, **{kind: None})
    want = function(array(*shape))
    got = function(array(*shape), **{name: object()}, **{kind: "none"})
    np.testing.assert_array_equal(got[0], want[0])


def test_huge_expanded_arrays_are_refused_not_allocated():
    x = np.broadcast_to(np.float32(1), (2**55, 4, 2, 4))
    with pytest.raises((MemoryError, ValueError)):
        gg.norm_rope(x, norm_type="rms")
    with pytest.raises((MemoryError, ValueError)):
        gg.norm_rope_concat(x[:, :, :, :1], encoder_query=np.broadcast_to(np.float32(1), (2**55, 5, 2, 1)))

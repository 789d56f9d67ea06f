"""gyrograd.torch.norm_rope and norm_rope_concat: gradients, the plain calls' bits on both ways, what is refused."""

import itertools

import numpy as np
import pytest
import torch
from attention import STREAMS, Problem
from formulas import BF16, NORM_TYPES
from test_frameworks import to_torch
from test_norm_rope_frameworks import torch_forward
from torch.autograd import gradcheck
from torch_ways import WAYS, assert_equal, grads, leaves, raised, way

import gyrograd as gg
import gyrograd.torch as gt

LENGTHS = [(5, 4, 3, 2), (5, 4, None, None), (None, None, 5, 4), (5, None, 3, None), (None, 5, None, 2), (5, 4, 0, 2)]
NORMS = [(norm, NORM_TYPES[-1 - i]) for i, norm in enumerate(NORM_TYPES)]


def torch_arrays(problem):
    """Every tensor of the forward by its keyword, those that may require grad as leaves."""
    arrays = {name: to_torch(array).requires_grad_() for name, array in (problem.inputs | problem.weights).items()}
    return {"query": None} | arrays | {name: to_torch(table) for name, table in problem.tables.items()}


def check(problem, way_name, more=()):
    """Results and gradients against the plain calls, bit by bit."""
    arrays = torch_arrays(problem)
    inputs = [tensor for name, tensor in arrays.items() if tensor is not None and tensor.requires_grad]
    options = problem.options | dict(more)
    detached = {name: None if tensor is None else tensor.detach() for name, tensor in arrays.items()}
    want = gg.norm_rope_concat(**detached, **options, eps=problem.eps)
    dys = {stream: to_torch(grad) for stream, grad in problem.grads.items()}
    if options.get("out_layout") == "BSND":
        dys = {stream: dy.transpose(1, 2) for stream, dy in dys.items()}
    with way(way_name) as watched:
        got = gt.norm_rope_concat(**arrays, **options, eps=problem.eps)
        joints = [getattr(got, stream) for stream in STREAMS if stream in dys]
        gradients = grads(joints, inputs, list(dys.values()))
    if watched:
        assert watched.calls == ["norm_rope_concat", "norm_rope_concat_backward"]
    assert type(got) is gg.NormRopeConcat
    assert_equal(got, want)
    assert all(joint.requires_grad and joint.is_contiguous() for joint in joints)
    assert not any(statistic.requires_grad for statistic in got[3:] if statistic is not None)
    backward = {name: detached.get(name) for name in ("query", "key", "encoder_query", "encoder_key")}
    backward |= {name: detached.get(name) for name in detached if name.endswith("weight") or name.startswith("rope")}
    backward |= {f"grad_{stream}_output": dy for stream, dy in dys.items()}
    expected = gg.norm_rope_concat_backward(**{"grad_query_output": None} | backward | want.statistics, **options)
    names = [name for name, tensor in arrays.items() if tensor is not None and tensor.requires_grad]
    assert_equal(gradients, [getattr(expected, name) for name in names])


@pytest.mark.parametrize("way_name", WAYS)
@pytest.mark.parametrize(("norm", "added"), NORMS)
@pytest.mark.parametrize("order", ["stream_first", "encoder_first"])
def test_bits_of_the_joint_call(way_name, norm, added, order):
    for rope, lengths in itertools.product(("none", "half"), LENGTHS[:3]):
        rows = min(sum(length or 0 for length in lengths[i::2]) for i in range(2))
        check(
            Problem(seed=1, norm=norm, added=added, rope=rope, order=order, lengths=lengths, table_shape=(rows,)),
            way_name,
        )


@pytest.mark.parametrize("way_name", WAYS)
@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("norms", [("none", "none"), ("layer_affine", "none"), ("none", "rms_affine")])
def test_bits_of_present_and_absent_streams(way_name, lengths, norms):
    norm, added = norms
    check(Problem(seed=2, norm=norm, added=added, lengths=lengths, heads=(4, 2, 3)), way_name)


@pytest.mark.parametrize("way_name", WAYS)
def test_value_alone(way_name):
    value, encoder_value = leaves(torch.rand(2, 3, 2, 4), torch.rand(2, 2, 2, 4))
    dy = torch.rand(2, 2, 5, 4)
    with way(way_name):
        y = gt.norm_rope_concat(None, None, value, encoder_value=encoder_value, norm_type="layer").value
        got = grads(y, (value, encoder_value), dy)
    assert torch.equal(y, torch.cat([value, encoder_value], 1).transpose(1, 2))
    assert_equal(got, dy.transpose(1, 2).split([3, 2], 1))


@pytest.mark.parametrize("way_name", WAYS)
@pytest.mark.parametrize(
    ("options", "shape"),
    [
        ({"rope_start": 2}, (3,)),
        ({"per_pair_tables": True}, (4,)),
        ({"rotary_dim": 4, "rotary_offset": 2}, (4,)),
        ({}, (2, 1, 4)),
    ],
)
@pytest.mark.parametrize("layout", ["BNSD", "BSND"])
def test_bits_with_options(way_name, options, shape, layout):
    problem = Problem(seed=3, norm="rms_affine", added="layer", rope="interleave", rotation=options, table_shape=shape)
    check(problem, way_name, {"out_layout": layout})


@pytest.mark.parametrize("way_name", WAYS)
@pytest.mark.parametrize(("dtype", "other"), [(np.float64, np.float64), (BF16, BF16), (BF16, np.float32),
                                              (np.float16, np.float32)])  # fmt: skip
def test_bits_of_types(way_name, dtype, other):
    check(
        Problem(seed=4, dtype=dtype, table_dtype=other, weight_dtype=other, norm="layer_affine", added="rms_affine",
                rope="half"),
        way_name,
    )  # fmt: skip


@pytest.mark.parametrize("way_name", WAYS)
@pytest.mark.parametrize(("norm", "added"), NORMS)
def test_against_autograd_of_the_formula(way_name, norm, added):
    problem = Problem(seed=5, dtype=np.float64, norm=norm, added=added, rope="half")
    ours, theirs = torch_arrays(problem), torch_arrays(problem)
    names = [name for name in ours if name in problem.inputs | problem.weights]
    dys = [to_torch(problem.grads[stream]) for stream in STREAMS]
    with way(way_name):
        got = gt.norm_rope_concat(**ours, **problem.options, eps=problem.eps)
        gradients = grads(list(got[:3]), [ours[name] for name in names], dys)
    want = torch_forward(problem, theirs)
    expected = grads([want[stream] for stream in STREAMS], [theirs[name] for name in names], dys)
    for a, b in zip((*got[:3], *gradients), (*want.values(), *expected), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-11)


# ---- one segment


def segment(seed, norm, dtype=np.float64):
    """x, weight, bias and the tables; [B, S, N, D]."""
    problem = Problem(seed=seed, dtype=dtype, norm=norm, rope="half", lengths=(5, None, None, None), dim=6)
    weights = [to_torch(problem.weights[f"norm_query_{m}"]) if f"norm_query_{m}" in problem.weights else None
               for m in ("weight", "bias")]  # fmt: skip
    tables = [to_torch(problem.tables[f"rope_{name}"]) for name in ("cos", "sin")]
    return to_torch(problem.inputs["query"]), *weights, *tables, to_torch(problem.grads["query"])


@pytest.mark.parametrize("way_name", WAYS)
@pytest.mark.parametrize("norm", NORM_TYPES)
@pytest.mark.parametrize("layout", ["BNSD", "BSND"])
def test_segment(way_name, norm, layout):
    """gradcheck, and the bits of the plain calls, from views."""
    x, weight, bias, cos, sin, dy = segment(6, norm)
    options = {"norm_type": norm, "rope_type": "half", "rope_start": 1, "out_layout": layout}
    x = torch.stack([x, x], 2)[:, :, 0]  # as of packed QKV
    inputs = [t.detach().requires_grad_() for t in (x, weight, bias) if t is not None]
    parameters = [None if t is None else inputs[1 + i] for i, t in enumerate((weight, bias))]
    dy = dy.transpose(1, 2) if layout == "BSND" else dy
    with way(way_name) as watched:
        result = gt.norm_rope(inputs[0], *parameters, cos, sin, **options)
        got = grads(result.y, inputs, dy)
        assert gradcheck(lambda *t: gt.norm_rope(t[0], *[*t[1:], None, None][:2], cos, sin, **options).y, inputs)
    if watched:
        assert watched.calls[:2] == ["norm_rope", "norm_rope_backward"]
    want = gg.norm_rope(x, weight, bias, cos, sin, **options)
    assert type(result) is gg.NormRope
    assert_equal(result, want)
    assert result.y.is_contiguous()
    assert not any(statistic.requires_grad for statistic in result[1:] if statistic is not None)
    expected = gg.norm_rope_backward(dy, x, weight, **want.statistics, cos=cos, sin=sin, **options)
    assert_equal(got, [gradient for gradient in expected if gradient is not None])


@pytest.mark.parametrize("way_name", WAYS)
@pytest.mark.parametrize("needs", list(itertools.product((0, 1), repeat=3))[1:])
def test_only_what_is_asked_for_is_computed(way_name, needs, monkeypatch):
    from gyrograd import _core

    asked = []
    backward = _core.norm_rope_backward

    def spy(keywords):
        asked.append(keywords["outputs"])
        return backward(keywords)

    monkeypatch.setattr(_core, "norm_rope_backward", spy)
    x, weight, bias, cos, sin, dy = segment(7, "layer_affine")
    inputs = [t.requires_grad_(bool(need)) for t, need in zip((x, weight, bias), needs, strict=True)]
    with way(way_name):
        gt.norm_rope(*inputs, cos, sin, norm_type="layer_affine", rope_type="half").y.backward(dy)
    assert asked == [[name for name, need in zip(("dx", "dweight", "dbias"), needs, strict=True) if need]]
    for tensor, need in zip(inputs, needs, strict=True):
        assert (tensor.grad is not None) == bool(need)


@pytest.mark.parametrize("way_name", WAYS)
def test_streams_that_do_not_reach_the_loss_get_nothing(way_name):
    problem = Problem(seed=8, norm="rms_affine", added="rms_affine", rope="half")
    arrays = torch_arrays(problem)
    with way(way_name):
        gt.norm_rope_concat(**arrays, **problem.options).key.backward(to_torch(problem.grads["key"]))
    reached = {name for name, tensor in arrays.items() if tensor is not None and tensor.grad is not None}
    assert reached == {"key", "encoder_key", "norm_key_weight", "norm_added_key_weight"}


@pytest.mark.parametrize("way_name", WAYS)
def test_a_joint_that_does_not_reach_the_loss_keeps_the_others_tables_legal(way_name):
    """The tables of a stream that is in that joint alone."""
    generator = torch.Generator().manual_seed(3)
    query, encoder_key = (torch.randn(1, rows, 2, 8, generator=generator, requires_grad=True) for rows in (3, 5))
    cos, encoder_cos = (torch.randn(rows, 8, generator=generator) for rows in (3, 5))
    with way(way_name):
        y = gt.norm_rope_concat(
            query,
            encoder_key=encoder_key,
            norm_type="rms",
            norm_added_type="rms",
            rope_type="half",
            rope_cos=cos,
            rope_sin=cos,
            encoder_rope_cos=encoder_cos,
            encoder_rope_sin=encoder_cos,
        )
        both = torch.autograd.grad(y.query.sum() + y.key.sum(), (query, encoder_key), retain_graph=True)
        of_query = torch.autograd.grad(y.query.sum(), (query, encoder_key), retain_graph=True, allow_unused=True)
        of_key = torch.autograd.grad(y.key.sum(), (query, encoder_key), allow_unused=True)
    assert_equal(of_query[0], both[0])
    assert_equal(of_key[1], both[1])
    assert of_query[1] is None and of_key[0] is None


@pytest.mark.parametrize("way_name", WAYS)
def test_two_backward_passes_are_equal(way_name):
    problem = Problem(seed=9, norm="layer_affine", added="rms_affine", rope="half")
    arrays = torch_arrays(problem)
    inputs = [tensor for tensor in arrays.values() if tensor is not None and tensor.requires_grad]
    dys = [to_torch(problem.grads[stream]) for stream in STREAMS]
    with way(way_name):
        joints = gt.norm_rope_concat(**arrays, **problem.options)[:3]
        assert_equal(grads(joints, inputs, dys, retain_graph=True), grads(joints, inputs, dys))


# ---- operators


@pytest.mark.parametrize("norm", NORM_TYPES)
def test_opcheck_of_the_segment(norm):
    x, weight, bias, cos, sin, dy = segment(10, norm, np.float32)
    views = (x.transpose(1, 2).contiguous().transpose(1, 2), weight, bias)
    inputs = [None if tensor is None else tensor.detach().requires_grad_() for tensor in views]
    options = ("half", False, None, 0, 1, "BSND")
    torch.library.opcheck(torch.ops.gyrograd.norm_rope.default, (*inputs, cos, sin, norm, 1e-5, *options))
    statistics = gg.norm_rope(x, weight, bias, norm_type=norm)[1:]
    wanted = [True, weight is not None, bias is not None]
    arguments = (dy.transpose(1, 2), x, weight, *statistics, cos, sin, wanted, norm, *options)
    torch.library.opcheck(torch.ops.gyrograd.norm_rope_backward.default, arguments)


@pytest.mark.parametrize("lengths", LENGTHS[:4])
@pytest.mark.parametrize("norms", [("layer_affine", "rms_affine"), ("none", "none")])
def test_opcheck_of_the_joint_call(lengths, norms):
    norm, added = norms
    problem = Problem(seed=11, norm=norm, added=added, rope="half", lengths=lengths, table_shape=(3,))
    arrays = torch_arrays(problem)
    operator = torch.ops.gyrograd.norm_rope_concat.default
    names = [argument.name for argument in operator._schema.arguments]
    options = {"eps": 1e-5, "per_pair_tables": False, "rotary_dim": None, "rotary_offset": 0, "rope_start": 0,
               "out_layout": "BNSD"} | problem.options  # fmt: skip
    torch.library.opcheck(operator, [(arrays | options).get(name) for name in names])


def test_vmap():
    """Over rows, and over weights, each sample as a call of its own; gradients too."""
    x, weight, _, cos, sin, _ = segment(12, "rms_affine")
    rows, weights = torch.stack([x, 2 * x, x - 1], 1), torch.stack([weight, weight + 1, -weight])

    def loss(x, weight):
        y = gt.norm_rope(x, weight, None, cos, sin, norm_type="rms_affine", rope_type="half").y
        return (y**2).sum()

    for axes, sample in (((1, None), lambda i: (rows[:, i], weight)), ((None, 0), lambda i: (x, weights[i]))):
        inputs = (rows if axes[0] is not None else x, weights if axes[1] is not None else weight)
        got = torch.func.vmap(torch.func.grad(loss, (0, 1)), axes)(*inputs)
        singles = [torch.func.grad(loss, (0, 1))(*sample(i)) for i in range(3)]
        assert_equal(got, [torch.stack(results) for results in zip(*singles, strict=True)])


# ---- refusals


@pytest.mark.parametrize("way_name", WAYS)
@pytest.mark.parametrize("name", ["rope_cos", "rope_sin", "encoder_rope_cos", "encoder_rope_sin"])
def test_tables_that_require_grad_are_refused_by_name(way_name, name):
    problem = Problem(seed=13, rope="half", lengths=(4, 4, 4, 4))
    arrays = torch_arrays(problem)
    arrays |= {f"encoder_{table}": arrays[table].clone() for table in ("rope_cos", "rope_sin")}
    arrays[name].requires_grad_()
    with way(way_name):
        with pytest.raises(ValueError, match=rf"norm_rope_concat: {name} requires grad.*detach"):
            gt.norm_rope_concat(**arrays, **problem.options)
        with torch.no_grad():
            gt.norm_rope_concat(**arrays, **problem.options)
    x, _, _, cos, sin, _ = segment(13, "none")
    with way(way_name), pytest.raises(ValueError, match="norm_rope: sin requires grad"):
        gt.norm_rope(x, None, None, cos, sin.requires_grad_(), rope_type="half")


def test_tables_that_the_operator_finds_to_require_grad_are_refused():
    """Where no call of this package could ask: below vmap, and of the operator itself."""
    x, _, _, cos, sin, _ = segment(14, "none")

    def loss(cos):
        return gt.norm_rope(x, None, None, cos, sin, rope_type="half").y.sum()

    with pytest.raises(ValueError, match="norm_rope: cos requires grad"):
        torch.func.grad(loss)(cos)
    with pytest.raises(ValueError, match="norm_rope: cos requires grad"):
        torch.func.grad(lambda cos: torch.func.vmap(loss)(cos).sum())(torch.stack([cos, cos]))
    options = (None, 1e-5, "half", False, None, 0, 0, "BNSD")
    with pytest.raises(ValueError, match="norm_rope: cos requires grad"):
        torch.ops.gyrograd.norm_rope(x, None, None, cos.requires_grad_(), sin, *options)


@pytest.mark.parametrize("way_name", WAYS)
def test_double_backward_is_refused_by_name(way_name):
    x, weight, _, cos, sin, _ = segment(15, "rms_affine")
    inputs = leaves(x, weight)
    with way(way_name):
        y = gt.norm_rope(*inputs, None, cos, sin, norm_type="rms_affine", rope_type="half").y
        gradient, _ = torch.autograd.grad((y**2).sum(), inputs, create_graph=True)
        with pytest.raises(NotImplementedError, match="norm_rope: its gradients have no gradients of their own"):
            gradient.sum().backward()
        joint = gt.norm_rope_concat(inputs[0], norm_query_weight=inputs[1], norm_type="rms_affine").query
        gradient, _ = torch.autograd.grad((joint**2).sum(), inputs, create_graph=True)
        with pytest.raises(NotImplementedError, match="norm_rope_concat: its gradients have no gradients"):
            gradient.sum().backward()


@pytest.mark.parametrize("way_name", WAYS)
def test_refusals(way_name):
    x, weight, bias, cos, _, _ = segment(16, "layer_affine")
    with way(way_name):
        for needs_grad in (False, True):
            x.requires_grad_(needs_grad)
            with pytest.raises(ValueError, match="norm_rope: weight is given without norm_type"):
                gt.norm_rope(x, weight)
            with pytest.raises(ValueError, match=r"norm_rope: weight is on device meta.*\.cpu\(\)"):
                gt.norm_rope(x, weight.to("meta"), bias, norm_type="layer_affine")
            with pytest.raises(ValueError, match="norm_rope: norm_type is 'batch'"):
                gt.norm_rope(x, norm_type="batch")
            with pytest.raises(ValueError, match="norm_rope: sin is missing"):
                gt.norm_rope(x, None, None, cos, rope_type="half")
    with way(way_name), pytest.raises(ValueError, match="norm_rope_concat: query is missing"):
        gt.norm_rope_concat(None)


def wrong_shapes():
    """Calls by package, of rows, a weight and a table that do not go together."""
    x, weight, bias, cos, sin, _ = segment(23, "layer_affine")
    affine, joint = {"norm_type": "layer_affine"}, {"norm_type": "rms", "norm_added_type": "rms"}
    other = {"rank 3": x[0], "rank 0": x[0, 0, 0, 0], "rank 5": x[None]}
    calls = {f"x of {name}": ("norm_rope", (rows, weight, bias), affine) for name, rows in other.items()}
    calls |= {f"encoder of {name}": ("norm_rope_concat", (x, None, None, rows), joint) for name, rows in other.items()}
    parts = {"heads": x[:, :, :1], "batch": x[:1], "width": x[..., :2]}
    calls |= {f"encoder of other {name}": ("norm_rope_concat", (x, None, None, p), joint) for name, p in parts.items()}
    return calls | {
        "no x": ("norm_rope", (None, weight, bias), affine),
        "weight": ("norm_rope", (x, weight[1:], bias), affine),
        "bias": ("norm_rope", (x, weight, bias[1:]), affine),
        "table": ("norm_rope", (x, weight, bias, cos[..., 1:], sin), affine | {"rope_type": "half"}),
        "value longer than key": ("norm_rope_concat", (x, x[:, 1:], x), joint),
        "value shorter than key": ("norm_rope_concat", (x, x, x[:, 1:]), joint),
        "key of rank 3": ("norm_rope_concat", (x, x[0], x), joint),
    }


@pytest.mark.parametrize("way_name", [*WAYS, "compiled"])
@pytest.mark.parametrize("needs_grad", [False, True])
@pytest.mark.parametrize("name", wrong_shapes())
def test_wrong_shapes_are_refused_in_the_words_of_the_plain_calls(way_name, name, needs_grad):
    operator, tensors, options = wrong_shapes()[name]
    want = raised(lambda: getattr(gg, operator)(*tensors, **options))
    torch._dynamo.reset()
    function = getattr(gt, operator)
    if way_name == "compiled":
        function = torch.compile(function, fullgraph=True, backend="aot_eager")
    given = [
        tensor.clone().requires_grad_() if needs_grad and tensor is not None and i < 3 else tensor
        for i, tensor in enumerate(tensors)
    ]
    with way(way_name):
        kind, words = raised(lambda: function(*given, **options))
    assert (kind, words.split("\n")[0].rstrip()) == want


@pytest.mark.parametrize("way_name", WAYS)
def test_types_by_number(way_name):
    x, weight, bias, cos, sin, _ = segment(17, "layer_affine")
    with way(way_name):
        got = gt.norm_rope(x, weight, bias, cos, sin, norm_type=2, rope_type=2)
        joint = gt.norm_rope_concat(x, encoder_query=x, norm_added_type=3, concat_order=1)
    assert_equal(got, gg.norm_rope(x, weight, bias, cos, sin, norm_type="layer_affine", rope_type="half"))
    assert_equal(joint, gg.norm_rope_concat(x, encoder_query=x, norm_added_type="rms", concat_order="encoder_first"))


WRONG_OPTIONS = [
    *(("norm_type", value) for value in (1.5, True, 7, -1, np.int64(5), "batch")),
    *(("rope_type", value) for value in (2.0, False, 3, "third")),
    *(("eps", value) for value in ("1e-5", 10**400, None, True, np.False_, [1e-5], -1.0)),
    *(("per_pair_tables", value) for value in ("yes", 0, None)),
    *(("rotary_dim", value) for value in ("6", 6.0, True, 2**70)),
    *(("rotary_offset", value) for value in (None, False)),
    *(("rope_start", value) for value in (None, "0", True, 0.0, -1)),
    *(("out_layout", value) for value in (None, 0, "SBND")),
]


@pytest.mark.parametrize("way_name", WAYS)
@pytest.mark.parametrize(
    ("name", "value"), [*WRONG_OPTIONS, ("norm_added_type", 1.5), ("concat_order", None), ("concat_order", 2)]
)
def test_wrong_options_are_refused_in_the_words_of_the_plain_calls(way_name, name, value):
    x, weight, _, cos, sin, _ = segment(18, "rms_affine")
    options = {"norm_type": "rms_affine", "rope_type": "half"} | {name: value}
    segment_too = name not in ("norm_added_type", "concat_order")

    def calls(package, x):
        if segment_too:
            yield lambda: package.norm_rope(x, weight, None, cos, sin, **options)
        yield lambda: package.norm_rope_concat(
            x, norm_query_weight=weight, rope_cos=cos, rope_sin=sin, encoder_query=x, **options
        )

    want = [raised(call) for call in calls(gg, x)]
    for rows in (x, x.clone().requires_grad_()):
        with way(way_name):
            assert [raised(call) for call in calls(gt, rows)] == want


@pytest.mark.parametrize("way_name", WAYS)
@pytest.mark.parametrize("integer", [np.int64, np.uint8, torch.tensor])
@pytest.mark.parametrize("real", [np.float32, np.float64, torch.tensor])
def test_options_of_other_types_that_the_plain_calls_take(way_name, integer, real):
    x, weight, bias, cos, sin, dy = segment(19, "layer_affine")
    numbers = {"norm_type": integer(2), "rope_type": integer(2), "rotary_dim": integer(4), "rotary_offset": integer(1)}
    options = numbers | {"per_pair_tables": np.True_, "rope_start": integer(1), "eps": real(0.25)}
    tables = (cos[..., :2], sin[..., :2])
    inputs = leaves(x, weight, bias)
    with way(way_name):
        result = gt.norm_rope(*inputs, *tables, **options)
        got = grads(result.y, inputs, dy)
        joint = gt.norm_rope_concat(x, encoder_query=x, norm_added_type=integer(1), concat_order=integer(1)).query
    plain = {"norm_type": "layer_affine", "rope_type": "half", "rotary_dim": 4, "rotary_offset": 1, "rope_start": 1}
    plain |= {"per_pair_tables": True}
    want = gg.norm_rope(x, weight, bias, *tables, **plain, eps=0.25)
    assert_equal(result, want)
    assert_equal(got, gg.norm_rope_backward(dy, x, weight, **want.statistics, cos=tables[0], sin=tables[1], **plain))
    want = gg.norm_rope_concat(x, encoder_query=x, norm_added_type="layer", concat_order="encoder_first").query
    assert torch.equal(joint, want)


@pytest.mark.parametrize("way_name", [*WAYS, "compiled"])
def test_what_the_types_do_not_use_makes_no_result_require_grad(way_name):
    x, weight, bias, cos, sin, _ = segment(20, "layer_affine")
    for tensor in (weight, bias, cos, sin):
        tensor.requires_grad_()

    def results():
        for norm, ignored in (("none", (weight, bias)), ("rms", (weight, bias)), ("rms_affine", (None, bias))):
            given = (weight.detach(), bias) if norm == "rms_affine" else ignored
            yield gt.norm_rope(x, *given, cos, sin, norm_type=norm, rope_type="none").y
        yield gt.norm_rope_concat(x, norm_query_weight=weight, norm_type="layer").query
        yield gt.norm_rope_concat(x, norm_added_query_weight=weight, norm_added_type="rms_affine").query

    def function():
        return list(results())

    run = torch.compile(function, fullgraph=True, backend="aot_eager") if way_name == "compiled" else function
    with way(way_name):
        assert [y.requires_grad for y in run()] == [False] * 5
        used = gt.norm_rope(x, weight, bias, norm_type="layer_affine").y
        joint = gt.norm_rope_concat(x, norm_query_weight=weight, norm_type="rms_affine").query
    assert used.requires_grad
    assert joint.requires_grad


def test_vmap_over_no_samples():
    """Shapes as for one sample, and zeros for the gradients of what all samples share."""
    x, weight, _, cos, sin, _ = segment(21, "rms_affine")
    none = torch.empty(2, 0, *x.shape[1:], dtype=x.dtype)

    def function(x, weight):
        y, _, rstd = gt.norm_rope(x, weight, None, cos, sin, norm_type="rms_affine", rope_type="half")
        joint = gt.norm_rope_concat(x, encoder_query=x, norm_query_weight=weight, norm_type="rms_affine")
        return y, rstd, joint.query, joint.norm_query_rstd

    for tensor in (none, weight):
        tensor.requires_grad_()
    got = torch.func.vmap(function, (1, None), 1)(none, weight)
    one = function(x, weight)
    assert [tensor.shape for tensor in got] == [(tensor.shape[0], 0, *tensor.shape[1:]) for tensor in one]
    assert [(t.dtype, t.requires_grad) for t in got] == [(t.dtype, t.requires_grad) for t in one]
    of_rows, of_weight = grads(got[0].sum() + got[2].sum(), (none, weight), None)
    assert_equal([of_rows, of_weight], [torch.zeros_like(none), torch.zeros_like(weight)])
    each = torch.func.vmap(torch.func.grad(lambda x, weight: function(x, weight)[0].sum(), (0, 1)), (1, None))
    assert [tensor.shape for tensor in each(none, weight)] == [(0, *x.shape), (0, *weight.shape)]

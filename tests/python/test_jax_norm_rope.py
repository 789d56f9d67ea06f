"""gyrograd.jax.norm_rope and norm_rope_concat: gradients, the plain calls' bits, JAX's transformations, refusals."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention import STREAMS, Problem
from formulas import BF16, NORM_TYPES, is_affine
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.test_util import check_grads
from jax_formulas import assert_close, assert_equal, custom_calls, norm, rotary, x64

import gyrograd as gg
import gyrograd.jax as gj

LENGTHS = [(5, 4, 3, 2), (5, 4, None, None), (None, None, 5, 4), (5, None, 3, None), (None, 5, None, 2), (5, 4, 0, 2)]
NORMS = [(norm, NORM_TYPES[-1 - i]) for i, norm in enumerate(NORM_TYPES)]


def jax_arrays(problem):
    """The arrays that are differentiated by their keywords, and the tables."""
    leaves = {name: jnp.asarray(array) for name, array in (problem.inputs | problem.weights).items()}
    return leaves, {name: jnp.asarray(table) for name, table in problem.tables.items()}


def check(problem, more=(), joints=STREAMS):
    """Results and gradients against the plain calls, bit by bit. `joints` are those that reach the loss."""
    leaves, tables = jax_arrays(problem)
    options = problem.options | dict(more)
    dys = {stream: jnp.asarray(grad) for stream, grad in problem.grads.items() if stream in joints}
    if options.get("out_layout") == "BSND":
        dys = {stream: dy.swapaxes(1, 2) for stream, dy in dys.items()}

    def forward(leaves):
        result = gj.norm_rope_concat(**{"query": None} | leaves | tables, **options, eps=problem.eps)
        return {stream: getattr(result, stream) for stream in dys}, result

    _, backward, got = jax.vjp(forward, leaves, has_aux=True)
    (gradients,) = backward(dys)
    want = gg.norm_rope_concat(**{"query": None} | leaves | tables, **options, eps=problem.eps)
    assert type(got) is gg.NormRopeConcat
    assert_equal(got, want)
    arrays = {name: leaves.get(name) for name in ("query", "key", "encoder_query", "encoder_key")}
    arrays |= {name: array for name, array in leaves.items() if name.endswith("weight")} | tables
    zeros = {stream: jnp.zeros_like(getattr(want, stream)) for stream in problem.grads}
    arrays |= {f"grad_{stream}_output": dy for stream, dy in (zeros | dys).items()}
    expected = gg.norm_rope_concat_backward(**{"grad_query_output": None} | arrays | want.statistics, **options)
    reached = [name for name in gradients if any(stream in name.split("_") for stream in joints)]
    assert_equal([gradients[name] for name in reached], [getattr(expected, name) for name in reached])
    assert not any(gradients[name].any() for name in gradients.keys() - reached)


# ---- bits


@pytest.mark.parametrize(("norm", "added"), NORMS)
def test_bits_of_the_joint_call(norm, added):
    for i, (rope, lengths) in enumerate(itertools.product(("none", "half"), LENGTHS[:3])):
        rows = min(sum(length or 0 for length in lengths[i::2]) for i in range(2))
        order = ("stream_first", "encoder_first")[i % 2]
        check(Problem(seed=1, norm=norm, added=added, rope=rope, order=order, lengths=lengths, table_shape=(rows,)))


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("norms", [("none", "none"), ("layer_affine", "none"), ("none", "rms_affine")])
def test_bits_of_present_and_absent_streams(lengths, norms):
    norm, added = norms
    check(Problem(seed=2, norm=norm, added=added, lengths=lengths, heads=(4, 2, 3)))


@pytest.mark.parametrize(
    ("options", "shape"),
    [
        ({"rope_start": 2}, (3,)),
        ({"per_pair_tables": True}, (4,)),
        ({"rotary_dim": 4, "rotary_offset": 2}, (4,)),
        ({}, (2, 1, 4)),
        ({}, (2, 3, 4)),
    ],
)
@pytest.mark.parametrize("layout", ["BNSD", "BSND"])
def test_bits_with_options(options, shape, layout):
    problem = Problem(seed=3, norm="rms_affine", added="layer", rope="interleave", rotation=options, table_shape=shape)
    check(problem, {"out_layout": layout})


@pytest.mark.parametrize(("dtype", "other"), [(np.float64, np.float64), (BF16, BF16), (BF16, np.float32),
                                              (np.float16, np.float32)])  # fmt: skip
def test_bits_of_types(dtype, other):
    problem = Problem(seed=4, dtype=dtype, table_dtype=other, weight_dtype=other, norm="layer_affine",
                      added="rms_affine", rope="half")  # fmt: skip
    with x64():
        check(problem)


@pytest.mark.parametrize("joints", [("query",), ("key",), ("value",), ("query", "value")])
@pytest.mark.parametrize("rope", ["none", "half"])
def test_joints_that_do_not_reach_the_loss(joints, rope):
    """Their rows get zeros, and the others the bits that they have beside them."""
    check(Problem(seed=5, norm="layer_affine", added="rms_affine", rope=rope), joints=joints)


def test_value_alone():
    problem = Problem(seed=6, lengths=(None, 3, None, 2))
    rows = [jnp.asarray(problem.inputs[name]) for name in ("value", "encoder_value")]
    y, backward = jax.vjp(
        lambda value, encoder: gj.norm_rope_concat(None, None, value, None, None, encoder).value, *rows
    )
    assert_equal([y], [jnp.concatenate(rows, 1).swapaxes(1, 2)])
    assert_equal(backward(y), rows)


@st.composite
def segments(draw):
    kind = draw(st.sampled_from(NORM_TYPES))
    dtype, other = draw(st.sampled_from([(np.float32, np.float32), (BF16, np.float32), (np.float16, np.float16)]))
    rows = draw(st.integers(0, 4))
    options = {"rope_type": draw(st.sampled_from(("none", "half", "interleave", "quarter", "interleave-half")))}
    options |= {"norm_type": kind, "out_layout": draw(st.sampled_from(("BNSD", "BSND")))}
    options |= {"rope_start": draw(st.integers(0, rows))}
    table = (rows - options["rope_start"], 8)
    table = draw(st.sampled_from(((), (1, 1), (2, 1), (1, 3), (2, 3)))) + table
    rng = np.random.default_rng(draw(st.integers(0, 9)))
    x = rng.standard_normal((2, rows, 3, 8)).astype(dtype)
    weights = [rng.standard_normal(8).astype(other) for _ in range(2)]
    tables = [rng.standard_normal(table).astype(other) for _ in range(2)]
    dy = rng.standard_normal((2, 3, rows, 8) if options["out_layout"] == "BNSD" else x.shape).astype(dtype)
    return dy, x, weights, tables, options


@settings(max_examples=30)
@given(segments())
def test_bits_of_any_segment(drawn):
    dy, x, (weight, bias), (cos, sin), options = drawn
    leaves = [jnp.asarray(x), jnp.asarray(weight), jnp.asarray(bias)]

    def forward(*leaves):
        result = gj.norm_rope(*leaves, cos, sin, **options)
        return result.y, result

    _, backward, got = jax.vjp(forward, *leaves, has_aux=True)
    want = gg.norm_rope(x, weight, bias, cos, sin, **options)
    assert_equal(got, want)
    expected = gg.norm_rope_backward(dy, x, weight, cos=cos, sin=sin, **want.statistics, **options)
    zeros = [jnp.zeros_like(leaf) for leaf in leaves]
    assert_equal(backward(jnp.asarray(dy)), [zero if e is None else e for zero, e in zip(zeros, expected, strict=True)])


# ---- gradients


def segment(seed, kind, dtype=np.float64):
    """dy, x, weight, bias, cos, sin; None for parameters that the norm has not."""
    rng = np.random.default_rng(seed)
    shapes = ((2, 3, 5, 8), (2, 5, 3, 8), (8,), (8,), (5, 8), (5, 8))
    arrays = [jnp.asarray(rng.standard_normal(shape).astype(dtype)) for shape in shapes]
    arrays[2:4] = arrays[2] if is_affine(kind) else None, arrays[3] if kind == "layer_affine" else None
    return arrays


@pytest.mark.parametrize("kind", NORM_TYPES)
def test_against_the_formula(kind):
    with x64():
        dy, x, weight, bias, cos, sin = segment(7, kind)

        def ours(*leaves):
            return gj.norm_rope(*leaves, cos, sin, norm_type=kind, rope_type="interleave").y

        def formula(x, *parameters):
            return rotary(norm(x, kind, *parameters).swapaxes(1, 2), cos[None, None], sin[None, None], "interleave")

        (y, backward), (want, expected) = (jax.vjp(function, x, weight, bias) for function in (ours, formula))
        assert_close((y, backward(dy)), (want, expected(dy)), 1e-11)
        given = [leaf for leaf in (x, weight, bias) if leaf is not None]
        check_grads(lambda *leaves: ours(*leaves, *[None] * (3 - len(leaves))), given, 1, ["rev"])


def test_only_what_is_asked_for_is_computed():
    dy, x, weight, bias, cos, sin = segment(8, "layer_affine", np.float32)
    options = {"norm_type": "layer_affine", "rope_type": "half"}

    def loss(*leaves):
        return (gj.norm_rope(*leaves, cos, sin, **options).y * dy).sum()

    for argnums in [(0,), (1,), (2,), (0, 1, 2), (0,)]:
        text = str(jax.make_jaxpr(jax.grad(loss, argnums))(x, weight, bias))
        assert f"'wanted', np.int64({sum(1 << i for i in argnums)})" in text
    statistics = jax.grad(lambda x: sum(map(jnp.sum, gj.norm_rope(x, weight, bias, cos, sin, **options)[1:])))
    assert not statistics(x).any()  # they are not differentiable


# ---- transformations


@pytest.mark.parametrize("axes", [(0, None, None, None), (1, None, None, None), (0, 0, None, None), (0, None, 0, 0),
                                  (None, 0, None, None)])  # fmt: skip
@pytest.mark.parametrize("argnums", [(0,), (0, 1)])
def test_vmap(axes, argnums):
    dy, x, weight, _, cos, sin = segment(9, "rms_affine", np.float32)
    inputs = [
        leaf if axis is None else jnp.stack([leaf, leaf * 2, leaf + 1], axis)
        for leaf, axis in zip((x, weight, cos, sin), axes, strict=True)
    ]

    def gradients(x, weight, cos, sin):
        def loss(x, weight):
            return (gj.norm_rope(x, weight, None, cos, sin, norm_type="rms_affine", rope_type="half").y * dy).sum()

        return jax.grad(loss, argnums)(x, weight)

    got = jax.jit(jax.vmap(gradients, axes))(*inputs)
    samples = [[leaf if axis is None else jnp.take(leaf, i, axis) for leaf, axis in zip(inputs, axes, strict=True)]
               for i in range(3)]  # fmt: skip
    want = [jnp.stack(gradients) for gradients in zip(*(gradients(*sample) for sample in samples), strict=True)]
    assert_equal(got, want)
    targets, text = custom_calls(jax.vmap(gradients, axes), *inputs)
    assert set(targets) == {"gyrograd_norm_rope", "gyrograd_norm_rope_backward"}
    is_one_call = axes[1:] == (None, None, None) and argnums == (0,)
    assert (" while(" in text) != is_one_call


def test_scan_and_checkpoint():
    dy, x, weight, _, cos, sin = segment(10, "rms_affine", np.float32)
    weights = jnp.stack([weight, weight * 2, weight - 1])

    def layer(x, weight):
        options = {"norm_type": "rms_affine", "rope_type": "half", "out_layout": "BSND"}
        return gj.norm_rope(x, weight, None, cos, sin, **options).y, None

    def loss(body):
        return lambda x, weights: (jax.lax.scan(body, x, weights)[0].swapaxes(1, 2) * dy).sum()

    def unrolled(x, weights):
        for weight in weights:
            x, _ = layer(x, weight)
        return (x.swapaxes(1, 2) * dy).sum()

    want = jax.jit(jax.grad(unrolled, (0, 1)))(x, weights)
    assert_equal(jax.jit(jax.grad(loss(layer), (0, 1)))(x, weights), want)
    assert_equal(jax.jit(jax.grad(loss(jax.checkpoint(layer)), (0, 1)))(x, weights), want)


# ---- refusals


@pytest.mark.parametrize("compile", [jax.jit, lambda function: function], ids=["jit", "eager"])
@pytest.mark.parametrize("table", [0, 1])
def test_differentiated_tables_are_refused(compile, table):
    _, x, _, _, *tables = segment(11, "rms", np.float32)

    def loss(own, call):
        both = [own if i == table else other for i, other in enumerate(tables)]
        return call(*both)

    name = ("cos", "sin")[table]
    calls = {
        f"norm_rope: {name} is differentiated": lambda cos, sin: (
            gj.norm_rope(x, None, None, cos, sin, rope_type="half").y
        ),
        f"norm_rope_concat: rope_{name} is differentiated": lambda cos, sin: (
            gj.norm_rope_concat(x, rope_cos=cos, rope_sin=sin, rope_type="half").query
        ),
    }
    for message, call in calls.items():
        with pytest.raises(ValueError, match=f"{message}.*stop_gradient"):
            jax.grad(lambda own: compile(lambda own: loss(own, call))(own).sum())(tables[table])  # noqa: B023


def test_tables_that_nothing_turns_by_may_be_differentiated():
    _, x, _, _, cos, sin = segment(12, "rms", np.float32)
    gradient = jax.grad(lambda cos: gj.norm_rope(x, None, None, cos, sin, rope_type="none").y.sum())(cos)
    assert not gradient.any()


def test_double_backward_and_forward_mode_are_refused():
    _, x, _, _, cos, sin = segment(13, "rms", np.float32)

    def loss(x):
        return jnp.sin(gj.norm_rope(x, None, None, cos, sin, norm_type="rms", rope_type="half").y).sum()

    with pytest.raises(NotImplementedError, match=r"norm_rope: its gradients have no gradients of their own"):
        jax.grad(lambda x: jax.grad(loss)(x).sum())(x)
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(loss, (x,), (x,))


def bad_arguments():
    _, x, weight, _, cos, sin = segment(14, "rms_affine", np.float32)
    turn = {"rope_type": "half"}
    return {
        "rank": ((x[0],), {}, ValueError, "norm_rope: x has shape .*; its rank must be 4"),
        "no norm": ((x, weight), {}, ValueError, "norm_rope: weight is given without norm_type"),
        "missing": ((x,), {"norm_type": "rms_affine"}, ValueError, "norm_rope: weight"),
        "positions": (
            (x, None, None, cos, sin),
            turn | {"rope_start": 1},
            ValueError,
            "norm_rope: cos has shape .* rope_start, 1",
        ),
        "type": ((x.astype(int),), {}, TypeError, "norm_rope: x has type int32"),
        "option": ((x,), {"norm_type": "batch"}, ValueError, "norm_rope: norm_type is 'batch'"),
        "eps": ((x,), {"norm_type": "rms", "eps": -1.0}, ValueError, "norm_rope: eps"),
        "none": ((None,), {}, TypeError, "norm_rope: x is missing"),
    }


@pytest.mark.parametrize("case", bad_arguments())
def test_refusals(case):
    """When the program is traced, in the core's words."""
    arguments, options, error, message = bad_arguments()[case]
    for compile in (jax.jit, lambda function: function):
        with pytest.raises(error, match=message):
            compile(lambda *arrays: gj.norm_rope(*arrays, **options))(*arguments)

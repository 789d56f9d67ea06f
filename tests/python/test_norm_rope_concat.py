"""The joint operator and its segments on NumPy arrays, against the formulas in float64."""

import itertools

import numpy as np
import pytest
from attention import NORM_OF, STREAMS, Problem
from formulas import BF16, DTYPES, NORM_TYPES, ROPE_TYPES, assert_close, assert_same_bits, f64, has_mean, random
from hypothesis import given, settings
from hypothesis import strategies as st
from test_numpy import layouts

import gyrograd as gg

ORDERS = ("stream_first", "encoder_first")
FULL = {"norm": "layer_affine", "added": "rms_affine", "rope": "half"}


def same(got, want):
    """Two results, name by name, bit by bit."""
    for (name, a), b in zip(got._asdict().items(), want, strict=True):
        assert (a is None) == (b is None), name
        if a is not None:
            assert_same_bits(np.asarray(a), np.asarray(b))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("rope", ROPE_TYPES)
@pytest.mark.parametrize("added", NORM_TYPES)
@pytest.mark.parametrize("norm", NORM_TYPES)
def test_every_combination_of_types(norm, added, rope, order):
    problem = Problem(norm=norm, added=added, rope=rope, order=order)
    problem.check_forward()
    problem.check_backward()


@pytest.mark.parametrize("narrow", [False, True], ids=["own type", "float32 tables and weights"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_types(dtype, narrow):
    wide = np.float32 if narrow and dtype in (np.float16, BF16) else None
    problem = Problem(seed=2, dtype=dtype, table_dtype=wide, weight_dtype=wide, dim=24, **FULL)
    problem.check_forward()
    problem.check_backward()


@pytest.mark.parametrize("lengths", [(5, 4, None, None), (5, 4, 3, None), (5, 4, None, 2), (1, 6, 4, 0), (0, 0, 4, 5)])
@pytest.mark.parametrize("order", ORDERS)
def test_streams_that_are_absent_or_empty(lengths, order):
    problem = Problem(seed=3, lengths=lengths, order=order, **FULL)
    problem.check_forward()
    problem.check_backward()


@pytest.mark.parametrize("start", [0, 1, 4])
@pytest.mark.parametrize("rope", ["half", "interleave", "quarter", "interleave-half"])
@pytest.mark.parametrize("per_pair", [False, True])
def test_options_of_the_rotation(rope, per_pair, start):
    rotation = {"rope_start": start, "per_pair_tables": per_pair, "rotary_dim": 8, "rotary_offset": 2}
    problem = Problem(seed=4, dim=12, lengths=(5, 6, 3, 2), **(FULL | {"rope": rope}), rotation=rotation)
    problem.check_forward()
    problem.check_backward()


@pytest.mark.parametrize("table_shape", [(1, 1, 4), (2, 1, 4), (1, 3, 4), (2, 3, 4)])
def test_tables_with_axes(table_shape):
    problem = Problem(seed=5, table_shape=table_shape, **FULL)
    problem.check_forward()
    problem.check_backward()


def test_numbers_stand_for_names():
    for norm, added, rope, order in itertools.product(range(5), [0, 4], range(3), range(2)):
        names = {"norm": NORM_TYPES[norm], "added": NORM_TYPES[added], "rope": ROPE_TYPES[rope], "order": ORDERS[order]}
        problem = Problem(seed=6, **names)
        numbers = {"norm_type": np.int64(norm), "norm_added_type": added, "rope_type": rope, "concat_order": order}
        same(problem.forward(**numbers), problem.forward())
        same(problem.backward(**numbers), problem.backward())


@pytest.mark.parametrize("heads", [(6, 2, 2), (4, 1, 3)])
def test_grouped_heads(heads):
    problem = Problem(seed=7, heads=heads, **FULL)
    problem.check_forward()
    problem.check_backward()


@pytest.mark.parametrize("streams", [("query",), ("key",), ("query", "key"), ("value",), ("query", "value")])
def test_some_streams_alone(streams):
    """The others' arguments are None: their results are, and these are as in the full call."""
    full = Problem(seed=8, **FULL)
    mine = {name for stream in streams for name in (stream, f"encoder_{stream}")}
    forward = {name: None for name in full.inputs if name not in mine}
    got, want = full.forward(**forward)._asdict(), full.forward()._asdict()
    norms = {NORM_OF[name] for name in mine if name in NORM_OF}
    for name, value in want.items():
        expected = value is not None and (name in streams or name.rpartition("_")[0] in norms)
        assert (got[name] is not None) == expected, name
        if expected:
            assert_same_bits(got[name], value)
    backward = {f"grad_{stream}_output": None for stream in STREAMS if stream not in streams}
    got, want = full.backward(**backward)._asdict(), full.backward()._asdict()
    for name, value in want.items():
        expected = value is not None and (name in mine or name.rpartition("_")[0] in norms)
        assert (got[name] is not None) == expected, name
        if expected:
            assert_same_bits(got[name], value)


def test_inputs_that_no_norm_reads_may_be_missing():
    problem = Problem(seed=9, lengths=(5, 4, None, None), rope="half")
    want = problem.backward()
    got = problem.backward(query=None, key=None)
    same(got, want)
    both = Problem(seed=9, rope="half")
    want = both.backward()
    same(both.backward(query=None, key=None), want)  # the encoder's lengths leave the rest
    out = {name: np.zeros_like(getattr(want, name)) for name in ("encoder_query", "encoder_key")}
    got = both.backward(query=None, key=None, encoder_query=None, encoder_key=None, out=out)
    assert got.encoder_query is out["encoder_query"]
    assert_same_bits(got.encoder_query, want.encoder_query)
    assert_same_bits(got.encoder_key, want.encoder_key)
    assert got.query is None


def test_separate_tables_of_the_encoder():
    """Each pair of tables counts its own stream's positions: the joint call is four segments."""
    problem = Problem(seed=10, **FULL)
    rng = np.random.default_rng(0)
    tables = {f"encoder_rope_{name}": random(rng, (2, 8), np.float32) for name in ("sin", "cos")}
    start = {"rope_start": 0}
    got = problem.forward(**tables, **start)
    grads = problem.backward(**tables, **start)
    saved = problem.statistics()
    for name, norm in NORM_OF.items():
        encoder = name.startswith("encoder")
        joint = name.removeprefix("encoder_")
        rows = slice(problem.length(joint), None) if encoder else slice(0, problem.length(joint))
        prefix = "encoder_rope_" if encoder else "rope_"
        own = tables if encoder else problem.tables
        rope = {
            "cos": own[f"{prefix}cos"],
            "sin": own[f"{prefix}sin"],
            "rope_type": problem.rope,
            "norm_type": problem.norm_of(name),
        }
        weight = problem.weights[f"{norm}_weight"]
        x = problem.inputs[name]
        y = gg.norm_rope(x, weight, problem.weights.get(f"{norm}_bias"), **rope)
        assert_same_bits(getattr(got, joint)[:, :, rows], y.y)
        dy = problem.grads[joint][:, :, rows]
        segment = gg.norm_rope_backward(dy, x, weight, saved.get(f"{norm}_mean"), saved[f"{norm}_rstd"], **rope)
        assert_same_bits(getattr(grads, name), segment.dx)
        assert_same_bits(getattr(grads, f"{norm}_weight"), segment.dweight)


# ---- layouts and memory


def test_layouts_of_the_joint_arrays():
    problem = Problem(seed=11, **FULL)
    want, grads = problem.forward(), problem.backward()
    got = problem.forward(out_layout="BSND")
    for stream in STREAMS:
        assert getattr(got, stream).flags.c_contiguous
        assert_same_bits(getattr(got, stream).swapaxes(1, 2), getattr(want, stream))
    turned = {f"grad_{s}_output": np.ascontiguousarray(g.swapaxes(1, 2)) for s, g in problem.grads.items()}
    same(problem.backward(**turned, out_layout="BSND"), grads)
    out = {"query": np.empty_like(got.query)}
    assert problem.forward(out_layout="BSND", out=out).query is out["query"]
    assert_same_bits(out["query"], got.query)


@pytest.mark.parametrize("dtype", [np.float32, BF16])
def test_packed_inputs_and_gradients(dtype):
    """Query, key and value as slices of [B, S, 3, N, D] buffers, gradients written into slices of another."""
    problem = Problem(seed=12, dtype=dtype, lengths=(4, 4, 3, 3), **FULL)
    want, grads = problem.forward(), problem.backward()

    def packed(prefix):
        return np.stack([problem.inputs[f"{prefix}{s}"] for s in STREAMS], axis=2)

    image, text = packed(""), packed("encoder_")
    views = {s: image[:, :, i] for i, s in enumerate(STREAMS)}
    views |= {f"encoder_{s}": text[:, :, i] for i, s in enumerate(STREAMS)}
    same(problem.forward(**views), want)
    views = {name: view for name, view in views.items() if not name.endswith("value")}
    dimage, dtext = np.full_like(image, 9), np.full_like(text, 9)
    out = {s: dimage[:, :, i] for i, s in enumerate(STREAMS)}
    out |= {f"encoder_{s}": dtext[:, :, i] for i, s in enumerate(STREAMS)}
    got = problem.backward(**views, out=out)
    for name, array in out.items():
        assert getattr(got, name) is array
        assert_same_bits(array, getattr(grads, name))
    assert got.norm_query_weight is None


def test_in_place():
    """Every gradient over its input, value's over its rows of the incoming gradient, a weight's over the weight."""
    problem = Problem(seed=13, **FULL)
    want = problem.backward()
    arrays = {name: np.array(a) if a is not None else None for name, a in problem.backward_arrays().items()}
    out = {name: arrays[name] for name in NORM_OF}
    rows = problem.length("value")
    joint = arrays["grad_value_output"].swapaxes(1, 2)
    out |= {"value": joint[:, :rows], "encoder_value": joint[:, rows:]}
    out["norm_query_weight"] = arrays["norm_query_weight"]
    got = gg.norm_rope_concat_backward(**arrays, **problem.options, out=out)
    for name in out:
        assert_same_bits(getattr(got, name), getattr(want, name))
    inputs = {name: np.array(x) for name, x in problem.inputs.items()}
    y = problem.forward()
    segment = gg.norm_rope(inputs["value"], out={"y": inputs["value"].swapaxes(1, 2)})
    assert_same_bits(segment.y[:, :], y.value[:, :, :rows])


@st.composite
def problems(draw):
    lengths = [draw(st.one_of(st.none(), st.integers(0, 5))) for _ in range(4)]
    lengths[0], lengths[1] = lengths[0] or 0, lengths[1] or 0
    shorter = min(lengths[0] + (lengths[2] or 0), lengths[1] + (lengths[3] or 0))
    rope = draw(st.sampled_from(("none", "interleave", "half", "quarter", "interleave-half")))
    unit = 4 if rope == "quarter" else 2
    width, before, after = unit * draw(st.integers(1, 9)), draw(st.integers(0, 3)), draw(st.integers(0, 3))
    rows = draw(st.integers(min(shorter, 1), shorter))
    rotation = {
        "rope_start": draw(st.integers(0, shorter - rows)),
        "per_pair_tables": draw(st.booleans()),
        "rotary_dim": width,
        "rotary_offset": before,
    }
    batch, heads = draw(st.integers(1, 3)), [draw(st.integers(1, 3)) for _ in range(3)]
    axes = [draw(st.sampled_from(((), (1, 1), (batch, 1))))][0]
    dtype = draw(st.sampled_from(DTYPES))
    wide = np.float32 if dtype in (np.float16, BF16) else dtype
    return Problem(
        seed=draw(st.integers(0, 99)),
        dtype=dtype,
        table_dtype=draw(st.sampled_from((dtype, wide))),
        weight_dtype=draw(st.sampled_from((dtype, wide))),
        batch=batch,
        heads=tuple(heads),
        lengths=tuple(lengths),
        dim=before + width + after,
        norm=draw(st.sampled_from(NORM_TYPES)),
        added=draw(st.sampled_from(NORM_TYPES)),
        rope=rope,
        order=draw(st.sampled_from(ORDERS)),
        table_shape=(*axes, rows),
        rotation=rotation,
        eps=draw(st.sampled_from((1e-5, 1e-3))),
    )


@settings(max_examples=150)
@given(problems(), st.data())
def test_any_problem_in_any_memory(problem, data):
    """The formulas' values; the same bits whatever the arrays' memory; and no input is written."""
    problem.check_forward()
    problem.check_backward()
    want_forward, want_backward = problem.forward(), problem.backward()
    arrays = problem.backward_arrays()
    views = {name: None if a is None else data.draw(layouts(a)) for name, a in arrays.items()}
    same(gg.norm_rope_concat_backward(**views, **problem.options), want_backward)
    inputs = {name: data.draw(layouts(a)) for name, a in problem.inputs.items()}
    same(problem.forward(**inputs), want_forward)
    for name, view in views.items():
        if view is not None:
            assert_same_bits(view, arrays[name])


def test_read_only_and_expanded_inputs():
    problem = Problem(seed=14, **FULL)
    want = problem.backward()
    arrays = problem.backward_arrays()
    for array in arrays.values():
        array.flags.writeable = False
    same(gg.norm_rope_concat_backward(**arrays, **problem.options), want)
    grad = np.broadcast_to(np.float32(0.5), arrays["grad_key_output"].shape)
    same(problem.backward(grad_key_output=grad), problem.backward(grad_key_output=np.array(grad)))


# ---- subsets


def results_of(problem):
    return {name: value for name, value in problem.backward()._asdict().items() if value is not None}


@pytest.mark.parametrize("way", ["outputs", "out", "both"])
def test_every_result_alone_and_all_but_it(way):
    problem = Problem(seed=15, **FULL)
    full = results_of(problem)
    assert len(full) == 6 + 6
    for name in full:
        for names in ({name}, full.keys() - {name}):
            out = {n: np.full_like(full[n], 9) for n in names}
            keywords = {"outputs": {"outputs": names}, "out": {"out": out}, "both": {"outputs": names, "out": out}}
            got = problem.backward(**keywords[way])._asdict()
            assert {n for n, value in got.items() if value is not None} == names
            for n in names:
                assert_same_bits(got[n], full[n])
                assert way == "outputs" or got[n] is out[n]


def test_what_outputs_names_or_out_holds_is_wanted():
    problem = Problem(seed=15, **FULL)
    for call, full in ((problem.backward, results_of(problem)), (problem.forward, problem.forward()._asdict())):
        names = [name for name, value in full.items() if value is not None]
        for held, named in itertools.product(([], names[:1], names[2:]), ([], names[:1], names[1:4])):
            out = {names[-1]: None} | {name: np.full_like(full[name], 9) for name in held}
            got = call(outputs=named, out=out)._asdict()
            assert {name for name, value in got.items() if value is not None} == {*held, *named}
            for name in {*held, *named}:
                assert_same_bits(got[name], full[name])
                assert name not in held or got[name] is out[name]


def test_out_alone_means_those_results():
    x, y = random(np.random.default_rng(0), (1, 4, 2, 8), np.float32), np.empty((1, 2, 4, 8), np.float32)
    got = gg.norm_rope(x, norm_type="rms", out={"y": y})
    assert got.y is y
    assert got.rstd is None
    both = gg.norm_rope(x, norm_type="rms", outputs=["y", "rstd"], out={"y": y})
    assert both.y is y
    assert_same_bits(both.rstd, gg.norm_rope(x, norm_type="rms").rstd)


@pytest.mark.parametrize("added", NORM_TYPES)
@pytest.mark.parametrize("norm", NORM_TYPES)
def test_statistics_are_the_backwards_keywords(norm, added):
    problem = Problem(seed=24, norm=norm, added=added)
    forward = problem.forward()
    assert forward.statistics.keys() == {
        f"{NORM_OF[name]}_{member}"
        for name in NORM_OF
        for member in ("mean",) * has_mean(problem.norm_of(name)) + ("rstd",) * (problem.norm_of(name) != "none")
    }
    arrays = {name: a for name, a in problem.backward_arrays().items() if not name.endswith(("_mean", "_rstd"))}
    same(gg.norm_rope_concat_backward(**arrays, **forward.statistics, **problem.options), problem.backward())
    x, dy = problem.inputs["query"], problem.grads["query"][:, :, :5]
    weight, bias = (problem.weights.get(f"norm_query_{member}") for member in ("weight", "bias"))
    segment = gg.norm_rope(x, weight, bias, norm_type=norm)
    got = gg.norm_rope_backward(dy, x, weight, **segment.statistics, norm_type=norm)
    same(got, gg.norm_rope_backward(dy, x, weight, segment.mean, segment.rstd, norm_type=norm))
    assert gg.norm_rope(x, weight, bias, norm_type=norm, outputs=["y"]).statistics == {}


def test_every_forward_result_alone():
    problem = Problem(seed=16, **FULL)
    full = {name: value for name, value in problem.forward()._asdict().items() if value is not None}
    for name, value in full.items():
        got = problem.forward(outputs=name)._asdict()
        assert {n for n, found in got.items() if found is not None} == {name}
        assert_same_bits(got[name], value)
    assert set(problem.forward(outputs=())) == {None}
    assert set(problem.backward(outputs=())) == {None}
    assert gg.norm_rope(problem.inputs["query"], norm_type="layer", outputs=["rstd"]).y is None


def test_weight_gradients_of_streams_without_rows():
    """Of an absent stream only where named, of an empty one always; exactly zero, in the weights' type."""
    absent = Problem(seed=17, dtype=BF16, weight_dtype=np.float32, lengths=(5, 4, None, None), norm="layer_affine")
    options = {"norm_added_type": "layer_affine"}
    names = ["norm_added_query_weight", "norm_added_key_bias"]
    assert all(getattr(absent.backward(**options), name) is None for name in names)
    named = absent.backward(**options, outputs=names)
    empty = Problem(
        seed=17, dtype=BF16, weight_dtype=np.float32, lengths=(5, 4, 0, 0), norm="layer_affine", added="layer_affine"
    ).backward()
    for name in names:
        for result in (getattr(named, name), getattr(empty, name)):
            assert_same_bits(result, np.zeros(8, np.float32))
    assert named.query is None
    assert empty.encoder_query.shape == (2, 0, 3, 8)
    assert absent.backward(outputs=["encoder_query"]).encoder_query.shape == (2, 0, 3, 8)


# ---- segments


@pytest.mark.parametrize("dtype", [np.float64, np.float32, BF16])
@pytest.mark.parametrize("rope", ["none", "interleave", "half", "quarter", "interleave-half"])
@pytest.mark.parametrize("norm", NORM_TYPES)
def test_a_segment_is_a_query_alone(norm, rope, dtype):
    problem = Problem(seed=18, dtype=dtype, lengths=(6, None, None, None), norm=norm, rope=rope)
    problem.check_forward()
    problem.check_backward()
    x, dy = problem.inputs["query"], problem.grads["query"]
    weight, bias = (problem.weights.get(f"norm_query_{member}") for member in ("weight", "bias"))
    tables = {"cos": problem.tables.get("rope_cos"), "sin": problem.tables.get("rope_sin")}
    options = {"norm_type": norm, "rope_type": rope}
    got = gg.norm_rope(x, weight, bias, **tables, **options)
    forward = problem.forward()
    same(got, (forward.query, forward.norm_query_mean, forward.norm_query_rstd))
    grads = gg.norm_rope_backward(dy, x, weight, got.mean, got.rstd, **tables, **options)
    backward = problem.backward()
    same(grads, (backward.query, backward.norm_query_weight, backward.norm_query_bias))
    rank4 = {name: None if table is None else table[None, None] for name, table in tables.items()}
    same(gg.norm_rope(x, weight, bias, **rank4, **options), got)
    bsnd = gg.norm_rope(x, weight, bias, **tables, **options, out_layout="BSND")
    assert_same_bits(bsnd.y.swapaxes(1, 2), got.y)
    again = gg.norm_rope_backward(
        dy.swapaxes(1, 2), x, weight, got.mean, got.rstd, **tables, **options, out_layout="BSND"
    )
    same(again, grads)


def test_a_large_mean_costs_nothing():
    """256 values of 1234 and eps 1e-5: every difference from the mean is 0."""
    x = np.full((1, 1, 1, 256), 1234, np.float32)
    dy = np.zeros((1, 1, 1, 256), np.float32)
    dy[..., 0] = 1
    saved = gg.norm_rope(x, norm_type="layer")
    assert (saved.mean, saved.y.any()) == (1234, False)
    dx, dweight, _ = gg.norm_rope_backward(dy, x, np.ones(256, np.float32), *saved[1:], norm_type="layer_affine")
    np.testing.assert_allclose(dx[0, 0, 0, :2], [314.9925, -1.23526], rtol=1e-5)
    assert not dweight.any()


@pytest.mark.parametrize("rope", ["interleave", "half"])
def test_without_norm_positions_that_do_not_turn_are_copied(rope):
    problem = Problem(seed=19, dtype=BF16, rope=rope)
    problem.grads["query"][:, :, 4:].flat[:3] = [np.nan, -0.0, np.inf]
    got = problem.backward()
    assert_same_bits(got.encoder_query, problem.grads["query"].swapaxes(1, 2)[:, 5:])
    assert_same_bits(got.value, problem.grads["value"].swapaxes(1, 2)[:, :4])


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("cpu_target", gg.info().cpu_targets)
def test_threads_and_targets_do_not_change_bits(threads, cpu_target):
    problem = Problem(seed=20, dtype=BF16, weight_dtype=np.float32, lengths=(90, 70, 33, 41), dim=64, **FULL)
    execution = {"threads": threads, "cpu_target": cpu_target}
    same(problem.forward(**execution), problem.forward())
    same(problem.backward(**execution), problem.backward())


def test_sums_over_many_rows():
    x = random(np.random.default_rng(21), (1, 2000, 8, 16), np.float32)
    dy = np.ones((1, 8, 2000, 16), BF16)
    saved = gg.norm_rope(x.astype(BF16), norm_type="layer")
    got = gg.norm_rope_backward(dy, x.astype(BF16), None, *saved[1:], norm_type="layer_affine", outputs=["dbias"])
    assert_same_bits(got.dbias, np.full(16, 16000, np.float32).astype(BF16))
    dy = random(np.random.default_rng(22), (1, 8, 2000, 16), np.float32)
    saved = gg.norm_rope(x, norm_type="layer")
    got = gg.norm_rope_backward(dy, x, None, *saved[1:], norm_type="layer_affine", outputs=["dweight", "dbias"])
    x_hat = (f64(x) - f64(saved.mean)) * f64(saved.rstd)
    terms = f64(dy).swapaxes(1, 2) * x_hat
    assert got.dx is None
    assert (np.abs(f64(got.dweight) - terms.sum((0, 1, 2))) <= 1.4e-6 * np.abs(terms).sum((0, 1, 2))).all()
    assert_close(got.dbias, f64(dy).sum((0, 1, 2)), np.float32)

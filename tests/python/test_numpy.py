"""NumPy arrays: every mode, type, table shape, layout and option against the formulas."""

import gc
import weakref

import numpy as np
import pytest
from formulas import (
    BF16,
    DTYPES,
    MODES,
    assert_same_bits,
    assert_table_gradient,
    backward_input,
    full_tables,
    partial,
    problem,
    random,
    rotary,
    table_terms,
)
from hypothesis import given
from hypothesis import strategies as st

import gyrograd as gg

TABLE_DTYPES = [(d, d) for d in DTYPES] + [(np.float16, np.float32), (BF16, np.float32)]


@pytest.mark.parametrize("dtypes", TABLE_DTYPES, ids=lambda pair: "+".join(np.dtype(d).name for d in pair))
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("table_shape", [(2, 5, 3, 24), (1, 5, 1, 24), (2, 1, 1, 24), (1, 1, 1, 24)])
def test_all_results(mode, dtypes, table_shape):
    dy, cos, sin, x = problem(1, (2, 5, 3, 24), table_shape, *dtypes)
    dx, dcos, dsin = gg.rotary_backward(dy, cos, sin, x, mode=mode)
    assert_same_bits(dx, backward_input(dy, cos, sin, mode))
    for got, terms in zip((dcos, dsin), table_terms(dy, x, mode), strict=True):
        assert got.dtype == cos.dtype
        assert_table_gradient(got, terms, table_shape, mode, dtypes[0])
    assert_same_bits(gg.rotary_backward(dy, cos, sin, mode=mode), dx)
    assert_same_bits(gg.rotary(x, cos, sin, mode=mode), rotary(x, cos, sin, mode))


@pytest.mark.parametrize(
    ("mode", "want"),
    [
        ("half", [5, 6, 7, 8, -1, -2, -3, -4]),
        ("interleave", [2, -1, 4, -3, 6, -5, 8, -7]),
        ("quarter", [3, 4, -1, -2, 7, 8, -5, -6]),
        ("interleave-half", [5, -1, 6, -2, 7, -3, 8, -4]),
    ],
)
def test_modes_by_hand(mode, want):
    dy = np.arange(1, 9, dtype=np.float32)
    np.testing.assert_array_equal(gg.rotary_backward(dy, np.zeros_like(dy), np.ones_like(dy), mode=mode), want)


@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("integer", [int, np.int64])
def test_modes_by_number(number, integer):
    dy, cos, sin, x = problem(2, (3, 8), (1, 8))
    for got, want in zip(
        gg.rotary_backward(dy, cos, sin, x, mode=integer(number)),
        gg.rotary_backward(dy, cos, sin, x, mode=MODES[number]),
        strict=True,
    ):
        assert_same_bits(got, want)


@st.composite
def layouts(draw, array):
    """The same values in other memory: axes in another order, reversed, with gaps, at an odd offset."""
    order = draw(st.permutations(range(array.ndim)))
    steps = [draw(st.sampled_from([1, 1, 2, -1, -3])) for _ in range(array.ndim)]
    base_shape = [array.shape[axis] * abs(steps[axis]) for axis in order]
    offset = draw(st.integers(0, 1))
    memory = np.full(int(np.prod(base_shape)) + offset, np.nan, array.dtype)
    view = memory[offset:].reshape(base_shape).transpose(np.argsort(order))
    view = view[tuple(slice(None, None, step) for step in steps)]
    view = view[tuple(slice(0, extent) for extent in array.shape)]
    view[...] = array
    return view


@st.composite
def problems(draw):
    mode = draw(st.sampled_from(MODES))
    dtype, table_dtype = draw(st.sampled_from(TABLE_DTYPES))
    unit = 4 if mode == "quarter" else 2
    rotary_dim = unit * draw(st.integers(1, 9))
    before, after = draw(st.integers(0, 3)), draw(st.integers(0, 3))
    per_pair = draw(st.booleans())
    lead = draw(st.lists(st.integers(0, 5), max_size=3))
    table_lead = [draw(st.sampled_from([1, extent])) for extent in lead]
    table_shape = (*table_lead, rotary_dim // 2 if per_pair else rotary_dim)
    arrays = problem(draw(st.integers(0, 99)), (*lead, before + rotary_dim + after), table_shape, dtype, table_dtype)
    arrays = [draw(layouts(array)) for array in arrays]
    return arrays, mode, per_pair, rotary_dim, before


@given(problems())
def test_any_shape_and_layout(case):
    (dy, cos, sin, x), mode, per_pair, width, offset = case
    copies = [np.array(array) for array in (dy, cos, sin, x)]
    options = {"mode": mode, "per_pair_tables": per_pair, "rotary_dim": width, "rotary_offset": offset}
    dx, dcos, dsin = gg.rotary_backward(dy, cos, sin, x, **options)
    c, s = (full_tables(table, mode, per_pair, width) for table in (cos, sin))
    assert_same_bits(dx, partial(backward_input, dy, c, s, mode, width, offset))
    assert_same_bits(gg.rotary(x, cos, sin, **options), partial(rotary, x, c, s, mode, width, offset))
    turned = slice(offset, offset + width)
    terms = table_terms(dy[..., turned], x[..., turned], mode)
    for got, of_table in zip((dcos, dsin), terms, strict=True):
        assert_table_gradient(got, of_table, cos.shape, mode, dy.dtype, per_pair)
    for array, copy in zip((dy, cos, sin, x), copies, strict=True):
        assert_same_bits(array, copy)


@pytest.mark.parametrize("shape", [(0, 8), (3, 0), (2, 0, 8)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_zero_extents(shape, dtype):
    dy, cos, sin, x = problem(3, shape, (*(1 for _ in shape[:-1]), shape[-1]), dtype)
    dx, dcos, dsin = gg.rotary_backward(dy, cos, sin, x)
    assert dx.shape == shape
    for gradient in (dcos, dsin):
        assert gradient.shape == cos.shape
        assert not gradient.any()


def test_expanded_gradient():
    """dy as the backward of a plain sum makes it: one value, every stride 0."""
    shape = (2, 6, 3, 16)
    _, cos, sin, x = problem(4, shape, (1, 6, 1, 16))
    dy = np.broadcast_to(np.float32(1.5), shape)
    for got, want in zip(
        gg.rotary_backward(dy, cos, sin, x), gg.rotary_backward(np.array(dy), cos, sin, x), strict=True
    ):
        assert_same_bits(got, want)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mode", MODES)
def test_tables_per_pair_equal_repeated_tables(dtype, mode):
    dy, cos, sin, x = problem(5, (2, 7, 3, 32), (1, 7, 1, 16), dtype)
    dx, dcos, _ = gg.rotary_backward(dy, cos, sin, x, mode=mode, per_pair_tables=True)
    c, s = (full_tables(table, mode, True, 32) for table in (cos, sin))
    assert_same_bits(dx, gg.rotary_backward(dy, c, s, mode=mode))
    assert_table_gradient(dcos, table_terms(dy, x, mode)[0], cos.shape, mode, dtype, per_pair=True)


@pytest.mark.parametrize("mode", MODES)
def test_complex_and_matrix_tables(mode):
    """Tables per pair as views of exp(i t) (stride 2) and of 2x2 matrices [[c, -s], [s, c]] (stride 4)."""
    dy, cos, sin, x = problem(6, (2, 5, 3, 16), (1, 5, 1, 8))
    want = gg.rotary_backward(dy, cos, sin, x, mode=mode, per_pair_tables=True)
    turns = cos + 1j * sin
    matrices = np.stack([np.stack([cos, -sin], -1), np.stack([sin, cos], -1)], -2)
    assert turns.dtype == np.complex64
    for c, s in [(turns.real, turns.imag), (matrices[..., 0, 0], matrices[..., 1, 0])]:
        assert c.strides[-1] in (8, 16)
        got = gg.rotary_backward(dy, c, s, x, mode=mode, per_pair_tables=True)
        for result, expected in zip(got, want, strict=True):
            assert_same_bits(result, expected)


def test_slices_of_packed_arrays():
    """TND as the last 64 columns of 576, and dy as one part of packed query, key and value gradients."""
    rng = np.random.default_rng(7)
    packed = random(rng, (7, 576), BF16)
    dy = packed[:, None, -64:]
    cos, sin = random(rng, (7, 1, 64), BF16), random(rng, (7, 1, 64), BF16)
    assert_same_bits(gg.rotary_backward(dy, cos, sin), gg.rotary_backward(np.ascontiguousarray(dy), cos, sin))
    qkv = random(rng, (2, 5, 3, 4, 16), np.float32)
    cos, sin = random(rng, (1, 5, 1, 16), np.float32), random(rng, (1, 5, 1, 16), np.float32)
    out = np.full_like(qkv, 7)
    gg.rotary_backward(qkv[:, :, 1], cos, sin, out=out[:, :, 1])
    assert_same_bits(out[:, :, 1], backward_input(qkv[:, :, 1], cos, sin, "half"))
    assert (out[:, :, 0] == 7).all()
    assert (out[:, :, 2] == 7).all()


def test_a_batch_axis_on_the_tables():
    dy, cos, sin, x = problem(8, (2, 3, 4, 8), (2, 3, 1, 8))
    for part in range(2):
        one = slice(part, part + 1)
        alone = gg.rotary_backward(dy[one], cos[one], sin[one], x[one])
        for got, want in zip(gg.rotary_backward(dy, cos, sin, x), alone, strict=True):
            assert_same_bits(got[one], want)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("cpu_target", gg.info().cpu_targets)
def test_threads_and_targets_do_not_change_bits(threads, cpu_target):
    arrays = problem(9, (2, 300, 3, 64), (1, 300, 1, 64), BF16, np.float32)
    want = gg.rotary_backward(*arrays)
    for got, expected in zip(gg.rotary_backward(*arrays, threads=threads, cpu_target=cpu_target), want, strict=True):
        assert_same_bits(got, expected)


def test_bfloat16_rounding_and_specials():
    """One value a pair: the product with 1 rounds nothing, infinities and NaN stay, ties go to even."""
    dy = np.array([1.0, np.inf, np.nan, -0.0], BF16)
    zero, one = np.zeros(4, BF16), np.ones(4, BF16)
    with np.errstate(invalid="ignore"):
        assert_same_bits(gg.rotary_backward(dy, one, zero), backward_input(dy, one, zero, "half"))
    halves = np.array([1 + 2**-7, 1 + 2**-7, 2**-8, -(2**-8)], np.float32)  # 1.0078125 +- half a step: a tie
    tie = gg.rotary_backward(halves.astype(BF16)[[0, 2]], np.ones(2, np.float32), np.ones(2, np.float32))
    assert_same_bits(tie, np.array([1.015625, -1.0], np.float32).astype(BF16))


def test_results_do_not_keep_inputs_alive():
    dy, cos, sin, x = problem(10, (4, 8), (1, 8))
    watched = weakref.ref(dy)
    results = gg.rotary_backward(dy, cos, sin, x)
    del dy
    gc.collect()
    assert watched() is None
    assert all(result.flags.writeable for result in results)


def test_info():
    info = gg.info()
    assert info.version == gg.__version__
    assert info.cpu_target == info.cpu_targets[0]
    assert info.cpu_targets[-1] in ("portable", "neon")
    assert info.threads >= 1

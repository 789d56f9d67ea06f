"""outputs= and out= in every combination, and refusals: the message names the argument, the rule and the value."""

import itertools
import re

import numpy as np
import pytest
from dlpack_producer import Producer
from formulas import assert_same_bits, problem

import gyrograd as gg

NAMES = ("dx", "dcos", "dsin")
SHAPE, TABLE = (2, 5, 3, 16), (1, 5, 1, 16)
SUBSETS = list(itertools.product([False, True], repeat=3))


@pytest.fixture
def arrays():
    return problem(1, SHAPE, TABLE)


def new_out(wanted):
    shapes = (SHAPE, TABLE, TABLE)
    return tuple(np.full(s, 9, np.float32) if w else None for s, w in zip(shapes, wanted, strict=True))


@pytest.mark.parametrize("wanted", SUBSETS)
@pytest.mark.parametrize("way", ["outputs", "out", "both"])
def test_every_subset_equals_the_full_run(arrays, wanted, way):
    full = gg.rotary_backward(*arrays)
    out = new_out(wanted)
    names = [name for name, is_wanted in zip(NAMES, wanted, strict=True) if is_wanted]
    keywords = {"outputs": {"outputs": names}, "out": {"out": out}, "both": {"outputs": set(names), "out": out}}[way]
    results = gg.rotary_backward(*arrays, **keywords)
    assert isinstance(results, tuple)
    assert len(results) == 3
    for got, want, given, is_wanted in zip(results, full, out, wanted, strict=True):
        if is_wanted:
            assert_same_bits(got, want)
            assert way == "outputs" or got is given
        else:
            assert got is None


def test_defaults(arrays):
    dy, cos, sin, x = arrays
    dx, dcos, dsin = gg.rotary_backward(dy, cos, sin, x)
    alone = gg.rotary_backward(dy, cos, sin)
    assert isinstance(alone, np.ndarray)
    assert_same_bits(alone, dx)
    assert dcos.shape == dsin.shape == TABLE
    assert_same_bits(gg.rotary_backward(dy, cos, sin, outputs="dx"), dx)
    assert gg.rotary_backward(dy, cos, sin, outputs=()) is None
    assert gg.rotary_backward(*arrays, outputs=()) == (None, None, None)


def test_out_alone_means_dx(arrays):
    dy, cos, sin, x = arrays
    want = gg.rotary_backward(dy, cos, sin)
    out = np.empty_like(dy)
    assert gg.rotary_backward(dy, cos, sin, out=out) is out
    assert_same_bits(out, want)
    for form in [(out,), (out, None, None), [out, None, None]]:
        assert gg.rotary_backward(dy, cos, sin, out=form) is out
    results = gg.rotary_backward(dy, cos, sin, x, out=out)
    assert results[0] is out
    assert results[1:] == (None, None)


def test_in_place(arrays):
    full = gg.rotary_backward(*arrays)
    dy, cos, sin, x = (array.copy() for array in arrays)
    results = gg.rotary_backward(dy, cos, sin, x, out=(dy, cos, sin))
    assert results == (dy, cos, sin)
    for got, want in zip(results, full, strict=True):
        assert_same_bits(got, want)
    dy, cos, sin, x = (array.copy() for array in arrays)
    want = gg.rotary(x, cos, sin)
    assert gg.rotary(x, cos, sin, out=x) is x
    assert_same_bits(x, want)


def refused(error, *fragments):
    return pytest.raises(error, match=".*".join(map(re.escape, fragments)))


@pytest.mark.parametrize(
    ("keywords", "error", "fragments"),
    [
        ({"mode": "halves"}, ValueError, ("rotary_backward: mode is 'halves'", "'interleave-half' (3)")),
        ({"mode": 4}, ValueError, ("mode is 4", "must be")),
        ({"mode": -1}, ValueError, ("mode is -1", "must be")),
        ({"mode": 1.0}, TypeError, ("mode is 1.0", "must be")),
        ({"mode": None}, TypeError, ("mode is None", "must be")),
        ({"per_pair_tables": 1}, TypeError, ("per_pair_tables is 1", "True or False")),
        ({"per_pair_tables": True}, ValueError, ("cos has shape [1, 5, 1, 16]", "8")),
        ({"rotary_dim": 7}, ValueError, ("rotary_dim is 7", "2")),
        ({"rotary_dim": 0}, ValueError, ("rotary_dim is 0", "2")),
        ({"rotary_dim": 8.0}, TypeError, ("rotary_dim is 8.0", "integer")),
        ({"rotary_dim": 2**70}, ValueError, ("rotary_dim is 1180591620717411303424", "64 bits")),
        ({"rotary_dim": 8}, ValueError, ("cos has shape [1, 5, 1, 16]", "rotary_dim", "8")),
        ({"rotary_offset": -1}, ValueError, ("rotary_offset is -1", "0")),
        ({"rotary_offset": 2, "rotary_dim": 16}, ValueError, ("rotary_offset is 2", "16")),
        ({"outputs": ["dy"]}, ValueError, ("outputs names 'dy'", "'dx', 'dcos', 'dsin'")),
        ({"outputs": [0]}, TypeError, ("outputs names 0", "'dx', 'dcos', 'dsin'")),
        ({"outputs": 3}, TypeError, ("outputs is 3", "collection")),
        ({"out": (None, None)}, ValueError, ("out has 2 items", "(dx, dcos, dsin)")),
        ({"out": (None,)}, ValueError, ("out has 1 items", "(dx, dcos, dsin)")),
        ({"threads": 0}, ValueError, ("threads is 0", "at least 1")),
        ({"threads": "2"}, TypeError, ("threads is '2'", "integer")),
        ({"threads": True}, TypeError, ("threads is True", "integer")),
        ({"mode": True}, TypeError, ("mode is True", "'half' (0)")),
        ({"mode": np.False_}, TypeError, ("mode is np.False_", "'half' (0)")),
        ({"rotary_offset": False}, TypeError, ("rotary_offset is False", "integer")),
        ({"outputs": ["dx", "zz"], "out": (None, None, None)}, ValueError, ("outputs names 'zz'", "'dx', 'dcos'")),
        ({"cpu_target": "sse"}, ValueError, ("cpu_target is 'sse'", "'avx2'")),
        ({"cpu_target": 2}, TypeError, ("cpu_target is 2", "'avx2'")),
        ({"unknown": 2}, TypeError, ("unknown",)),
    ],
)
def test_keywords_refused(arrays, keywords, error, fragments):
    with refused(error, *fragments):
        gg.rotary_backward(*arrays, **keywords)


@pytest.mark.parametrize(
    ("shape", "table_shape", "fragments"),
    [
        ((2, 5, 64), (1, 5, 8), ("cos has shape [1, 5, 8]", "last extent", "64; hint: rotary_dim = 8")),
        (
            (2, 5, 64),
            (1, 5, 32),
            ("cos has shape [1, 5, 32]", "last extent", "64; hint: per_pair_tables", "rotary_dim = 32"),
        ),
        ((2, 5, 7), (1, 5, 7), ("dy has shape [2, 5, 7]", "divisible by 2")),
        ((2, 5, 8), (5, 8), ("cos has shape [5, 8]", "rank", "3")),
        ((2, 6, 8), (1, 3, 8), ("cos has shape [1, 3, 8]", "1 or dy's", "6")),
        ((), (), ("dy has shape []", "rank", "1")),
    ],
)
def test_shapes_refused(shape, table_shape, fragments):
    dy, cos, sin, _ = problem(2, shape, table_shape)
    out = np.full(shape, 9, np.float32)
    with refused(ValueError, *fragments):
        gg.rotary_backward(dy, cos, sin, out=out)
    assert (out == 9).all()


@pytest.mark.parametrize(
    ("shape", "table_shape", "forms"),
    [
        ((2, 5, 3, 8), (5, 8), ["cos[None, :, None, :]"]),
        ((2, 5, 3, 8), (2, 5, 8), ["cos[:, :, None, :]"]),
        ((2, 5, 3, 8), (1, 3, 8), ["cos[:, None, :, :]", "cos[None, :, :, :]"]),
        ((5, 3, 8), (8,), ["cos[None, None, :]"]),
        ((2, 5, 5, 8), (5, 8), ["cos[None, :, None, :]", "cos[None, None, :, :]"]),
        ((2, 5, 3, 8), (7, 8), []),
    ],
)
def test_tables_of_lower_rank(shape, table_shape, forms):
    """The hint, taken at its word, makes the call legal; the one that is shown first is one of `forms`."""
    dy, cos, sin, x = problem(4, shape, table_shape)
    for call in [lambda c, s: gg.rotary_backward(dy, c, s), lambda c, s: gg.rotary(x, c, s)]:
        with pytest.raises(ValueError) as refusal:
            call(cos, sin)
        _, hint = str(refusal.value).split("; hint: ")
        shown = re.findall(r"cos\[[^]]*\]", hint)
        assert hint == "add axes" + (", such as " + " or ".join(shown) if shown else "")
        assert bool(shown) == bool(forms)
        for form in shown:
            assert form in forms
            index = form.removeprefix("cos")
            call(eval(f"cos{index}"), eval(f"sin{index}", {"sin": sin}))


def test_quarter_mode_needs_multiples_of_four():
    dy, cos, sin, _ = problem(3, (3, 6), (1, 6))
    with refused(ValueError, "dy has shape [3, 6]", "quarter", "4"):
        gg.rotary_backward(dy, cos, sin, mode="quarter")


@pytest.mark.parametrize(
    ("position", "change", "error", "fragments"),
    [
        (0, lambda a: a.astype(np.int32), TypeError, ("dy has type int32", "bfloat16")),
        (0, lambda a: a.astype(np.longdouble), TypeError, ("dy has type float128", "bfloat16")),
        (1, lambda a: a + 0j, TypeError, ("cos has type complex64", "bfloat16")),
        (1, lambda a: a.astype(np.float16), TypeError, ("f16", "f32")),
        (2, lambda a: a.astype(np.float64), TypeError, ("sin has type f64", "f32")),
        (3, lambda a: a.astype(np.float16), TypeError, ("x has type f16", "dy's", "f32")),
        (3, lambda a: a.astype(">f4"), TypeError, ("x has type >f4", "byte order")),
        (3, lambda a: a.tolist(), TypeError, ("x is a list", "NumPy array")),
        (0, lambda a: None, TypeError, ("dy is a NoneType", "NumPy array")),
        (0, lambda a: np.float32(1), TypeError, ("dy is a numpy.float32", "NumPy array")),
        (3, lambda a: a[:1], ValueError, ("x has shape [1, 5, 3, 16]", "dy's")),
        (2, lambda a: a[..., :8], ValueError, ("sin has shape [1, 5, 1, 8]", "cos's")),
    ],
)
def test_arrays_refused(arrays, position, change, error, fragments):
    arrays = list(arrays)
    arrays[position] = change(arrays[position])
    with refused(error, "rotary_backward: ", *fragments):
        gg.rotary_backward(*arrays)


class Metres(np.ndarray):
    """An array with a unit, as libraries of units make them."""


MEANINGFUL = [
    (np.ma.masked_array, "a masked array, and its mask would be dropped; pass it filled, as from filled()"),
    (np.asmatrix, "a numpy.matrix, a subclass of numpy.ndarray, and what it adds would be dropped"),
    (lambda a: a.view(Metres), f"a {__name__}.Metres, a subclass of numpy.ndarray"),
]


@pytest.mark.filterwarnings("ignore:the matrix subclass")
@pytest.mark.parametrize(("convert", "text"), MEANINGFUL, ids=["masked", "matrix", "unit"])
@pytest.mark.parametrize("position", range(7))
def test_arrays_that_mean_more_than_their_elements(convert, text, position):
    arrays = [*problem(5, (6, 16), (6, 16)), *(np.full((6, 16), 9, np.float32) for _ in range(3))]
    names = ("dy", "cos", "sin", "x", "out[0] (dx)", "out[1] (dcos)", "out[2] (dsin)")
    arrays[position] = convert(arrays[position])
    with refused(TypeError, f"rotary_backward: {names[position]} is {text}"):
        gg.rotary_backward(*arrays[:4], out=tuple(arrays[4:]))
    assert all((np.asarray(out) == 9).all() for out in arrays[4:])


def test_memory_maps_are_plain_arrays(tmp_path):
    arrays = problem(6, SHAPE, TABLE)
    maps = []
    for index, array in enumerate(arrays):
        np.save(tmp_path / f"{index}.npy", array)
        maps.append(np.load(tmp_path / f"{index}.npy", mmap_mode="r+"))
        assert type(maps[-1]) is np.memmap
    want = gg.rotary_backward(*arrays)
    for got, expected in zip(gg.rotary_backward(*maps), want, strict=True):
        assert_same_bits(got, expected)
    assert gg.rotary_backward(*maps[:3], out=maps[0]) is maps[0]
    assert_same_bits(maps[0], want[0])


def test_strides_that_are_no_whole_elements():
    record = np.zeros((3, 8), [("value", np.float32), ("mark", np.int16)])["value"]
    tables = np.ones((1, 8), np.float32)
    with refused(ValueError, "dy has a stride of", "whole elements of 4 bytes"):
        gg.rotary_backward(record, tables, tables)


def test_misaligned_data():
    dy = np.zeros(4 * 8 + 1, np.uint8)[1:].view(np.float32)
    tables = np.ones(8, np.float32)
    with refused(ValueError, f"dy has data at address {dy.ctypes.data:#x};", "multiple", "4"):
        gg.rotary_backward(dy, tables, tables)


def test_table_gradients_need_x(arrays):
    with refused(ValueError, "x is missing", "dcos"):
        gg.rotary_backward(*arrays[:3], outputs=["dx", "dcos"])
    with refused(ValueError, "x is missing", "dsin"):
        gg.rotary_backward(*arrays[:3], out=(None, None, np.zeros(TABLE, np.float32)))


@pytest.mark.parametrize("given", SUBSETS)
@pytest.mark.parametrize("named", SUBSETS)
def test_what_outputs_names_or_out_holds_is_wanted(arrays, named, given):
    full = gg.rotary_backward(*arrays)
    out = new_out(given)
    names = [name for name, is_named in zip(NAMES, named, strict=True) if is_named]
    results = gg.rotary_backward(*arrays, outputs=names, out=out)
    for got, want, array, is_named in zip(results, full, out, named, strict=True):
        assert (got is not None) == (is_named or array is not None)
        if got is not None:
            assert_same_bits(got, want)
        assert array is None or got is array


@pytest.mark.parametrize("position", range(3))
def test_out_refused(arrays, position):
    name = f"rotary_backward: out[{position}] ({NAMES[position]}) "
    full = list(new_out((True, True, True)))
    read_only = full[position].copy()
    read_only.flags.writeable = False
    for bad, error, fragment in [
        (read_only, ValueError, "read-only"),
        (full[position].astype(np.float16), TypeError, "f16"),
        (full[position][..., :8], ValueError, "8]"),
        (full[position].tolist(), TypeError, "list"),
        (Producer(full[position], flags=1), ValueError, "read-only"),
    ]:
        out = list(full)
        out[position] = bad
        with refused(error, name, fragment):
            gg.rotary_backward(*arrays, out=tuple(out))
        assert all((given == 9).all() for i, given in enumerate(full) if i != position)


def test_out_may_not_share_memory(arrays):
    dy, cos, sin, x = arrays
    shifted = np.zeros(dy.size + 1, np.float32)
    dy_view, out = shifted[:-1].reshape(SHAPE), shifted[1:].reshape(SHAPE)
    with refused(ValueError, "rotary_backward: out (dx) shares memory with dy"):
        gg.rotary_backward(dy_view, cos, sin, out=out)
    with refused(ValueError, "rotary_backward: out[1] (dcos) shares memory with sin"):
        gg.rotary_backward(dy, cos, sin, x, out=(None, sin, None))
    with refused(ValueError, "rotary_backward: out[2] (dsin) shares memory with out[1] (dcos)"):
        gg.rotary_backward(dy, cos, sin, x, out=(None, out[:1, :, :1], out[:1, :, :1]))
    with refused(ValueError, "rotary_backward: out[1] (dcos) shares memory with dy"):
        gg.rotary_backward(dy, cos, sin, x, out=[None, dy[:1, :, :1], None], outputs=["dcos"])


def test_forward_refusals(arrays):
    _, cos, sin, x = arrays
    with refused(ValueError, "rotary: mode is 'x'"):
        gg.rotary(x, cos, sin, mode="x")
    with refused(ValueError, "rotary: cos has shape [1, 5, 1, 8]", "x's", "16"):
        gg.rotary(x, cos[..., :8], sin[..., :8])


def test_the_forwards_out_is_called_out(arrays):
    """In every rule, and only where a word is the argument's name."""
    _, cos, sin, x = arrays
    read_only = np.zeros(SHAPE, np.float32)
    read_only.flags.writeable = False
    for out, error, text in [
        (np.zeros((1, 5, 3, 16), np.float32), ValueError, "out has shape [1, 5, 3, 16]; it must be x's"),
        (np.zeros(SHAPE, np.float64), TypeError, "out has type f64; it must be x's"),
        (np.zeros(SHAPE, np.int8), TypeError, "out has type int8; it must be float64"),
        (
            np.zeros(4 * x.size + 1, np.uint8)[1:].view(np.float32).reshape(SHAPE),
            ValueError,
            "out has data at address 0x",
        ),
        (np.broadcast_to(np.float32(1), SHAPE), ValueError, "out is a read-only array"),
        (x[:, ::-1], ValueError, "out shares memory with x; it may do so only with the same address"),
        (np.ma.zeros(SHAPE, np.float32), TypeError, "out is a masked array"),
        (read_only, ValueError, "out is a read-only array; it must be writable"),
        ("y", TypeError, "out is a str"),
    ]:
        with refused(error, f"rotary: {text}"):
            gg.rotary(x, cos, sin, out=out)


def test_huge_expanded_arrays_are_refused_not_allocated():
    """A result of 2^60 elements: a MemoryError or a refusal, never a crash."""
    dy = np.broadcast_to(np.float32(1), (2**58, 4))
    tables = np.ones((1, 4), np.float32)
    with pytest.raises((MemoryError, ValueError)):
        gg.rotary_backward(dy, tables, tables)

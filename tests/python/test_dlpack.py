"""Whatever DLPack can say: missing strides, negative strides, null data, flags, versions, devices, types."""

import sys

import numpy as np
import pytest
from dlpack_producer import BFLOAT, COPIED, FLOAT, INT, READ_ONLY, LibraryProducer, Producer
from formulas import BF16, DTYPES, assert_same_bits, problem

import gyrograd as gg

SHAPE, TABLE = (2, 5, 3, 16), (1, 5, 1, 16)
CODES = {np.dtype(BF16): BFLOAT}


def producers(arrays, **fields):
    return [Producer(array, code=CODES.get(array.dtype, FLOAT), **fields) for array in arrays]


def assert_same(got, want):
    for result, expected in zip(got, want, strict=True):
        assert_same_bits(result, expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "fields",
    [{}, {"versioned": False}, {"strides": None}, {"versioned": False, "strides": None}, {"flags": READ_ONLY}],
    ids=["1.0", "unversioned", "no strides", "unversioned, no strides", "read-only"],
)
def test_capsules(dtype, fields):
    arrays = problem(1, SHAPE, TABLE, dtype)
    got = gg.rotary_backward(*producers(arrays, **fields))
    assert all(isinstance(result, np.ndarray) for result in got)
    assert_same(got, gg.rotary_backward(*arrays))


@pytest.mark.parametrize(
    "view",
    [
        lambda a: a[::-1],
        lambda a: a[..., ::-1],
        lambda a: a[:, ::-2, :, ::2],
        lambda a: a.swapaxes(1, 2),
        lambda a: np.asfortranarray(a),
    ],
    ids=["reversed rows", "reversed channels", "steps", "transposed", "Fortran order"],
)
def test_strides(view):
    arrays = [view(array) for array in problem(2, SHAPE, TABLE)]
    got = gg.rotary_backward(*producers(arrays))
    assert_same(got, gg.rotary_backward(*map(np.ascontiguousarray, arrays)))


def test_expanded():
    dy, cos, sin, x = problem(3, SHAPE, TABLE)
    dy = np.broadcast_to(dy[:1, :1, :1], SHAPE)
    assert dy.strides[:3] == (0, 0, 0)
    got = gg.rotary_backward(*producers((dy, cos, sin, x)))
    assert_same(got, gg.rotary_backward(np.array(dy), cos, sin, x))


def test_byte_offset():
    dy, cos, sin, x = problem(4, SHAPE, TABLE)
    memory = np.concatenate([np.zeros(3, np.float32), dy.ravel()])
    offered = Producer(dy, data=memory.ctypes.data, byte_offset=12)
    assert_same(gg.rotary_backward(offered, cos, sin, x), gg.rotary_backward(dy, cos, sin, x))


@pytest.mark.parametrize("strides", ["own", None])
@pytest.mark.parametrize("data", [0, 8])
def test_zero_size(strides, data):
    """Empty tensors may have no data, or data nobody may read."""
    dy, cos, sin, x = problem(5, (0, 5, 16), (1, 5, 16))
    offered = [Producer(array, strides=strides, data=data) for array in (dy, x)]
    dx, dcos, dsin = gg.rotary_backward(offered[0], cos, sin, offered[1])
    assert dx.shape == (0, 5, 16)
    assert not dcos.any()
    assert not dsin.any()


def test_null_data_with_elements():
    dy, cos, sin, _ = problem(6, SHAPE, TABLE)
    with pytest.raises(ValueError, match=r"rotary_backward: dy .*null pointer"):
        gg.rotary_backward(Producer(dy, data=0), cos, sin)


@pytest.mark.parametrize(
    ("fields", "error", "text"),
    [
        ({"device": 2}, ValueError, "is on DLPack device type 2; it must be on the CPU"),
        ({"major": 2}, ValueError, "comes as DLPack 2.0"),
        ({"code": INT}, TypeError, "has type int32"),
        ({"bits": 64, "code": INT}, TypeError, "has type int64"),
        ({"code": 77}, TypeError, "has type code77-32"),
        ({"shape": (1,) * 65, "strides": None}, ValueError, "has rank 65"),
    ],
)
def test_refused(fields, error, text):
    dy, cos, sin, _ = problem(7, SHAPE, TABLE)
    with pytest.raises(error, match=f"rotary_backward: dy {text}"):
        gg.rotary_backward(Producer(dy, **fields), cos, sin)


class Broken:
    """A producer whose export fails, or gives what is no capsule."""

    def __init__(self, result):
        self.result = result

    def __dlpack__(self, **keywords):
        if isinstance(self.result, BaseException):
            raise self.result
        return self.result


@pytest.mark.parametrize(
    ("result", "error", "text"),
    [
        (BufferError("no export today"), ValueError, "dy cannot be read through DLPack: no export today"),
        (TypeError("strange"), ValueError, "dy cannot be read through DLPack: strange"),
        (42, TypeError, "dy gave no DLPack capsule"),
        (KeyboardInterrupt("stop"), KeyboardInterrupt, "stop"),
    ],
)
def test_broken_producers(result, error, text):
    _, cos, sin, _ = problem(8, SHAPE, TABLE)
    with pytest.raises(error, match=text):
        gg.rotary_backward(Broken(result), cos, sin)


def test_out():
    arrays = problem(9, SHAPE, TABLE)
    want = gg.rotary_backward(*arrays[:3])
    memory = np.zeros(SHAPE, np.float32)
    out = Producer(memory)
    assert gg.rotary_backward(*arrays[:3], out=out) is out
    assert_same_bits(memory, want)
    for flag in (READ_ONLY, COPIED):
        with pytest.raises(ValueError, match=r"out \(dx\) is a read-only array"):
            gg.rotary_backward(*arrays[:3], out=Producer(memory, flags=flag))


def test_capsules_are_given_back():
    arrays = problem(10, SHAPE, TABLE)
    before = [sys.getrefcount(array) for array in arrays]
    for _ in range(50):
        gg.rotary_backward(*arrays)
        gg.rotary_backward(*producers(arrays))
    assert [sys.getrefcount(array) for array in arrays] == before


def test_results_go_to_the_producers_library():
    arrays = problem(11, SHAPE, TABLE)
    mark, result = gg.rotary_backward(LibraryProducer(arrays[0]), *arrays[1:3])
    assert mark == "taken"
    assert_same_bits(result, gg.rotary_backward(*arrays[:3]))

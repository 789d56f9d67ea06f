"""gyrograd.torch over several processes: DTensors under every split, eager and compiled, and models that train."""

import itertools
import math
import subprocess
import sys

import pytest
import sharded_checks as checks
import sharded_training as training
from sharded_checks import BATCH, HEADS, SEQUENCE
from torch_ranks import Pools


@pytest.fixture(scope="module")
def ranks():
    pools = Pools()
    yield pools
    pools.close()


MESHES = [(2,), (4,), (2, 2)]
TYPES = [("f32", "f32"), ("bf16", "bf16"), ("bf16", "f32")]


def splits_of(mesh, axes):
    """Every axis, or every two of them and the first twice."""
    pairs = [pair for pair in itertools.product(axes, repeat=2) if pair[0] != pair[1] or pair[0] == axes[0]]
    return [(axis,) for axis in axes] if len(mesh) == 1 else pairs


# ---- rotary

TABLES = [(1, 8, 1, 8), (4, 8, 1, 8), (1, 8, 4, 8), (1, 1, 1, 8)]


@pytest.mark.parametrize("types", TYPES)
@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("table", TABLES)
def test_rotary(ranks, mesh, table, types):
    for axes in splits_of(mesh, (BATCH, SEQUENCE, HEADS)):
        for split_tables in (False, True):
            ranks(math.prod(mesh)).run(checks.check_rotary, mesh, axes, table, types, split_tables)


@pytest.mark.parametrize("mesh", [(2,), (4,)])
def test_rotary_of_uneven_parts(ranks, mesh):
    """Five rows over two ranks, and over four, of which one has none."""
    for mode, split_tables in itertools.product(("interleave", "quarter", "interleave-half"), (False, True)):
        arguments = (mesh, (SEQUENCE,), (1, 5, 1, 8), ("f32", "f32"), split_tables, False, mode, (4, 5, 4, 8))
        ranks(mesh[0]).run(checks.check_rotary, *arguments)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(("mesh", "axes", "shape"), [((2,), (HEADS,), (2, 6, 1, 8)), ((4,), (HEADS,), (2, 6, 2, 8)),
                                                     ((2,), (BATCH,), (1, 6, 4, 8)), ((4,), (BATCH,), (3, 6, 4, 8)),
                                                     ((4,), (SEQUENCE,), (2, 3, 4, 8)),
                                                     ((2, 2), (BATCH, BATCH), (3, 6, 4, 8)),
                                                     ((2, 2), (BATCH, HEADS), (1, 6, 1, 8))])  # fmt: skip
def test_rotary_of_fewer_parts_than_ranks(ranks, mesh, axes, shape, compiled):
    """Some ranks have nothing, and nothing is gathered; tables that lie whole on every rank are cut."""
    batch, sequence, _, width = shape
    tables = [(1, sequence, 1, width)] if compiled else [(1, sequence, 1, width), (batch, sequence, 1, width), shape]
    for table, types in itertools.product(tables, TYPES[:2]):
        arguments = (mesh, axes, table, types, False, compiled, "half", shape)
        ranks(math.prod(mesh)).run(checks.check_rotary, *arguments)


@pytest.mark.parametrize("types", TYPES[:2])
@pytest.mark.parametrize(("mesh", "axes"), [((2,), (BATCH,)), ((2,), (SEQUENCE,)), ((2,), (HEADS,)),
                                            ((2, 2), (BATCH, SEQUENCE))])  # fmt: skip
def test_compiled_rotary(ranks, mesh, axes, types):
    ranks(math.prod(mesh)).run(checks.check_rotary, mesh, axes, TABLES[0], types, True, True)


@pytest.mark.parametrize("types", TYPES[1:])
@pytest.mark.parametrize("compiled", [False, True])
def test_rotary_qk(ranks, types, compiled):
    ranks(2).run(checks.check_rotary_qk, (2,), types, compiled)


# ---- norm_rope and norm_rope_concat

SEGMENT = {"lengths": (8, None, None, None), "heads": (4, 4, 4), "table_shape": (8,), "rope": "half"}
ONE_STREAM = {"lengths": (8, 8, None, None), "heads": (4, 4, 4), "table_shape": (1, 4, 8), "rope": "half"}
TWO_STREAMS = {"lengths": (5, 4, 3, 2), "heads": (4, 4, 4), "rope": "interleave", "added": "layer_affine"}


@pytest.mark.parametrize("types", TYPES)
@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("norm", ["none", "layer_affine", "rms_affine"])
def test_norm_rope(ranks, mesh, norm, types):
    for splits, layout in zip(splits_of(mesh, "BSN"), itertools.cycle(("BNSD", "BSND"))):
        arguments = ("norm_rope", mesh, splits, SEGMENT | {"norm": norm}, types, layout == "BNSD", False, layout)
        ranks(math.prod(mesh)).run(checks.check_normed, *arguments)


@pytest.mark.parametrize("types", TYPES[:2])
@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("options", [ONE_STREAM, TWO_STREAMS], ids=["one stream", "two streams"])
def test_norm_rope_concat(ranks, mesh, options, types):
    """Two streams have no split along the joint sequence."""
    axes = "BSN" if options is ONE_STREAM else "BN"
    for splits, layout in zip(splits_of(mesh, axes), itertools.cycle(("BSND", "BNSD"))):
        arguments = (mesh, splits, options | {"norm": "rms_affine"}, types, layout == "BNSD", False, layout)
        ranks(math.prod(mesh)).run(checks.check_normed, "norm_rope_concat", *arguments)


def test_heads_of_queries_alone(ranks):
    """One head of keys and values, on every rank."""
    options = TWO_STREAMS | {"norm": "rms_affine", "heads": (4, 1, 1)}
    arguments = ((2,), ("N",), options, ("bf16", "bf16"), False, False, "BNSD", ("query",))
    ranks(2).run(checks.check_normed, "norm_rope_concat", *arguments)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(("mesh", "splits", "few"), [((2,), "N", {"heads": (4, 1, 1)}),
                                                     ((4,), "N", {"heads": (4, 2, 2)}),
                                                     ((2,), "B", {"batch": 1}), ((4,), "B", {"batch": 3}),
                                                     ((4,), "S", {"lengths": (3, 3, None, None), "table_shape": (3,)}),
                                                     ((2, 2), "BN", {"batch": 1, "heads": (2, 1, 1)})])  # fmt: skip
def test_norms_of_fewer_parts_than_ranks(ranks, mesh, splits, few, compiled):
    """Grouped heads of keys, small batches and short sequences: some ranks have nothing, and nothing is gathered."""
    streams = {"lengths": (5, 5, None, None) if splits == "S" else (5, 4, 3, 2), "added": "layer_affine"}
    options = {"rope": "half", "norm": "rms_affine"} | streams | few
    for types in TYPES[:2]:
        arguments = (mesh, tuple(splits), options, types, False, compiled)
        ranks(math.prod(mesh)).run(checks.check_normed, "norm_rope_concat", *arguments)


@pytest.mark.parametrize("types", TYPES[:2])
@pytest.mark.parametrize(("operator", "options", "axes"), [("norm_rope", SEGMENT, "BSN"),
                                                           ("norm_rope_concat", TWO_STREAMS, "BN")])  # fmt: skip
def test_compiled_norm_rope(ranks, operator, options, axes, types):
    for axis in axes:
        arguments = (operator, (2,), (axis,), options | {"norm": "layer_affine"}, types, True, True)
        ranks(2).run(checks.check_normed, *arguments)


# ---- the rules


@pytest.mark.parametrize(
    "check",
    [
        checks.check_options_are_told_apart,
        checks.check_gathered,
        checks.check_values_alone,
        checks.check_refusals,
        checks.check_double_backward,
        checks.check_autocast,
        checks.check_plain_calls_refuse,
    ],
)
def test_rules(ranks, check):
    ranks(2).run(check, (2,))


@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize("compiled", [False, True])
def test_wrong_shapes(ranks, world_size, compiled):
    ranks(world_size).run(checks.check_wrong_shapes, (world_size,), compiled)


@pytest.mark.parametrize("first", ["gyrograd.torch", "torch.distributed.tensor"])
def test_no_import_of_tensor_parallelism_before_it_is_used(first):
    """In any order; a process without DTensor pays nothing for it."""
    code = f"""import sys, torch
import {first}
import gyrograd.torch as gt
loaded = "torch.distributed.tensor" in sys.modules
assert loaded == ({first!r} == "torch.distributed.tensor")
x = torch.ones(1, 4, requires_grad=True)
gt.rotary(x, x, x).sum().backward()
assert ("torch.distributed.tensor" in sys.modules) == loaded
import torch.distributed.tensor
torch.ops.gyrograd.rotary(x, x, x, "half", False, None, 0)
rules = torch.distributed.tensor.DTensor._op_dispatcher.sharding_propagator.op_strategy_funcs
assert torch.ops.gyrograd.norm_rope_concat_backward.default in rules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


# ---- models that train

STEPS = 12


@pytest.fixture(scope="module")
def losses_alone():
    return training.alone(STEPS)


@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize("way", [training.data_parallel, training.fully_sharded, training.tensor_parallel])
def test_training_agrees_with_one_process(ranks, losses_alone, way, world_size):
    assert losses_alone[-1] < 0.7 * losses_alone[0]
    for losses in ranks(world_size).run(way, STEPS):
        assert losses == pytest.approx(losses_alone, rel=1e-4)

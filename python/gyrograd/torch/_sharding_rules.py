"""Sharding rules for DTensor: how the operators split over one axis of a device mesh. Importing this registers them.

Rows split by batch, by heads or by sequence, never by channels, and each result of rows as its rows do. A sum over the
axis that is split comes out as Partial: each rank has the sum of its own terms.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor._op_schema import RuntimeSchemaInfo
from torch.distributed.tensor.experimental import register_sharding

from gyrograd.torch._norm_rope_operators import CONCAT, SEGMENT, NormedOperator, Options

Placements = list[Any]
Rule = list[tuple[Placements, Placements]]  # of results, and of the tensors among the arguments
Shapes = Mapping[str, Any]  # by name; None where there is no tensor


def _of_wanted(placement: Any, is_wanted: bool) -> Any:
    """A result that is not there has no axis to split."""
    return placement if is_wanted else Replicate()


# ---- rotary


def _rotary_splits(rows: Any, table: Any) -> Iterator[tuple[Any, Any, Any]]:
    """Placements of rows, of tables and of the tables' sums."""
    yield Replicate(), Replicate(), Replicate()
    if len(table.shape) != len(rows.shape):  # the operator's to refuse
        return
    for axis in range(len(rows.shape) - 1):
        if table.shape[axis] == 1:
            yield Shard(axis), Replicate(), Partial()
        else:
            yield Shard(axis), Shard(axis), Shard(axis)


def _rotary(x: Any, cos: Any, sin: Any, *options: Any) -> Rule:
    return [([rows], [rows, table, table]) for rows, table, _ in _rotary_splits(x, cos)]


def _rotary_backward(dy: Any, cos: Any, sin: Any, x: Any, wanted: Sequence[bool], *options: Any) -> Rule:
    rule = []
    for rows, table, total in _rotary_splits(dy, cos):
        results = [_of_wanted(*pair) for pair in zip((rows, total, total), wanted, strict=True)]
        rule.append((results, [rows, table, table] + ([] if x is None else [rows])))
    return rule


# ---- norm_rope and norm_rope_concat

Split = tuple[str | None, tuple[str, ...]]  # the axis, B, N or S, and the joints whose rows it splits


def _splits(rules: NormedOperator, options: Options, streams: Shapes, tables: Shapes) -> Iterator[Split]:
    """All splits of a call, the undivided one first. Each joint's heads may be split alone: of queries, where there are
    fewer heads of keys than ranks.
    """
    lengths: dict[str, list[Any]] = {}
    for name, shape in streams.items():
        if shape is not None:
            lengths.setdefault(_joint_of(rules, name), []).append(shape[1])
    joints = tuple(lengths)
    yield None, ()
    yield "B", joints
    turning = {joint for joint in joints if joint != "value"}
    have_heads = any(len(table) == 4 and table[1] != 1 for table in tables.values())
    for count in range(len(joints), 0, -1):
        for some in itertools.combinations(joints, count):
            if not have_heads or turning <= set(some):
                yield "N", some
    # A part of two streams, one after the other, is no part of the joint sequence.
    is_joined = any(sum(length != 0 for length in of_joint) > 1 for of_joint in lengths.values())
    rows = {sum(lengths[joint]) for joint in turning}
    if not is_joined and (not tables or _turn_all(options, tables, rows)):
        yield "S", joints


def _turn_all(options: Options, tables: Shapes, rows: set[Any]) -> bool:
    """Whether the tables have a row for each position, and one alone."""
    has_one_pair = not any(name.startswith("encoder") for name in tables)
    return has_one_pair and options["rope_start"] == 0 and all({table[-2]} == rows for table in tables.values())


def _joint_of(rules: NormedOperator, name: str) -> str:
    """The joint that a tensor belongs to, by its name."""
    return next((joint for joint in rules.joints if joint in name), rules.joints[0])


def _argument(rules: NormedOperator, options: Options, split: Split, name: str, shape: Any) -> Any:
    axis, _ = split
    if name in rules.tables:
        letters = "BNSD"[-len(shape) :]
        is_split = axis is not None and _turns(options) and axis in letters and shape[letters.index(axis)] != 1
        return Shard(letters.index(axis)) if is_split else Replicate()
    if name.endswith(("weight", "bias")) or (axis == "S" and 0 in shape):
        return Replicate()
    return _of_rows(rules, split, name, options["out_layout"] if name in rules.incoming else "BSND")


def _result(rules: NormedOperator, options: Options, split: Split, name: str, is_backward: bool) -> Any:
    if name.endswith(("weight", "bias")):
        return Partial() if _joint_of(rules, name) in split[1] else Replicate()
    is_joint = name in rules.joints and not is_backward
    return _of_rows(rules, split, name, options["out_layout"] if is_joint else "BSND")


def _of_rows(rules: NormedOperator, split: Split, name: str, layout: str) -> Any:
    axis, joints = split
    return Replicate() if axis is None or _joint_of(rules, name) not in joints else Shard(layout.index(axis))


def _turns(options: Options) -> bool:
    return options["rope_type"] not in (None, "none")


class _Tensor:
    """What the operators' own rules ask of an argument."""

    def __init__(self, spec: Any):
        self.shape, self.dtype = spec.tensor_meta.shape, spec.tensor_meta.dtype


def _normed_rule(rules: NormedOperator, names: Sequence[str], is_backward: bool) -> Any:
    """The rule of an operator whose tensor arguments have these names."""
    option_names = [name for name in rules.options if not (is_backward and name == "eps")]

    def rule(*arguments: Any) -> Rule:
        specs, others = arguments[: len(names)], list(arguments[len(names) :])
        named = {name: None if spec is None else _Tensor(spec) for name, spec in zip(names, specs, strict=True)}
        wanted = others.pop(0) if is_backward else None
        options = dict(zip(option_names, others, strict=True))
        given = {name: tensor.shape for name, tensor in named.items() if tensor is not None}
        if is_backward:
            results, there = rules.gradients, wanted
            shapes = rules.gradient_shapes(named, options)
            rows = rules.gradients[: len(rules.rows)]
            streams = {name: shapes[row][0] for name, row in zip(rules.rows, rows, strict=True) if row in shapes}
        else:
            results, there = rules.results, rules.are_there(named, options)
            streams = {name: given[name] for name in rules.rows if name in given}
        tables = {name: given[name] for name in rules.tables if name in given and _turns(options)}
        return [
            (
                [
                    _of_wanted(_result(rules, options, split, name, is_backward), is_there)
                    for name, is_there in zip(results, there, strict=True)
                ],
                [_argument(rules, options, split, *pair) for pair in given.items()],
            )
            for split in _splits(rules, options, streams, tables)
        ]

    return rule


# ---- registration


def _register(name: str, tensor_count: int, rule: Any) -> None:
    """The operator's first tensor_count arguments are tensors; all others decide what it gives."""
    operator = getattr(torch.ops.gyrograd, name).default
    register_sharding(operator)(rule)
    # register_sharding's own choice of what a remembered decision depends on leaves out text and lists of flags.
    schema_info = RuntimeSchemaInfo(static_argnum=tensor_count, needs_pytree=True)
    DTensor._op_dispatcher.sharding_propagator.op_to_schema_info[operator] = schema_info


_register("rotary", 3, _rotary)
_register("rotary_backward", 4, _rotary_backward)
for _rules in (SEGMENT, CONCAT):
    _names = (*_rules.incoming, *_rules.saved)
    _register(_rules.name, len(_rules.tensors), _normed_rule(_rules, _rules.tensors, False))
    _register(f"{_rules.name}_backward", len(_names), _normed_rule(_rules, _names, True))

"""Sharding rules for DTensor: how the operators split over one axis of a device mesh. Importing this registers them.

Rows split by batch, by heads or by sequence, never by channels, and each result of rows as its rows do. A sum over the
axis that is split comes out as Partial: each rank has the sum of its own terms.
"""

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec
from torch.distributed.tensor._op_schema import OpSchema, OpSpec, OpStrategy, RuntimeSchemaInfo
from torch.distributed.tensor._ops.utils import generate_redistribute_costs, is_tensor_shardable

from gyrograd import _core
from gyrograd.torch._norm_rope_operators import CONCAT, SEGMENT, NormedOperator, Options

Placements = list[Any]
Rule = list[tuple[Placements, Placements]]  # of results, and of the tensors among the arguments
Shapes = Mapping[str, Any]  # by name; None where there is no tensor


def _of_wanted(placement: Any, is_wanted: bool) -> Any:
    """A result that is not there has no axis to split."""
    return placement if is_wanted else Replicate()


class _Tensor:
    """What the operators' own rules ask of an argument."""

    def __init__(self, spec: Any):
        self.shape, self.dtype = spec.tensor_meta.shape, spec.tensor_meta.dtype

    def traced(self) -> tuple[tuple[int, ...], str]:
        """(shape, type), as the core takes them in place of tensors."""
        return tuple(self.shape), str(self.dtype).removeprefix("torch.")


def _is_refused(trace: Callable[[], object], tensors: Iterable[_Tensor | None], options: Iterable[Any]) -> bool:
    """Whether the core refuses the call on whole tensors. It is not split, then: all ranks shall refuse, in words of
    whole shapes, where parts may look like tensors that go together. What is not known yet is taken.
    """
    sizes = (extent for tensor in tensors if tensor is not None for extent in tensor.shape)
    if any(isinstance(value, torch.SymInt) for value in (*sizes, *options)):
        return False
    try:
        trace()
    except (TypeError, ValueError):
        return True
    return False


# ---- rotary


def _rotary_splits(rows: _Tensor, cos: _Tensor, sin: _Tensor, options: Sequence[Any]) -> Iterator[tuple[Any, Any, Any]]:
    """Placements of rows, of tables and of the tables' sums."""
    yield Replicate(), Replicate(), Replicate()
    tensors = (rows, cos, sin)
    if _is_refused(lambda: _core.trace_rotary(*(tensor.traced() for tensor in tensors), *options), tensors, options):
        return
    for axis in range(len(rows.shape) - 1):
        if cos.shape[axis] == 1:
            yield Shard(axis), Replicate(), Partial()
        else:
            yield Shard(axis), Shard(axis), Shard(axis)


def _rotary(x: Any, cos: Any, sin: Any, *options: Any) -> Rule:
    splits = _rotary_splits(_Tensor(x), _Tensor(cos), _Tensor(sin), options)
    return [([rows], [rows, table, table]) for rows, table, _ in splits]


def _rotary_backward(dy: Any, cos: Any, sin: Any, x: Any, wanted: Sequence[bool], *options: Any) -> Rule:
    rule = []
    for rows, table, total in _rotary_splits(_Tensor(dy), _Tensor(cos), _Tensor(sin), options):
        results = [_of_wanted(*pair) for pair in zip((rows, total, total), wanted, strict=True)]
        rule.append((results, [rows, table, table] + ([] if x is None else [rows])))
    return rule


# ---- norm_rope and norm_rope_concat

Split = tuple[str | None, tuple[str, ...]]  # the axis, B, N or S, and the joints whose rows it splits


def _splits(rules: NormedOperator, options: Options, streams: Shapes, tables: Shapes) -> Iterator[Split]:
    """All splits of a call, the undivided one first, and alone where no stream is told. Each joint's heads may be split
    alone: of queries, where there are fewer heads of keys than ranks.
    """
    lengths: dict[str, list[Any]] = {}
    for name, shape in streams.items():
        if shape is not None:
            lengths.setdefault(_joint_of(rules, name), []).extend(shape[1:2])
    joints = tuple(lengths)
    yield None, ()
    if not joints:
        return
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
    """Heads split in some joints; the batch and the sequence in all rows, those too that only tell lengths."""
    axis, joints = split
    is_whole = axis is None or (axis == "N" and _joint_of(rules, name) not in joints)
    return Replicate() if is_whole else Shard(layout.index(axis))


def _turns(options: Options) -> bool:
    return options["rope_type"] not in (None, "none")


_ALL = dict.fromkeys(("outputs", "out", "threads", "cpu_target"))


def _traced(tensors: Mapping[str, _Tensor | None]) -> dict[str, Any]:
    return {name: None if tensor is None else tensor.traced() for name, tensor in tensors.items()}


def _normed_rule(rules: NormedOperator, names: Sequence[str], is_backward: bool) -> Any:
    """The rule of an operator whose tensor arguments have these names."""
    option_names = [name for name in rules.options if not (is_backward and name == "eps")]
    trace = getattr(_core, f"trace_{rules.name}")

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
            if _is_refused(lambda: trace(_traced(named) | options | _ALL), named.values(), options.values()):
                streams = {}
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


def _strategy(rule: Any, call: OpSchema) -> OpStrategy:
    """The rule for one axis of a mesh on all of them."""
    mesh, inputs = call.get_mesh_from_args(), call.args_strategy
    arguments = [_spec_of(argument) for argument in call.args_schema]
    results = len(call.op._schema.returns)
    metas = [None] * results + [tensor.tensor_meta for tensor in inputs]
    choices = []
    for split in itertools.product([[*of_results, *of_inputs] for of_results, of_inputs in rule(*arguments)],
                                   repeat=mesh.ndim):  # fmt: skip
        specs = [DTensorSpec(mesh, placed, meta) for placed, meta in zip(zip(*split, strict=True), metas, strict=True)]
        outputs, given = specs[:results], specs[results:]
        if all(map(_is_splittable, inputs, given)):
            costs = [generate_redistribute_costs(*pair) for pair in zip(inputs, given, strict=True)]
            choices.append(OpSpec(tuple(outputs) if results > 1 else outputs[0], given, costs))
    return OpStrategy(choices)


def _spec_of(argument: Any) -> Any:
    return argument.strategies[0].output_spec if isinstance(argument, OpStrategy) else argument


def _is_splittable(tensor: OpStrategy, split: DTensorSpec) -> bool:
    """Whether each rank gets a part. Some may get none of what is split so already, or whole on every rank."""
    pairs = zip(_spec_of(tensor).placements, split.placements, strict=True)
    return all(old == new or old.is_replicate() for old, new in pairs) or is_tensor_shardable(tensor.shape, split)


def _register(name: str, tensor_count: int, rule: Any) -> None:
    """The operator's first tensor_count arguments are tensors; all others decide what it gives."""
    operator = getattr(torch.ops.gyrograd, name).default
    schema_info = RuntimeSchemaInfo(static_argnum=tensor_count, needs_pytree=True)
    propagator = DTensor._op_dispatcher.sharding_propagator
    propagator.register_op_strategy(operator, functools.partial(_strategy, rule), schema_info)


_register("rotary", 3, _rotary)
_register("rotary_backward", 4, _rotary_backward)
for _rules in (SEGMENT, CONCAT):
    _names = (*_rules.incoming, *_rules.saved)
    _register(_rules.name, len(_rules.tensors), _normed_rule(_rules, _rules.tensors, False))
    _register(f"{_rules.name}_backward", len(_names), _normed_rule(_rules, _names, True))

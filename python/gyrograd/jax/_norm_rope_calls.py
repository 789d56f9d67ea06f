"""norm_rope and norm_rope_concat as custom calls with gradients: what goes in and out of each, and its axes."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero

from gyrograd._norm_rope_names import JOINTS, NORMS, ConcatNames, SegmentNames
from gyrograd.jax._arrays import Named, Static, flagged, flags_of, shardings, split_as, varying
from gyrograd.jax._custom_calls import Arrays, Axes, CustomCall, Names, Numbers, Result, Shapes, looped, place_of

Options = Mapping[str, Any]
# A norm's number says what it has.
_MEANS, _WEIGHTS, _BIASES = (1, 2), (2, 4), (2,)
_WHOLE = frozenset({"d", "r", "w", "one"})


def _has_parameter(norm: int, member: str) -> bool:
    return norm in (_WEIGHTS if member == "weight" else _BIASES)


class NormedOperator:
    """One operator: the names of what goes in and out, and the rules that follow from them.

    Attributes:
      tensors: the forward's; rows, parameters and tables are those of them that are so.
      results: the forward's; joints are those of them that are differentiable.
      incoming: the gradients of joints, as the backward calls them.
      saved: the backward's other tensors.
      gradients: the backward's results, and differentiable the tensors whose gradients they are.
    """

    name: str
    tensors: Names
    rows: Names
    parameters: Names
    tables: Names
    results: Names
    joints: Names
    incoming: Names
    saved: Names
    gradients: Names
    differentiable: Names

    def uses(self, name: str, options: Options) -> bool:
        """Whether the types use this tensor."""
        raise NotImplementedError

    def norm_of(self, name: str, options: Options) -> int:
        """The norm of the stream that a parameter or statistic belongs to."""
        raise NotImplementedError

    def saved_tensors(self, tensors: Named, results: Named, options: Options) -> Named:
        """What the backward needs, by its names in saved."""
        raise NotImplementedError

    def lengths(self, tensors: Named) -> dict[str, int]:
        """What the backward is told of the rows that it does not see."""
        return {}

    def is_reached(self, name: str, incoming: Named) -> bool:
        """Whether a gradient comes in for the rows that this tensor belongs to; tables belong to all."""
        raise NotImplementedError

    def names(self, shapes: Mapping[str, tuple[int, ...]], options: Options) -> "AxisNames":
        """The names of axes, from the shapes of the forward's or the backward's tensors that there are."""
        raise NotImplementedError


class AxisNames:
    """The names of the axes of an operator's tensors.

    Attributes:
      rows: name -> axes, of [B, S, N, D] of every stream, and of what is shaped like one.
      joints: the same of incoming gradients, [B, N, S, D] or as out_layout says; the results are like them.
      tables: name -> axes.
      stream_of: parameter or statistic -> the stream that it belongs to.
      whole: those that are not split.
      extents: those that no tensor tells.
    """

    def __init__(self) -> None:
        self.rows: dict[str, Names] = {}
        self.joints: dict[str, Names] = {}
        self.tables: dict[str, Names] = {}
        self.stream_of: dict[str, str] = {}
        self.whole = set(_WHOLE)
        self.extents = {"one": 1}

    def of(self, name: str) -> Names:
        for axes in (self.joints, self.rows, self.tables):
            if name in axes:
                return axes[name]
        if name.endswith(("mean", "rstd")):
            return (*self.rows[self.stream_of[name]][:3], "one")
        return ("w",)


def _joint(b: str, n: str, s: str, options: Options) -> Names:
    return (b, s, n, "d") if options["bsnd"] else (b, n, s, "d")


def _in_order(shape: Sequence[int], options: Options) -> tuple[int, ...]:
    """Extents B, N, S, D of an array in the order of out_layout."""
    b, n, s, d = shape
    return (b, s, n, d) if options["bsnd"] else (b, n, s, d)


def _table(shape: tuple[int, ...], rows: str, heads: str, batch: int, count: int) -> Names:
    """The axes of a table whose rows are `rows`; those of extent 1 beside more have names of their own."""
    if len(shape) == 2:
        return rows, "r"
    return "b" if shape[0] == batch else "b1", heads if shape[1] == count else "n1", rows, "r"


# ---- one segment


class _Segment(SegmentNames, NormedOperator):
    parameters = ("weight", "bias")
    differentiable = ("x", "weight", "bias")

    def uses(self, name: str, options: Options) -> bool:
        if name in self.tables:
            return options["mode"] >= 0
        return name == "x" or _has_parameter(options["norm_type"], name)

    def norm_of(self, name: str, options: Options) -> int:
        norm: int = options["norm_type"]
        return norm

    def saved_tensors(self, tensors: Named, results: Named, options: Options) -> Named:
        saved = {name: results[name] for name in ("mean", "rstd")} | {name: tensors[name] for name in self.tables}
        return saved | {"x": tensors["x"] if options["norm_type"] else None, "weight": tensors["weight"]}

    def is_reached(self, name: str, incoming: Named) -> bool:
        return name in self.tables or incoming["dy"] is not None

    def names(self, shapes: Mapping[str, tuple[int, ...]], options: Options) -> AxisNames:
        names = AxisNames()
        if "dy" in shapes:
            b, n, s, _ = _in_order(shapes["dy"], options)
        else:
            b, s, n, _ = shapes["x"]
        names.rows["x"] = ("b", "s", "n", "d")
        names.joints["dy"] = _joint("b", "n", "s", options)
        names.stream_of = dict.fromkeys(("weight", "bias", "mean", "rstd"), "x")
        for table in self.tables:
            if table in shapes:
                shape = shapes[table]
                covers = shape[-2] == s
                names.tables[table] = _table(shape, "s" if covers else "l", "n", b, n)
                if not covers:
                    names.whole |= {"s", "l"}
        return names


# ---- the joint operator


class _Concat(ConcatNames, NormedOperator):
    parameters = tuple(f"{norm}_{member}" for norm in NORMS.values() for member in ("weight", "bias"))
    differentiable = ConcatNames.gradients

    def uses(self, name: str, options: Options) -> bool:
        if name in self.tables:
            return options["mode"] >= 0
        return name in self.rows or _has_parameter(self.norm_of(name, options), name.rsplit("_", 1)[1])

    def norm_of(self, name: str, options: Options) -> int:
        norm: int = options["norm_added_type" if name.startswith(("norm_added", "encoder")) else "norm_type"]
        return norm

    def saved_tensors(self, tensors: Named, results: Named, options: Options) -> Named:
        saved = {name: tensors[name] for name in self.tables}
        for stream, norm in NORMS.items():
            saved[stream] = tensors[stream] if self.norm_of(stream, options) else None
            saved[f"{norm}_weight"] = tensors[f"{norm}_weight"]
            saved |= {f"{norm}_{member}": results[f"{norm}_{member}"] for member in ("mean", "rstd")}
        return saved

    def lengths(self, tensors: Named) -> dict[str, int]:
        """The encoder's rows; what is left of a joint gradient is the image's. -1: absent."""
        key = tensors["encoder_value"] if tensors["encoder_key"] is None else tensors["encoder_key"]
        pairs = {"encoder_query_rows": tensors["encoder_query"], "encoder_key_rows": key}
        return {name: -1 if rows is None else rows.shape[1] for name, rows in pairs.items()}

    def is_reached(self, name: str, incoming: Named) -> bool:
        joint = next((joint for joint in JOINTS if joint in name.split("_")), None)
        return joint is None or incoming[f"grad_{joint}_output"] is not None

    def names(self, shapes: Mapping[str, tuple[int, ...]], options: Options) -> AxisNames:
        names = AxisNames()
        extents = self._extents(shapes, options)
        batch = next(iter(extents.values()))[0]
        heads = {joint: extent[1] for joint, extent in extents.items() if joint != "value"}
        # Query and key turn by the same tables: where those have a row or a head for each, both have the same names.
        tables = [shapes[table] for table in self.tables if table in shapes]
        shares_heads = any(len(table) == 4 and table[1] > 1 for table in tables)
        lengths = {extents[joint][2] for joint in heads}
        covers = all(lengths == {table[-2]} for table in tables)
        single = not any(name.startswith("encoder") or "added" in name for name in shapes) and all(
            options.get(name, -1) < 0 for name in ("encoder_query_rows", "encoder_key_rows")
        )
        for joint in extents:
            n = "n" if shares_heads and joint in heads else f"n_{joint}"
            rows = {"": f"s_{joint.replace('value', 'key')}", "encoder_": f"e_{joint.replace('value', 'key')}"}
            if single and tables and covers and joint in heads:
                rows[""] = "s"
            if single and joint == "value":
                rows[""] = "s_value"
            whole = rows[""] if single else f"j_{joint}"
            if not single or (tables and not covers and joint in heads):
                names.whole |= {*rows.values(), whole}
            names.rows |= {prefix + joint: ("b", s, n, "d") for prefix, s in rows.items()}
            names.joints[f"grad_{joint}_output"] = _joint("b", n, whole, options)
            self._tell_lengths(names, joint, extents[joint][2], single, options)
        table_rows = "s" if single and covers else "l"
        for table in self.tables:
            if table in shapes:
                of = f"{table_rows}_encoder" if table.startswith("encoder") else table_rows
                names.whole |= {of} if of != "s" else set()
                names.tables[table] = _table(shapes[table], of, "n", batch, max(heads.values(), default=1))
        members = ("weight", "bias", "mean", "rstd")
        names.stream_of = {f"{norm}_{member}": stream for stream, norm in NORMS.items() for member in members}
        return names

    @staticmethod
    def _tell_lengths(names: AxisNames, joint: str, length: int, single: bool, options: Options) -> None:
        """Extents that the backward's tensors need not have, and of the forward's joints."""
        if single:
            return
        names.extents[f"j_{joint}"] = length
        part = joint.replace("value", "key")
        encoder = options.get(f"encoder_{part}_rows")
        if encoder is not None:
            names.extents |= {f"e_{part}": max(encoder, 0), f"s_{part}": length - max(encoder, 0)}

    def _extents(self, shapes: Mapping[str, tuple[int, ...]], options: Options) -> dict[str, tuple[int, ...]]:
        """Joint -> B, N and the joint length, of those that there are."""
        extents = {}
        for joint, incoming in zip(JOINTS, self.incoming, strict=True):
            streams = [shapes[name] for name in (joint, f"encoder_{joint}") if name in shapes]
            if incoming in shapes:
                extents[joint] = _in_order(shapes[incoming], options)[:3]
            elif streams and not any(name in shapes for name in self.incoming):
                extents[joint] = (streams[0][0], streams[0][2], sum(stream[1] for stream in streams))
        return extents


SEGMENT = _Segment()
CONCAT = _Concat()


# ---- the custom calls


def _bits(names: Names, given: Names) -> int:
    return sum(1 << i for i, name in enumerate(names) if name in given)


def _batch(operator: NormedOperator, given: Names, sums: bool) -> Callable[..., Arrays]:
    """The rule of vmap: one call, the samples beside the batch, where weights and tables are the same for all samples,
    no weight's gradient is asked for, and no type says that the batch is split; otherwise one call a sample.
    """
    shared = {*operator.parameters, *operator.tables}

    def rule(
        function: Callable[..., Arrays], samples: int, batched: Sequence[bool], operands: Sequence[jax.Array]
    ) -> Arrays:
        named = dict(zip(given, operands, strict=True))
        own = any(is_batched for name, is_batched in zip(given, batched, strict=True) if name in shared)
        own |= any(named[name].ndim == 4 and named[name].shape[0] > 1 for name in operator.tables if name in given)
        rows = (
            (named[name], is_batched) for name, is_batched in zip(given, batched, strict=True) if name not in shared
        )
        own |= any(place_of(array, int(is_batched)) is not None for array, is_batched in rows)
        if own or sums or samples == 0:
            return looped(function, samples, batched, operands)
        joined = []
        for name, array, is_batched in zip(given, operands, batched, strict=True):
            if name not in shared:
                array = array if is_batched else jnp.broadcast_to(array, (samples, *array.shape))
                array = array.reshape(samples * array.shape[1], *array.shape[2:])
            joined.append(array)
        results = function(*joined)
        return tuple(result.reshape(samples, result.shape[0] // samples, *result.shape[1:]) for result in results)

    return rule


@cache
def _forward_call(operator: NormedOperator, numbers: Numbers, given: Names, wanted: Names) -> Callable[..., Arrays]:
    options = dict(numbers)

    def axes(operands: Shapes) -> Axes:
        names = operator.names(dict(zip(given, operands, strict=True)), options)
        incoming = dict(zip(operator.joints, operator.incoming, strict=True))
        results = tuple(
            Result(names.of(incoming.get(name, name)), is_statistic=name not in operator.joints) for name in wanted
        )
        return Axes(tuple(names.of(name) for name in given), results, frozenset(names.whole), names.extents)

    attributes = (*numbers, ("given", _bits(operator.tensors, given)), ("wanted", _bits(operator.results, wanted)))
    return CustomCall(operator.name, attributes, axes).build(_batch(operator, given, False))


@cache
def _backward_call(operator: NormedOperator, numbers: Numbers, given: Names, wanted: Names) -> Callable[..., Arrays]:
    """`wanted` names tensors of the forward."""
    options = dict(numbers)
    parameters = [name for name in wanted if name in operator.parameters]

    def axes(operands: Shapes) -> Axes:
        names = operator.names(dict(zip(given, operands, strict=True)), options)
        results = []
        for name in wanted:
            if name in operator.rows:
                results.append(Result(names.rows[name]))
            else:
                weight = given.index(name.replace("bias", "weight"))
                results.append(Result(("w",), weight, summed=names.rows[names.stream_of[name]][:3]))
        return Axes(tuple(names.of(name) for name in given), tuple(results), frozenset(names.whole), names.extents)

    all_given, all_wanted = (*operator.incoming, *operator.saved), operator.differentiable
    attributes = (*numbers, ("given", _bits(all_given, given)), ("wanted", _bits(all_wanted, wanted)))
    widened = tuple(i for i, name in enumerate(given) if name in operator.parameters)
    call = CustomCall(f"{operator.name}_backward", attributes, axes, widened)
    return call.build(_batch(operator, given, bool(parameters)))


# ---- differentiation


@partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _normed(operator: NormedOperator, numbers: Numbers, wanted: tuple[bool, ...], tensors: Named) -> Arrays:
    """The forward's wanted results."""
    given = tuple(name for name in operator.tensors if tensors[name] is not None)
    results = tuple(name for name, is_wanted in zip(operator.results, wanted, strict=True) if is_wanted)
    return _forward_call(operator, numbers, given, results)(*(tensors[name] for name in given))


def _keep(operator: NormedOperator, numbers: Numbers, wanted: tuple[bool, ...], tensors: Any) -> tuple[Arrays, Any]:
    for name in operator.tables:
        if tensors[name] is not None and tensors[name].perturbed:
            raise ValueError(
                f"{operator.name}: {name} is differentiated, and tables get no gradient here; pass it through "
                "jax.lax.stop_gradient, or turn with gyrograd.jax.rotary, which gives it one"
            )
    asked = flagged(tensors[name] is not None and tensors[name].perturbed for name in operator.differentiable)
    values = {name: None if array is None else array.value for name, array in tensors.items()}
    results = _normed(operator, numbers, wanted, values)
    there = iter(results)
    named = {name: next(there) if is_wanted else None for name, is_wanted in zip(operator.results, wanted, strict=True)}
    saved = operator.saved_tensors(values, named, dict(numbers))
    shapes = Static((name, array.shape, array.dtype) for name, array in named.items() if array is not None)
    splits = shardings(*(values[name] for name in operator.differentiable))
    return results, (asked, Static(operator.lengths(values).items()), shapes, splits, saved)


def _gradients(
    operator: NormedOperator, numbers: Numbers, wanted: tuple[bool, ...], kept: Any, gradients: Any
) -> tuple[Named]:
    flags, lengths, shapes, splits, saved = kept
    needed = [name for name, is_needed in zip(operator.differentiable, flags_of(flags), strict=True) if is_needed]
    results = (name for name, is_wanted in zip(operator.results, wanted, strict=True) if is_wanted)
    reached = dict(zip(results, gradients, strict=True))
    incoming = {}
    for joint, name in zip(operator.joints, operator.incoming, strict=True):
        gradient = reached.get(joint)
        incoming[name] = None if isinstance(gradient, SymbolicZero) else gradient
    asked = tuple(name for name in needed if operator.is_reached(name, incoming))
    answer: Named = dict.fromkeys(operator.tensors)
    if asked:
        options = dict(numbers)
        options.pop("eps")
        options |= dict(lengths)
        completed = _completed(operator, incoming, shapes, options)
        tensors = completed | {
            name: tensor if operator.is_reached(name, completed) else None for name, tensor in saved.items()
        }
        tensors = varying(tensors, ())
        of = dict(zip(operator.differentiable, splits, strict=True))
        gradients = _backward_compiled(operator, tuple(options.items()), asked, tensors)
        answer |= {name: split_as(gradient, of[name]) for name, gradient in zip(asked, gradients, strict=True)}
    return (answer,)


def _completed(operator: NormedOperator, incoming: Named, shapes: Any, options: Options) -> Named:
    """Zeros for joints that do not reach the loss, where something turns: what tables must have is a matter of all."""
    if options["mode"] < 0:
        return incoming
    there = {name: (shape, dtype) for name, shape, dtype in shapes}
    result = dict(incoming)
    for joint, name in zip(operator.joints, operator.incoming, strict=True):
        if result[name] is None and joint in there and joint != "value":
            result[name] = jnp.zeros(*there[joint])
    return result


_normed.defvjp(_keep, _gradients, symbolic_zeros=True)
normed = jax.jit(_normed, static_argnums=(0, 1, 2), inline=True)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _backward(operator: NormedOperator, numbers: Numbers, wanted: Names, tensors: Named) -> Arrays:
    """The gradients of the wanted tensors."""
    given = tuple(name for name in (*operator.incoming, *operator.saved) if tensors[name] is not None)
    return _backward_call(operator, numbers, given, wanted)(*(tensors[name] for name in given))


def _refuse(operator: NormedOperator, *arguments: Any) -> None:
    raise NotImplementedError(
        f"{operator.name}: its gradients have no gradients of their own (double backward); gyrograd.jax.rotary's have"
    )


_backward.defvjp(_refuse, _refuse)
_backward_compiled = jax.jit(_backward, static_argnums=(0, 1, 2), inline=True)

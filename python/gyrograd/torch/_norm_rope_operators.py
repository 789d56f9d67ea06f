"""torch.ops.gyrograd.norm_rope, norm_rope_concat and their backwards, and what both ways of a call share."""

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

import torch

from gyrograd import _core
from gyrograd._norm_rope_names import JOINTS, NORMS, STREAMS, ConcatNames, SegmentNames
from gyrograd.torch._library import Tensors, filled, looped_vmap, named_results, register, widened
from gyrograd.torch._options import ROWS, in_schema
from gyrograd.torch._sharded import reduced, widened_if_sharded

Named = Mapping[str, torch.Tensor | None]
Options = dict[str, Any]
OptionalTensors = tuple[torch.Tensor | None, ...]

_ROTATION = {
    "rope_type": "str?",
    "per_pair_tables": "bool",
    "rotary_dim": "SymInt?",
    "rotary_offset": "SymInt",
    "rope_start": "SymInt",
    "out_layout": "str",
}
_MEMBERS = ("weight", "bias")


def has_mean(norm: str | None) -> bool:
    return norm in ("layer", "layer_affine")


def is_norm(norm: str | None) -> bool:
    return norm not in (None, "none")


def _has_parameter(norm: str | None, member: str) -> bool:
    return norm == "layer_affine" or (norm == "rms_affine" and member == "weight")


def _uses_tables(options: Options) -> bool:
    return options["rope_type"] not in (None, "none")


def _statistics_type(rows: torch.Tensor) -> torch.dtype:
    return torch.float64 if rows.dtype == torch.float64 else torch.float32


class NormedOperator:
    """One operator: the names of what goes in and out, and the rules that follow from them.

    Attributes:
      tensors: the forward's; the first of them, as many as gradients has, may require grad.
      tables: those of them that get no gradient.
      rows: those that hold rows of activations.
      results: the forward's; joints are those of them that are differentiable.
      incoming: the gradients of joints, as the backward calls them.
      saved: the backward's other tensors.
      gradients: the backward's results, in the order of tensors.
      options: names and schema types of the forward's; the backward's are the same without eps.
    """

    name: str
    tensors: tuple[str, ...]
    tables: tuple[str, ...]
    rows: tuple[str, ...]
    results: tuple[str, ...]
    joints: tuple[str, ...]
    incoming: tuple[str, ...]
    saved: tuple[str, ...]
    gradients: tuple[str, ...]
    options: dict[str, str]

    # ---- the core's calls

    def compute(self, tensors: Sequence[torch.Tensor | None], options: Options) -> OptionalTensors:
        """The forward's results; None where there are none."""
        return self._call(self.name, dict(zip(self.tensors, tensors, strict=True)) | options, None)

    def compute_backward(
        self, tensors: Sequence[torch.Tensor | None], wanted: Sequence[bool], options: Options
    ) -> OptionalTensors:
        """The gradients; None where not wanted."""
        names = [name for name, is_wanted in zip(self.gradients, wanted, strict=True) if is_wanted]
        arrays = dict(zip((*self.incoming, *self.saved), tensors, strict=True))
        return self._call(f"{self.name}_backward", arrays | options, names)

    def trace(self, shapes: Sequence[Any], options: Options) -> None:
        """The core's refusal, if any, of tensors of these shapes and types."""
        self._call(f"trace_{self.name}", dict(zip(self.tensors, shapes, strict=True)) | options, None)

    def _call(self, name: str, keywords: dict[str, Any], outputs: list[str] | None) -> OptionalTensors:
        common = {"outputs": outputs, "out": None, "threads": torch.get_num_threads(), "cpu_target": None}
        return getattr(_core, name)(keywords | common)

    # ---- rules

    def in_schema(self, options: Options) -> Options:
        """The options as the operators' schemas take them."""
        rows = dict.fromkeys(self.tensors) | {self.rows[0]: ROWS}
        return in_schema(self.name, self.options, options, lambda: self._call(self.name, rows | options, None))

    def are_there(self, tensors: Named, options: Options) -> tuple[bool, ...]:
        """Which of the forward's results there are."""
        raise NotImplementedError

    def saved_tensors(self, tensors: Named, results: Named, options: Options) -> Named:
        """What the backward needs, by its names in saved; a name that is missing stands for None."""
        raise NotImplementedError

    def differentiable(self, incoming: Sequence[Any], tensors: Named, options: Options) -> tuple[bool, ...]:
        """Which of gradients the types define and the incoming gradients reach."""
        raise NotImplementedError

    def shapes(self, tensors: Named, options: Options) -> Mapping[str, tuple[Any, ...]]:
        """The forward's results' shapes and types; those that are there."""
        raise NotImplementedError

    def gradient_shapes(self, tensors: Named, options: Options) -> Mapping[str, tuple[Any, ...]]:
        """The same of the backward's."""
        raise NotImplementedError

    # ---- autograd, of both ways

    def save(
        self,
        ctx: Any,
        needs: Sequence[bool],
        tensors: Sequence[torch.Tensor | None],
        results: Sequence[torch.Tensor | None],
        options: Options,
    ) -> None:
        """Keeps what the backward needs and says what is not differentiable; ValueError where a table requires grad."""
        named = dict(zip(self.tensors, tensors, strict=True))
        for name, table_needs in zip(self.tensors, needs, strict=False):
            if table_needs and name in self.tables and _uses_tables(options):
                raise ValueError(
                    f"{self.name}: {name} requires grad, and tables get no gradient here; pass it detached, as from "
                    "detach(), or turn with gyrograd.torch.rotary, which gives it one"
                )
        there = self.are_there(named, options)
        present = dict(zip(self.results, named_results(results, there), strict=True))
        saved = self.saved_tensors(named, present, options)
        ctx.save_for_backward(*(saved.get(name) for name in self.saved))
        ctx.set_materialize_grads(False)
        ctx.options = {name: value for name, value in options.items() if name != "eps"}
        # What decides which gradients there are, beside the incoming ones.
        ctx.present = {name: tensor is not None for name, tensor in named.items()}
        # Parameters that the types do not use need nothing.
        needed = any(needs[: len(self.rows)]) or any(self.wanted(ctx, needs, [present[joint] for joint in self.joints]))
        fixed = [
            result
            for name, result, is_there in zip(self.results, results, there, strict=True)
            if result is not None and not (needed and is_there and name in self.joints)
        ]
        ctx.mark_non_differentiable(*fixed)
        ctx.shapes = tuple(None if present[joint] is None else present[joint].shape for joint in self.joints)

    def wanted(self, ctx: Any, needs: Sequence[bool], incoming: Sequence[torch.Tensor | None]) -> tuple[bool, ...]:
        """Which gradients autograd asks for and the incoming gradients reach."""
        possible = self.differentiable(incoming, ctx.present, ctx.options)
        return tuple(need and can for need, can in zip(needs, possible, strict=False))

    def complete(self, ctx: Any, incoming: Sequence[torch.Tensor | None]) -> OptionalTensors:
        """Zeros, without memory, for joints that do not reach the loss: what tables must have is a matter of all."""
        if not _uses_tables(ctx.options):
            return tuple(incoming)
        like = _first(incoming)
        return tuple(
            like.new_zeros(()).expand(shape) if gradient is None and shape is not None else gradient
            for gradient, shape in zip(incoming, ctx.shapes, strict=True)
        )

    def backward(
        self, ctx: Any, wanted: Sequence[bool], incoming: Sequence[torch.Tensor | None]
    ) -> tuple[torch.Tensor | None, ...]:
        """The gradients by the registered operator, whose own gradients are refused by name."""
        operator = getattr(torch.ops.gyrograd, f"{self.name}_backward").default
        saved = dict(zip(self.saved, ctx.saved_tensors, strict=True))
        weights = {name: weight for name, weight in saved.items() if name.endswith("weight") and weight is not None}
        dtype = next((weight.dtype for weight in weights.values()), torch.float32)  # that of all
        saved |= dict(zip(weights, widened_if_sharded(*weights.values()), strict=True))
        results = operator(*incoming, *saved.values(), list(wanted), *self.in_schema(ctx.options).values())
        return tuple(
            result if name in self.rows else reduced(result, dtype)
            for name, result in zip(self.tensors, named_results(results, wanted), strict=False)
        )

    # ---- the registered operators

    def register(self) -> Any:
        """Registers forward and backward, and returns the forward."""
        self._register_backward()
        names, count = self.tensors, len(self.tensors)

        def split(arguments: Sequence[Any]) -> tuple[Sequence[Any], Options]:
            return arguments[:count], dict(zip(self.options, arguments[count:], strict=True))

        def kernel(*arguments: Any) -> Tensors:
            tensors, options = split(arguments)
            return filled(_first(tensors), self.compute(tensors, options))

        def fake(*arguments: Any) -> Tensors:
            tensors, options = split(arguments)
            named = dict(zip(names, tensors, strict=True))
            first = _first(tensors)
            if self._are_rows(named):
                shapes = self.shapes(named, options)
            else:  # the core's to refuse, when it runs
                shapes = dict.fromkeys(self.results, (first.shape, first.dtype))
            return _new(first, self.results, self.are_there(named, options), shapes)

        def setup_context(ctx: Any, inputs: Sequence[Any], output: Tensors) -> None:
            tensors, options = split(inputs)
            self.save(ctx, ctx.needs_input_grad, tensors, output, options)
            ctx.input_shapes = [None if tensor is None else tensor.shape for tensor in tensors[: len(self.gradients)]]
            if not self._are_rows(dict(zip(names, tensors, strict=True))):
                ctx.mark_non_differentiable(*output)

        def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
            incoming = gradients[: len(self.joints)]
            nothing = (None,) * (count + len(self.options) - len(self.gradients))
            wanted = self.wanted(ctx, ctx.needs_input_grad[: len(self.gradients)], incoming)
            if not any(wanted):
                return (None,) * len(self.gradients) + nothing
            results = self.backward(ctx, wanted, self.complete(ctx, incoming))
            return *map(_of_shape, results, ctx.input_shapes), *nothing

        def autocast(*arguments: Any) -> tuple[Any, ...]:
            tensors, options = split(arguments)
            return *self._autocast(dict(zip(names, tensors, strict=True))).values(), *options.values()

        tensors = ", ".join(f"Tensor? {name}" for name in names)
        options = ", ".join(f"{kind} {name}" for name, kind in self.options.items())
        return register(
            self.name,
            f"({tensors}, {options}) -> ({_results(self.results)})",
            kernel=kernel,
            fake=fake,
            setup_context=setup_context,
            backward=backward,
            vmap=looped_vmap(self.name),
            autocast=autocast,
        )

    def _are_rows(self, tensors: Named) -> bool:
        """Whether there are rows, all of rank 4."""
        ranks = [tensors[name].dim() for name in self.rows if tensors[name] is not None]
        return bool(ranks) and all(rank == 4 for rank in ranks)

    def _register_backward(self) -> None:
        names = (*self.incoming, *self.saved)
        option_names = [name for name in self.options if name != "eps"]

        def split(arguments: Sequence[Any]) -> tuple[Sequence[Any], Sequence[bool], Options]:
            tensors, wanted, *options = arguments[: len(names)], *arguments[len(names) :]
            return tensors, wanted, dict(zip(option_names, options, strict=True))

        def kernel(*arguments: Any) -> Tensors:
            tensors, wanted, options = split(arguments)
            return filled(_first(tensors), self.compute_backward(tensors, wanted, options))

        def fake(*arguments: Any) -> Tensors:
            tensors, wanted, options = split(arguments)
            named = dict(zip(names, tensors, strict=True))
            return _new(_first(tensors), self.gradients, wanted, self.gradient_shapes(named, options))

        def setup_context(ctx: Any, inputs: Sequence[Any], output: Tensors) -> None:
            pass

        def backward(ctx: Any, *gradients: torch.Tensor | None) -> None:
            raise NotImplementedError(
                f"{self.name}: its gradients have no gradients of their own (double backward); "
                "gyrograd.torch.rotary's have"
            )

        tensors = ", ".join(f"Tensor? {name}" for name in names)
        options = ", ".join(f"{self.options[name]} {name}" for name in option_names)
        register(
            f"{self.name}_backward",
            f"({tensors}, bool[] wanted, {options}) -> ({_results(self.gradients)})",
            kernel=kernel,
            fake=fake,
            setup_context=setup_context,
            backward=backward,
            vmap=looped_vmap(f"{self.name}_backward"),
        )

    def _autocast(self, named: dict[str, torch.Tensor | None]) -> dict[str, torch.Tensor | None]:
        """Rows in the widest of their types, as PyTorch's autocast does for cat; the others as go with them."""
        rows = [named[name] for name in self.rows if named[name] is not None]
        if not rows:
            return named
        widest = reduce(torch.promote_types, (tensor.dtype for tensor in rows))
        result = dict(named)
        for name in self.rows:
            result[name] = None if named[name] is None else named[name].to(widest)
        parameters = [name for name in self.tensors if name not in self.rows and name not in self.tables]
        for group in (parameters, self.tables):
            fitting = widened(result[next(n for n in self.rows if named[n] is not None)], *(named[n] for n in group))
            result |= dict(zip(group, fitting, strict=True))
        return result


def _results(names: Sequence[str]) -> str:
    return ", ".join(["Tensor"] * len(names))


def _first(tensors: Sequence[torch.Tensor | None]) -> torch.Tensor:
    for tensor in tensors:
        if tensor is not None:
            return tensor
    raise ValueError("no tensor was given")


def _new(
    like: torch.Tensor, names: Sequence[str], are_there: Sequence[bool], shapes: Mapping[str, tuple[Any, ...]]
) -> Tensors:
    """New tensors without values."""
    results = []
    for name, is_there in zip(names, are_there, strict=True):
        shape, dtype = shapes[name] if is_there else ((0,), like.dtype)
        results.append(like.new_empty(shape, dtype=dtype))
    return tuple(results)


def _of_shape(gradient: torch.Tensor | None, shape: Any) -> torch.Tensor | None:
    """A gradient as autograd takes it while it traces a call of shapes that the core will refuse."""
    return gradient if gradient is None or gradient.shape == shape else gradient.new_empty(shape)


def _in_layout(shape: Sequence[Any], options: Options) -> tuple[Any, ...]:
    """[B, N, S, D] in the order of out_layout, and back."""
    b, n, s, d = shape
    return (b, s, n, d) if options["out_layout"] == "BSND" else (b, n, s, d)


# ---- one segment


class _Segment(SegmentNames, NormedOperator):
    options = {"norm_type": "str?", "eps": "float"} | _ROTATION

    def are_there(self, tensors: Named, options: Options) -> tuple[bool, ...]:
        return True, has_mean(options["norm_type"]), is_norm(options["norm_type"])

    def saved_tensors(self, tensors: Named, results: Named, options: Options) -> Named:
        norm = options["norm_type"]
        saved = {name: results[name] for name in ("mean", "rstd")}
        saved["x"] = tensors["x"] if is_norm(norm) else None
        saved["weight"] = tensors["weight"] if _has_parameter(norm, "weight") else None
        return saved | {name: tensors[name] if _uses_tables(options) else None for name in self.tables}

    def differentiable(self, incoming: Sequence[Any], tensors: Named, options: Options) -> tuple[bool, ...]:
        is_there = incoming[0] is not None
        return is_there, *(is_there and _has_parameter(options["norm_type"], member) for member in _MEMBERS)

    def shapes(self, tensors: Named, options: Options) -> Mapping[str, tuple[Any, ...]]:
        x = tensors["x"]
        b, s, n, d = x.shape
        statistics = ((b, s, n, 1), _statistics_type(x))
        return {"y": (_in_layout((b, n, s, d), options), x.dtype), "mean": statistics, "rstd": statistics}

    def gradient_shapes(self, tensors: Named, options: Options) -> Mapping[str, tuple[Any, ...]]:
        dy, weight = tensors["dy"], tensors["weight"]
        b, n, s, d = _in_layout(dy.shape, options)
        parameter = ((d,), dy.dtype if weight is None else weight.dtype)
        return {"dx": ((b, s, n, d), dy.dtype), "dweight": parameter, "dbias": parameter}


# ---- the joint operator


def _norm_of(stream: str, options: Options) -> str | None:
    return options["norm_added_type" if stream.startswith("encoder") else "norm_type"]


def _stand_in(rows: torch.Tensor | None) -> torch.Tensor | None:
    """The shape of rows, without their memory."""
    return None if rows is None else rows.new_empty(()).expand(rows.shape)


class _Concat(ConcatNames, NormedOperator):
    options = {"norm_type": "str?", "norm_added_type": "str?", "concat_order": "str", "eps": "float"} | _ROTATION

    def are_there(self, tensors: Named, options: Options) -> tuple[bool, ...]:
        there = [tensors[joint] is not None or tensors[f"encoder_{joint}"] is not None for joint in JOINTS]
        for stream in NORMS:
            norm, is_given = _norm_of(stream, options), tensors[stream] is not None
            there += [is_given and has_mean(norm), is_given and is_norm(norm)]
        return tuple(there)

    def saved_tensors(self, tensors: Named, results: Named, options: Options) -> Named:
        saved = {name: tensors[name] if _uses_tables(options) else None for name in self.tables}
        for stream, norm in NORMS.items():
            kind = _norm_of(stream, options)
            saved[stream] = tensors[stream] if is_norm(kind) else None
            saved[f"{norm}_weight"] = tensors[f"{norm}_weight"] if _has_parameter(kind, "weight") else None
            saved |= {f"{norm}_{member}": results[f"{norm}_{member}"] for member in ("mean", "rstd")}
        # Lengths cut the joint gradients: the encoder's are told, what is left is the image's.
        for stream in ("encoder_query", "encoder_key"):
            if saved[stream] is None:
                saved[stream] = _stand_in(tensors[stream])
        if tensors["key"] is None and tensors["encoder_key"] is None:
            saved["encoder_key"] = _stand_in(tensors["encoder_value"])
        return saved

    def differentiable(self, incoming: Sequence[Any], tensors: Named, options: Options) -> tuple[bool, ...]:
        reached = dict(zip(JOINTS, (gradient is not None for gradient in incoming), strict=True))
        reached = {stream: tensors[stream] and reached[stream.removeprefix("encoder_")] for stream in STREAMS}
        parameters = [
            reached[stream] and tensors[f"{norm}_{member}"] and _has_parameter(_norm_of(stream, options), member)
            for stream, norm in NORMS.items()
            for member in _MEMBERS
        ]
        return *reached.values(), *parameters

    def shapes(self, tensors: Named, options: Options) -> Mapping[str, tuple[Any, ...]]:
        shapes = {}
        for joint in JOINTS:
            streams = [tensors[name] for name in (joint, f"encoder_{joint}") if tensors[name] is not None]
            if streams:
                b, _, n, d = streams[0].shape
                rows = sum(stream.shape[1] for stream in streams)
                shapes[joint] = (_in_layout((b, n, rows, d), options), streams[0].dtype)
        for stream, norm in NORMS.items():
            x = tensors[stream]
            if x is not None:
                statistics = ((*x.shape[:3], 1), _statistics_type(x))
                shapes |= {f"{norm}_{member}": statistics for member in ("mean", "rstd")}
        return shapes

    def gradient_shapes(self, tensors: Named, options: Options) -> Mapping[str, tuple[Any, ...]]:
        shapes = {}
        for joint, incoming in zip(JOINTS, self.incoming, strict=True):
            dy = tensors[incoming]
            if dy is None:
                continue
            b, n, s, d = _in_layout(dy.shape, options)
            image, encoder = (tensors[f"{prefix}{'key' if joint == 'value' else joint}"] for prefix in ("", "encoder_"))
            encoder_rows = 0 if encoder is None else encoder.shape[1]
            rows = s - encoder_rows if image is None else image.shape[1]
            shapes[joint] = ((b, rows, n, d), dy.dtype)
            shapes[f"encoder_{joint}"] = ((b, encoder_rows, n, d), dy.dtype)
        for norm in NORMS.values():
            weight = tensors[f"{norm}_weight"]
            if weight is not None:
                shapes |= {f"{norm}_{member}": (tuple(weight.shape), weight.dtype) for member in _MEMBERS}
        return shapes


SEGMENT = _Segment()
CONCAT = _Concat()
SEGMENT_OPERATOR = SEGMENT.register()
CONCAT_OPERATOR = CONCAT.register()

"""What the commands grad and explain know of each operator: its tensors, its options, its problems."""

import argparse
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

import numpy as np

import gyrograd
from gyrograd import _core
from gyrograd._concat_problem import DEFAULTS, SIZES, ConcatProblem
from gyrograd._inputs import (
    CONCAT_ORDERS,
    MODES,
    MORE_ROPE_TYPES,
    NORM_TYPES,
    ROPE_TYPES,
    numbered,
    parse_concat_order,
    parse_count,
    parse_dtype,
    parse_mode,
    parse_norm_type,
    parse_rope_type,
    parse_shape,
)
from gyrograd._norm_rope import NormRopeConcatGradients, NormRopeGradients


def argument(parse: Callable[[str], object]) -> Callable[[str], object]:
    """A parser whose own message argparse shows."""

    def convert(text: str) -> object:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return convert


def _integer(text: str) -> int:
    if not re.fullmatch(r"-?[0-9]{1,18}", text):
        raise ValueError(f"{text!r} is not a whole number of at most 18 digits")
    return int(text)


def _names_of(results: Sequence[str]) -> Callable[[str], tuple[str, ...]]:
    def parse(text: str) -> tuple[str, ...]:
        names = tuple(text.split(","))
        unknown = [name for name in names if name not in results]
        if unknown:
            raise ValueError(f"{unknown[0]!r} is not a result; results are {', '.join(results)}")
        return tuple(name for name in results if name in names)

    return parse


class Operator:
    """One operator's part of the commands."""

    name: str
    tensors: tuple[str, ...]
    required: tuple[str, ...]
    needs: str  # of the tensors, in words
    results: tuple[str, ...]
    # Of options that a problem has and a call may lack.
    problem_defaults: Mapping[str, object] = MappingProxyType({})

    def add_options(self, command: argparse.ArgumentParser) -> None:
        """The options of the call."""
        command.add_argument(
            "--per-pair-tables", action="store_true", help="one table value for both members of a pair"
        )
        command.add_argument(
            "--rotary-dim", type=argument(_integer), metavar="R", help="how many channels turn; default all"
        )
        command.add_argument(
            "--rotary-offset", type=argument(_integer), default=0, metavar="O", help="the first channel that turns"
        )
        command.add_argument(
            "--outputs",
            type=argument(_names_of(self.results)),
            metavar="NAMES",
            help=f"the results wanted, such as {self.results[0]},{self.results[1]}",
        )

    def add_problem(self, command: argparse.ArgumentParser) -> None:
        """The shapes and types of a problem, for explain."""
        raise NotImplementedError

    def gradients(self, tensors: dict[str, np.ndarray], options: argparse.Namespace) -> dict[str, np.ndarray]:
        """The results that were wanted, by name."""
        raise NotImplementedError

    def plan(self, options: argparse.Namespace) -> str:
        """The plan of a problem in words; TypeError or ValueError where the call would be refused."""
        raise NotImplementedError

    def products(self, options: argparse.Namespace) -> list[dict[str, object]]:
        """Every product's verdict; the first is the library's own."""
        raise NotImplementedError

    def _keywords(self, options: argparse.Namespace) -> dict[str, object]:
        return {
            "per_pair_tables": options.per_pair_tables,
            "rotary_dim": options.rotary_dim,
            "rotary_offset": options.rotary_offset,
            "outputs": options.outputs,
            "threads": options.threads,
            "cpu_target": options.target,
        }


class Rotary(Operator):
    """rotary_backward."""

    name = "rotary"
    tensors = ("dy", "cos", "sin", "x")
    required = ("dy", "cos", "sin")
    needs = "dy, cos, sin and, for dcos and dsin, x"
    results = ("dx", "dcos", "dsin")

    def add_options(self, command: argparse.ArgumentParser) -> None:
        command.add_argument(
            "--mode", type=argument(parse_mode), default="half", help=f"{numbered(MODES)}; default half"
        )
        super().add_options(command)

    def add_problem(self, command: argparse.ArgumentParser) -> None:
        shape, dtype = argument(parse_shape), argument(parse_dtype)
        command.add_argument(
            "--dy", type=shape, required=True, metavar="SHAPE", help="dy's shape, such as 2x4096x32x128"
        )
        command.add_argument("--cos", type=shape, required=True, metavar="SHAPE", help="the tables' shape")
        command.add_argument("--dtype", type=dtype, default="bf16", help="f64, f32, f16 or bf16 (default)")
        command.add_argument("--table-dtype", type=dtype, help="the tables' type; default dy's")
        command.add_argument("--no-x", action="store_true", help="x is not given: dx alone")

    def gradients(self, tensors: dict[str, np.ndarray], options: argparse.Namespace) -> dict[str, np.ndarray]:
        results = gyrograd.rotary_backward(**tensors, **self._keywords(options))
        results = results if isinstance(results, tuple) else (results, None, None)
        return {name: result for name, result in zip(self.results, results, strict=True) if result is not None}

    def plan(self, options: argparse.Namespace) -> str:
        table_dtype = options.table_dtype or options.dtype
        return _core.describe_rotary_backward(
            options.dy,
            options.cos,
            options.dtype,
            table_dtype,
            with_x=not options.no_x,
            **self._keywords(options),
        )

    def products(self, options: argparse.Namespace) -> list[dict[str, object]]:
        wanted = options.outputs or (self.results[:1] if options.no_x else self.results)
        return _core.explain_rotary_backward(
            options.dy,
            options.cos,
            options.dtype,
            options.table_dtype or options.dtype,
            table_gradients=bool({"dcos", "dsin"} & set(wanted)),
            mode=options.mode,
            per_pair_tables=options.per_pair_tables,
            rotary_dim=options.rotary_dim,
        )

    def _keywords(self, options: argparse.Namespace) -> dict[str, object]:
        return {"mode": options.mode} | super()._keywords(options)


class _Normed(Operator):
    """What the operators with norms share."""

    types: Mapping[str, str]  # the options that choose norms: of what
    problem_defaults = MappingProxyType({"norm_type": "none", "norm_added_type": "none", "rope_type": "none"})

    def add_options(self, command: argparse.ArgumentParser) -> None:
        for name, what in self.types.items():
            command.add_argument(
                f"--{name.replace('_', '-')}",
                type=argument(parse_norm_type),
                help=f"{what}{numbered(NORM_TYPES)}; default none",
            )
        command.add_argument(
            "--rope-type",
            type=argument(parse_rope_type),
            help=f"{numbered(ROPE_TYPES, MORE_ROPE_TYPES)}; default none",
        )
        command.add_argument(
            "--rope-start", type=argument(_integer), default=0, metavar="P", help="the first position that turns"
        )
        command.add_argument(
            "--out-layout",
            choices=("BNSD", "BSND"),
            default="BNSD",
            help="the order of the incoming gradients' axes; default BNSD",
        )
        super().add_options(command)

    def _keywords(self, options: argparse.Namespace) -> dict[str, object]:
        names = (*self.types, "rope_type", "rope_start", "out_layout")
        return {name: getattr(options, name) for name in names} | super()._keywords(options)


class NormRope(_Normed):
    """norm_rope_backward."""

    name = "norm_rope"
    tensors = ("dy", "x", "weight", "mean", "rstd", "cos", "sin")
    required = ("dy",)
    needs = (
        "dy; with --norm-type x, rstd, for layer norms mean, for affine ones weight; with --rope-type cos and sin "
        "(without these options their tensors are refused)"
    )
    results = NormRopeGradients._fields
    types = MappingProxyType({"norm_type": ""})

    def gradients(self, tensors: dict[str, np.ndarray], options: argparse.Namespace) -> dict[str, np.ndarray]:
        results = gyrograd.norm_rope_backward(**tensors, **self._keywords(options))
        return {name: result for name, result in results._asdict().items() if result is not None}


class NormRopeConcat(_Normed):
    """norm_rope_concat_backward."""

    name = "norm_rope_concat"
    # The arrays are the keywords whose default is None, but for those that are no arrays.
    tensors = tuple(
        name
        for name, default in DEFAULTS.items()
        if default is None
        and not name.endswith("_type")
        and name not in ("rotary_dim", "outputs", "out", "threads", "cpu_target")
    )
    required = ()
    needs = (
        "grad_query_output, grad_key_output, grad_value_output, or some; query, key, encoder_query, encoder_key; "
        "with --norm-type norm_query_rstd, norm_key_rstd, for layer norms norm_query_mean ..., for affine ones "
        "norm_query_weight ...; with --norm-added-type norm_added_query_rstd ... likewise; with --rope-type rope_cos, "
        "rope_sin (without these options their tensors are refused)"
    )
    results = NormRopeConcatGradients._fields
    types = MappingProxyType({"norm_type": "of query and key: ", "norm_added_type": "of encoder query and key: "})

    def add_options(self, command: argparse.ArgumentParser) -> None:
        super().add_options(command)
        command.add_argument(
            "--concat-order",
            type=argument(parse_concat_order),
            default="stream_first",
            help=f"{numbered(CONCAT_ORDERS)}; default stream_first",
        )

    def add_problem(self, command: argparse.ArgumentParser) -> None:
        absent = {"default": 0, "help": "0 (default): absent"}
        optional = {
            "seq_encoder_query": absent,
            "seq_encoder_key": absent,
            "seq_rope": {"help": "the tables' rows; default: up to the end of the shorter of the joint query and key"},
            "key_heads": {"help": "default the query's"},
        }
        for name in (*SIZES, "key_heads"):
            more = optional.get(name, {"required": True})
            command.add_argument(f"--{name.replace('_', '-')}", type=argument(parse_count), metavar="N", **more)
        dtype = argument(parse_dtype)
        command.add_argument("--dtype", type=dtype, default="bf16", help="f64, f32, f16 or bf16 (default)")
        command.add_argument("--table-dtype", type=dtype, help="the tables' type; default the gradients'")
        command.add_argument("--weight-dtype", type=dtype, help="the weights' type; default the gradients'")

    def gradients(self, tensors: dict[str, np.ndarray], options: argparse.Namespace) -> dict[str, np.ndarray]:
        keywords = self._keywords(options)
        results = gyrograd.norm_rope_concat_backward(**{"grad_query_output": None} | tensors | keywords)
        return {name: result for name, result in results._asdict().items() if result is not None}

    def plan(self, options: argparse.Namespace) -> str:
        problem = _problem_of(options)
        shapes = problem.shapes()
        if options.out_layout == "BSND":
            for name in ("grad_query_output", "grad_key_output", "grad_value_output"):
                (b, n, s, d), dtype = shapes[name]
                shapes[name] = ((b, s, n, d), dtype)
        return _core.describe_norm_rope_concat_backward(problem.keywords(shapes, **self._keywords(options)))

    def products(self, options: argparse.Namespace) -> list[dict[str, object]]:
        problem = _problem_of(options)
        return _core.explain_norm_rope_concat_backward(
            problem.sizes(),
            problem.dtype,
            problem.table_dtype or problem.dtype,
            problem.weight_dtype or problem.dtype,
            **problem.options(),
            per_pair_tables=options.per_pair_tables,
            rotary_dim=options.rotary_dim,
            rope_start=options.rope_start,
        )

    def _keywords(self, options: argparse.Namespace) -> dict[str, object]:
        return {"concat_order": options.concat_order} | super()._keywords(options)


def _problem_of(options: argparse.Namespace) -> ConcatProblem:
    width = options.head_dim if options.rotary_dim is None else options.rotary_dim
    fields = {name: getattr(options, name) for name in ConcatProblem.__dataclass_fields__ if name != "table_width"}
    fields["seq_rope"] = _table_rows(options) if options.seq_rope is None else options.seq_rope
    return ConcatProblem(**fields, table_width=width // 2 if options.per_pair_tables else width)


def _table_rows(options: argparse.Namespace) -> int:
    """All positions from rope_start on that query and key both have; one where there are none, so that rope_start is
    what is refused.
    """
    shorter = min(
        options.seq_query + options.seq_encoder_query,
        options.seq_key + options.seq_encoder_key,
    )
    return max(shorter - max(options.rope_start, 0), min(shorter, 1))


OPERATORS: dict[str, Operator] = {operator.name: operator for operator in (Rotary(), NormRope(), NormRopeConcat())}
WITH_PROBLEMS = ("rotary", "norm_rope_concat")  # those that check and explain know


def operators_of(tensors: Iterable[str]) -> list[str]:
    """The operators that take all tensors of these names."""
    return [operator.name for operator in OPERATORS.values() if set(tensors) <= set(operator.tensors)]

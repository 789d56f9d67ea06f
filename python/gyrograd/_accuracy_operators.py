"""The operators as `gyrograd accuracy` runs them: a family's numbers as a call's arrays, the library's gradients, and
how they compare with the reference.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from gyrograd import NormRopeConcatGradients, _check_norm_rope_concat, _check_rotary
from gyrograd._accuracy_families import Arrays, Draw
from gyrograd._inputs import CONCAT_ORDERS, DTYPES, MODES, MORE_ROPE_TYPES, NORM_TYPES, ROPE_TYPES
from gyrograd._norm_rope import norm_rope_backward, norm_rope_concat_backward
from gyrograd._norm_rope_names import JOINTS, NORMS
from gyrograd._rotary import rotary_backward
from gyrograd._verdicts import Verdict


class Operator:
    """One operator; `call` below is what its `call` made of a family's numbers."""

    name: str
    norms: tuple[str, ...]
    modes: tuple[str, ...]
    columns: tuple[str, ...]  # what its results are shown under
    heads = 1  # so many times a family's
    long: Mapping[str, int] = MappingProxyType(
        {"batch": 4096, "length": 2, "heads": 1, "head_dim": 8}
    )  # of long families

    def call(self, draw: Draw, arrays: Arrays) -> Any:
        """The arrays of a call, in its types."""
        raise NotImplementedError

    def gradients(self, call: Any) -> Arrays:
        """The library's, by result."""
        raise NotImplementedError

    def eager(self, call: Any) -> Arrays:
        """The same by PyTorch's autograd of the usual formula."""
        raise NotImplementedError

    def compare(self, call: Any, results: Arrays) -> dict[str, Verdict]:
        """With the reference."""
        raise NotImplementedError

    def is_exact(self, result: str, norm: str) -> bool:
        """Whether a result's bits are promised."""
        raise NotImplementedError

    def column(self, result: str) -> str:
        return result


@dataclass(frozen=True)
class RotaryCall:
    mode: str
    tensors: Arrays


class Rotary(Operator):
    name = "rotary"
    norms = ("none",)
    modes = MODES
    columns = _check_rotary.RESULTS
    long = MappingProxyType({"batch": 16384, "length": 2, "heads": 1, "head_dim": 8})

    def call(self, draw: Draw, arrays: Arrays) -> RotaryCall:
        rows, tables = DTYPES[draw.kind.rows], DTYPES[draw.kind.tables]
        tensors = {name: arrays[name].astype(rows) for name in ("dy", "x")}
        tensors |= {name: arrays[name][None, :, None].astype(tables) for name in ("cos", "sin")}
        return RotaryCall(draw.mode, tensors)

    def gradients(self, call: RotaryCall) -> Arrays:
        results = rotary_backward(**call.tensors, mode=call.mode)
        return dict(zip(_check_rotary.RESULTS, results, strict=True))

    def eager(self, call: RotaryCall) -> Arrays:
        from gyrograd import _accuracy_eager

        return _accuracy_eager.rotary_gradients(call.tensors, call.mode)

    def compare(self, call: RotaryCall, results: Arrays) -> dict[str, Verdict]:
        return _check_rotary.compare(call.tensors, results, call.mode)

    def is_exact(self, result: str, norm: str) -> bool:
        return result == "dx"


@dataclass(frozen=True)
class JointCall:
    """Of norm_rope_concat_backward; that of norm_rope_backward is one of query alone."""

    problem: _check_norm_rope_concat.Problem
    arrays: Arrays

    def keywords(self) -> dict[str, Any]:
        return self.problem.keywords(self.arrays)


class _Normed(Operator):
    norms = NORM_TYPES

    def eager(self, call: JointCall) -> Arrays:
        from gyrograd import _accuracy_eager

        return _accuracy_eager.joint_gradients(call.problem, call.arrays)

    def compare(self, call: JointCall, results: Arrays) -> dict[str, Verdict]:
        every = dict.fromkeys(NormRopeConcatGradients._fields)
        return _check_norm_rope_concat.compare(call.keywords(), every | results, tuple(results))

    def is_exact(self, result: str, norm: str) -> bool:
        return norm == "none" or self.column(result) == "value"

    def _call(self, draw: Draw, rows: Arrays, arrays: Arrays, **sizes: Any) -> JointCall:
        """With these rows, and weights, statistics and tables to them."""
        problem = _check_norm_rope_concat.Problem(
            dtype=draw.kind.rows,
            table_dtype=draw.kind.tables,
            weight_dtype=draw.kind.tables,
            batch=draw.batch,
            head_dim=draw.head_dim,
            norm_type=draw.norm,
            norm_added_type=draw.norm,
            rope_type=draw.mode,
            **sizes,
        )
        rows = {name: values.astype(DTYPES[draw.kind.rows]) for name, values in rows.items()}
        made = {f"rope_{name}": arrays[name][: problem.seq_rope] for name in ("cos", "sin")}
        made |= {f"{NORMS[stream]}_weight": arrays["weight"] for stream in NORMS if stream in rows}
        types = {name: DTYPES[dtype] for name, (_, dtype) in problem.shapes().items()}
        made = {name: values.astype(types[name]) for name, values in made.items() if name in types}
        return JointCall(problem, rows | made | _check_norm_rope_concat.statistics(problem, rows))


class NormRope(_Normed):
    name = "norm_rope"
    modes = (*ROPE_TYPES, *MORE_ROPE_TYPES)
    # The call's keywords and results, and what they are called in the joint call.
    keywords: Mapping[str, str] = MappingProxyType(
        {
            "dy": "grad_query_output",
            "x": "query",
            "weight": "norm_query_weight",
            "mean": "norm_query_mean",
            "rstd": "norm_query_rstd",
            "cos": "rope_cos",
            "sin": "rope_sin",
        }
    )
    results: Mapping[str, str] = MappingProxyType(
        {"dx": "query", "dweight": "norm_query_weight", "dbias": "norm_query_bias"}
    )
    columns = tuple(results)

    def call(self, draw: Draw, arrays: Arrays) -> JointCall:
        rows = {"grad_query_output": arrays["dy"].swapaxes(1, 2), "query": arrays["x"]}
        lengths = {"seq_query": draw.length, "seq_key": 0, "seq_encoder_query": 0, "seq_encoder_key": 0}
        sizes = {"heads": draw.heads, **lengths, "seq_rope": draw.length, "concat_order": CONCAT_ORDERS[0]}
        return self._call(draw, rows, arrays, **sizes)

    def gradients(self, call: JointCall) -> Arrays:
        given = {name: call.arrays[joint] for name, joint in self.keywords.items() if joint in call.arrays}
        types = {"norm_type": call.problem.norm_type, "rope_type": call.problem.rope_type}
        results = norm_rope_backward(**given, **types)._asdict()
        return {self.results[name]: result for name, result in results.items() if result is not None}

    def column(self, result: str) -> str:
        return next(name for name, joint in self.results.items() if joint == result)


class NormRopeConcat(_Normed):
    """A family's positions are those of the joint sequence, and its heads those of query, key and value."""

    name = "norm_rope_concat"
    modes = ROPE_TYPES
    columns = ("query, key", "value", "weight", "bias")
    heads = len(JOINTS)

    def call(self, draw: Draw, arrays: Arrays) -> JointCall:
        order = CONCAT_ORDERS[int(draw.numbers.integers(2))]
        added = max(draw.length // 4, 1)
        of_added = slice(None, added) if order == "encoder_first" else slice(draw.length - added, None)
        of_stream = slice(added, None) if order == "encoder_first" else slice(None, draw.length - added)
        rows = {}
        for joint, dy, x in zip(JOINTS, *(np.split(arrays[name], 3, axis=2) for name in ("dy", "x")), strict=True):
            rows[f"grad_{joint}_output"] = dy.swapaxes(1, 2)
            if joint != "value":
                rows |= {joint: x[:, of_stream], f"encoder_{joint}": x[:, of_added]}
        lengths = {f"seq_{stream}": rows[stream].shape[1] for stream in NORMS}
        sizes = {"heads": draw.heads // 3, **lengths, "seq_rope": draw.length - draw.length // 4, "concat_order": order}
        return self._call(draw, rows, arrays, **sizes)

    def gradients(self, call: JointCall) -> Arrays:
        results = norm_rope_concat_backward(**call.keywords())._asdict()
        return {name: result for name, result in results.items() if result is not None}

    def column(self, result: str) -> str:
        if result.endswith(("_weight", "_bias")):
            return result.rpartition("_")[2]
        return "value" if result.endswith("value") else "query, key"


OPERATORS: dict[str, Operator] = {operator.name: operator for operator in (Rotary(), NormRope(), NormRopeConcat())}

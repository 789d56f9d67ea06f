"""NormRopeConcat problems of a CSV file or a line of text: their data, and their comparison with the reference."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gyrograd import _core, norm_rope_concat_backward
from gyrograd._concat_problem import SIZES, ConcatProblem
from gyrograd._inputs import (
    DTYPES,
    MORE_ROPE_TYPES,
    ROPE_TYPES,
    InputError,
    parse_concat_order,
    parse_count,
    parse_dtype,
    parse_norm_type,
    parse_rope_type,
)
from gyrograd._memory import require_arrays
from gyrograd._reference import check_norm_rope_concat_backward
from gyrograd._verdicts import Verdict, generator, worst

PARSERS = {
    "dtype": parse_dtype,
    **dict.fromkeys(SIZES, parse_count),
    "norm_type": parse_norm_type,
    "norm_added_type": parse_norm_type,
    "rope_type": parse_rope_type,
    "concat_order": parse_concat_order,
}
COLUMNS = tuple(PARSERS)
EPS = 1e-5
TITLE = (
    "every element of every gradient is compared. bits: of streams without a norm, elements whose bits differ; norm, "
    "weight, bias: largest error / bound of gradients through a norm, of weights' and of biases' (the last rounding "
    "alone can reach 1)"
)
HEADERS = ("rope", "type", "cases", "passed", "failed", "bits", "norm", "weight", "bias")
STREAMS = ("query", "key", "value", "encoder_query", "encoder_key", "encoder_value")


class Problem(ConcatProblem):
    """What a line of the file asks for."""

    def __str__(self) -> str:
        sizes = " ".join(f"{name} {getattr(self, name)}" for name in SIZES)
        return f"{' '.join(self.options().values())} {self.dtype} {sizes}"

    def is_normed(self, stream: str) -> bool:
        if stream.endswith("value"):
            return False
        return (self.norm_added_type if stream.startswith("encoder") else self.norm_type) != "none"

    def results(self) -> list[str]:
        """The names of all that the call must give."""
        arrays = self.shapes()
        streams = [name for name in STREAMS if name.replace("value", "key") in arrays]
        weights = [name for name in arrays if name.endswith("_weight")]
        kinds = {name: self.norm_added_type if "added" in name else self.norm_type for name in weights}
        biases = [name.replace("weight", "bias") for name in weights if kinds[name] == "layer_affine"]
        return streams + weights + biases


def read_problem(field: Callable[[str, Callable[[str], object]], object]) -> Problem:
    """A problem whose columns `field` reads."""
    try:
        return _accepted(Problem(**{name: field(name, parse) for name, parse in PARSERS.items()}))
    except (TypeError, ValueError) as error:
        raise InputError(str(error)) from error


def problem_of(parts: dict[str, Any]) -> Problem:
    """The problem of a text's parts."""
    if not parts["is_plain"]:
        raise ValueError("problem: only contiguous rows, and plain rotations by one pair of tables, are checked")
    return _accepted(Problem(**{name: parts[name] for name in Problem.__dataclass_fields__ if name in parts}))


def _accepted(problem: Problem) -> Problem:
    _core.describe_norm_rope_concat_backward(problem.keywords(problem.shapes()))
    require_arrays({name: shape for name, (shape, _) in problem.shapes().items()})
    return problem


def make_arrays(case_id: str, problem: Problem) -> dict[str, np.ndarray]:
    """Standard normal numbers, and the true statistics of the rows."""
    numbers = generator(case_id)
    arrays = {}
    for name, (shape, dtype) in problem.shapes().items():
        if name.endswith(("_mean", "_rstd")):
            continue
        values = numbers.standard_normal(shape, np.float64 if dtype == "f64" else np.float32)
        arrays[name] = values.astype(DTYPES[dtype], copy=False)
    return arrays | statistics(problem, arrays)


def statistics(problem: Problem, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Mean and rstd of every normed stream, computed in float64."""
    made = {}
    for name, norm in (
        ("query", "norm_query"),
        ("key", "norm_key"),
        ("encoder_query", "norm_added_query"),
        ("encoder_key", "norm_added_key"),
    ):
        if name not in arrays or not problem.is_normed(name):
            continue
        rows = arrays[name].astype(np.float64)
        kind = problem.norm_added_type if name.startswith("encoder") else problem.norm_type
        dtype = np.float64 if problem.dtype == "f64" else np.float32
        if kind.startswith("layer"):
            mean = rows.mean(axis=-1, keepdims=True)
            rows -= mean
            made[f"{norm}_mean"] = mean.astype(dtype)
        squares = np.einsum("...d,...d->...", rows, rows)[..., None] / max(problem.head_dim, 1)
        made[f"{norm}_rstd"] = (1 / np.sqrt(squares + EPS)).astype(dtype)
    return made


def bytes_of(problem: Problem) -> int:
    """What a run takes at most: its arrays in the widest type, and the reference's exact rows."""
    return 32 * sum(math.prod(shape) for shape, _ in problem.shapes().values())


def run(case_id: str, problem: Problem, **execution: object) -> dict[str, Verdict]:
    """Computes the case by the public call and compares all results with the reference: verdicts by name."""
    keywords = problem.keywords(make_arrays(case_id, problem), **execution)
    return compare(keywords, norm_rope_concat_backward(**keywords)._asdict(), problem.results())


def compare(keywords: dict[str, object], results: dict[str, object], names: Sequence[str]) -> dict[str, Verdict]:
    """The results of these names with the reference; keywords and results as the call has them, all."""
    verdicts = check_norm_rope_concat_backward(keywords, results)
    missing = (False, 0, math.inf, "the library gave no such result")
    return {name: Verdict(*verdicts.get(name, missing)) for name in names}


def group_of(problem: Problem) -> dict[str, str]:
    return {"rope_type": problem.rope_type, "dtype": problem.dtype}


def rank_of(problem: Problem) -> tuple[int, int]:
    """Groups stand in this order."""
    ropes = (*ROPE_TYPES, *MORE_ROPE_TYPES)
    return ropes.index(problem.rope_type), list(DTYPES).index(problem.dtype)


def summarize(verdicts: Sequence[dict[str, Verdict]], problems: Sequence[Problem]) -> dict[str, object]:
    """What the verdicts of a group's cases come to."""
    bits, errors = [], {"normed": [], "weight": [], "bias": []}
    for named, problem in zip(verdicts, problems, strict=True):
        for name, verdict in named.items():
            if name in STREAMS and not problem.is_normed(name):
                bits.append(verdict.mismatches)
            else:
                errors["normed" if name in STREAMS else name.rpartition("_")[2]].append(verdict.worst)
    return {
        "bits_wrong": sum(bits),
        "normed_worst": worst(errors["normed"]),
        "weights_worst": worst(errors["weight"]),
        "biases_worst": worst(errors["bias"]),
    }

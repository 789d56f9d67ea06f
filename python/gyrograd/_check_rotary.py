"""Rotary problems of a CSV file: their data, and the comparison of the library with the reference."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from gyrograd import _core, rotary_backward
from gyrograd._inputs import DTYPES, MODES, InputError, format_shape, parse_dtype, parse_mode, parse_shape
from gyrograd._reference import check_rotary_backward
from gyrograd._verdicts import Verdict, generator, worst

TENSORS = ("dy", "cos", "sin", "x")
RESULTS = ("dx", "dcos", "dsin")
COLUMNS = ("mode", "dtype", "dy", "cos", *(f"{name}_{end}" for name in TENSORS for end in ("lo", "hi")))
TITLE = "dx: elements whose bits differ; dcos, dsin: largest error / bound (the last rounding alone can reach 1)"
HEADERS = ("mode", "type", "cases", "passed", "failed", "dx", "dcos", "dsin")


@dataclass(frozen=True)
class Problem:
    """What a line of the file asks for."""

    mode: str
    dtype: str
    dy: tuple[int, ...]
    cos: tuple[int, ...]
    ranges: dict[str, tuple[float, float]]

    def __str__(self) -> str:
        return f"{self.mode} {self.dtype} dy {format_shape(self.dy)} cos {format_shape(self.cos)}"


def read_problem(field: Callable[[str, Callable[[str], object]], object]) -> Problem:
    """A problem whose columns `field` reads."""
    problem = Problem(
        mode=field("mode", parse_mode),
        dtype=field("dtype", parse_dtype),
        dy=field("dy", parse_shape),
        cos=field("cos", parse_shape),
        ranges={name: (field(f"{name}_lo", _parse_bound), field(f"{name}_hi", _parse_bound)) for name in TENSORS},
    )
    for name, (low, high) in problem.ranges.items():
        if low > high:
            raise InputError(f"column {name}_lo: {low:g} is above {name}_hi, {high:g}")
    try:
        _core.describe_rotary_backward(problem.dy, problem.cos, problem.dtype, problem.dtype, mode=problem.mode)
    except (TypeError, ValueError) as error:
        raise InputError(str(error).partition("; hint: ")[0]) from error  # hints name options that cases do not have
    return problem


def _parse_bound(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"{text!r} is not a finite number")
    return value


def make_tensors(case_id: str, problem: Problem) -> dict[str, np.ndarray]:
    """dy, cos, sin and x: uniform over their ranges."""
    numbers = generator(case_id)
    tensors = {}
    for name in TENSORS:
        shape = problem.dy if name in ("dy", "x") else problem.cos
        low, high = problem.ranges[name]
        if low == high:
            tensors[name] = np.full(shape, low, DTYPES[problem.dtype])
            continue
        values = numbers.random(shape, np.float64 if problem.dtype == "f64" else np.float32)
        values *= high - low
        values += low
        tensors[name] = values.astype(DTYPES[problem.dtype], copy=False)
    return tensors


def run(case_id: str, problem: Problem, **execution: object) -> dict[str, Verdict]:
    """Computes the case by the public call and compares all three results with the reference: verdicts by name."""
    tensors = make_tensors(case_id, problem)
    results = rotary_backward(**tensors, mode=problem.mode, **execution)
    verdicts = check_rotary_backward(**tensors, **dict(zip(RESULTS, results, strict=True)), mode=problem.mode)
    return {name: Verdict(*verdict) for name, verdict in zip(RESULTS, verdicts, strict=True)}


def group_of(problem: Problem) -> dict[str, str]:
    return {"mode": problem.mode, "dtype": problem.dtype}


def rank_of(problem: Problem) -> tuple[int, int]:
    """Groups stand in this order."""
    return MODES.index(problem.mode), list(DTYPES).index(problem.dtype)


def summarize(verdicts: Sequence[dict[str, Verdict]], _problems: Sequence[Problem]) -> dict[str, object]:
    """What the verdicts of a group's cases come to."""
    return {
        "dx_wrong": sum(verdict["dx"].mismatches for verdict in verdicts),
        "dcos_worst": worst(verdict["dcos"].worst for verdict in verdicts),
        "dsin_worst": worst(verdict["dsin"].worst for verdict in verdicts),
    }

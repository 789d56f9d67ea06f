"""Rotary problems of a CSV file or a line of text: their data, and the comparison of the library with the reference."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

from gyrograd import _core, rotary_backward
from gyrograd._inputs import DTYPES, MODES, InputError, format_shape, parse_dtype, parse_mode, parse_shape
from gyrograd._memory import require_arrays
from gyrograd._reference import check_rotary_backward
from gyrograd._verdicts import Verdict, generator, worst

TENSORS = ("dy", "cos", "sin", "x")
RESULTS = ("dx", "dcos", "dsin")
COLUMNS = ("mode", "dtype", "dy", "cos", *(f"{name}_{end}" for name in TENSORS for end in ("lo", "hi")))
TITLE = "dx: elements whose bits differ; dcos, dsin: largest error / bound (the last rounding alone can reach 1)"
HEADERS = ("mode", "type", "cases", "passed", "failed", "dx", "dcos", "dsin")


@dataclass(frozen=True)
class Problem:
    """What a line asks for: of a file, or of text, which alone has what follows the ranges."""

    mode: str
    dtype: str
    dy: tuple[int, ...]
    cos: tuple[int, ...]
    ranges: dict[str, tuple[float, float]]
    table_dtype: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    strides: dict[str, list[int]] = field(default_factory=dict)  # in elements; of what is not here: contiguous

    def shape_of(self, name: str) -> tuple[int, ...]:
        return self.dy if name in ("dy", "x") else self.cos

    def dtype_of(self, name: str) -> str:
        return self.dtype if name in ("dy", "x") else self.table_dtype or self.dtype

    def __str__(self) -> str:
        return f"{self.mode} {self.dtype} dy {format_shape(self.dy)} cos {format_shape(self.cos)}"


def read_problem(field: Callable[[str, Callable[[str], object]], object]) -> Problem:
    """A problem whose columns `field` reads."""
    mode, dtype = field("mode", parse_mode), field("dtype", parse_dtype)
    bound = _bound_parser(dtype)
    problem = Problem(
        mode=mode,
        dtype=dtype,
        dy=field("dy", parse_shape),
        cos=field("cos", parse_shape),
        ranges={name: (field(f"{name}_lo", bound), field(f"{name}_hi", bound)) for name in TENSORS},
    )
    for name, (low, high) in problem.ranges.items():
        _require_range(name, low, high, _largest(_drawn(dtype)))
    try:
        _core.describe_rotary_backward(problem.dy, problem.cos, problem.dtype, problem.dtype, mode=problem.mode)
    except (TypeError, ValueError) as error:
        raise InputError(str(error).partition("; hint: ")[0]) from error  # hints name options that cases do not have
    require_arrays({"dy": problem.dy, "cos": problem.cos})
    return problem


def problem_of(parts: dict[str, Any]) -> Problem:
    """The problem of a text's parts."""
    problem = Problem(
        parts["mode"],
        parts["dtype"],
        parts["dy"],
        parts["tables"],
        dict.fromkeys(TENSORS, (-2.0, 2.0)),
        parts["table_dtype"],
        {name: parts[name] for name in ("per_pair_tables", "rotary_dim", "rotary_offset")},
        parts["strides"],
    )
    _core.describe_rotary_backward(
        problem.dy, problem.cos, problem.dtype, parts["table_dtype"], mode=problem.mode, **problem.options
    )
    require_arrays({"dy": problem.dy, "cos": problem.cos})
    return problem


def _bound_parser(dtype: str) -> Callable[[str], float]:
    """A function that reads a finite number of this type."""
    largest = _largest(DTYPES[dtype])

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise ValueError(f"{text!r} is not a finite number")
        if abs(value) > largest:
            raise ValueError(f"{text!r} is not a finite number of type {dtype}; the largest is {largest:g}")
        return value

    return parse


def _require_range(name: str, low: float, high: float, widest: float) -> None:
    if low > high:
        raise InputError(f"column {name}_lo: {low:g} is above {name}_hi, {high:g}")
    if high - low > widest:
        raise InputError(f"column {name}_lo: {low:g} is too far below {name}_hi, {high:g}; at most {widest:g}")


def _largest(dtype: type) -> float:
    return float(ml_dtypes.finfo(dtype).max)


def _drawn(dtype: str) -> type:
    """The type in which random values are made before they are rounded to theirs."""
    return np.float64 if dtype == "f64" else np.float32


def make_tensors(case_id: str, problem: Problem) -> dict[str, np.ndarray]:
    """dy, cos, sin and x: uniform over their ranges."""
    numbers = generator(case_id)
    tensors = {}
    for name in TENSORS:
        shape, dtype = problem.shape_of(name), problem.dtype_of(name)
        low, high = problem.ranges[name]
        if low == high:
            tensors[name] = np.full(shape, low, DTYPES[dtype])
            continue
        values = numbers.random(shape, _drawn(dtype))
        values *= high - low
        values += low
        values = values.astype(DTYPES[dtype], copy=False)
        tensors[name] = strided(values, problem.strides[name]) if name in problem.strides else values
    return tensors


def strided(values: np.ndarray, strides: Sequence[int]) -> np.ndarray:
    """The same values in an array of these strides, in elements."""
    strides = [0 if extent <= 1 else stride for extent, stride in zip(values.shape, strides, strict=True)]
    reaches = [(extent - 1) * stride for extent, stride in zip(values.shape, strides, strict=True)]
    first = -sum(min(0, reach) for reach in reaches)
    memory = np.zeros(first + 1 + sum(max(0, reach) for reach in reaches), values.dtype)
    view = np.lib.stride_tricks.as_strided(memory[first:], values.shape, [values.itemsize * one for one in strides])
    view[...] = values
    return view


def bytes_of(problem: Problem) -> int:
    """What a run takes at most: its arrays in the widest type, and the reference's exact sums."""
    return 32 * math.prod(problem.dy) + 112 * math.prod(problem.cos)


def run(case_id: str, problem: Problem, **execution: object) -> dict[str, Verdict]:
    """Computes the case by the public call and compares all three results with the reference: verdicts by name."""
    tensors = make_tensors(case_id, problem)
    options = {"mode": problem.mode} | problem.options
    results = rotary_backward(**tensors, **options, **execution)
    return compare(tensors, dict(zip(RESULTS, results, strict=True)), **options)


def compare(
    tensors: dict[str, np.ndarray], results: dict[str, np.ndarray], mode: str, **options: object
) -> dict[str, Verdict]:
    """All three results with the reference."""
    verdicts = check_rotary_backward(**tensors, **results, mode=mode, **options)
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

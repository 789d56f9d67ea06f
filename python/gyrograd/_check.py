"""Rotary problems from a CSV file, their data, and the comparison of the library with the reference."""

import csv
import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gyrograd import _core, rotary_backward
from gyrograd._inputs import DTYPES, InputError, parse_dtype, parse_mode, parse_shape
from gyrograd._reference import check_rotary_backward

TENSORS = ("dy", "cos", "sin", "x")
RESULTS = ("dx", "dcos", "dsin")
COLUMNS = ("id", "mode", "dtype", "dy", "cos", *(f"{name}_{end}" for name in TENSORS for end in ("lo", "hi")))
NOT_BUILT = {"norm_added_type": "NormRopeConcat"}  # a column by which an operator's cases are known


@dataclass(frozen=True)
class Case:
    """One problem: a line of the file."""

    line: int
    id: str
    mode: str
    dtype: str
    dy: tuple[int, ...]
    cos: tuple[int, ...]
    ranges: dict[str, tuple[float, float]]


@dataclass(frozen=True)
class Verdict:
    """How one result compares. For dx the bits count, for dcos and dsin the error, 1 being the promised bound."""

    ok: bool
    mismatches: int
    worst: float
    message: str


@dataclass(frozen=True)
class Outcome:
    """A case and its verdicts, by result."""

    case: Case
    verdicts: dict[str, Verdict]

    @property
    def ok(self) -> bool:
        return all(verdict.ok for verdict in self.verdicts.values())


def read_cases(path: Path) -> list[Case]:
    """All cases of a file; InputError with file, line, column and value at the first that is not one."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file, strict=True)
            header = reader.fieldnames or ()
            for column in NOT_BUILT.keys() & set(header):
                raise InputError(f"{path}: cases of {NOT_BUILT[column]}, an operator that is not built in this version")
            missing = [column for column in COLUMNS if column not in header]
            if missing:
                raise InputError(f"{path}:1: the header lacks the columns {', '.join(missing)}")
            cases = [_read_case(path, reader.line_num, row) for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: {getattr(error, 'strerror', None) or error}") from error
    seen: dict[str, int] = {}
    for case in cases:
        if case.id in seen:
            raise InputError(f"{path}:{case.line}: column id: {case.id!r} is the id of line {seen[case.id]} already")
        seen[case.id] = case.line
    if not cases:
        raise InputError(f"{path}: no cases")
    return cases


def _read_case(path: Path, line: int, row: dict[str, str]) -> Case:
    if None in row or None in row.values():
        raise InputError(f"{path}:{line}: the row has more or fewer fields than the header")

    def field(column: str, parse: Callable):
        try:
            return parse(row[column].strip())
        except ValueError as error:
            raise InputError(f"{path}:{line}: column {column}: {error}") from error

    case = Case(
        line=line,
        id=field("id", _parse_id),
        mode=field("mode", parse_mode),
        dtype=field("dtype", parse_dtype),
        dy=field("dy", parse_shape),
        cos=field("cos", parse_shape),
        ranges={name: (field(f"{name}_lo", _parse_bound), field(f"{name}_hi", _parse_bound)) for name in TENSORS},
    )
    for name, (low, high) in case.ranges.items():
        if low > high:
            raise InputError(f"{path}:{line}: column {name}_lo: {low:g} is above {name}_hi, {high:g}")
    try:
        _core.describe_rotary_backward(case.dy, case.cos, case.dtype, case.dtype, mode=case.mode)
    except (TypeError, ValueError) as error:
        rule = str(error).partition("; hint: ")[0]  # hints name options that cases do not have
        raise InputError(f"{path}:{line}: {rule}") from error
    return case


def _parse_id(text: str) -> str:
    if not text:
        raise ValueError("the id is empty")
    return text


def _parse_bound(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"{text!r} is not a finite number")
    return value


def select(cases: list[Case], ids: list[str] | None, limit: int | None) -> list[Case]:
    """The cases of these ids, at most `limit` of them."""
    if ids:
        unknown = sorted(set(ids) - {case.id for case in cases})
        if unknown:
            raise InputError(f"no case has the id {unknown[0]!r}")
        cases = [case for case in cases if case.id in ids]
    return cases[:limit]


def make_tensors(case: Case) -> dict[str, np.ndarray]:
    """dy, cos, sin and x: uniform over their ranges, the same for the same id always."""
    seed = int.from_bytes(hashlib.sha256(case.id.encode()).digest()[:8], "little")
    generator = np.random.Generator(np.random.SFC64(seed))
    tensors = {}
    for name in TENSORS:
        shape = case.dy if name in ("dy", "x") else case.cos
        low, high = case.ranges[name]
        if low == high:
            tensors[name] = np.full(shape, low, DTYPES[case.dtype])
            continue
        values = generator.random(shape, np.float64 if case.dtype == "f64" else np.float32)
        values *= high - low
        values += low
        tensors[name] = values.astype(DTYPES[case.dtype], copy=False)
    return tensors


def run_case(case: Case, threads: int | None = None, cpu_target: str | None = None) -> Outcome:
    """Computes the case by the public call and compares all three results with the reference."""
    tensors = make_tensors(case)
    results = rotary_backward(**tensors, mode=case.mode, threads=threads, cpu_target=cpu_target)
    verdicts = check_rotary_backward(**tensors, **dict(zip(RESULTS, results, strict=True)), mode=case.mode)
    return Outcome(case, {name: Verdict(*verdict) for name, verdict in zip(RESULTS, verdicts, strict=True)})

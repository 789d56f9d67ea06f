"""The command `gyrograd accuracy`: the largest errors of every operator's gradients, by type and mode, over families of
hard numbers, in units of what is promised; and beside them those of PyTorch's eager operators.
"""

import argparse
import csv
import io
import math
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import gyrograd
from gyrograd._accuracy_families import FAMILIES, Arrays, Draw, sizes
from gyrograd._accuracy_operators import OPERATORS, Operator
from gyrograd._check import AT_ONCE
from gyrograd._inputs import KINDS, InputError
from gyrograd._verdicts import Verdict, generator

COLUMNS = ("operator", "type", "norm", "mode", "family", "case", "result", "unit", "error", "ok", "eager")
BOUND, ULP = "bound", "ulp"
NONE = "-"


class Job(NamedTuple):
    """One case of a family."""

    operator: str
    kind: str
    norm: str
    mode: str
    family: str
    case: int


@dataclass(frozen=True)
class Measured:
    """One result of a case. `error` and PyTorch's, `eager`, are in units of the bound; of the last place where bits are
    promised, and then `ok` means none of them differs.
    """

    job: Job
    result: str
    unit: str
    error: float
    ok: bool
    message: str
    eager: float | None


def jobs(options: argparse.Namespace) -> list[Job]:
    return [
        Job(name, kind, norm, mode, family, case)
        for name in options.operator or OPERATORS
        for kind in options.type or KINDS
        for norm, mode in product(OPERATORS[name].norms, OPERATORS[name].modes)
        for family in FAMILIES
        if norm != "none" or not FAMILIES[family].of_norms
        for case in range(options.cases)
    ]


def torch_version(options: argparse.Namespace) -> str | None:
    """None where PyTorch is not there or not wanted."""
    if options.without_torch:
        return None
    try:
        import torch
    except ImportError:
        return None
    return torch.__version__


def measure(options: argparse.Namespace) -> Iterator[list[Measured]]:
    """What each of the jobs came to, in order. Some run at once; PyTorch has one thread in each, so that the order of
    its sums is always the same.
    """
    with_torch = torch_version(options) is not None
    threads = _set_torch_threads(1) if with_torch else None
    executor = ThreadPoolExecutor(AT_ONCE)
    try:
        yield from executor.map(lambda job: run(job, options.seed, with_torch), jobs(options))
    finally:
        executor.shutdown(cancel_futures=True)
        if threads:
            _set_torch_threads(threads)


def _set_torch_threads(threads: int) -> int:
    """Returns how many there were."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    return before


def draw(job: Job, seed: int) -> tuple[Draw, Arrays]:
    """The numbers of a job: the same for the same seed always."""
    family = FAMILIES[job.family]
    numbers = generator(" ".join(map(str, (seed, *job))))
    made = sizes(numbers) | (OPERATORS[job.operator].long if family.is_long else {})
    made["heads"] *= OPERATORS[job.operator].heads
    drawn = Draw(numbers, KINDS[job.kind], job.mode, job.norm, **made)
    return drawn, family.make(drawn)


def run(job: Job, seed: int, with_torch: bool) -> list[Measured]:
    operator = OPERATORS[job.operator]
    call = operator.call(*draw(job, seed))
    verdicts = _judged(operator, call, operator.gradients(call))
    eager = _judged(operator, call, operator.eager(call)) if with_torch else {}
    return [
        Measured(
            job=job,
            result=name,
            unit=ULP if operator.is_exact(name, job.norm) else BOUND,
            error=verdict.worst,
            ok=verdict.ok,
            message=verdict.message,
            eager=eager[name].worst if name in eager else None,
        )
        for name, verdict in verdicts.items()
    ]


def _judged(operator: Operator, call: Any, results: Arrays) -> dict[str, Verdict]:
    """The reference's verdicts, but that an infinity or NaN never passes: no family makes one."""
    verdicts = operator.compare(call, results)
    for name, verdict in verdicts.items():
        wrong = np.count_nonzero(~np.isfinite(results[name].astype(np.float64)))
        if wrong or math.isnan(verdict.worst):
            message = f"{wrong} infinities and NaNs" if wrong else verdict.message
            verdicts[name] = replace(verdict, ok=False, worst=math.inf, message=message)
    return verdicts


# ---- what is shown


class Cell(NamedTuple):
    """The largest error of a column's results, and the family where it is."""

    error: float
    family: str
    unit: str
    ok: bool

    def __str__(self) -> str:
        text = f"{self.error:.3g}{' ulp' if self.unit == ULP else ''}"
        if self.error > 0:
            text += f", {self.family}"
        return text if self.ok else f"EXCEEDS: {text}"


class Row(NamedTuple):
    kind: str
    norm: str
    mode: str
    ours: dict[str, Cell]  # the library's, by column
    eager: dict[str, Cell]


def summarize(measured: Iterable[Measured]) -> dict[str, list[Row]]:
    """The rows of each operator's table."""
    rows: dict[str, dict[tuple[str, str, str], Row]] = {}
    for one in measured:
        job = one.job
        row = rows.setdefault(job.operator, {}).setdefault(job[1:4], Row(*job[1:4], {}, {}))
        column = OPERATORS[job.operator].column(one.result)
        _keep_worse(row.ours, column, Cell(one.error, job.family, one.unit, one.ok))
        if one.eager is not None:
            _keep_worse(row.eager, column, Cell(one.eager, job.family, one.unit, True))
    return {name: list(of_operator.values()) for name, of_operator in rows.items()}


def _keep_worse(cells: dict[str, Cell], column: str, cell: Cell) -> None:
    old = cells.get(column)
    if old is None or (not cell.ok, cell.error) > (not old.ok, old.error):
        cells[column] = cell


def table(name: str, rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Head and texts of an operator's table."""
    operator = OPERATORS[name]
    is_normed = len(operator.norms) > 1
    head = ["type", *(["norm"] if is_normed else []), "mode"]
    head += [text for column in operator.columns for text in (column, "eager")]
    texts = []
    for row in rows:
        cells = [cells.get(column, NONE) for column in operator.columns for cells in (row.ours, row.eager)]
        texts.append([row.kind, *([row.norm] if is_normed else []), row.mode, *map(str, cells)])
    return head, texts


UNITS = (
    "Each figure is the largest error of any element over all families, and the family where it is. 1 is the bound "
    "that is promised for the element; what is promised to the bit is in units in the last place (ulp) from those "
    "bits. In 16 bits the last rounding alone can reach 1."
)


def exceeding(measured: Iterable[Measured]) -> list[Measured]:
    return [one for one in measured if not one.ok]


def as_object(rows: dict[str, list[Row]], measured: Sequence[Measured], options: argparse.Namespace) -> dict[str, Any]:
    """What --json prints."""
    return {
        "versions": {"gyrograd": gyrograd.__version__, "torch": torch_version(options)},
        "seed": options.seed,
        "cases": options.cases,
        "results": len(measured),
        "operators": {
            name: [
                {"type": row.kind, "norm": row.norm, "mode": row.mode}
                | {
                    who: {column: cell._asdict() for column, cell in cells.items()}
                    for who, cells in zip(("gyrograd", "eager"), row[3:], strict=True)
                }
                for row in of_operator
            ]
            for name, of_operator in rows.items()
        },
        "exceeding": [dict(zip(COLUMNS, _fields(one), strict=True)) for one in exceeding(measured)],
    }


def _fields(one: Measured) -> tuple[Any, ...]:
    return (*one.job, one.result, one.unit, one.error, one.ok, one.eager)


def as_csv(measured: Iterable[Measured]) -> str:
    """A line a result of a case."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(_fields(one) for one in measured)
    return file.getvalue()


def write(option: str, path: Path, text: str) -> None:
    """Raises:
    InputError: it can't be written.
    """
    try:
        path.write_text(text)
    except OSError as error:
        raise InputError(f"{option} {path}: {error.strerror}") from error


# ---- the page

INTRODUCTION = (
    "How near the gradients come to the exact ones, on numbers that are chosen to make it hard. The reference is "
    "that of `gyrograd check`: float64 (for f64 twice its digits), in plain loops apart from the library. The "
    "bounds are those of [rotary.md](rotary.md#numbers) and [norm_rope_concat.md](norm_rope_concat.md#numbers), and "
    "half a unit in the last place for the rounding to the result's type. The command's exit code is 1 where an "
    "error exceeds its bound.",
    UNITS,
    "Columns `eager` are PyTorch's: autograd of the usual formula on the same numbers, in one thread. Its operators "
    "round each step to the rows' type. RMSNorm is written as in Llama; the backward of `layer_norm` is given the "
    "same means and rstds, in the type that PyTorch saves its own in. inf is an infinity or a NaN where the "
    "gradient is finite. Where terms cancel or vanish the bound, or the last place, is next to nothing, and an "
    "error is a great many of them.",
    "`f16+f32` are f16 rows beside f32 tables and weights. In the joint operator's table query, key, weight and "
    "bias stand for the encoder's too.",
)


def command_of(options: argparse.Namespace) -> str:
    """What writes the page again."""
    parts = ["gyrograd accuracy"]
    parts += [f"--operator {name}" for name in options.operator or ()]
    parts += [f"--type {name}" for name in options.type or ()]
    parts += [f"--seed {options.seed}", f"--cases {options.cases}"]
    parts += ["--without-torch"] if options.without_torch else []
    return " ".join((*parts, f"--page {options.page}"))


def page(rows: dict[str, list[Row]], options: argparse.Namespace) -> str:
    torch = torch_version(options)
    eager = f"PyTorch {torch}" if torch else "no PyTorch"
    lines = [
        f"<!-- Written by `{command_of(options)}`. -->",
        "# Accuracy",
        "",
        *(line for text in INTRODUCTION for line in (*textwrap.wrap(text, 120), "")),
        f"This run: gyrograd {gyrograd.__version__}, {eager}, seed {options.seed}, cases of each family for each row: "
        f"{options.cases}.",
        "",
        "| family | its numbers |",
        "|---|---|",
        *(f"| {name} | {family.words} |" for name, family in FAMILIES.items()),
    ]
    for name, of_operator in rows.items():
        head, texts = table(name, of_operator)
        lines += ["", f"## {name}", "", *map(_line, (head, ["---"] * len(head), *texts))]
    return "\n".join(lines) + "\n"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"

"""Problems of a CSV file, or one line of text, of any operator: the library compared with the reference."""

import csv
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TextIO

from gyrograd import _bench, _check_norm_rope_concat, _check_rotary
from gyrograd._inputs import InputError
from gyrograd._memory import available_bytes, require_memory
from gyrograd._verdicts import Verdict

AT_ONCE = min(4, len(os.sched_getaffinity(0)))  # cases, where there is memory for them
OPERATORS = {"rotary": _check_rotary, "norm_rope_concat": _check_norm_rope_concat}
# A column by which an operator's cases are known; rotary's are those without any.
MARKS = {"norm_added_type": _check_norm_rope_concat}
LONGEST_ROW = 2**16  # characters of a row of a file, its line ends among them
BYTES_A_CHARACTER = 128  # of memory, at most: what cases and their outcomes take, by the characters of their rows


@dataclass(frozen=True)
class Case:
    """One problem: a line of the file."""

    line: int
    id: str
    operator: ModuleType
    problem: object


@dataclass(frozen=True)
class Outcome:
    """A case and its verdicts, by result."""

    case: Case
    verdicts: dict[str, Verdict]

    @property
    def ok(self) -> bool:
        return all(verdict.ok for verdict in self.verdicts.values())


def read_cases(path: Path, operator_name: str | None = None) -> list[Case]:
    """All cases of a file, whose columns tell the operator unless it is named; InputError with file, line, column and
    value at the first that is not one, or that there is no memory for.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            _require_room(path, os.fstat(file.fileno()).st_size)  # of pipes 0
            cases = list(_apart(path, _read_rows(path, _Lines(path, file), operator_name)))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: {getattr(error, 'strerror', None) or error}") from error
    if not cases:
        raise InputError(f"{path}: no cases")
    return cases


def _require_room(path: Path, characters: int) -> None:
    require_memory(f"{path}: its cases", BYTES_A_CHARACTER * characters)


@dataclass
class _Lines:
    """The lines of a file that may be a pipe or a device without an end; InputError where a row, or all of them, are
    too long.
    """

    path: Path
    file: TextIO
    number: int = 0
    row: int = 0  # characters of the row so far
    characters: int = 0  # of all lines so far
    available: int = field(default_factory=lambda: available_bytes())

    def __iter__(self) -> "_Lines":
        return self

    def __next__(self) -> str:
        line = self.file.readline(LONGEST_ROW + 1)
        if not line:
            raise StopIteration
        self.number += 1
        self.row += len(line)
        self.characters += len(line)
        if self.row > LONGEST_ROW:
            raise InputError(f"{self.path}:{self.number}: the row is longer than {LONGEST_ROW} characters")
        if BYTES_A_CHARACTER * self.characters > self.available:
            _require_room(self.path, self.characters)
        return line


def _read_rows(path: Path, lines: _Lines, operator_name: str | None) -> Iterator[Case]:
    reader = csv.reader(lines, strict=True)
    header = next(reader, [])
    operator = OPERATORS.get(operator_name) or _operator_of(header)
    missing = [column for column in ("id", *operator.COLUMNS) if column not in header]
    if missing:
        raise InputError(f"{path}:1: the header lacks the columns {', '.join(missing)}")
    lines.row = 0
    for row in reader:
        if row:
            yield _read_case(path, operator, reader.line_num, header, row)
        lines.row = 0


def _apart(path: Path, cases: Iterable[Case]) -> Iterator[Case]:
    """The cases; InputError at an id that is there already."""
    seen: dict[str, int] = {}
    for case in cases:
        if case.id in seen:
            raise InputError(f"{path}:{case.line}: column id: {case.id!r} is the id of line {seen[case.id]} already")
        seen[case.id] = case.line
        yield case


def is_problem(text: str) -> bool:
    """Whether a text is a problem's line rather than a file's name."""
    return text.partition(":")[0] in OPERATORS and not os.path.exists(text)


def read_text(text: str) -> list[Case]:
    """The problem of a line of text.

    Raises:
      InputError: it is none, or has fields that the checker does not make arrays for.
    """
    try:
        parts = _bench.parse_problem(text)
        operator = OPERATORS[parts["operator"]]
        return [Case(1, text, operator, operator.problem_of(parts))]
    except (TypeError, ValueError) as error:
        raise InputError(str(error)) from error


def _operator_of(header: Sequence[str]) -> ModuleType:
    return next((MARKS[column] for column in header if column in MARKS), _check_rotary)


def _read_case(path: Path, operator: ModuleType, line: int, header: Sequence[str], row: Sequence[str]) -> Case:
    if len(row) != len(header):
        raise InputError(f"{path}:{line}: the row has more or fewer fields than the header")
    texts = dict(zip(header, row, strict=True))

    def read(column: str, parse: Callable[[str], object]) -> object:
        try:
            return parse(texts[column].strip())
        except ValueError as error:
            raise InputError(f"column {column}: {error}") from error

    try:
        return Case(line, read("id", _parse_id), operator, operator.read_problem(read))
    except InputError as error:
        raise InputError(f"{path}:{line}: {error}") from error


def _parse_id(text: str) -> str:
    if not text:
        raise ValueError("the id is empty")
    return text


def select(cases: list[Case], ids: list[str] | None, limit: int | None) -> list[Case]:
    """The cases of these ids, at most `limit` of them."""
    if ids:
        unknown = sorted(set(ids) - {case.id for case in cases})
        if unknown:
            raise InputError(f"no case has the id {unknown[0]!r}")
        cases = [case for case in cases if case.id in ids]
    return cases[:limit]


def run_cases(cases: list[Case], **execution: object) -> Iterator[Outcome]:
    """The outcomes in order. Some cases run at once: the library and the reference let go of the interpreter."""

    def run(case: Case) -> Outcome:
        return Outcome(case, case.operator.run(case.id, case.problem, **execution))

    executor = ThreadPoolExecutor(_how_many_at_once(cases))
    try:
        yield from executor.map(run, cases)
    finally:
        executor.shutdown(cancel_futures=True)


def _how_many_at_once(cases: list[Case]) -> int:
    """As many as there is memory for, the largest among them; InputError where it has none for one."""
    sizes = sorted(((case.operator.bytes_of(case.problem), case.line) for case in cases), reverse=True)[:AT_ONCE]
    largest, line = sizes[0]
    require_memory(f"line {line}: the case", largest)
    available = available_bytes()
    fitting = [sum(size for size, _ in sizes[:count]) <= available for count in range(1, len(sizes) + 1)]
    return max(sum(fitting), 1)


def summarize(outcomes: list[Outcome]) -> list[dict[str, object]]:
    """What each group of cases came to; all are of one operator."""
    operator = outcomes[0].case.operator
    groups: dict[tuple, list[Outcome]] = {}
    for outcome in sorted(outcomes, key=lambda outcome: operator.rank_of(outcome.case.problem)):
        groups.setdefault(operator.rank_of(outcome.case.problem), []).append(outcome)
    return [_summary(operator, members) for members in groups.values()]


def _summary(operator: ModuleType, members: list[Outcome]) -> dict[str, object]:
    passed = sum(outcome.ok for outcome in members)
    counts = {"cases": len(members), "passed": passed, "failed": len(members) - passed}
    problems = [outcome.case.problem for outcome in members]
    found = operator.summarize([outcome.verdicts for outcome in members], problems)
    return operator.group_of(problems[0]) | counts | found

"""The marks' summary as Markdown, for the terminal, docs/performance.md and README.md."""

from __future__ import annotations

import platform
import statistics
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import marks

BEGIN, END = "<!-- MARKS: from `make bench`, written by it. -->", "<!-- END OF MARKS -->"
HEADLINES = ("P1", "P2", "P4", "P5", "P6", "P8", "P8 autograd")  # what README shows


def by_mark(rows: Iterable[Any]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {mark: [] for mark in marks.WORDS}
    for row in rows:
        found[row.mark].append(row)
    return {mark: group for mark, group in found.items() if group}


def by_type(rows: Iterable[Any]) -> dict[str, list[Any]]:
    """The rows of each type, which what they are begins with."""
    found: dict[str, list[Any]] = {}
    for row in rows:
        found.setdefault(row.what.split()[0], []).append(row)
    return found


def _each(rows: Iterable[Any]) -> dict[str, list[Any]]:
    """Each alone: P8's are different things."""
    return {row.what: [row] for row in rows}


def summary(rows: Iterable[Any], only: Sequence[str] = tuple(marks.WORDS)) -> list[str]:
    """A table: of each mark and type the best, median and worst value, and how many meet the mark."""
    lines = ["| mark | what | goal | type | best | median | worst | met |", "|---|---|---|---|---|---|---|---|"]
    for mark, group in by_mark(rows).items():
        if mark not in only:
            continue
        words, goal = marks.WORDS[mark]
        head = f"{mark} | {words} | {goal}"
        for dtype, of_type in (by_type(group) if mark != "P8" else _each(group)).items():
            lines.append(f"| {head} | {dtype} | {_cells(of_type)} |")
            head = " | | "
    return lines


def _cells(rows: list[Any]) -> str:
    values = sorted(row.value for row in rows)
    best, worst = (values[-1], values[0]) if marks.is_least(rows[0].mark) else (values[0], values[-1])
    met = sum(row.met for row in rows)
    return f"{best:.2f} | {statistics.median(values):.2f} | {worst:.2f} | {met} of {len(rows)}"


def worst_cells(rows: Iterable[Any], count: int = 3) -> list[str]:
    """Of each mark that is not met everywhere, the values farthest from it."""
    lines = ["| mark | value | goal | what |", "|---|---|---|---|"]
    for mark, group in by_mark(rows).items():
        missed = [row for row in group if not row.met]
        missed.sort(key=lambda row: max(row.value / row.limit, row.limit / row.value) if row.limit else 0, reverse=True)
        lines += [f"| {mark} | {row.value:.2f} | {row.limit:g} | {row.what} |" for row in missed[:count]]
    return lines


def machine(info: Any) -> str:
    cpu = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        platform.machine(),
    )
    return f"{cpu}, {info.threads} threads, CPU target {info.cpu_targets[0]}, {platform.system()}"


def write(root: Path, rows: list[Any]) -> None:
    """Puts the figures between the markers of docs/performance.md and README.md."""
    import gyrograd

    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, cwd=root
    ).stdout.strip()
    speeds = sorted(row.copy_gbs for row in rows if row.mark in ("P1", "P2", "P3"))
    copies = f"The copy ran at {speeds[len(speeds) // 4]:.0f} to {speeds[3 * len(speeds) // 4]:.0f} GB/s"
    source = f"`make bench`, commit {commit}; {machine(gyrograd.info())}. {copies} (quartiles of P1 to P3)."
    page = [source, "", *summary(rows), "", "The values farthest from their marks:", "", *worst_cells(rows)]
    _replace(root / "docs" / "performance.md", page)
    _replace(root / "README.md", [source, "", *summary(rows, HEADLINES)])


def _replace(path: Path, lines: list[str]) -> None:
    text = path.read_text()
    before, marker, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (marker and end):
        raise ValueError(f"{path}: no figures to replace")
    path.write_text(before + marker + "\n" + "\n".join(lines) + "\n" + end + after)

"""The marks as pictures: values beside their goals, the time a byte by size, peers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import pages

TYPES = ("bf16", "f16", "f32")


def draw(rows: list[Any], folder: Path) -> None:
    groups = pages.by_mark(rows)
    _values({mark: groups[mark] for mark in groups if mark[:2] in ("P1", "P2", "P3", "P4", "P7")}, folder / "marks.png")
    if "P9" in groups:
        _sizes(groups["P9"], folder / "sizes.png")
    if "P5" in groups:
        _peers(groups["P5"] + groups["P6"], folder / "peers.png")


def _save(figure: plt.Figure, axes: plt.Axes, values: str, path: Path) -> None:
    axes.set_ylim(bottom=0)
    axes.set_ylabel(values)
    axes.legend()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _values(groups: dict[str, list[Any]], path: Path) -> None:
    """A dot a problem, through the fastest copy of the same bytes; a line at the goal of each mark."""
    figure, axes = plt.subplots(figsize=(14, 6), layout="constrained")
    for place, group in enumerate(groups.values()):
        for dtype, rows in pages.by_type(group).items():
            index = TYPES.index(dtype)
            values = [row.value for row in rows]
            shift = place + 0.25 * (index - 1)
            label = dtype if place == 0 else None
            axes.plot([shift] * len(values), values, ".", color=f"C{index}", label=label)
            axes.hlines(min(row.limit for row in rows), shift - 0.1, shift + 0.1, color="black", linewidth=1)
    axes.set_xticks(range(len(groups)), list(groups))
    axes.set_title("Marks; lines are the goals")
    _save(figure, axes, "time / fastest copy of the same bytes", path)


def _sizes(rows: list[Any], path: Path) -> None:
    figure, axes = plt.subplots(figsize=(8, 5), layout="constrained")
    for dtype, of_type in pages.by_type(rows).items():
        sizes = [int(row.what.split()[2]) for row in of_type]
        axes.plot(sizes, [row.value for row in of_type], "o-", label=dtype)
    axes.set_xscale("log", base=2)
    axes.set_xlabel("MiB in all")
    _save(figure, axes, "time a byte / the least above the cache", path)


def _peers(rows: list[Any], path: Path) -> None:
    figure, axes = plt.subplots(figsize=(12, 6), layout="constrained")
    problems = list(dict.fromkeys(row.what.rsplit(", ", 1)[0] for row in rows))
    names = list(dict.fromkeys(row.what.rsplit(", ", 1)[1] for row in rows))
    width = 0.8 / len(names)
    for index, name in enumerate(names):
        values = {row.what.rsplit(", ", 1)[0]: row.value for row in rows if row.what.endswith(", " + name)}
        places = [problems.index(problem) + (index - (len(names) - 1) / 2) * width for problem in values]
        axes.bar(places, list(values.values()), width, label=name)
    axes.set_xticks(range(len(problems)), problems, rotation=30, ha="right")
    _save(figure, axes, "time / gyrograd's", path)

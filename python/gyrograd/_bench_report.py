"""What `gyrograd bench` measures and shows: one problem against plain copies of its bytes, and against peers."""

import argparse
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import gyrograd
from gyrograd._inputs import InputError
from gyrograd._models import require_plot

PROBLEM = "rotary:types=bf16,dy=2x4096x32x128,tables=1x4096x1x128,outputs=dx"
SECONDS = 30.0  # of turns with peers; compiling comes on top
NUMPY = "gyrograd from NumPy"  # what the peers are held against
_BAR = 40


def add_arguments(command: argparse.ArgumentParser, positive: Callable[[str], int]) -> None:
    """positive: reads a number of at least 1."""
    command.add_argument(
        "problem",
        nargs="?",
        default=PROBLEM,
        metavar="PROBLEM",
        help=f"a line of text; default {PROBLEM}. docs/performance.md has the fields",
    )
    command.add_argument("--threads", type=positive, metavar="N", help="default: as many as a call would use")
    command.add_argument("--rounds", type=positive, default=9, metavar="N", help="of turns; default 9")
    command.add_argument("--no-peers", action="store_true", help="leave PyTorch and JAX out")
    command.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    command.add_argument("--plot", type=Path, metavar="FILE", help="draw the bars, too: .svg, .png, .pdf")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """What the command prints, as an object.

    Raises:
      InputError: the problem or an option is refused.
    """
    from gyrograd import _bench, _turns

    if options.plot:
        require_plot(options.plot)
    try:
        parts = _bench.parse_problem(options.problem)
        if options.threads and parts["threads"] not in (0, options.threads):
            raise ValueError(f"--threads {options.threads}: the problem says threads={parts['threads']}")
        threads = options.threads or parts["threads"] or gyrograd.info().threads
        text = options.problem if parts["threads"] else f"{options.problem},threads={threads}"
        ours = _turns.measure([text], options.rounds, threads)[0]
    except (RuntimeError, ValueError) as error:
        raise InputError(str(error)) from error
    peers, note = ([], "left out") if options.no_peers else _peers(parts, threads, options)
    return {
        "problem": ours.problem,
        "threads": threads,
        "bytes_read": ours.bytes_read,
        "bytes_written": ours.bytes_written,
        "workspace_bytes": ours.workspace_bytes,
        "ms": ours.ms,
        "copy": ours.copy,
        "copy_ms": ours.copy_ms,
        "gigabytes_per_second": ours.bytes / ours.ms / 1e6,
        "ratio": ours.ratio,
        "quartiles": list(ours.spread),
        "peers": peers,
        "peers_note": note,
    }


def _peers(parts: dict[str, Any], threads: int, options: argparse.Namespace) -> tuple[list[dict[str, Any]], str]:
    from gyrograd import _peers, _turns

    why = _peers.refusal(parts)
    if why:
        return [], why
    works = _peers.contestants(parts, threads, not options.no_compile)
    seconds = _turns.take_turns(works, options.rounds, budget=SECONDS)
    return [
        {"name": name, "ms": 1e3 * statistics.median(times), "ratio": _turns.ratio(times, seconds["gyrograd"])}
        for name, times in seconds.items()
    ], "contiguous arrays; gyrograd from NumPy writes into given arrays"


def _rows(result: dict[str, Any]) -> list[tuple[str, float, str]]:
    """Name, ms, and what the ratio says."""
    rows = [
        (f"copy of the same bytes ({result['copy']})", result["copy_ms"], ""),
        ("gyrograd", result["ms"], f"{result['ratio']:.2f} x the copy"),
    ]
    for peer in result["peers"]:
        if peer["name"] == "gyrograd":
            rows.append((NUMPY, peer["ms"], ""))
        else:
            rows.append((peer["name"], peer["ms"], f"{peer['ratio']:.1f} x {NUMPY}"))
    return rows


def show(result: dict[str, Any], console: Console) -> None:
    first, third = result["quartiles"]
    read, written = result["bytes_read"] / 1e6, result["bytes_written"] / 1e6
    caption = (
        f"{result['threads']} threads; {read:.1f} MB read, {written:.1f} MB written, "
        f"{result['gigabytes_per_second']:.1f} GB/s, the copy {_copy_speed(result):.1f}; "
        f"half of the rounds from {first:.2f} to {third:.2f} x the copy. "
        f"Times and ratios are medians over the rounds. Peers: {result['peers_note']}"
    )
    table = Table("", "ms", "", "", title=result["problem"], caption=caption, title_justify="left")
    table.caption_justify = "left"
    rows = _rows(result)
    longest = max(ms for _, ms, _ in rows)
    for name, ms, words in rows:
        table.add_row(name, f"{ms:.3f}", words, "█" * max(1, round(_BAR * ms / longest)))
    console.print(table)
    if third > 2 * first:
        console.print(
            "The rounds differ so much that other work must have run beside them: measure again on idle cores."
        )


def _copy_speed(result: dict[str, Any]) -> float:
    """GB/s."""
    return (result["bytes_read"] + result["bytes_written"]) / result["copy_ms"] / 1e6


def plot(result: dict[str, Any], path: Path) -> None:
    """The same bars as a picture, in the format of the path's ending.

    Raises:
      InputError: as _models.require_plot.
    """
    require_plot(path)
    from matplotlib.figure import Figure

    rows = _rows(result)
    figure = Figure(figsize=(11, 1 + 0.4 * len(rows)), layout="constrained")
    axes = figure.subplots()
    bars = axes.barh([name for name, _, _ in rows], [ms for _, ms, _ in rows], color="tab:gray")
    bars[1].set_color("tab:blue")
    axes.bar_label(bars, [f" {ms:.3g} ms  {words}" for _, ms, words in rows])
    axes.margins(x=0.5)
    axes.invert_yaxis()
    axes.set_xlabel(f"ms a backward, {result['threads']} threads")
    axes.set_title(result["problem"], fontsize=8)
    try:
        figure.savefig(path)
    except OSError as error:
        raise InputError(f"--plot {path}: {error}") from error

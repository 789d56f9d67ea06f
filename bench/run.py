"""Measures every mark of bench/marks.py: a table on the terminal; CSV files and plots in build/bench.

The verdicts stand in build/bench/marks.csv; `--page` writes their summary into docs/performance.md and README.md.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import marks
import pages
import plots

import gyrograd
from gyrograd import _bench, _peers, _turns

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "build" / "bench"
CALLS = ROOT / "build" / "release" / "bench" / "gyrograd_bench"
COPY_THREADS = 2
PEERS_SECONDS = 8.0  # of turns, a problem


@dataclass(frozen=True)
class Row:
    """A value of a mark and its verdict."""

    mark: str
    what: str
    value: float
    limit: float
    met: bool
    ms: float = 0.0
    base_ms: float = 0.0  # of the copy, or of the problem that it is compared with
    low: float = 0.0  # quartiles of the value over the rounds
    high: float = 0.0
    copy_gbs: float = 0.0
    problem: str = ""


class Report:
    """The rows, on their way to the file and the terminal."""

    def __init__(self, path: Path) -> None:
        self.rows: list[Row] = []
        self._file = path.open("w", newline="")
        self._writer = csv.DictWriter(self._file, [field.name for field in fields(Row)])
        self._writer.writeheader()

    def add(self, mark: str, what: str, value: float, limit: float, **more: object) -> None:
        met = value >= limit if marks.is_least(mark) else value <= limit
        row = Row(mark, what, value, limit, met, **more)
        self.rows.append(row)
        self._writer.writerow(asdict(row))
        self._file.flush()

    def close(self) -> None:
        self._file.close()


# ---- problems in turns with copies


def add_timed(report: Report, entries: Iterator[marks.Entry], rounds: int) -> None:
    for entry in entries:
        if entry.base is None:
            add_against_copy(report, entry, rounds)
        else:
            add_against_base(report, entry, rounds)
        say_progress(report)


def add_against_copy(report: Report, entry: marks.Entry, rounds: int) -> None:
    (ours,) = _turns.measure([entry.problem], rounds, COPY_THREADS)
    low, high = ours.spread
    report.add(
        entry.mark,
        entry.what,
        ours.ratio,
        entry.limit,
        ms=ours.ms,
        base_ms=ours.copy_ms,
        low=low,
        high=high,
        copy_gbs=ours.bytes / ours.copy_ms / 1e6,
        problem=ours.problem,
    )


def add_against_base(report: Report, entry: marks.Entry, rounds: int) -> None:
    ours, plain = _turns.measure([entry.problem, entry.base], rounds, COPY_THREADS)
    value = _turns.ratio(ours.seconds, plain.seconds) * plain.bytes / ours.bytes
    report.add(entry.mark, entry.what, value, entry.limit, ms=ours.ms, base_ms=plain.ms, problem=ours.problem)


def say_progress(report: Report) -> None:
    row = report.rows[-1]
    if sys.stdout.isatty():
        print(f"\r{len(report.rows):5} {row.mark:12} {row.what:50} {row.value:6.2f}", end="\033[K", flush=True)


def add_sizes(report: Report, rounds: int) -> None:
    """P9: the time a byte, by the least of those above the cache; and what a second thread brings."""
    most = min(4 << 30, available_bytes() // 3)
    for dtype in ("bf16", "f32"):
        a_byte = {}
        for total in marks.sizes(most):
            text = marks.sized("BSND 1S1D", total, dtype, "dx", mode="half")
            (ours,) = _turns.measure([text], rounds, COPY_THREADS)
            a_byte[total] = (ours.ms / ours.bytes, ours)
        large = {total: time for total, time in a_byte.items() if total > 2 * _bench.last_level_cache_bytes()}
        least = min(time for time, _ in large.values())
        for total, (time_, ours) in large.items():
            report.add("P9", f"{dtype} dx {total >> 20} MiB", time_ / least, 1.3, ms=ours.ms, problem=ours.problem)
        one = marks.sized("BSND 1S1D", marks.CACHE_BYTES, dtype, "dx", threads=1)
        two = marks.sized("BSND 1S1D", marks.CACHE_BYTES, dtype, "dx", threads=2)
        alone, both = _turns.measure([one, two], 3 * rounds, COPY_THREADS)
        value = _turns.ratio(alone.seconds, both.seconds)
        report.add("P9 threads", f"{dtype} dx", value, 1.8, ms=both.ms, base_ms=alone.ms, problem=both.problem)


def add_beside_torch(report: Report, rounds: int) -> None:
    """Calls that take turns with PyTorch's kernels, which have threads of their own, by the sum of both alone."""
    import torch

    for mebibytes in (1, 8, 64):
        text = marks.sized("BSND 1S1D", mebibytes << 20, "f32", "dx")
        ours = _peers.contestants(_bench.parse_problem(text), COPY_THREADS, False, jax=False)["gyrograd"]
        x = torch.randn(mebibytes << 17)
        out = torch.empty_like(x)
        works = {"ours": ours, "torch": lambda x=x, out=out: torch.mul(x, 1.5, out=out)}
        works["both"] = lambda works=dict(works): [work() for work in works.values()]
        seconds = _turns.take_turns(works, 3 * rounds, repeats=max(1, 64 // mebibytes))
        alone = [sum(pair) for pair in zip(seconds["ours"], seconds["torch"], strict=True)]
        value = _turns.ratio(seconds["both"], alone)
        report.add("P9 beside", f"f32 dx {mebibytes} MiB", value, 1.1, ms=1e3 * statistics.median(seconds["both"]))


def available_bytes() -> int:
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def add_workspaces(report: Report) -> None:
    for what, text, allowed in marks.workspaces():
        (ours,) = _turns.measure([text], 1, COPY_THREADS)
        value = ours.workspace_bytes / allowed if allowed else float(ours.workspace_bytes > 0)
        report.add("P10", what, value, 1 if allowed else 0, problem=ours.problem)


# ---- small calls


def add_calls(report: Report, rounds: int) -> None:
    file = OUT / "calls.json"
    subprocess.run(
        [CALLS, f"--benchmark_out={file}", "--benchmark_out_format=json", f"--benchmark_repetitions={rounds}",
         "--benchmark_report_aggregates_only=true", "--benchmark_min_time=0.05"],
        check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    names = {"call": ("C++ call", 1.0), "plan": ("C++ plan reused", 0.3)}
    for found in json.loads(file.read_text())["benchmarks"]:
        if found["aggregate_name"] == "median":
            words, limit = names[found["run_name"].split("/")[0].split()[-1]]
            report.add("P8", f"f32 {words}, us", found["real_time"], limit)
    parts = _bench.parse_problem(marks.problem((1, 16, 4, 64), (1, 16, 1, 64), outputs="dx"))
    works = _peers.contestants(parts, 1, False, jax=False)
    seconds = _turns.take_turns({"gyrograd": works["gyrograd"]}, rounds, repeats=2000)
    report.add("P8", "f32 from NumPy, us", 1e6 * statistics.median(seconds["gyrograd"]), 5)
    add_autograd_calls(report, parts, rounds)


def add_autograd_calls(report: Report, parts: dict[str, object], rounds: int) -> None:
    steps = _peers.autograd_steps(parts)
    seconds = _turns.take_turns(steps, 3 * rounds, repeats=200)
    for name in ("gyrograd.torch", "an empty autograd.Function"):
        value = _turns.ratio(seconds[name], seconds["PyTorch eager"])
        ms, base = (1e3 * statistics.median(seconds[one]) for one in (name, "PyTorch eager"))
        report.add("P8 autograd", f"f32 {name}", value, 0.45, ms=ms, base_ms=base)


# ---- peers


def add_peers(report: Report, rounds: int, writer: csv.DictWriter) -> None:
    rotary = [
        (f"{dtype} {mode} {outputs}", marks.problem((2, 4096, 32, 128), (1, 4096, 1, 128), **named), dtype, outputs)
        for dtype in ("bf16", "f32")
        for mode in ("half", "interleave")
        for outputs in ("dx", "dx+tables")
        for named in ({"types": dtype, "mode": mode, "outputs": outputs},)
    ]
    joint = [
        (f"{dtype} joint, layer_affine half", marks.joint_problem("layer_affine", "half", dtype), dtype, "joint")
        for dtype in ("bf16", "f32")
    ]
    for what, text, dtype, outputs in rotary + joint:
        times = turns_with_peers(text, rounds, writer, what)
        compiled = min(times["PyTorch compiled"], times["PyTorch compiled formula"])
        goal = {"dx": (8, 4), "dx+tables": (8, 6), "joint": (6, 4)}[outputs][dtype == "f32"]
        report.add("P5", f"{what}, compiled", compiled, goal, problem=text)
        report.add("P5", f"{what}, JAX", times["JAX jit"], goal, problem=text)
        report.add("P6", f"{what}, eager", times["PyTorch eager"], 9 if outputs == "joint" else 15, problem=text)
    for dtype in ("bf16", "f32"):
        text = marks.sized("BSND 1S1D", marks.CACHE_BYTES, dtype, "dx", mode="half")
        times = turns_with_peers(text, rounds, writer, f"{dtype} half dx, 1 MiB")
        compiled = min(times["PyTorch compiled"], times["PyTorch compiled formula"])
        report.add("P7 peers", f"{dtype} half dx, compiled", compiled, 3, problem=text)


def turns_with_peers(text: str, rounds: int, writer: csv.DictWriter, what: str) -> dict[str, float]:
    """Each peer's time through gyrograd's."""
    works = _peers.contestants(_bench.parse_problem(text), COPY_THREADS, True)
    seconds = _turns.take_turns(works, rounds, budget=PEERS_SECONDS)
    times = {name: _turns.ratio(one, seconds["gyrograd"]) for name, one in seconds.items()}
    for name, one in seconds.items():
        ms = 1e3 * statistics.median(one)
        writer.writerow({"problem": text, "what": what, "contestant": name, "ms": ms, "times": times[name]})
    print(f"  {what:34}" + "  ".join(f"{name} {value:.1f}" for name, value in times.items()), flush=True)
    return times


# ---- the whole


def measure_all(report: Report, options: argparse.Namespace) -> None:
    total = marks.memory_bytes()
    quick = options.quick
    entries = marks.timed(total)
    if quick:
        entries = (entry for entry in entries if is_quick(entry))
    add_timed(report, entries, options.rounds)
    add_calls(report, options.rounds)
    if quick:
        return
    add_sizes(report, options.rounds)
    add_beside_torch(report, options.rounds)
    add_workspaces(report)
    with (OUT / "peers.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["problem", "what", "contestant", "ms", "times"])
        writer.writeheader()
        print("\npeers: times of gyrograd's")
        add_peers(report, options.rounds, writer)


def is_quick(entry: marks.Entry) -> bool:
    """One of the usual cases of each mark."""
    if "avx2" in entry.mark or "portable" in entry.mark:
        return False
    return "f32" not in entry.what and ("half BSND 1S1D" in entry.what or "layer_affine half BSND" in entry.what)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a subset that takes a minute")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--page", action="store_true", help="write docs/performance.md's and README.md's figures")
    options = parser.parse_args()
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(OUT / "inductor"))
    OUT.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()
    report = Report(OUT / "marks.csv")
    measure_all(report, options)
    report.close()
    summary = pages.summary(report.rows)
    print("\n" + "\n".join(summary))
    print(f"\n{time.monotonic() - begin:.0f} s; {pages.machine(gyrograd.info())}")
    plots.draw(report.rows, OUT)
    print(f"every value: {(OUT / 'marks.csv').relative_to(ROOT)}; plots: {OUT.relative_to(ROOT)}/*.png")
    if options.page:
        pages.write(ROOT, report.rows)


if __name__ == "__main__":
    main()

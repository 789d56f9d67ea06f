"""Counts the instructions that a value takes, by callgrind: the same on every run. AVX2, which valgrind knows.

Prints a table: rotary by outputs, mode and layout; the joint operator by norm and rotation. Needs valgrind.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import marks

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "build" / "release" / "bench" / "gyrograd_bench"
RUNS = ("gyrograd::RotaryBackwardPlan::Run*", "gyrograd::NormRopeConcatBackwardPlan::Run*")
LENGTH = 512  # of a sequence: what is done once vanishes, and sums are in one chunk


def count(problem: str) -> int:
    """The instructions of one run of a plan."""
    with tempfile.TemporaryDirectory() as folder:
        output = f"{folder}/callgrind.out"
        collect = [f"--toggle-collect={run}" for run in RUNS]
        command = [
            "valgrind",
            "--tool=callgrind",
            f"--callgrind-out-file={output}",
            *collect,
            PROGRAM,
            "--once",
            problem,
        ]
        subprocess.run(command, check=True, capture_output=True)
        return int(re.search(r"^summary: (\d+)", Path(output).read_text(), re.MULTILINE)[1])


def rotary() -> Iterator[tuple[str, list[str]]]:
    values = marks.BATCH * marks.HEADS * marks.HEAD_DIM * LENGTH
    for outputs in ("dx", "dx+tables", "tables"):
        for mode in marks.MODES:
            for layout in ("BSND 1S1D", "BNSD 11SD"):
                counts = []
                for dtype in marks.TYPES:
                    more = {"types": dtype, "mode": mode, "outputs": outputs, "threads": 1, "target": "avx2"}
                    counts.append(f"{count(marks.problem(*marks.shapes(layout, LENGTH), **more)) / values:.2f}")
                yield f"{outputs}, {mode}, {layout}", counts


def joint() -> Iterator[tuple[str, list[str]]]:
    """A value is one of query's or key's rows: value's are copied."""
    sizes = {"query": LENGTH, "key": LENGTH, "encoder_query": 8, "encoder_key": 8, "threads": 1, "target": "avx2"}
    values = 2 * 24 * marks.HEAD_DIM * (LENGTH + 8)
    for norm in ("layer", "layer_affine", "rms_affine"):
        for rotation in marks.ROTATIONS:
            rope = {} if rotation == "none" else {"rope": LENGTH + 8}
            problems = [marks.joint_problem(norm, rotation, dtype, **sizes, **rope) for dtype in marks.TYPES]
            yield f"joint, {norm}, {rotation}", [f"{count(problem) / values:.2f}" for problem in problems]


def main() -> None:
    print("| instructions a value, AVX2 | " + " | ".join(marks.TYPES) + " |\n|---|---|---|---|")
    for group in (rotary, joint):
        for what, counts in group():
            print(f"| {what} | {' | '.join(counts)} |", flush=True)


if __name__ == "__main__":
    main()

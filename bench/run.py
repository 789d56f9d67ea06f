"""Runs the whole measurement: marks against plain copies, small calls, peers; CSV files and a plot in build/bench."""

from __future__ import annotations

import argparse
import collections
import csv
import os
import pathlib
import subprocess
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "release" / "bench"
OUT = ROOT / "build" / "bench"


def run(title: str, *command: str | pathlib.Path) -> None:
    print(f"\n== {title}", flush=True)
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(OUT / "inductor")}
    subprocess.run([str(word) for word in command], check=True, cwd=ROOT, env=environment)


def rows(path: pathlib.Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def plot_marks(axes: plt.Axes) -> None:
    """A dot a problem: its time through the fastest copy of the same bytes."""
    by_group = collections.defaultdict(list)
    limits = {}
    for row in rows(OUT / "marks.csv"):
        group = f"{row['mark']}\n{row['type']}"
        by_group[group].append((row["mode"], float(row["ratio"])))
        limits[group] = float(row["limit"])
    modes = sorted({mode for points in by_group.values() for mode, _ in points})
    for place, group in enumerate(by_group):
        for index, mode in enumerate(modes):
            ratios = [ratio for each, ratio in by_group[group] if each == mode]
            shift = (index - (len(modes) - 1) / 2) * 0.15
            axes.plot([place + shift] * len(ratios), ratios, ".", color=f"C{index}", label=mode if place == 0 else None)
        axes.hlines(limits[group], place - 0.4, place + 0.4, color="black", linewidth=1)
    axes.set_xticks(range(len(by_group)), list(by_group))
    axes.set_ylim(bottom=0)
    axes.set_ylabel("time / fastest copy of the same bytes")
    axes.set_title("Marks (line: the goal; P1 dx, P2 dx and tables, P3 tables)")
    axes.legend()


def plot_peers(axes: plt.Axes) -> None:
    """Bars: how many times gyrograd's time each peer takes."""
    table = [row for row in rows(OUT / "peers.csv") if row["outputs"] != "small call"]
    problems = list(dict.fromkeys(f"{row['type']} {row['mode']}\n{row['outputs']}" for row in table))
    peers = list(dict.fromkeys(row["contestant"] for row in table if not row["contestant"].startswith("gyrograd")))
    width = 0.8 / max(1, len(peers))
    for index, peer in enumerate(peers):
        ratios = [float(row["ratio"]) for row in table if row["contestant"] == peer]
        places = [place + (index - (len(peers) - 1) / 2) * width for place in range(len(problems))]
        axes.bar(places, ratios, width, label=peer)
    axes.set_xticks(range(len(problems)), problems, fontsize=7)
    axes.set_ylabel("time / gyrograd's time")
    axes.set_title("Peers, (2,4096,32,128)")
    axes.legend()


def plot() -> None:
    figure, (left, right) = plt.subplots(1, 2, figsize=(16, 6), layout="constrained")
    plot_marks(left)
    plot_peers(right)
    figure.savefig(OUT / "bench.png", dpi=120)
    print(f"\nCSV files and bench.png: {OUT.relative_to(ROOT)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a subset that takes a minute")
    quick = ["--quick"] if parser.parse_args().quick else []
    OUT.mkdir(parents=True, exist_ok=True)
    run("Marks", BUILD / "gyrograd_marks", *quick, "--csv", OUT / "marks.csv")
    run("Norm, rotary, concat", BUILD / "gyrograd_norm_rope_marks", *quick, "--csv", OUT / "norm_rope_marks.csv")
    run(
        "Small calls and single problems",
        BUILD / "gyrograd_bench",
        f"--benchmark_out={OUT / 'calls.json'}",
        "--benchmark_out_format=json",
    )
    run("Peers", sys.executable, ROOT / "bench" / "peers.py", *quick, "--csv", OUT / "peers.csv")
    plot()


if __name__ == "__main__":
    main()

"""Runs the fuzzers of build/fuzz one after the other, for some seconds each, and prints a line a target.

A fuzzer starts from its corpus, fuzz/corpus/TARGET, and from the inputs of earlier runs, build/fuzz/inputs/TARGET,
where new ones are kept. It stops at its first fault, whose input goes to build/fuzz/faults. Full logs: build/logs. The
exit code is 0 only when nothing was found.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "fuzz"
LOGS = ROOT / "build" / "logs"
MOST_BYTES = 500  # of an input
MOST_SECONDS = 25  # of one run
ENVIRONMENT = {  # no more: what a fuzzer meets in it gets into its inputs
    "PATH": os.environ["PATH"],
    "OMP_WAIT_POLICY": "passive",
    "LSAN_OPTIONS": f"suppressions={ROOT / 'tests' / 'lsan.supp'}:print_suppressions=0",
}


def last(pattern: str, text: str) -> str:
    found = re.findall(pattern, text, re.MULTILINE)
    return found[-1] if found else "?"


def run(target: str, seconds: int) -> bool:
    """Runs one fuzzer and prints its line; True where it found nothing."""
    inputs, faults = BUILD / "inputs" / target, BUILD / "faults"
    for folder in (inputs, faults, LOGS):
        folder.mkdir(parents=True, exist_ok=True)
    program = BUILD / "fuzz" / f"fuzz_{target}"
    command = [program, f"-max_total_time={seconds}", f"-max_len={MOST_BYTES}", "-len_control=0"]
    command += [f"-timeout={MOST_SECONDS}", f"-artifact_prefix={faults}/{target}-", "-print_final_stats=1"]
    log = LOGS / f"fuzz-{target}.log"
    with log.open("w") as output:
        result = subprocess.run(
            [*command, inputs, ROOT / "fuzz" / "corpus" / target],
            env=ENVIRONMENT,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        )
    text = log.read_text(errors="replace")
    runs, edges = last(r"^stat::number_of_executed_units: +(\d+)", text), last(r"\bcov: (\d+)", text)
    found = int(result.returncode != 0)
    print(f"{target}: {runs} runs, {edges} edges covered, {found} faults", flush=True)
    if found:
        print(f"--- {last(r'^FINDING: .*', text)}; {last(r'^SUMMARY: .*', text)}")
        fault = last(r"Test unit written to (\S+)", text)
        print(f"--- to see it again: {program.relative_to(ROOT)} {fault}; log: {log.relative_to(ROOT)}")
    return not found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=60, help="how long each fuzzer runs")
    parser.add_argument("targets", nargs="*", help="some of the targets; all where none is named")
    arguments = parser.parse_args()
    targets = arguments.targets or sorted(path.name for path in (ROOT / "fuzz" / "corpus").iterdir())
    results = [run(target, arguments.seconds) for target in targets]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())

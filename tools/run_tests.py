"""Runs every test of the project and counts them: C++ by ctest, Python and install tests by pytest.

One line a runner, the failures' output after it, and as the last line `N passed, M failed` over all of them. The exit
code is 0 only when nothing failed and no runner crashed. Full logs and JUnit files lie in build/logs.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import re
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass, field

ROOT = pathlib.Path(__file__).resolve().parent.parent
LOGS = ROOT / "build" / "logs"
SHOWN_FAILURES = 10  # of a runner; the others by name
TAIL_LINES = 25
LINE_WIDTH = 300
# Idle OpenMP threads sleep instead of spinning: two test programs, or PyTorch's runtime beside ours, share the cores.
ENVIRONMENT = {**os.environ, "OMP_WAIT_POLICY": "passive"}


@dataclass
class Count:
    """What one runner reports."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    failures: list[str] = field(default_factory=list)  # name and output of each failed test


def tail(text: str) -> str:
    return "\n".join(line[:LINE_WIDTH] for line in text.rstrip().splitlines()[-TAIL_LINES:])


def count_ctest_case(case: ElementTree.Element, count: Count) -> None:
    """Adds one entry of ctest: as many tests as GoogleTest reports in its output, or itself."""
    output = case.findtext("system-out") or ""
    ok = len(re.findall(r"^\[       OK \] ", output, re.MULTILINE))
    bad = len(re.findall(r"^\[  FAILED  \] \S+.* \(\d+ ms\)$", output, re.MULTILINE))
    count.skipped += len(re.findall(r"^\[  SKIPPED \] \S+ \(\d+ ms\)$", output, re.MULTILINE))
    succeeded = case.get("status") == "run"
    if not succeeded:
        bad = max(bad, 1)
        count.failures.append(f"{case.get('name')}\n{tail(output)}")
    elif not ok:
        ok = 1
    count.passed += ok
    count.failed += bad


def read_ctest(path: pathlib.Path) -> Count:
    count = Count()
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        count_ctest_case(case, count)
    return count


def read_pytest(path: pathlib.Path) -> Count:
    count = Count()
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        bad = [child for child in case if child.tag in ("failure", "error")]
        if bad:
            count.failed += 1
            count.failures.append(f"{case.get('classname')}::{case.get('name')}\n{tail(bad[0].text or '')}")
        elif case.find("skipped") is not None:
            count.skipped += 1
        else:
            count.passed += 1
    return count


def run(name: str, command: list[str], report: pathlib.Path, reader) -> Count:
    """Runs one runner with its output in a log, prints its line and its failures."""
    report.unlink(missing_ok=True)
    log = LOGS / f"test-{pathlib.Path(name).name}.log"
    start = time.monotonic()
    with log.open("w") as output:
        result = subprocess.run(
            command, cwd=ROOT, env=ENVIRONMENT, stdout=output, stderr=subprocess.STDOUT, check=False
        )
    code = result.returncode
    try:
        count = reader(report)
    except (OSError, ElementTree.ParseError):
        count = Count()
    if not count.failed and (code != 0 or not count.passed):
        count.failed += 1
        count.failures.append(f"{name} ended with exit code {code}\n{tail(log.read_text(errors='replace'))}")
    seconds = time.monotonic() - start
    skipped = f", {count.skipped} skipped" if count.skipped else ""
    print(f"{name}: {count.passed + count.failed} tests{skipped}, {count.failed} of them bad, {seconds:.0f} s")
    for failure in count.failures[:SHOWN_FAILURES]:
        print(f"--- {failure}")
    for failure in count.failures[SHOWN_FAILURES:]:
        print(f"--- {failure.splitlines()[0]}")
    sys.stdout.flush()
    return count


def ctest_command(large: bool, report: pathlib.Path) -> list[str]:
    command = ["ctest", "--test-dir", "build/release", "--output-junit", str(report), "--no-tests=error"]
    command += ["--test-output-size-passed", "100000000", "--test-output-size-failed", "100000000"]
    if large:
        return [*command, "-L", "^large$"]
    return [*command, "-LE", "^large$", "--parallel", str(os.cpu_count() or 1)]


def pytest_command(folder: str, report: pathlib.Path) -> list[str]:
    return [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", folder]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--large", action="store_true", help="only the tests that need more than 4 GB of memory")
    large = parser.parse_args().large
    LOGS.mkdir(parents=True, exist_ok=True)

    counts = []
    report = LOGS / "ctest.xml"
    counts.append(run("C++", ctest_command(large, report), report, read_ctest))
    for folder in [] if large else ["tests/python", "tests/install"]:
        report = LOGS / f"{pathlib.Path(folder).name}.xml"
        counts.append(run(folder, pytest_command(folder, report), report, read_pytest))

    failed = sum(count.failed for count in counts)
    print(f"{sum(count.passed for count in counts)} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

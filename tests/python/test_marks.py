"""bench/: the marks' problems run, and their table says what was measured."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "bench"))

import marks  # noqa: E402
import pages  # noqa: E402

from gyrograd import _bench  # noqa: E402

SMALL = {"4096": "24", "512": "3", "4608": "27"}  # positions of the joint operator


def small(problem):
    if problem.startswith("norm_rope_concat"):
        for length, other in SMALL.items():
            problem = problem.replace(length, other)
    return problem


ENTRIES = list(marks.timed(300_000))


def test_there_is_a_problem_for_every_cell():
    counts = {mark: sum(entry.mark == mark for entry in ENTRIES) for mark in ("P1", "P2", "P3", "P4", "P11", "P12")}
    assert counts == {"P1": 72, "P2": 72, "P3": 72, "P4": 90, "P11": 24, "P12": 48}
    assert {entry.mark for entry in ENTRIES} <= set(marks.WORDS)


@pytest.mark.parametrize("part", range(8))
def test_problems_are_accepted(part):
    targets = ("avx2", "portable")
    for entry in ENTRIES[part::8]:
        for problem in filter(None, (entry.problem, entry.base)):
            plain = problem.partition(",target=")[0] if any(target in entry.mark for target in targets) else problem
            (times,) = _bench.take_turns([small(plain)], 1, 1)
            assert times["seconds"][0] > 0


def test_sizes_are_those_asked_for():
    for layout in marks.LAYOUTS:
        for outputs in ("dx", "dx+tables", "tables"):
            (times,) = _bench.take_turns([marks.sized(layout, 1 << 22, "bf16", outputs)], 1, 1)
            total = times["bytes_read"] + times["bytes_written"]
            assert 0.6 * (1 << 22) < total <= 1.6 * (1 << 22), (layout, outputs)


def test_workspaces_stay_within_what_is_allowed():
    for what, problem, allowed in marks.workspaces():
        if not what.startswith("bf16 dx+tables B") and "joint" not in what:
            continue  # large, and alike
        (times,) = _bench.take_turns([problem], 1, 1)
        assert times["workspace_bytes"] <= allowed, what


def row(mark, what, value, limit):
    at_least = {"P1": False, "P6": True}[mark]
    return SimpleNamespace(mark=mark, what=what, value=value, limit=limit, met=(value >= limit) == at_least)


def test_the_table_counts_what_is_met():
    rows = [row("P1", "f32 a", 1.0, 1.1), row("P1", "f32 b", 1.3, 1.1), row("P6", "bf16 c", 20, 15)]
    text = "\n".join(pages.summary(rows))
    assert "| f32 | 1.00 | 1.15 | 1.30 | 1 of 2 |" in text
    assert "| bf16 | 20.00 | 20.00 | 20.00 | 1 of 1 |" in text
    assert "| P1 | 1.30 | 1.1 | f32 b |" in pages.worst_cells(rows)


def test_figures_replace_those_between_the_markers(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"before\n{pages.BEGIN}\nold\n{pages.END}\nafter\n")
    pages._replace(page, ["new"])
    assert page.read_text() == f"before\n{pages.BEGIN}\nnew\n{pages.END}\nafter\n"
    with pytest.raises(ValueError, match="no figures"):
        pages._replace(ROOT / "LICENSE", ["new"])


@pytest.mark.parametrize("page", ["README.md", "docs/performance.md"])
def test_the_pages_have_their_markers(page):
    text = (ROOT / page).read_text()
    assert text.count(pages.BEGIN) == text.count(pages.END) == 1

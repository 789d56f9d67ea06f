"""`gyrograd bench`, and turns of contestants."""

import argparse
import io
import json

import pytest
from rich.console import Console

from gyrograd import _bench, _bench_report, _turns
from gyrograd._inputs import InputError
from gyrograd.cli import main

SMALL = "rotary:types=bf16,dy=2x16x4x8,tables=1x16x1x8,outputs=dx"
JOINT = "norm_rope_concat:heads=2,head_dim=8,query=5,key=5,norm=rms,rotary=half,rope=5"


def options(*arguments):
    parser = argparse.ArgumentParser()
    _bench_report.add_arguments(parser, int)
    return parser.parse_args(arguments)


@pytest.mark.parametrize("problem", [SMALL, JOINT])
def test_a_problem_is_measured_against_a_copy_and_peers(problem):
    result = _bench_report.measure(options(problem, "--threads=1", "--rounds=2", "--no-compile"))
    assert result["problem"] == f"{problem},threads=1"
    assert result["ms"] > 0 and result["copy_ms"] > 0 and result["ratio"] > 0
    assert result["copy"] in ("streaming", "plain", "memcpy")
    names = [peer["name"] for peer in result["peers"]]
    assert names[0] == "gyrograd" and {"PyTorch eager", "JAX jit"} <= set(names)
    lines = shown(result)
    for name in names[1:]:
        assert any(f" {name} " in line and "x gyrograd from NumPy" in line for line in lines)


def shown(result):
    """The lines that the command prints."""
    out = io.StringIO()
    _bench_report.show(result, Console(file=out, width=160))
    return out.getvalue().splitlines()


def test_every_ratio_is_of_two_rows():
    peers = [("gyrograd", 2.0), ("gyrograd.torch", 3.0), ("PyTorch eager", 50.0), ("JAX jit", 9.0)]
    result = {
        "problem": SMALL, "threads": 1, "bytes_read": 1, "bytes_written": 1, "quartiles": [1, 1], "ms": 1.5,
        "copy": "plain", "copy_ms": 1.2, "gigabytes_per_second": 1.0, "ratio": 1.5 / 1.2, "peers_note": "",
        "peers": [{"name": name, "ms": ms, "ratio": ms / 2.0} for name, ms in peers],
    }  # fmt: skip
    cells = [[cell.strip() for cell in line.split("│")[1:4]] for line in shown(result) if line.startswith("│")]
    copy, *others = [name for name, _, _ in cells]
    assert copy == "copy of the same bytes (plain)"
    assert others == ["gyrograd", "gyrograd from NumPy", *(name for name, _ in peers[1:])]
    assert [bool(words) for _, _, words in cells] == [False, True, False, True, True, True]
    times = {name: float(ms) for name, ms, _ in cells} | {"the copy": float(cells[0][1])}
    for name, _, words in cells:
        if words:
            ratio, base = words.split(" x ")
            assert float(ratio) == pytest.approx(times[name] / times[base], abs=0.05), name


def test_peers_that_do_not_compute_a_problem_say_why():
    result = _bench_report.measure(options(SMALL + ",mode=quarter", "--threads=1", "--rounds=1"))
    assert result["peers"] == [] and "quarter" in result["peers_note"]


def test_the_problem_s_own_threads_count():
    result = _bench_report.measure(options(SMALL + ",threads=2", "--rounds=1", "--no-peers"))
    assert result["threads"] == 2 and result["problem"].endswith("threads=2")


def test_two_numbers_of_threads_are_refused():
    with pytest.raises(InputError, match="--threads 2: the problem says threads=1"):
        _bench_report.measure(options(SMALL + ",threads=1", "--threads=2", "--rounds=1", "--no-peers"))


@pytest.mark.parametrize(("quartiles", "warns"), [([1.0, 1.9], False), ([1.0, 2.1], True)])
def test_rounds_that_differ_are_remarked_on(quartiles, warns):
    result = _bench_report.measure(options(SMALL, "--rounds=1", "--no-peers"))
    with Console(width=200, file=io.StringIO(), record=True) as console:
        _bench_report.show(result | {"quartiles": quartiles}, console)
    text = console.export_text()
    assert ("idle cores" in text) == warns and "GB/s, the copy" in text


def test_the_bars_are_drawn(tmp_path):
    path = tmp_path / "bars.svg"
    assert main(["bench", SMALL, "--rounds=1", "--no-peers", f"--plot={path}"]) == 0
    assert path.read_text().startswith("<?xml")


def test_json_is_one_object(capsys):
    assert main(["bench", SMALL, "--rounds=1", "--no-peers", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["bytes_written"] == 2 * 1024


@pytest.mark.parametrize(
    ("problem", "words"),
    [
        ("rotary:dy=8", "tables is missing"),
        ("rope", "no problem of rotary"),
        ("rotary:dy=6,tables=6,mode=quarter", "divisible by 4"),
        ("norm_rope_concat:heads=x", "heads is 'x'"),
        ("rotary:dy=1152921504606846976,tables=1", "memory"),
    ],
)
def test_a_refused_problem_is_named(problem, words, capsys):
    assert main(["bench", problem, "--rounds=1"]) == 2
    assert words in capsys.readouterr().err


def test_a_plot_that_cannot_be_written_is_refused_before_measuring(tmp_path):
    with pytest.raises(InputError, match="no ending"):
        _bench_report.measure(options(SMALL, f"--plot={tmp_path / 'bars'}"))


def test_problems_take_turns():
    first, second = _turns.measure([f"{SMALL},threads=1", f"{JOINT},threads=1"], 3, 1)
    assert len(first.seconds) == len(second.copy_seconds) == 3
    low, high = first.spread
    assert 0 < low <= first.ratio <= high
    assert first.bytes == first.bytes_read + first.bytes_written == 2 * (1024 + 256 + 1024)


def test_parts_of_a_problem():
    parts = _bench.parse_problem("rotary:types=bf16/f32,dy=2x3x8,tables=2x1x2,per_pair=1,rotary_dim=4,x_layout=packed")
    assert parts["dtype"] == "bf16" and parts["table_dtype"] == "f32"
    assert parts["dy"] == (2, 3, 8) and parts["rotary_dim"] == 4 and parts["per_pair_tables"] is True
    assert parts["strides"]["x"] == [72, 8, 1]


def test_a_budget_ends_the_rounds():
    calls = []
    seconds = _turns.take_turns({"one": lambda: calls.append(1)}, 100, repeats=2, budget=0.0)
    assert len(seconds["one"]) == 1 and len(calls) == 4

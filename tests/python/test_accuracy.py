"""`gyrograd accuracy`: its families of numbers, what it finds wrong, what it shows, and docs/accuracy.md."""

import csv
import itertools
import json
import math
import re
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch
from formulas import EPS, backward_input, norm_backward, pairs, table_terms

from gyrograd import _accuracy, _accuracy_operators, cli
from gyrograd._accuracy import Job
from gyrograd._accuracy_families import FAMILIES
from gyrograd._accuracy_operators import OPERATORS
from gyrograd._inputs import DTYPES, KINDS, MODES
from gyrograd._verdicts import Verdict

PAGE = Path(__file__).parents[2] / "docs" / "accuracy.md"
OF_NORMS = [name for name, family in FAMILIES.items() if family.of_norms]


@pytest.fixture
def only_normal(monkeypatch):
    """One family is enough where the numbers don't matter."""
    monkeypatch.setattr(_accuracy, "FAMILIES", {"normal": FAMILIES["normal"]})


def accuracy(capsys, *arguments, code=0):
    """What --json prints."""
    assert cli.main(["accuracy", "--cases=1", *arguments, "--json"]) == code
    return json.loads(capsys.readouterr().out)


# ---- the report


@pytest.mark.parametrize("operator, kind", [("rotary", "f64"), ("norm_rope", "bf16"), ("norm_rope_concat", "f16+f32")])
def test_every_norm_and_mode_keeps_its_bounds(capsys, operator, kind):
    threads = torch.get_num_threads()
    report = accuracy(capsys, f"--operator={operator}", f"--type={kind}")
    assert report["exceeding"] == []
    assert report["versions"]["torch"] == torch.__version__
    assert torch.get_num_threads() == threads
    assert list(report["operators"]) == [operator]
    rows, one = report["operators"][operator], OPERATORS[operator]
    assert [(row["norm"], row["mode"]) for row in rows] == [(norm, mode) for norm in one.norms for mode in one.modes]
    for row in rows:
        assert row["gyrograd"].keys() == row["eager"].keys() <= set(one.columns)
        for column, cell in row["gyrograd"].items():
            assert cell["ok"] and cell["family"] in FAMILIES
            if cell["unit"] == "ulp":
                assert cell["error"] == 0
                assert row["norm"] == "none" or column == "value"
            else:
                assert 0 < cell["error"] <= 1
    norms = {row["norm"]: set(row["gyrograd"]) for row in rows}
    if operator == "norm_rope":
        assert norms["none"] == norms["layer"] == norms["rms"] == {"dx"}
        assert norms["layer_affine"] == {"dx", "dweight", "dbias"}
        assert norms["rms_affine"] == {"dx", "dweight"}


@pytest.mark.parametrize("operator", OPERATORS)
def test_pytorch_s_formulas_are_the_same_operators(capsys, only_normal, operator):
    """In float64, on easy numbers, its gradients keep the bounds too."""
    rows = accuracy(capsys, f"--operator={operator}", "--type=f64")["operators"][operator]
    errors = [cell["error"] for row in rows for cell in row["eager"].values()]
    assert len(errors) >= len(rows) and max(errors) < 1


def test_numbers_are_the_seed_s(capsys, only_normal):
    first, again, other = (accuracy(capsys, "--operator=rotary", "--type=f32", f"--seed={n}") for n in (1, 1, 2))
    assert first == again
    assert first["operators"] != other["operators"]


def test_cases_differ(capsys, only_normal, tmp_path):
    path = tmp_path / "a.csv"
    assert cli.main(["accuracy", "--operator=rotary", "--type=f32", "--cases=3", "--csv", str(path)]) == 0
    with path.open() as file:
        lines = list(csv.DictReader(file))
    assert tuple(lines[0]) == _accuracy.COLUMNS
    assert len(lines) == len(MODES) * 3 * len(OPERATORS["rotary"].columns)
    dcos = [float(line["error"]) for line in lines if line["result"] == "dcos"]
    assert len(set(dcos)) == len(dcos)
    text = capsys.readouterr().out
    assert text.splitlines()[-1] == f"{len(lines)} results"
    assert text.startswith("rotary ")
    assert text.count(" f32 ") == len(MODES)


@pytest.mark.parametrize("how", ["not wanted", "not there"])
def test_without_pytorch(monkeypatch, capsys, only_normal, tmp_path, how):
    if how == "not there":
        monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setattr(_accuracy_operators.Rotary, "eager", None)
    path = tmp_path / "page.md"
    option = ["--without-torch"] if how == "not wanted" else []
    assert cli.main(["accuracy", "--operator=rotary", "--type=f16", "--cases=1", "--page", str(path), *option]) == 0
    _, rows = tables(path.read_text())["rotary"]
    assert {cell for row in rows for cell in row[3::2]} == {"-"}
    assert "no PyTorch" in path.read_text()


@pytest.mark.parametrize("option", ["--csv", "--page"])
def test_a_file_that_can_not_be_is_refused_first(monkeypatch, capsys, tmp_path, option):
    monkeypatch.setattr(_accuracy, "run", None)
    assert cli.main(["accuracy", option, str(tmp_path / "absent" / "file")]) == 2
    assert f"{option} {tmp_path}/absent/file: it can't be written" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--csv", "--page"])
def test_a_file_without_room(capsys, only_normal, option):
    assert cli.main(["accuracy", "--operator=rotary", "--type=f16", "--cases=1", option, "/dev/full"]) == 2
    assert f"{option} /dev/full: No space" in capsys.readouterr().err


# ---- a wrong library

CALLS = {
    "rotary": ("rotary_backward", ("dx", "dcos", "dsin")),
    "norm_rope": ("norm_rope_backward", ("dx", "dweight", "dbias")),
    "norm_rope_concat": (
        "norm_rope_concat_backward",
        ("query", "encoder_key", "value", "encoder_value", "norm_added_query_weight", "norm_key_bias"),
    ),
}
SPOILED = (("half", None, None), (None, "layer_affine", "half"))  # mode, norm and rope
RESULTS = [(operator, result) for operator, (_, results) in CALLS.items() for result in results]


def spoil(monkeypatch, operator, result, change):
    """The library's call gives a changed result in one mode of two, and of two norms in one."""
    name, _ = CALLS[operator]
    call = getattr(_accuracy_operators, name)

    def wrong(**keywords):
        results = call(**keywords)
        if (keywords.get("mode"), *map(keywords.get, ("norm_type", "rope_type"))) in SPOILED:
            change(results[CALLS["rotary"][1].index(result)] if operator == "rotary" else getattr(results, result))
        return results

    monkeypatch.setattr(_accuracy_operators, name, wrong)
    monkeypatch.setattr(OPERATORS[operator], "modes", ("half", "interleave"), raising=False)
    if operator != "rotary":
        monkeypatch.setattr(OPERATORS[operator], "norms", ("layer_affine", "layer"), raising=False)


def moved(units):
    """A change of the largest element of bfloat16s, by so many units in the last place."""

    def change(array):
        bits = array.view(np.int16).reshape(-1)
        bits[np.argmax(np.abs(array.astype(np.float32)))] -= units

    return change


@pytest.mark.parametrize("operator, result", RESULTS)
def test_a_wrong_element_exceeds(monkeypatch, capsys, only_normal, operator, result):
    """One unit in the last place where bits are promised, two where a sum may fall on either side."""
    is_exact = (result == "dx" and operator == "rotary") or result.endswith("value")
    spoil(monkeypatch, operator, result, moved(1 if is_exact else 2))
    arguments = ["--operator", operator, "--type", "bf16", "--without-torch"]
    report = accuracy(capsys, *arguments, code=1)
    assert len(report["exceeding"]) == 1
    found = report["exceeding"][0]
    assert (found["mode"], found["family"], found["ok"]) == ("half", "normal", False)
    assert found["result"] == OPERATORS["norm_rope"].results.get(result, result) if operator == "norm_rope" else result
    assert found["error"] == 1 if is_exact else found["error"] > 1
    assert cli.main(["accuracy", "--cases=1", *arguments]) == 1
    text = capsys.readouterr().out
    assert text.splitlines()[-1].endswith(" results, 1 beyond what is promised")
    assert f"EXCEEDS: {operator} bf16" in text


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("operator, result", RESULTS)
def test_neither_nan_nor_infinity_passes(monkeypatch, capsys, operator, result, value):
    """In no family, be it of numbers near overflow."""

    def change(array):
        array.reshape(-1)[5] = value

    spoil(monkeypatch, operator, result, change)
    kept = {name: family for name, family in FAMILIES.items() if not family.is_long}
    monkeypatch.setattr(_accuracy, "FAMILIES", kept)
    report = accuracy(capsys, "--operator", operator, "--type=f32", "--without-torch", code=1)
    families = [name for name in kept if operator != "rotary" or name not in OF_NORMS]
    assert [found["family"] for found in report["exceeding"]] == families
    assert all(found["error"] == "inf" for found in report["exceeding"])


@pytest.mark.parametrize("value, worst", [(math.nan, 0.0), (math.inf, 0.0), (1.0, math.nan)])
def test_a_lenient_reference_does_not_let_it_pass(monkeypatch, value, worst):
    monkeypatch.setattr(OPERATORS["rotary"], "compare", lambda *_: {"dx": Verdict(True, 0, worst, "")}, raising=False)
    (verdict,) = _accuracy._judged(OPERATORS["rotary"], None, {"dx": np.array([1, value], np.float16)}).values()
    assert not verdict.ok and verdict.worst == math.inf


# ---- the families


def call_of(operator, kind, norm, mode, family, case=0):
    """The sizes and a call's arrays, as they reach the library."""
    drawn, arrays = _accuracy.draw(Job(operator, kind, norm, mode, family, case), 0)
    return drawn, OPERATORS[operator].call(drawn, arrays)


def rotary_tensors(kind, mode, family):
    """dy, cos, sin, x in float64."""
    drawn, call = call_of("rotary", kind, "none", mode, family)
    assert call.tensors["dy"].dtype == call.tensors["x"].dtype == DTYPES[KINDS[kind].rows]
    assert call.tensors["cos"].dtype == call.tensors["sin"].dtype == DTYPES[KINDS[kind].tables]
    return drawn, {name: tensor.astype(np.float64) for name, tensor in call.tensors.items()}


def eps_of(kind):
    return float(ml_dtypes.finfo(DTYPES[KINDS[kind].rows]).eps)


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", FAMILIES)
def test_nothing_overflows(operator, kind, family):
    for mode in OPERATORS[operator].modes[-2:]:
        norm = "layer_affine" if "layer_affine" in OPERATORS[operator].norms else "none"
        if norm == "none" and family in OF_NORMS:
            continue
        _, call = call_of(operator, kind, norm, mode, family)
        inputs = call.tensors if operator == "rotary" else call.arrays
        for arrays in (inputs, OPERATORS[operator].gradients(call)):
            assert all(np.isfinite(array.astype(np.float64)).all() for array in arrays.values())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", MODES)
def test_cancellation(kind, mode):
    _, t = rotary_tensors(kind, mode, "cancellation")
    _, _, first, second = pairs(mode, t["dy"].shape[-1])
    for mine, other, sign in ((first, second, 1), (second, first, -1)):
        a, b = t["cos"][..., mine] * t["dy"][..., mine], sign * t["sin"][..., other] * t["dy"][..., other]
        assert (np.abs(a + b) <= 4 * eps_of(kind) * np.abs(a)).all()
        assert (a + b).any() or kind.endswith("+f32") or kind == "f64"
    for terms in table_terms(t["dy"], t["x"], mode):
        total, magnitude = (array.astype(np.longdouble).sum(axis=(0, 2)) for array in (terms, np.abs(terms)))
        assert (np.abs(total) <= 8 * eps_of(kind) * magnitude).all()
        assert total.any()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("norm", ["layer", "layer_affine", "rms", "rms_affine"])
def test_cancellation_in_a_norm(kind, norm):
    _, call = call_of("norm_rope", kind, norm, "none", "cancellation")
    a = {name: array.astype(np.float64) for name, array in call.arrays.items()}
    mean, rstd = (a.get(f"norm_query_{name}") for name in ("mean", "rstd"))
    weight = a.get("norm_query_weight")
    dy = a["grad_query_output"].swapaxes(1, 2)
    dx, _, _ = norm_backward(dy, a["query"], norm, weight, mean, rstd)
    kept = np.abs(dx) / (rstd * np.abs(dy if weight is None else dy * weight).mean(-1, keepdims=True))
    assert kept.max() <= max(16 * eps_of(kind), 1e-6 if kind != "f64" else 1e-12) + 8 * EPS
    assert kept.any()


@pytest.mark.parametrize("kind", KINDS)
def test_huge(kind):
    largest = float(ml_dtypes.finfo(DTYPES[KINDS[kind].rows]).max)
    _, t = rotary_tensors(kind, "half", "huge")
    assert min(np.abs(t["dy"]).max(), np.abs(t["x"]).max()) > largest / 4
    drawn, call = call_of("norm_rope", kind, "layer_affine", "half", "huge")
    a = {name: np.abs(array.astype(np.float64)).max() for name, array in call.arrays.items()}
    assert a["grad_query_output"] > largest / 64 / drawn.head_dim / drawn.heads
    assert a["query"] > (1e149 if kind == "f64" else largest / 8)


@pytest.mark.parametrize("kind", KINDS)
def test_tiny_and_denormals(kind):
    limits, of_tables = (ml_dtypes.finfo(DTYPES[name]) for name in (KINDS[kind].rows, KINDS[kind].tables))
    least = float(limits.smallest_normal)
    _, t = rotary_tensors(kind, "half", "tiny")
    for rows in (t["dy"][::2], t["x"][1::2]):
        assert (np.abs(rows) >= least).all() and (np.abs(rows) <= 16 * least).all() and len(np.unique(rows)) > 10
    _, t = rotary_tensors(kind, "half", "denormals")
    for rows, smallest in (
        (t["dy"][::2], least),
        (t["x"][1::2], least),
        (t["cos"][:, 1::2], float(of_tables.smallest_normal)),
        (t["sin"][:, 1::2], float(of_tables.smallest_normal)),
    ):
        assert (rows != 0).all() and (np.abs(rows) < smallest).all() and len(np.unique(np.abs(rows))) > 10


@pytest.mark.parametrize("kind", ["f64", "f16", "bf16+f32"])
@pytest.mark.parametrize("mode", MODES)
def test_same_sign(kind, mode):
    drawn, t = rotary_tensors(kind, mode, "same sign")
    assert drawn.batch * drawn.heads == 16384
    for terms in table_terms(t["dy"], t["x"], mode):
        assert (np.abs(np.sign(terms).sum(axis=(0, 2))) == 16384).all()
    drawn, call = call_of("norm_rope", kind, "layer_affine", mode, "same sign")
    a = {name: array.astype(np.float64) for name, array in call.arrays.items()}
    g = backward_input(a["grad_query_output"], a["rope_cos"], a["rope_sin"], mode).swapaxes(1, 2)
    x_hat = (a["query"] - a["norm_query_mean"]) * a["norm_query_rstd"]
    for terms in (g, g * x_hat):
        assert (np.abs(np.sign(terms).sum(axis=(0, 1, 2))) == 8192).all()


@pytest.mark.parametrize("kind", KINDS)
def test_mixed_scales(kind):
    _, t = rotary_tensors(kind, "half", "mixed scales")
    exponent = {"f64": 100, "f16": 4}.get(KINDS[kind].rows, 20)
    for name in ("dy", "x"):
        scales = np.log2(np.abs(t[name]))
        assert (np.ptp(scales, axis=-1) > 1.5 * exponent).all()
        assert -exponent <= scales.min() < -0.9 * exponent and 0.9 * exponent < scales.max() <= exponent + 1


@pytest.mark.parametrize("kind", KINDS)
def test_zero_variance_and_large_means(kind):
    _, call = call_of("norm_rope", kind, "layer", "none", "zero variance")
    x = call.arrays["query"].astype(np.float64)
    assert not np.ptp(x, axis=-1).any()
    assert 0 < np.count_nonzero(x[..., 0]) < x[..., 0].size
    assert len(np.unique(x)) > 10
    _, call = call_of("norm_rope", kind, "layer", "none", "large means")
    x = call.arrays["query"].astype(np.float64)
    mean, deviation = np.abs(x.mean(-1)), x.std(-1)
    assert (mean > min(5e3, 1.5 / eps_of(kind)) * deviation).all()  # 16 bits hold few of the deviations
    if kind in ("f32", "f64"):
        assert (mean < 2e4 * deviation).all()


# ---- docs/accuracy.md


def tables(text):
    """Operator -> head and rows of its table."""
    found = {}
    for part in text.split("\n## ")[1:]:
        lines = [re.split(r" \| ", line[2:-2]) for line in part.splitlines() if line.startswith("| ")]
        found[part.splitlines()[0]] = (lines[0], lines[2:])
    return found


def test_the_page_is_the_command_s():
    text = PAGE.read_text()
    header = re.match(r"<!-- Written by `gyrograd (accuracy .*)`\. -->\n# Accuracy\n", text)
    options = cli._parser(cli.OPERATORS["rotary"]).parse_args(header[1].split())
    assert _accuracy.command_of(options) == f"gyrograd {header[1]}"
    assert (options.operator, options.type, options.without_torch, str(options.page)) == (
        None, None, False, "docs/accuracy.md",
    )  # fmt: skip
    every = {job[:4]: None for job in _accuracy.jobs(options)}
    found = tables(text)
    assert list(found) == list(OPERATORS)
    for name, (head, rows) in found.items():
        labels = 2 if name == "rotary" else 3
        assert head == _accuracy.table(name, [])[0]
        want = [job[1:] if labels == 3 else (job[1], job[3]) for job in every if job[0] == name]
        assert [tuple(row[:labels]) for row in rows] == want
        for row in rows:
            assert len(row) == len(head)
            assert [cell == "-" for cell in row[labels::2]] == [cell == "-" for cell in row[labels + 1 :: 2]]
    assert "EXCEEDS" not in text


def test_the_page_is_current(tmp_path, monkeypatch):
    """Every fourth row of each operator and type, measured again; the next type begins with another row, so that every
    norm and mode comes. PyTorch's figures may be another PyTorch's.
    """
    every = _accuracy.jobs
    kinds = list(KINDS)

    def is_drawn(operator, kind, norm, mode):
        one = OPERATORS[operator]
        row = list(itertools.product(one.norms, one.modes)).index((norm, mode))
        return row % 4 == kinds.index(kind) % 4

    monkeypatch.setattr(_accuracy, "jobs", lambda options: [job for job in every(options) if is_drawn(*job[:4])])
    text = PAGE.read_text()
    path = tmp_path / "page.md"
    given = re.search(r"--seed \d+ --cases \d+", text)[0].split()
    assert cli.main(["accuracy", *given, "--without-torch", "--page", str(path)]) == 0
    new, old = tables(path.read_text()), tables(text)
    assert list(new) == list(OPERATORS)
    for name, (head, rows) in new.items():
        labels = 2 if name == "rotary" else 3
        assert head == old[name][0]
        found = {tuple(row[:labels]): row[labels::2] for row in old[name][1]}
        drawn = {tuple(row[:labels]): row[labels::2] for row in rows}
        assert {row[0] for row in drawn} == set(kinds)
        assert {row[1:] for row in drawn} == {row[1:] for row in found}
        assert drawn == {row: found[row] for row in drawn}

"""The command on the joint operator: check of its cases, grad of its files, explain of its problems."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from attention import Problem
from formulas import BF16, assert_same_bits
from test_cli import load, native, rows, run, save

import gyrograd as gg
from gyrograd import cli

CASES = Path(__file__).parents[2] / "cases" / "norm_rope_concat_grad.csv"
ROW = {
    "id": "one", "dtype": "bf16", "batch": "2", "heads": "3", "head_dim": "16", "seq_query": "5", "seq_key": "4",
    "seq_encoder_query": "3", "seq_encoder_key": "2", "seq_rope": "4", "norm_type": "2", "norm_added_type": "4",
    "rope_type": "2", "concat_order": "1",
}  # fmt: skip
FULL = {"norm": "layer_affine", "added": "rms_affine", "rope": "half", "order": "encoder_first"}
OPTIONS = [
    "--norm-type",
    "layer_affine",
    "--norm-added-type",
    "4",
    "--rope-type",
    "2",
    "--concat-order",
    "encoder_first",
]


def write_cases(path, *cases):
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(ROW))
        writer.writeheader()
        writer.writerows(cases)
    return path


# -- check


def test_check_of_the_real_problems():
    """A few of each rope type and type; make demo runs them all."""
    with CASES.open() as file:
        firsts = {(row["rope_type"], row["dtype"]): row["id"] for row in reversed(list(csv.DictReader(file)))}
    assert len(firsts) == 9
    ids = [part for case_id in firsts.values() for part in ("--id", case_id)]
    report = json.loads(run("check", CASES, "--json", *ids)[0])
    assert (report["cases"], report["passed"], report["failed"]) == (9, 9, 0)
    assert [(group["rope_type"], group["dtype"]) for group in report["groups"]] == [
        (rope, dtype) for rope in ("none", "interleave", "half") for dtype in ("f32", "f16", "bf16")
    ]
    for group in report["groups"]:
        assert group["bits_wrong"] == 0
        assert all(0 <= group[name] <= 1 for name in ("normed_worst", "weights_worst", "biases_worst"))


@pytest.mark.parametrize("dtype", ["f64", "f32", "f16", "bf16"])
def test_check_of_every_type(tmp_path, dtype):
    cases = [
        ROW | {"id": f"{norm}{added}{rope}{order}", "dtype": dtype, "norm_type": norm, "norm_added_type": added}
        | {"rope_type": rope, "concat_order": order}
        for norm in ("0", "layer", "2", "rms", "4")
        for added in ("none", "2")
        for rope in ("none", "1", "half", "quarter", "interleave-half")
        for order in ("0", "encoder_first")
    ]  # fmt: skip
    out, error = run("check", write_cases(tmp_path / "c.csv", *cases))
    assert out.splitlines()[-1] == "100 passed"
    assert "every element of every gradient is compared" in " ".join(out.split())
    assert not error


def test_check_of_absent_encoders(tmp_path):
    cases = [
        ROW | {"id": "q", "seq_encoder_query": "0"},
        ROW | {"id": "both", "seq_encoder_query": "0", "seq_encoder_key": "0"},
    ]
    assert run("check", write_cases(tmp_path / "c.csv", *cases))[0].splitlines()[-1] == "2 passed"


NAMES = [
    "query", "key", "value", "encoder_query", "encoder_key", "encoder_value", "norm_query_weight", "norm_query_bias",
    "norm_key_weight", "norm_key_bias", "norm_added_query_weight", "norm_added_key_weight",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_check_of_a_wrong_library(monkeypatch, capsys, tmp_path, name):
    """One wrong element of one result: exit code 1, and the case and the result are named."""
    from gyrograd import _check_norm_rope_concat

    def wrong(**keywords):
        results = gg.norm_rope_concat_backward(**keywords)
        if keywords["rope_type"] == "half":
            getattr(results, name).flat[13] += 0.5
        return results

    monkeypatch.setattr(_check_norm_rope_concat, "norm_rope_concat_backward", wrong)
    path = write_cases(tmp_path / "c.csv", ROW | {"rope_type": "1"}, ROW | {"id": "bad", "dtype": "f32"})
    assert cli.main(["check", str(path), "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert (report["passed"], report["failed"]) == (1, 1)
    assert [failure["id"] for failure in report["failures"]] == ["bad"]
    assert list(report["failures"][0]["results"]) == [name]
    assert report["failures"][0]["results"][name]["mismatches"] == 1
    assert cli.main(["check", str(path)]) == 1
    out = capsys.readouterr().out
    assert "FAILED bad (line 3): layer_affine rms_affine half encoder_first f32 batch 2 heads 3 head_dim 16" in out
    assert f"  {name}: 1 elements; " in out


@pytest.mark.parametrize("name", NAMES)
def test_check_of_a_library_that_leaves_a_result_out(monkeypatch, capsys, tmp_path, name):
    from gyrograd import _check_norm_rope_concat

    def lacking(**keywords):
        return gg.norm_rope_concat_backward(**keywords)._replace(**{name: None})

    monkeypatch.setattr(_check_norm_rope_concat, "norm_rope_concat_backward", lacking)
    assert cli.main(["check", str(write_cases(tmp_path / "c.csv", ROW))]) == 1
    assert f"  {name}: 0 elements; the library gave no such result" in capsys.readouterr().out


def test_check_makes_the_same_data_for_the_same_id():
    from gyrograd import _check, _check_norm_rope_concat

    case = _check.read_cases(CASES)[0]
    first, again = (_check_norm_rope_concat.make_arrays(case.id, case.problem) for _ in range(2))
    for name, array in first.items():
        assert_same_bits(array, again[name])
    x = first["query"].astype(np.float64)
    assert abs(x.mean()) < 0.01
    assert abs(x.std() - 1) < 0.01
    rstd = 1 / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(first["norm_query_rstd"], rstd, rtol=1e-6)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"norm_type": "5"}, ":2: column norm_type: '5' is not a norm type; norm types are none (0), layer (1)"),
        ({"norm_added_type": "batch"}, ":2: column norm_added_type: 'batch' is not a norm type"),
        ({"rope_type": "3"}, ":2: column rope_type: '3' is not a rope type"),
        ({"concat_order": "2"}, ":2: column concat_order: '2' is not a concat order"),
        ({"dtype": "int8"}, ":2: column dtype: 'int8' is not a type"),
        ({"batch": "-1"}, ":2: column batch: '-1' is not a whole number"),
        ({"heads": ""}, ":2: column heads: '' is not a whole number"),
        ({"head_dim": "15"}, ":2: norm_rope_concat_backward: grad_query_output has shape [2, 3, 8, 15]; in mode half"),
        ({"seq_rope": "7"}, ":2: norm_rope_concat_backward: rope_cos has shape [7, 16]; rope_start, 0"),
        ({"seq_query": "9" * 18}, ":2: norm_rope_concat_backward: "),
    ],
)
def test_check_refuses_bad_rows(tmp_path, change, text):
    path = write_cases(tmp_path / "c.csv", ROW | change)
    _, error = run("check", path, code=2)
    assert f"gyrograd check: {path}{text}" in error


def test_check_names_missing_columns(tmp_path):
    path = tmp_path / "c.csv"
    path.write_text("id,norm_added_type,batch\n")
    assert ":1: the header lacks the columns dtype, heads, head_dim" in run("check", path, code=2)[1]


# -- grad


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32, BF16])
def test_grad(tmp_path, dtype, suffix):
    problem = Problem(seed=1, dtype=dtype, dim=16, **FULL)
    source = save(tmp_path / f"in{suffix}", problem.backward_arrays())
    target = tmp_path / f"out{suffix}"
    out, _ = run("grad", source, "--operator", "norm_rope_concat", "-o", target, *OPTIONS)
    assert "norm_added_key_weight" in out
    want = {name: value for name, value in problem.backward()._asdict().items() if value is not None}
    got = load(target)
    assert got.keys() == want.keys()
    for name, value in want.items():
        assert_same_bits(got[name], value)


def test_grad_options(tmp_path):
    rotation = {"rope_start": 1, "per_pair_tables": True, "rotary_dim": 8, "rotary_offset": 4}
    problem = Problem(seed=2, dim=16, **FULL, rotation=rotation)
    arrays = problem.backward_arrays()
    for stream in ("query", "key", "value"):
        arrays[f"grad_{stream}_output"] = np.ascontiguousarray(arrays[f"grad_{stream}_output"].swapaxes(1, 2))
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
    folder = tmp_path / "gradients"
    options = [
        "--rope-start",
        "1",
        "--per-pair-tables",
        "--rotary-dim",
        "8",
        "--rotary-offset",
        "4",
        "--out-layout",
        "BSND",
    ]
    options += ["--outputs", "norm_query_bias,query", "--threads", "1", "--target", "best"]
    inputs = [tmp_path / f"{name}.npy" for name in arrays]
    run("grad", "--operator=norm_rope_concat", *inputs, "-o", folder, *OPTIONS, *options)
    got = {path.stem: native(np.load(path)) for path in folder.iterdir()}
    want = problem.backward()
    assert got.keys() == {"query", "norm_query_bias"}
    for name, value in got.items():
        assert_same_bits(value, getattr(want, name))


def test_grad_of_key_alone(tmp_path):
    """As in Python, any of the three gradients will do."""
    problem = Problem(seed=4, **FULL)
    names = ("grad_key_output", "key", "encoder_key", "norm_key_", "norm_added_key_", "rope_")
    arrays = {name: a for name, a in problem.backward_arrays().items() if name.startswith(names)}
    source = save(tmp_path / "in.npz", arrays)
    run("grad", source, "--operator", "norm_rope_concat", "-o", tmp_path / "out.npz", *OPTIONS)
    got, want = load(tmp_path / "out.npz"), problem.backward()
    assert got.keys() == {"key", "encoder_key", "norm_key_weight", "norm_key_bias", "norm_added_key_weight"}
    for name, value in got.items():
        assert_same_bits(value, getattr(want, name))


def test_grad_ignores_what_types_that_are_named_do_not_use(tmp_path):
    problem = Problem(seed=5, **FULL)
    source = save(tmp_path / "in.npz", problem.backward_arrays())
    none = ["--norm-type", "none", "--norm-added-type", "0", "--rope-type", "none"]
    run("grad", source, "--operator", "norm_rope_concat", "-o", tmp_path / "out.npz", *none)
    got = load(tmp_path / "out.npz")
    assert got.keys() == {"query", "key", "value", "encoder_query", "encoder_key", "encoder_value"}
    assert_same_bits(got["encoder_query"], problem.grads["query"].swapaxes(1, 2)[:, 5:])


def test_grad_help_says_what_is_needed():
    text = " ".join(run("grad", "--operator", "norm_rope_concat", "--help")[0].replace("-\n", "-").split())
    for part in ("with --norm-type norm_query_rstd", "with --rope-type rope_cos", "their tensors are refused"):
        assert part in text
    assert "if wanted" not in text


def test_grad_refusals(tmp_path):
    problem = Problem(seed=3, **FULL)
    source = save(tmp_path / "in.npz", problem.backward_arrays())
    target = tmp_path / "out.npz"
    operator = ["--operator", "norm_rope_concat"]
    for arguments, text in [
        ([*operator, source, *OPTIONS, "--rotary-dim", "7"], "norm_rope_concat_backward: rotary_dim is 7"),
        ([*operator, source, *OPTIONS, "--outputs", "dx"], "'dx' is not a result; results are query, key"),
        ([*operator, source, "--norm-type", "5"], "'5' is not a norm type"),
        ([*operator, source], "norm_query_weight is given without norm_type; norm_type must be"),
        ([*operator, source, *OPTIONS[:2], *OPTIONS[4:]], "norm_added_query_weight is given without norm_added_type"),
        ([*operator, source, *OPTIONS[:4]], "rope_sin is given without rope_type; rope_type must be"),
        ([source], "known are dy, cos, sin, x; hint: --operator norm_rope_concat\n"),
    ]:
        assert text in run("grad", *arguments, "-o", target, code=2)[1]
        assert not target.exists()
    np.savez(tmp_path / "lacks.npz", query=problem.inputs["query"])
    text = run("grad", *operator, tmp_path / "lacks.npz", "-o", target, code=2)[1]
    assert "grad_query_output is missing, and so are the other gradients" in text
    np.savez(tmp_path / "more.npz", **problem.backward_arrays(), value=problem.inputs["value"])
    text = run("grad", *operator, tmp_path / "more.npz", "-o", target, *OPTIONS, code=2)[1]
    assert "more.npz: unknown tensor value; known are grad_query_output, grad_key_output, " in text
    text = run("grad", *operator, source, *OPTIONS, "-o", source, code=2)[1]
    assert "is an input too" in text


# -- explain

SIZES = {
    "batch": 2, "heads": 24, "head-dim": 64, "seq-query": 100, "seq-key": 90, "seq-encoder-query": 20,
    "seq-encoder-key": 30, "seq-rope": 100,
}  # fmt: skip


def explain(*arguments, code=0, **changes):
    sizes = [part for name, size in (SIZES | changes).items() for part in (f"--{name}", size)]
    return json.loads(run("explain", "--operator", "norm_rope_concat", *sizes, *arguments, "--json", code=code)[0])


ALL = {"native", "atlas-a2", "atlas-a3", "ascend-950"}


@pytest.mark.parametrize(
    ("arguments", "changes", "accepted"),
    [
        (["--rope-type", "half"], {}, ALL),
        (["--rope-type", "half", "--norm-type", "2", "--norm-added-type", "layer"], {}, ALL),
        (["--norm-type", "rms"], {}, {"native"}),
        (["--norm-added-type", "4"], {}, {"native"}),
        (["--dtype", "f64"], {}, {"native"}),
        (["--rope-type", "1", "--table-dtype", "f32"], {}, {"native"}),
        (["--norm-type", "2", "--weight-dtype", "f32"], {}, {"native"}),
        (["--rope-type", "quarter"], {}, {"native"}),
        (["--rope-type", "half", "--per-pair-tables"], {}, {"native"}),
        (["--rope-type", "half", "--rotary-dim", "32", "--rotary-offset", "8"], {}, {"native"}),
        (["--rope-type", "half", "--rope-start", "7"], {}, {"native"}),
        ([], {"head-dim": 2048}, {"native"}),
        ([], {"key-heads": 8}, {"native"}),
        (["--out-layout", "BSND", "--concat-order", "1"], {}, ALL),
    ],
)
def test_explain_products(arguments, changes, accepted):
    report = explain(*arguments, **changes)
    assert report["accepted"]
    assert "norm_rope_concat_backward" in report["plan"]
    assert {row["product"] for row in report["products"] if row["accepted"]} == accepted
    assert len(report["products"]) == 7
    assert all(row["accepted"] or row["rule"] for row in report["products"])


def test_explain_says_what_products_lack(monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    sizes = [part for name, size in SIZES.items() for part in (f"--{name}", size)]
    table = rows(
        "--operator", "norm_rope_concat", *sizes, "--rope-type", "quarter", "--rotary-dim", "32", "--rope-start", "2"
    )
    assert table[1] == (
        "atlas-a2, atlas-a3, ascend-950",
        "no",
        "its operator has no partial rotary, no rope type quarter, no rope_start",
    )
    assert table[2][2] == "the operator is not offered on this product"


def test_explain_of_all_positions():
    """Without --seq-rope the tables reach to the end of the shorter joint sequence."""
    sizes = {name: size for name, size in SIZES.items() if name != "seq-rope"}
    arguments = [part for name, size in sizes.items() for part in (f"--{name}", size)]
    arguments = ["explain", "--operator", "norm_rope_concat", *arguments, "--rope-type", "half", "--json"]
    for start in (0, 7):
        report = json.loads(run(*arguments, "--rope-start", start)[0])
        want = explain("--rope-type", "half", "--rope-start", start, **{"seq-rope": 120 - start})
        assert report == want
        assert report != explain("--rope-type", "half", "--rope-start", start, **{"seq-rope": 119 - start})
    assert "rope_start, 120, and its 1 rows" in run(*arguments, "--rope-start", 120, code=2)[0]


def test_explain_says_what_products_and_the_c_interface_limit(monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    sizes = [part for name, size in SIZES.items() for part in (f"--{name}", size)]
    native, products, _ = rows("--operator", "norm_rope_concat", *sizes, "--rope-type", "half")
    assert native == ("native", "yes", "no limits beyond the operator's")
    assert products[:2] == ("atlas-a2, atlas-a3, ascend-950", "yes")
    assert "D even, 1 to 1024" in products[2]
    native, products, _ = rows("--operator", "norm_rope_concat", *sizes, "--norm-type", "rms_affine")
    assert native[1] == "yes"
    assert native[2].endswith("the C interface refuses it: normType is 4; it must be 0 to 2")
    assert products[1:] == ("no", "normType is 4; it must be 0 to 2")


def test_explain_refusals():
    report = explain("--rope-type", "half", code=2, **{"seq-rope": 121})
    assert not report["accepted"]
    assert report["plan"] is None
    assert "rope_cos has shape [121, 64]" in report["error"]
    assert not any(row["accepted"] for row in report["products"])
    report = explain("--outputs", "norm_query_bias", code=2)
    assert "norm_query_bias's gradient is asked for; norm_type none has no bias" in report["error"]
    assert (
        "the following arguments are required: --batch" in run("explain", "--operator", "norm_rope_concat", code=2)[1]
    )
    assert "'x' is not a whole number" in run("explain", "--operator", "norm_rope_concat", "--batch", "x", code=2)[1]

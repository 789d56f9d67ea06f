"""The command: what each part prints, writes and returns."""

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from formulas import BF16, DTYPES, MODES, assert_same_bits, problem, random

import gyrograd as gg
from gyrograd import cli

CASES = Path(__file__).parents[2] / "cases" / "rotary_grad.csv"
HEADER = "id,mode,dtype,dy,cos,dy_lo,dy_hi,cos_lo,cos_hi,sin_lo,sin_hi,x_lo,x_hi"
ROW = {
    "id": "one", "mode": "half", "dtype": "bf16", "dy": "2x6x3x16", "cos": "1x6x1x16",
    "dy_lo": "-1", "dy_hi": "1", "cos_lo": "-1", "cos_hi": "1", "sin_lo": "0.5", "sin_hi": "0.5",
    "x_lo": "-2", "x_hi": "2",
}  # fmt: skip


def run(*arguments, code=0):
    """The command in its own process: standard output and error."""
    command = [sys.executable, "-m", "gyrograd", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout, done.stderr


def write_cases(path, *rows, header=HEADER):
    with path.open("w", newline="") as file:
        file.write(header + "\n")
        csv.DictWriter(file, header.split(","), extrasaction="ignore").writerows(rows)
    return path


# -- check


def test_check(tmp_path):
    out, error = run("check", write_cases(tmp_path / "c.csv", ROW, ROW | {"id": "two", "mode": "1"}))
    assert out.splitlines()[-1] == "2 passed"
    assert "interleave" in out
    assert not error


def test_check_of_every_mode_and_type():
    """The first real problem of each mode and type."""
    with CASES.open() as file:
        firsts = {(row["mode"], row["dtype"]): row["id"] for row in reversed(list(csv.DictReader(file)))}
    assert len(firsts) == 12
    ids = [part for case_id in firsts.values() for part in ("--id", case_id)]
    report = json.loads(run("check", CASES, "--json", *ids)[0])
    assert (report["cases"], report["passed"], report["failed"]) == (12, 12, 0)
    assert [(group["mode"], group["dtype"]) for group in report["groups"]] == [
        (mode, dtype) for mode in MODES for dtype in ("f32", "f16", "bf16")
    ]
    for group in report["groups"]:
        assert group["dx_wrong"] == 0
        assert 0 <= group["dcos_worst"] <= 1
        assert 0 <= group["dsin_worst"] <= 1


def test_check_options():
    out, _ = run("check", CASES, "--limit", 3, "--threads", 1, "--target", gg.info().cpu_targets[-1])
    assert out.splitlines()[-1] == "3 passed"
    assert json.loads(run("check", CASES, "--id", "r0003", "--json")[0])["cases"] == 1


def test_check_of_a_named_operator(tmp_path):
    path = write_cases(tmp_path / "c.csv", ROW)
    assert run("check", "--operator", "rotary", path)[0].splitlines()[-1] == "1 passed"
    text = run("check", path, "--operator", "norm_rope_concat", code=2)[1]
    assert f"{path}:1: the header lacks the columns batch, heads" in text


def test_progress_without_a_terminal(monkeypatch, capsys, tmp_path):
    """Lines on standard error, at most one in a while, none with --json."""
    path = str(write_cases(tmp_path / "c.csv", *(ROW | {"id": str(i)} for i in range(4))))
    monkeypatch.setattr(cli, "SECONDS_BETWEEN_LINES", 0)
    assert cli.main(["check", path]) == 0
    assert capsys.readouterr().err.splitlines() == [f"checking: {i} of 4" for i in (1, 2, 3)]
    assert cli.main(["check", path, "--json"]) == 0
    assert capsys.readouterr().err == ""


def test_check_makes_the_same_data_for_the_same_id():
    from gyrograd import _check, _check_rotary

    cases = _check.read_cases(CASES)[3:5]
    for case in cases:
        first, again = (_check_rotary.make_tensors(case.id, case.problem) for _ in range(2))
        for name in _check_rotary.TENSORS:
            assert_same_bits(first[name], again[name])
            low, high = case.problem.ranges[name]
            assert low - 0.01 <= float(first[name].min()) <= float(first[name].max()) <= high + 0.01
    heads = [_check_rotary.make_tensors(case.id, case.problem)["dy"].ravel()[:8] for case in cases]
    assert not np.array_equal(*heads)


@pytest.mark.parametrize("result", range(3), ids=["dx", "dcos", "dsin"])
@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
def test_check_of_a_wrong_library(monkeypatch, capsys, tmp_path, result, as_json):
    """One wrong element of one result of one case: exit code 1, and the case is named."""
    from gyrograd import _check_rotary

    def wrong(**keywords):
        results = gg.rotary_backward(**keywords)
        if keywords["mode"] == "quarter":
            results[result][0, 1, 0, 5] += 1
        return results

    monkeypatch.setattr(_check_rotary, "rotary_backward", wrong)
    path = write_cases(tmp_path / "c.csv", ROW, ROW | {"id": "bad", "mode": "quarter", "dtype": "f32"})
    assert cli.main(["check", str(path), *(["--json"] if as_json else [])]) == 1
    out = capsys.readouterr().out
    name = ("dx", "dcos", "dsin")[result]
    if as_json:
        report = json.loads(out)
        assert (report["passed"], report["failed"]) == (1, 1)
        assert [failure["id"] for failure in report["failures"]] == ["bad"]
        assert list(report["failures"][0]["results"]) == [name]
        assert report["failures"][0]["results"][name]["mismatches"] == 1
    else:
        assert out.splitlines()[-1] == "1 passed, 1 failed"
        assert "FAILED bad (line 3): quarter f32 dy 2x6x3x16" in out
        assert f"  {name}: 1 elements; " in out


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"mode": "5"}, ":2: column mode: '5' is not a mode"),
        ({"dtype": "int8"}, ":2: column dtype: 'int8' is not a type"),
        ({"dy": "2x6x-3x16"}, ":2: column dy: '2x6x-3x16' is not a shape"),
        ({"cos": ""}, ":2: column cos: '' is not a shape"),
        ({"dy": f"2x{2**63}"}, ":2: column dy: 9223372036854775808 is no extent"),
        ({"x_lo": "low"}, ":2: column x_lo: 'low' is not a finite number"),
        ({"x_hi": "inf"}, ":2: column x_hi: 'inf' is not a finite number"),
        ({"x_lo": "3"}, ":2: column x_lo: 3 is above x_hi, 2"),
        ({"id": " "}, ":2: column id: the id is empty"),
        ({"cos": "1x6x1x8"}, ":2: rotary_backward: cos has shape [1, 6, 1, 8]; its last extent must equal dy's, 16\n"),
        ({"dy": "2x6x3x16,1"}, None),
    ],
)
def test_check_refuses_bad_rows(tmp_path, change, text):
    path = write_cases(tmp_path / "c.csv", ROW | change)
    _, error = run("check", path, code=2)
    assert f"gyrograd check: {path}{text or ':2: column dy:'}" in error


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("", ":1: the header lacks the columns id, mode"),
        (HEADER, ": no cases"),
        (HEADER.replace("mode,", ""), ":1: the header lacks the columns mode"),
        (f"{HEADER}\none,half", ":2: the row has more or fewer fields"),
        (f"{HEADER}\n" + ",".join(ROW.values()) + ",1", ":2: the row has more or fewer fields"),
        (f"{HEADER}\n" + "\n".join([",".join(ROW.values())] * 2), ":3: column id: 'one' is the id of line 2"),
        (b"\xff\xfe\x00", ": "),
        (None, ": No such file"),
    ],
)
def test_check_refuses_bad_files(tmp_path, content, text):
    path = tmp_path / "c.csv"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    out, error = run("check", path, "--json", code=2)
    assert f"{path}{text}" in error
    assert json.loads(out)["error"] in error


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["check", CASES, "--id", "none"], "no case has the id 'none'"),
        (["check", CASES, "--limit", "0"], "'0' is not a whole number above 0"),
        (["check", CASES, "--target", "sse"], "invalid choice: 'sse'"),
        (["check", CASES, "--target", "neon" if gg.info().cpu_target != "neon" else "avx2"], "not available here"),
        (["check"], "CASES.csv"),
        (["rotate"], "invalid choice: 'rotate'"),
        ([], "COMMAND"),
    ],
)
def test_arguments_refused(arguments, text):
    assert text in run(*arguments, code=2)[1]


OF_CONCAT = "--operator norm_rope_concat"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            ["grad", "a.npz", "-o", "b.npz", "--rope-type", "half"],
            "--rope-type is an option of --operator norm_rope and",
        ),
        (
            ["grad", "--concat-order=1", "a.npz"],
            "--concat-order is an option of --operator norm_rope_concat, not of rotary",
        ),
        (["grad", *OF_CONCAT.split(), "--mode"], "--mode is an option of --operator rotary, not of norm_rope_concat"),
        (["grad", "--operator=norm_rope", "--mode", "2"], "--mode is an option of --operator rotary, not of norm_rope"),
        (["explain", "--batch", "2"], "--batch is an option of --operator norm_rope_concat, not of rotary"),
        (["explain", *OF_CONCAT.split(), "--dy", "2x4"], "--dy is an option of --operator rotary"),
        (["explain", "--operator", "norm_rope", "--dy", "2x4"], "invalid choice: 'norm_rope'"),
        (["grad", "--operator", "softmax"], "invalid choice: 'softmax'"),
        (["explain", "--operator"], "expected one argument"),
        (["explain", "--dy", "2,4"], "'2,4' is not a shape"),
        (
            ["explain", "--dy", "2x4", "--mode", "4"],
            "modes are half (0), interleave (1), quarter (2), interleave-half (3)\n",
        ),
        (
            ["explain", *OF_CONCAT.split(), "--rope-type", "3"],
            "'3' is not a rope type; rope types are none (0), interleave (1), half (2), quarter, interleave-half\n",
        ),
        (["check"], "required: CASES.csv"),
        (["info", "extra"], "unrecognized arguments: extra"),
    ],
)
def test_refused_arguments_are_shown_as_other_refusals(arguments, text):
    """The usage of the command at hand and the message; with --json an object."""
    out, error = run(*arguments, code=2)
    assert out == ""
    assert error.startswith(f"usage: gyrograd {arguments[0]} " if arguments[0] != "info" else "usage: gyrograd ")
    message = error.splitlines()[-1].partition(": ")[2]
    assert text in message + "\n"
    out, error = run(*arguments, "--json", code=2)
    assert "usage" not in error
    message = json.loads(out)["error"]
    assert text in message + "\n"
    assert error.endswith(f": {message}\n")


def test_interrupt(tmp_path):
    """Ctrl-C while the cases are read (from a pipe that nobody fills): exit code 130, and no traceback. The tests
    themselves may run where a shell ignores Ctrl-C, as in the background.
    """
    pipe = tmp_path / "cases.csv"
    os.mkfifo(pipe)
    process = subprocess.Popen(
        [sys.executable, "-m", "gyrograd", "check", str(pipe)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    with pipe.open("w"):  # opens when the command opens it
        process.send_signal(signal.SIGINT)
        out, error = process.communicate(timeout=600)
    assert process.returncode == 130
    assert out == ""
    assert error == "interrupted\n"


# -- grad


def save(path, tensors):
    if path.suffix == ".npz":
        np.savez(path, **tensors)
    else:
        safetensors.numpy.save_file(tensors, path)
    return path


def load(path):
    if path.suffix == ".safetensors":
        return safetensors.numpy.load_file(path)
    return {name: native(tensor) for name, tensor in np.load(path).items()}


def native(tensor):
    return tensor.view(BF16) if tensor.dtype == np.dtype("V2") else tensor


def named(arrays):
    return dict(zip(("dy", "cos", "sin", "x"), arrays, strict=True))


def assert_results(results, arrays, **keywords):
    want = {
        name: result
        for name, result in zip(("dx", "dcos", "dsin"), gg.rotary_backward(*arrays, **keywords), strict=True)
        if result is not None
    }
    assert results.keys() == want.keys()
    for name, result in want.items():
        assert_same_bits(results[name], result)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_grad_of_archives(tmp_path, suffix, dtype):
    arrays = problem(1, (2, 5, 3, 16), (1, 5, 1, 16), dtype)
    source = save(tmp_path / f"in{suffix}", named(arrays))
    target = tmp_path / f"out{suffix}"
    out, _ = run("grad", source, "-o", target, "--mode", "interleave")
    assert "2x5x3x16" in out
    assert_results(load(target), arrays, mode="interleave")
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"in{suffix}", f"out{suffix}"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_grad_of_npy_files(tmp_path, dtype):
    arrays = problem(2, (2, 5, 3, 16), (1, 5, 1, 16), dtype)
    for name, array in named(arrays).items():
        np.save(tmp_path / f"{name}.npy", array)
    np.save(tmp_path / "upstream.npy", arrays[0])
    inputs = [f"dy={tmp_path / 'upstream.npy'}", *(tmp_path / f"{name}.npy" for name in ("cos", "sin", "x"))]
    folder = tmp_path / "gradients"
    report = json.loads(run("grad", *inputs, "--output", folder, "--json")[0])
    assert [entry["name"] for entry in report["outputs"]] == ["dx", "dcos", "dsin"]
    assert report["outputs"][1]["shape"] == [1, 5, 1, 16]
    assert report["outputs"][0]["dtype"] == np.dtype(dtype).name
    assert_results({path.stem: native(np.load(path)) for path in folder.iterdir()}, arrays)
    run("grad", *inputs[:3], "-o", tmp_path / "dx.npy")  # without x: dx alone
    assert_same_bits(native(np.load(tmp_path / "dx.npy")), gg.rotary_backward(*arrays[:3]))


def test_grad_options(tmp_path):
    arrays = problem(3, (2, 5, 3, 16), (1, 5, 1, 4), BF16, np.float32)
    source = save(tmp_path / "in.safetensors", named(arrays))
    options = ["--mode", "2", "--per-pair-tables", "--rotary-dim", "8", "--rotary-offset", "4", "--outputs", "dsin,dx"]
    run("grad", source, "-o", tmp_path / "out.npz", *options, "--threads", "1", "--target", "best")
    results = load(tmp_path / "out.npz")
    keywords = {"mode": "quarter", "per_pair_tables": True, "rotary_dim": 8, "rotary_offset": 4}
    assert_results(results, arrays, **keywords, outputs=["dx", "dsin"])
    assert results["dsin"].dtype == np.float32


def test_grad_shows_where_results_are(tmp_path):
    """In one line, however long the folder's name is: the table does not cut it."""
    source = save(tmp_path / "in.npz", named(problem(8, (5, 3, 16), (5, 1, 16))))
    folder = tmp_path / ("folder of a name that is long " * 5).strip()
    folder.mkdir()
    assert run("grad", source, "-o", folder)[0].splitlines()[0] == f"written to {folder / 'TENSOR.npy'}"
    archive = folder / "results.npz"
    assert run("grad", source, "-o", archive)[0].splitlines()[0] == f"written to {archive}"


def test_grad_of_one_segment(tmp_path):
    """norm_rope_backward: an LLM's queries."""
    rng = np.random.default_rng(9)
    x, weight, dy = (random(rng, shape, BF16) for shape in ((2, 5, 3, 16), (16,), (2, 3, 5, 16)))
    tables = {name: random(rng, (4, 16), np.float32) for name in ("cos", "sin")}
    options = {"norm_type": "rms_affine", "rope_type": "half"}
    saved = gg.norm_rope(x, weight, **tables, **options).statistics
    source = save(tmp_path / "in.safetensors", {"dy": dy, "x": x, "weight": weight} | saved | tables)
    arguments = ["--operator", "norm_rope", "--norm-type", "rms_affine", "--rope-type", "2"]
    run("grad", source, *arguments, "-o", tmp_path / "out.safetensors")
    want = gg.norm_rope_backward(dy, x, weight, **saved, **tables, **options)
    got = load(tmp_path / "out.safetensors")
    assert got.keys() == {"dx", "dweight"}
    for name, value in got.items():
        assert_same_bits(value, getattr(want, name))
    for lacking, text in [
        (arguments[:2], "weight is given without norm_type; norm_type must be"),
        (arguments[:4], "cos is given without rope_type; rope_type must be"),
    ]:
        assert text in run("grad", source, *lacking, "-o", tmp_path / "none.npz", code=2)[1]
    assert not (tmp_path / "none.npz").exists()
    text = run("grad", source, "-o", tmp_path / "none.npz", code=2)[1]
    assert text.endswith("known are dy, cos, sin, x; hint: --operator norm_rope\n")


def test_grad_reads_other_byte_orders_and_layouts(tmp_path):
    dy, cos, sin, x = problem(4, (5, 3, 16), (5, 1, 16))
    source = save(tmp_path / "in.npz", {"dy": dy.astype(">f4"), "cos": np.asfortranarray(cos), "sin": sin, "x": x})
    run("grad", source, "-o", tmp_path / "out.npz")
    assert_results(load(tmp_path / "out.npz"), (dy, cos, sin, x))


def test_grad_never_writes_over_its_input(tmp_path):
    arrays = problem(5, (5, 3, 16), (5, 1, 16))
    both = save(tmp_path / "both.npz", named(arrays))
    before = both.read_bytes()
    _, err = run("grad", both, "-o", tmp_path / "." / "both.npz", code=2)
    assert "is an input too" in err
    assert both.read_bytes() == before


def test_grad_refusals_leave_old_results(tmp_path):
    arrays = problem(6, (5, 3, 16), (5, 1, 16))
    good = save(tmp_path / "in.npz", named(arrays))
    old = tmp_path / "old.npz"
    old.write_bytes(b"old")
    np.save(tmp_path / "table.npy", arrays[1])
    (tmp_path / "broken.npz").write_bytes(b"PK\x03\x04 not really")
    (tmp_path / "broken.safetensors").write_bytes(b"no")
    (tmp_path / "broken.npy").write_bytes(b"no")
    save(tmp_path / "lacks.npz", {"dy": arrays[0], "sin": arrays[2]})
    save(tmp_path / "narrow.npz", named(arrays) | {"cos": arrays[1][..., :8]})
    save(tmp_path / "ints.npz", named(arrays) | {"x": arrays[3].astype(np.int64)})
    np.savez(tmp_path / "objects.npz", dy=np.array([{}], object), cos=arrays[1], sin=arrays[2])
    np.save(tmp_path / "object.npy", np.array([{}], object))
    for suffix in (".npz", ".safetensors"):
        named_wrongly = named(arrays) | {"X": arrays[3], "foo": arrays[1]}
        del named_wrongly["x"]
        save(tmp_path / f"misspelt{suffix}", named_wrongly)
    shutil.copy(good, tmp_path / "zipped.npy")
    shutil.copy(tmp_path / "table.npy", tmp_path / "plain.npz")
    with zipfile.ZipFile(tmp_path / "texts.npz", "w") as archive:
        archive.writestr("dy", "no array")
    damaged = bytearray(good.read_bytes())
    damaged[200] ^= 1  # in dy's data
    (tmp_path / "damaged.npz").write_bytes(damaged)
    refusals = [
        (["absent.npz"], "absent.npz: No such file"),
        (["broken.npz"], "broken.npz: not a .npz file\n"),
        (["broken.safetensors"], "broken.safetensors: not a .safetensors file ("),
        (["dy=broken.npy"], "broken.npy: not a .npy file\n"),
        (["dy=zipped.npy"], "zipped.npy: not a .npy file but a .npz file by content\n"),
        (["plain.npz"], "plain.npz: not a .npz file but a .npy file by content\n"),
        (["texts.npz"], "texts.npz: dy is not an array\n"),
        (["damaged.npz"], "damaged.npz: Bad CRC-32 for file 'dy.npy'\n"),
        (["objects.npz"], "objects.npz: dy holds Python objects, not numbers\n"),
        (["dy=object.npy"], "object.npy: the array holds Python objects, not numbers\n"),
        (["lacks.npz"], "lacks.npz: no tensor cos"),
        (["table.npy"], "table.npy: a .npy file holds one tensor; say which: dy=table.npy\n"),
        (["rstd.npy"], "say which: dy=rstd.npy; hint: --operator norm_rope\n"),
        (["q=table.npy"], "q=table.npy: unknown tensor q; known are dy, cos, sin, x\n"),
        (
            ["rope_sin=table.npy"],
            "unknown tensor rope_sin; known are dy, cos, sin, x; hint: --operator norm_rope_concat\n",
        ),
        (["misspelt.npz"], "misspelt.npz: unknown tensor X, foo; known are dy, cos, sin, x\n"),
        (["misspelt.safetensors"], "unknown tensor "),
        (["in.npz", "cos=table.npy"], "cos=table.npy: cos was given already"),
        (["in.txt"], "in.txt: not a .npz or .safetensors file"),
        (["narrow.npz"], "rotary_backward: cos has shape [5, 1, 8]"),
        (["ints.npz"], "rotary_backward: x has type int64"),
        (["in.npz", "--rotary-dim", "7"], "rotary_backward: rotary_dim is 7"),
        (["in.npz", "--outputs", "dx,dz"], "'dz' is not a result"),
    ]
    for arguments, text in refusals:
        command = [sys.executable, "-m", "gyrograd", "grad", *arguments, "-o", str(old)]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 2, (arguments, done.stdout, done.stderr)
        assert text in done.stderr
        assert "Traceback" not in done.stderr
        assert old.read_bytes() == b"old"
    for output, text in [
        ("out.txt", "not a .npz, .safetensors or .npy file"),
        ("out.npy", "a .npy file holds one tensor, and dx, dcos, dsin are wanted"),
        ("none/out.npz", "the folder"),
        ("none/folder", "the folder"),
    ]:
        assert text in run("grad", good, "-o", tmp_path / output, code=2)[1]


@pytest.mark.parametrize("output", ["results", "out.npz", "out.safetensors"])
def test_a_failed_write_leaves_old_results(monkeypatch, capsys, tmp_path, output):
    """The disk fills up at the last tensor: old files stay, no half-written one does."""
    from gyrograd import _files

    source = save(tmp_path / "in.npz", named(problem(7, (5, 3, 16), (5, 1, 16))))
    target = tmp_path / output
    assert cli.main(["grad", str(source), "-o", str(target)]) == 0

    def contents():
        return {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    before = contents()
    write = _files._write

    def fail(file, suffix, content):
        write(file, suffix, content)
        if "dsin" in content:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(_files, "_write", fail)
    assert cli.main(["grad", str(source), "-o", str(target), "--mode", "interleave"]) == 2
    assert "No space left on device" in capsys.readouterr().err
    assert contents() == before


# -- explain


def test_explain():
    out, _ = run("explain", "--dy", "2x4096x32x128", "--cos", "1x4096x1x128")
    for text in ("native", "atlas-a2", "ascend-950", "workspace"):
        assert text in out


@pytest.mark.parametrize(
    ("arguments", "accepted"),
    [
        (["--dy", "2x64x4x128", "--cos", "1x64x1x128"], {"native", "atlas-a2", "atlas-a3", "ascend-950"}),
        (["--dy", "2x64x4x128", "--cos", "1x64x1x128", "--mode", "quarter"], {"native", "ascend-950"}),
        (["--dy", "2x64x4x2048", "--cos", "1x64x1x2048", "--dtype", "f32"], {"native"}),
        (["--dy", "2x64x4x128", "--cos", "1x64x1x64", "--per-pair-tables"], {"native"}),
        (["--dy", "2x64x4x128", "--cos", "1x64x1x128", "--table-dtype", "f32"], {"native"}),
        (["--dy", "128", "--cos", "128", "--no-x"], {"native"}),
        (["--dy", "1x8x1200x128", "--cos", "1x8x1x128"], {"native", "ascend-950"}),
        (["--dy", "9x8x120x128", "--cos", "1x8x1x128"], {"native", "ascend-950"}),
        (["--dy", "9x8x120x128", "--cos", "1x8x1x128", "--no-x"], {"native", "atlas-a2", "atlas-a3", "ascend-950"}),
    ],
)
def test_explain_products(arguments, accepted):
    report = json.loads(run("explain", *arguments, "--json")[0])
    assert report["accepted"]
    assert "rotary_backward" in report["plan"]
    assert {row["product"] for row in report["products"] if row["accepted"]} == accepted
    assert all(row["accepted"] or row["rule"] for row in report["products"])


def rows(*arguments):
    """The rows of explain's table: products, yes or no, why."""
    lines = run("explain", *arguments)[0].splitlines()
    return [tuple(cell.strip() for cell in line.strip("│").split("│")) for line in lines if line.startswith("│")]


NOT_OFFERED = ("Atlas 200I/500 A2 inference, Atlas inference, Atlas training", "no")


@pytest.mark.parametrize(
    ("arguments", "want"),
    [
        (
            ["--dy", "5x7x6x8", "--cos", "1x7x1x8"],
            {
                ("native", "yes"): "no limits beyond the operator's",
                ("atlas-a2, atlas-a3", "yes"): "read as BSND, tables 1S1D",
                ("ascend-950", "yes"): "read as BNSD or BSND or SBND, tables any broadcast",
            },
        ),
        (
            ["--dy", "1x1x7x8", "--cos", "1x1x7x8"],
            {
                ("native", "yes"): "no limits beyond the operator's",
                (
                    "atlas-a2, atlas-a3",
                    "yes",
                ): "read as BNSD, tables 11SD; or as BSND, tables BSND; or as SBND, tables SBND",
                ("ascend-950", "yes"): "read as BNSD or BSND or SBND, tables any broadcast",
            },
        ),
        (
            ["--dy", "5x7x6x8", "--cos", "1x7x1x4", "--per-pair-tables"],
            {
                ("native", "yes"): "no limits beyond the operator's; "
                "the C interface refuses it: its operator has no tables per pair",
                ("atlas-a2, atlas-a3, ascend-950", "no"): "its operator has no tables per pair",
            },
        ),
        (
            [
                "--dy",
                "5x7x6x8",
                "--cos",
                "1x7x1x4",
                "--rotary-dim",
                "4",
                "--rotary-offset",
                "2",
                "--table-dtype",
                "f32",
            ],
            {
                ("native", "yes"): "no limits beyond the operator's; "
                "the C interface refuses it: its operator has no partial rotary, no tables of another type",
                (
                    "atlas-a2, atlas-a3, ascend-950",
                    "no",
                ): "its operator has no partial rotary, no tables of another type",
            },
        ),
    ],
)
def test_explain_names_every_reading_and_groups_products(monkeypatch, arguments, want):
    monkeypatch.setenv("COLUMNS", "200")
    want |= {NOT_OFFERED: "the operator is not offered on this product"}
    assert rows(*arguments) == [(*answer, why) for answer, why in want.items()]


def test_explain_lists_readings_for_machines():
    report = json.loads(run("explain", "--dy", "1x1x7x8", "--cos", "1x1x7x8", "--json")[0])
    assert len(report["products"]) == 7
    readings = {row["product"]: row["readings"] for row in report["products"]}
    assert readings["atlas-a2"] == [
        {"layout": "BNSD", "tables": "11SD"},
        {"layout": "BSND", "tables": "BSND"},
        {"layout": "SBND", "tables": "SBND"},
    ]
    assert readings["native"] == []


def test_explain_refusals():
    out, _ = run("explain", "--dy", "2x64x4x127", "--cos", "1x64x1x127", "--json", code=2)
    report = json.loads(out)
    assert not report["accepted"]
    assert report["plan"] is None
    assert "dy has shape [2, 64, 4, 127]" in report["error"]
    assert not any(row["accepted"] for row in report["products"])
    assert "refused: rotary_backward: dy has" in run("explain", "--dy", "3x7", "--cos", "1x7", code=2)[0]
    too_long = run("explain", "--dy", "3x8", "--cos", "1x8", "--rotary-dim", str(10**30), code=2)[1]
    assert "is not a whole number of at most 18 digits" in too_long
    assert "is not a shape" in run("explain", "--dy", "3,7", "--cos", "1x7", code=2)[1]
    assert "not a mode" in run("explain", "--dy", "3x8", "--cos", "1x8", "--mode", "4", code=2)[1]


# -- info and the rest


def test_info():
    report = json.loads(run("info", "--json")[0])
    assert report["version"] == gg.__version__
    assert tuple(report["cpu_targets"]) == gg.info().cpu_targets
    assert gg.__version__ in run("info")[0]
    assert run("--version")[0] == f"gyrograd {gg.__version__}\n"


def test_installed_script():
    script = shutil.which("gyrograd", path=str(Path(sys.executable).parent))
    assert script, "the package is not installed: make build"
    assert gg.__version__ in subprocess.run([script, "info"], capture_output=True, text=True, check=True).stdout


def test_a_reader_that_goes_away():
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "gyrograd", "info"], stdout=writer, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(writer)
    assert "Traceback" not in done.stderr


def test_bfloat16_of_numpy_files_is_recognised():
    """What the two-byte void type stands for: NumPy forgets the name of ml_dtypes' type."""
    assert np.dtype(ml_dtypes.bfloat16).str in ("<V2", "|V2")

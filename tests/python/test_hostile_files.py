"""Files made to harm: the commands refuse them in one line, before they take the machine's memory, and print nothing
that a terminal would obey.
"""

import io
import json
import os
import struct
import subprocess
import sys
import zipfile

import numpy as np
import pytest
from formulas import problem
from test_cli import ROW, run, write_cases
from test_cli_norm_rope_concat import ROW as CONCAT_ROW

from gyrograd import _check, _memory, cli
from gyrograd._inputs import InputError

CONCAT_HEADER = ",".join(CONCAT_ROW)
BELL = "\x1b]0;owned\x07"


def header(shape, descr="<f4"):
    """Of a .npy file."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": descr, "fortran_order": False, "shape": shape})
    return file.getvalue()


def saved(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def archive_of(path, *members):
    """A legal problem's cos, sin and x, and these members of a name and content each."""
    _, cos, sin, x = problem(1, (6, 8), (1, 8))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in (("cos.npy", saved(cos)), ("sin.npy", saved(sin)), ("x.npy", saved(x)), *members):
            archive.writestr(name, content)
    return path


def refusal_of(path):
    out, error = run("grad", path, "-o", path.parent / "out.npz", "--json", code=2)
    assert not (path.parent / "out.npz").exists()
    assert error.count("\n") == 1
    assert error.isascii() and error[:-1].isprintable()
    assert set(json.loads(out)) == {"error"}
    return error


MEMBERS = {
    "cut short": (header((6, 8)) + b"\0" * 8, "dy: EOF"),
    "larger than the machine": (header((2**40, 8)) + b"\0" * 8, "memory"),
    "negative": (header((-1, 8)) + b"\0" * 64, "dy: "),
    "a product that wraps to 0": (header((2**32, 2**32)), "dy: "),
    "an empty one beyond 64 bits": (header((2**62, 0)), "dy: "),
    "objects": (header((2,), "|O") + b"\0" * 16, "dy holds Python objects, not numbers"),
    "objects in fields": (header((2,), [("a", "<f4"), ("b", "O")]) + b"\0" * 32, "dy holds Python objects"),
    "huge elements": (header((6, 8), "|V1000000") + b"\0" * 64, "dy: EOF"),
    "open brackets": (b"\x93NUMPY\x01\x00" + struct.pack("<H", 9000) + b"(" * 8999 + b"\n", "a.npz: "),
    "bad indentation": (b"\x93NUMPY\x01\x00" + struct.pack("<H", 12) + b"  {\n {\n1}\n  ", "a.npz: "),
    "a long header": (b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**31 - 1) + b"{" * 1000, "dy: EOF"),
    "another version": (b"\x93NUMPY\x09\x00" + b"\0" * 100, "dy: "),
}


@pytest.mark.parametrize("name", MEMBERS)
def test_members_of_archives(tmp_path, name):
    content, text = MEMBERS[name]
    assert text in refusal_of(archive_of(tmp_path / "a.npz", ("dy.npy", content)))


def test_pickles_are_not_run(tmp_path):
    """Neither as a member nor as a file."""

    class Harm:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "harm"),))

    array = np.array([Harm()], object)
    file = io.BytesIO()
    np.lib.format.write_array(file, array, allow_pickle=True)
    assert "Python objects" in refusal_of(archive_of(tmp_path / "a.npz", ("dy.npy", file.getvalue())))
    array.dump(tmp_path / "b.npz")
    assert "not a .npz file" in refusal_of(tmp_path / "b.npz")
    assert not (tmp_path / "harm").exists()


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["../../dy.npy"], "unknown tensor ../../dy"),
        (["/dy.npy"], "unknown tensor /dy"),
        ([f"{BELL}.npy"], "unknown tensor \\x1b]0;owned\\x07"),
        (["dy\u202eyd.npy"], "unknown tensor dy\\u202eyd"),
        (["dy.npy", "dy"], "dy is there twice"),
    ],
)
def test_names_in_archives(tmp_path, names, text):
    dy = saved(problem(1, (6, 8), (1, 8))[0])
    assert text in refusal_of(archive_of(tmp_path / "a.npz", *((name, dy) for name in names)))


def limited(monkeypatch, number):
    monkeypatch.setattr(_memory, "available_bytes", lambda: number)
    monkeypatch.setattr(_check, "available_bytes", lambda: number)


def test_archives_that_unpack_to_more_than_there_is(monkeypatch, capsys, tmp_path):
    """64 MiB in 70 kB: refused by what the archive says, before anything is unpacked."""
    bomb = archive_of(tmp_path / "a.npz", ("dy.npy", header((2**21, 8)) + bytes(2**26)))
    assert bomb.stat().st_size < 100_000
    limited(monkeypatch, 2 * 2**26)
    monkeypatch.setattr(np, "load", lambda *_, **__: pytest.fail("it was read"))
    assert cli.main(["grad", str(bomb), "-o", str(tmp_path / "out.npz")]) == 2
    assert "a.npz: the tensors and their gradients would take 0.1 GB of memory" in capsys.readouterr().err


def test_an_archive_cannot_unpack_to_more_than_it_says(tmp_path):
    """The directory's size of dy is a lie of 100 bytes; the data are 64 MiB."""
    path = archive_of(tmp_path / "a.npz", ("dy.npy", header((2**21, 8)) + bytes(2**26)))
    content = path.read_bytes()
    true = struct.pack("<I", len(header((2**21, 8))) + 2**26)
    assert content.count(true) == 2  # in the member's header and in the directory
    path.write_bytes(content.replace(true, struct.pack("<I", 100)))
    assert "dy: EOF" in refusal_of(path) or "Bad" in refusal_of(path)


@pytest.mark.parametrize("suffix", [".npy", ".safetensors"])
def test_sparse_files(tmp_path, suffix):
    """A file of holes: larger than the machine's memory, and next to nothing on the disk."""
    size = 4 * _memory.available_bytes() // 32 * 32
    path = tmp_path / f"dy{suffix}"
    if suffix == ".npy":
        start = header((size // 32, 8))
    else:
        tensor = {"dtype": "F32", "shape": [size // 32, 8], "data_offsets": [0, size]}
        text = json.dumps({"dy": tensor}).encode()
        start = struct.pack("<Q", len(text)) + text
    path.write_bytes(start)
    os.truncate(path, len(start) + size)
    assert "would take" in refusal_of(path)


SAFETENSORS = {
    "beyond the file": ({"dy": {"dtype": "F32", "shape": [2**40, 8], "data_offsets": [0, 64]}}, "not a .safetensors"),
    "a product that wraps": (
        {"dy": {"dtype": "F32", "shape": [2**62, 16], "data_offsets": [0, 64]}},
        "not a .safetensors",
    ),
    "another type": ({"dy": {"dtype": "F8_E4M3", "shape": [8, 8], "data_offsets": [0, 64]}}, "dy has type F8_E4M3"),
    "names": ({BELL: {"dtype": "F32", "shape": [2, 8], "data_offsets": [0, 64]}}, "unknown tensor \\x1b]0;owned"),
    "nested": ([[[[[]]]]] * 1000, "not a .safetensors"),
}


@pytest.mark.parametrize("name", SAFETENSORS)
def test_safetensors(tmp_path, name):
    content, text = SAFETENSORS[name]
    start = json.dumps(content).encode()
    (tmp_path / "a.safetensors").write_bytes(struct.pack("<Q", len(start)) + start + bytes(64))
    assert text in refusal_of(tmp_path / "a.safetensors")
    (tmp_path / "a.safetensors").write_bytes(struct.pack("<Q", 2**63) + b"{}")
    assert "not a .safetensors" in refusal_of(tmp_path / "a.safetensors")


# -- problem files

CASES = {
    "larger than the machine": ({"dy": f"{2**40}x1x16", "cos": "1x1x16"}, ":2", "would take"),
    "tables of that size": ({"dy": f"{2**40}x16", "cos": f"{2**40}x16"}, ":2", "would take"),
    "beyond 64 bits": ({"dy": f"{2**62}x16", "cos": "1x16"}, "c.csv:2: ", "2^63"),
    "bytes beyond 64 bits": ({"dy": f"{2**59}x16", "cos": "1x16"}, "c.csv:2: ", ""),
    "an empty one beyond 64 bits": ({"dy": f"{2**60}x0x16", "cos": "1x1x16"}, "c.csv:2: ", ""),
    "thousands of digits": ({"dy": "9" * 5000 + "x16"}, "c.csv:2: column dy: ", "digits"),
    "thousands of axes": ({"dy": "1x" * 5000 + "16", "cos": "1x" * 5000 + "16"}, "c.csv:2: ", "rank above 64"),
    "a name": ({"id": BELL, "dy": "1x7"}, "c.csv:2: ", ""),
    "a mode": ({"mode": BELL}, "c.csv:2: column mode: ", ""),
}


def refusal_of_cases(path):
    _, error = run("check", path, code=2)
    assert error.count("\n") == 1
    assert error[:-1].isprintable()
    return error


@pytest.mark.parametrize("name", CASES)
def test_rotary_problems(tmp_path, name):
    change, *texts = CASES[name]
    error = refusal_of_cases(write_cases(tmp_path / "c.csv", ROW | change))
    assert texts[-1] in error
    assert name.startswith(("larger", "tables")) or texts[0] in error


HUGE = "9" * 18
CONCAT_CASES = {
    "batches": {"batch": HUGE},
    "lengths whose sum leaves 64 bits": {"batch": "0", "seq_key": HUGE, "seq_encoder_key": HUGE},
    "empty ones": {"batch": "0", "heads": HUGE},
    "empty ones of wide rows": {"batch": "0", "heads": "1", "head_dim": "8" + "0" * 17},
    "larger than the machine": {"seq_query": "9999999999", "seq_key": "9999999999"},
}


@pytest.mark.parametrize("name", CONCAT_CASES)
def test_norm_rope_concat_problems(tmp_path, name):
    path = write_cases(tmp_path / "c.csv", CONCAT_ROW | CONCAT_CASES[name], header=CONCAT_HEADER)
    error = refusal_of_cases(path)
    assert "would take" in error or "c.csv:2: " in error


def test_cases_run_as_many_at_once_as_there_is_memory_for(monkeypatch, tmp_path):
    """And their own counts of it hold: a run takes no more than bytes_of says, by the process's own peak."""
    rows = [ROW | {"id": name, "dy": "20x30x16", "cos": "20x30x16"} for name in "abcd"]
    cases = _check.read_cases(write_cases(tmp_path / "c.csv", *rows))
    size = cases[0].operator.bytes_of(cases[0].problem)
    for number in (1, 2, 4):
        limited(monkeypatch, number * size)
        monkeypatch.setattr(_check, "AT_ONCE", 4)
        assert _check._how_many_at_once(cases) == number
        assert all(outcome.ok for outcome in _check.run_cases(cases))
    limited(monkeypatch, size - 1)
    with pytest.raises(InputError, match=r"line 5: the case would take 0\.0 GB of memory"):
        next(_check.run_cases(cases))


PEAK = """import re, sys
from pathlib import Path
from gyrograd import _check
def peak():
    return int(re.search(r"VmHWM:\\s+([0-9]+) kB", Path("/proc/self/status").read_text())[1]) * 1024
(case,) = _check.read_cases(Path(sys.argv[1]))
before = peak()
(outcome,) = _check.run_cases([case], threads=1)
assert outcome.ok
print(peak() - before, case.operator.bytes_of(case.problem))
"""


@pytest.mark.parametrize(
    ("change", "header"),
    [
        ({"dtype": "f64", "dy": "1024x512", "cos": "1024x512"}, None),
        ({"dtype": "f64", "dy": "2048x1024", "cos": "1x1024"}, None),
        ({"dtype": "bf16", "dy": "1024x512", "cos": "1024x512"}, None),
        ({"dtype": "f64", "seq_query": "600", "seq_key": "600", "heads": "8", "head_dim": "64"}, CONCAT_HEADER),
        ({"dtype": "f32", "seq_query": "20000", "seq_key": "20000", "heads": "8", "head_dim": "2"}, CONCAT_HEADER),
    ],
)
def test_cases_take_no_more_than_they_are_counted_for(tmp_path, change, header):
    """But for what the process takes once."""
    if header is None:
        path = write_cases(tmp_path / "c.csv", ROW | change)
    else:
        path = write_cases(tmp_path / "c.csv", CONCAT_ROW | change, header=header)
    done = subprocess.run([sys.executable, "-c", PEAK, path], capture_output=True, text=True, check=True)
    taken, counted = map(int, done.stdout.split())
    assert counted / 10 < taken < counted + 2**23

"""Files made to harm: the commands refuse them in one line, before they take the machine's memory, and print nothing
that a terminal would obey.
"""

import io
import itertools
import json
import os
import struct
import subprocess
import sys
import threading
import zipfile

import numpy as np
import pytest
from formulas import problem
from test_cli import CASES as REAL_CASES
from test_cli import HEADER, ROW, run, write_cases
from test_cli_norm_rope_concat import ROW as CONCAT_ROW

from gyrograd import _check, _check_rotary, _files, _memory, cli
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
    "odd but legal, and cut short": (header((6, 8)).replace(b"(6, ", b"(6L,") + b"\0" * 8, "dy: EOF"),
    "huge elements": (header((6, 8), "|V1000000") + b"\0" * 64, "dy: EOF"),
    "open brackets": (b"\x93NUMPY\x01\x00" + struct.pack("<H", 9000) + b"(" * 8999 + b"\n", "a.npz: "),
    "bad indentation": (b"\x93NUMPY\x01\x00" + struct.pack("<H", 12) + b"  {\n {\n1}\n  ", "a.npz: "),
    "a long header": (b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**31 - 1) + b"{" * 1000, "dy has a header of"),
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
        (["dy\ndy.npy"], "unknown tensor dy\\ndy"),
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


GROWTH = """import re, sys
from pathlib import Path
from gyrograd import _check, _files, cli
def peak():
    return int(re.search(r"VmHWM:\\s+([0-9]+) kB", Path("/proc/self/status").read_text())[1]) * 1024
before = peak()
assert cli.main(sys.argv[1:]) == 2
print(peak() - before)
"""


def frugal_refusal_of(*arguments):
    """Of a command that takes next to no memory for it."""
    command = [sys.executable, "-c", GROWTH, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert int(done.stdout) < 2**24
    assert done.stderr.count("\n") == 1
    assert done.stderr[:-1].isprintable()
    return done.stderr


def npy_header(version, size, text=b""):
    return b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<H" if version == 1 else "<I", size) + text


@pytest.mark.parametrize(("version", "size"), [(1, 12_000), (1, 10_001), (2, 2**29), (3, 2**29), (3, 2**32 - 1)])
def test_long_headers(tmp_path, version, size):
    """As they stand in a file of holes, and in an archive."""
    text = f"has a header of {size} bytes; at most 10000 are read\n"
    path = tmp_path / "dy.npy"
    path.write_bytes(npy_header(version, size))
    os.truncate(path, path.stat().st_size + size)
    error = frugal_refusal_of("grad", path, "-o", tmp_path / "out.npz")
    assert f"dy.npy: the array {text}" in error or (size > 2**31 and "would take" in error)  # by its size alone
    member = npy_header(version, size, b" " * min(size, 2**25))
    assert f"a.npz: dy {text}" in frugal_refusal_of(
        "grad", archive_of(tmp_path / "a.npz", ("dy.npy", member)), "-o", tmp_path / "out.npz"
    )


@pytest.mark.parametrize("version", [1, 2, 3])
def test_headers_as_long_as_they_may_be(tmp_path, version):
    arrays = dict(zip(("dy", "cos", "sin", "x"), problem(1, (6, 8), (1, 8)), strict=True))
    for name, array in arrays.items():
        text = repr({"descr": array.dtype.str, "fortran_order": False, "shape": array.shape}).encode().ljust(10_000)
        (tmp_path / f"{name}.npy").write_bytes(npy_header(version, 10_000, text) + array.tobytes())
    known = _files.Known(tuple(arrays))
    read = _files.read_tensors([str(tmp_path / f"{name}.npy") for name in arrays], known)
    assert all(np.array_equal(read[name], arrays[name]) for name in arrays)


def test_a_long_directory_of_an_archive(tmp_path):
    """It says of itself that it has 512 MiB, and they are holes."""
    path = tmp_path / "a.npz"
    path.touch()
    os.truncate(path, 2**29)
    with path.open("ab") as file:
        file.write(struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 1, 1, 2**29, 0, 0))
    error = frugal_refusal_of("grad", path, "-o", tmp_path / "out.npz")
    assert f"a.npz: its directory has {2**29} bytes; at most 65536 are read\n" in error


def test_a_long_header_of_safetensors(tmp_path):
    """A legal one, of names."""
    text = json.dumps({f"{i:08}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for i in range(200_000)})
    path = tmp_path / "a.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text.encode())
    error = frugal_refusal_of("grad", path, "-o", tmp_path / "out.npz")
    assert f"a.safetensors: its header has {len(text)} bytes; at most {2**20} are read\n" in error


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".safetensors"])
@pytest.mark.parametrize("kind", ["device", "pipe", "folder"])
def test_what_is_no_file(tmp_path, suffix, kind):
    path = tmp_path / f"dy{suffix}"
    if kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
    error = frugal_refusal_of("grad", path, "-o", tmp_path / "out.npz")
    assert error == f"gyrograd grad: {path}: not a regular file\n"


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


LINE = ",".join(ROW.values())


def test_a_problem_file_without_an_end():
    assert "/dev/zero:1: the row is longer than 65536 characters\n" in frugal_refusal_of("check", "/dev/zero")


@pytest.mark.parametrize("start", ["", HEADER + "\n", HEADER + "\n" + LINE + "\n"])
def test_a_problem_file_of_holes(tmp_path, start):
    path = tmp_path / "c.csv"
    path.write_text(start)
    os.truncate(path, 2**30)
    error = frugal_refusal_of("check", path)
    assert "c.csv: its cases would take" in error or "the row is longer" in error


@pytest.mark.parametrize("fill", ["y", '"y\ny",', "\u00e9"], ids=["one line", "many lines", "wide"])
def test_the_length_of_rows(tmp_path, fill):
    """A row may have 65536 characters, on one line or in texts of many; the header, too."""
    path = tmp_path / "c.csv"

    def write(row, ending):
        more = (65536 - len(row) - len(ending)) // len(fill)
        ids = row + fill * more
        return ids + "y" * (65536 - len(ids) - len(ending)) + ending

    text = write(f"{LINE},", "\n")
    assert len(text) == 65536
    names = "," * (text.count(",") - HEADER.count(","))
    path.write_text(f"{HEADER}{names}\n{text}{text.replace('one', 'two')}")
    assert [case.id for case in _check.read_cases(path)] == ["one", "two"]
    path.write_text(f"{HEADER}{names}\n{text.replace('one', 'three')}")
    assert " the row is longer than 65536 characters\n" in refusal_of_cases(path)
    path.write_text(f"{write(f'{HEADER},', '')}y\n")
    assert " the row is longer than 65536 characters\n" in refusal_of_cases(path)


def test_problem_files_take_no_more_than_there_is(monkeypatch, tmp_path):
    """A file by its size, before a line of it is read; a pipe by what has come of it, long before it ends."""
    lines = (f"{LINE.replace('one', str(number))}\n" for number in range(100_000))
    path = tmp_path / "c.csv"
    path.write_text(HEADER + "\n" + "".join(itertools.islice(lines, 100)))
    limited(monkeypatch, _check.BYTES_A_CHARACTER * path.stat().st_size)
    assert len(_check.read_cases(path)) == 100
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    def fill():
        with pytest.raises(BrokenPipeError), pipe.open("w") as file:
            file.write(HEADER + "\n")
            file.writelines(lines)

    writer = threading.Thread(target=fill)
    writer.start()
    with pytest.raises(InputError, match=r"pipe: its cases would take 0\.0 GB of memory"):
        _check.read_cases(pipe)
    writer.join(60)
    assert not writer.is_alive()
    limited(monkeypatch, _check.BYTES_A_CHARACTER * path.stat().st_size - 1)
    monkeypatch.setattr(_check, "_read_rows", lambda *_: pytest.fail("it was read"))
    with pytest.raises(InputError, match=r"c\.csv: its cases would take 0\.0 GB of memory"):
        _check.read_cases(path)


def test_problems_from_a_pipe():
    command = [sys.executable, "-m", "gyrograd", "check", "/dev/stdin", "--limit", "3"]
    done = subprocess.run(command, input=REAL_CASES.read_text(), capture_output=True, text=True, check=True)
    assert done.stdout.endswith("3 passed\n")


RANGES = {
    "f16": ("65505", "65504"),
    "bf16": ("3.4e38", "3.38953e+38"),
    "f32": ("1e308", "3.40282e+38"),
    "f64": ("1.7e308", ""),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", _check_rotary.TENSORS)
@pytest.mark.parametrize("dtype", RANGES)
def test_ranges_whose_numbers_would_not_be_finite(tmp_path, name, dtype):
    """An infinity or NaN in every tensor would compare equal whatever the library did."""
    beyond, largest = RANGES[dtype]
    row = ROW | {"dtype": dtype}
    wide = {f"{name}_lo": f"-{beyond}", f"{name}_hi": beyond}
    changes = [wide] if dtype == "f64" else [wide, {f"{name}_lo": f"-{beyond}"}, {f"{name}_hi": beyond}]
    for change in changes:
        with pytest.raises(InputError) as refusal:
            _check.read_cases(write_cases(tmp_path / "c.csv", row | change))
        column = next(iter(change))
        if dtype == "f64":
            text = f"{column}: -1.7e+308 is too far below {name}_hi, 1.7e+308; at most 1.79769e+308"
        else:
            text = f"{column}: '{change[column]}' is not a finite number of type {dtype}; the largest is {largest}"
        assert str(refusal.value) == f"{tmp_path / 'c.csv'}:2: column {text}"


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("dtype", "low", "high", "accepted"),
    [
        ("f16", "-65504", "65504", True),
        ("bf16", "-1.7e38", "1.7e38", True),
        ("bf16", "-1.71e38", "1.7e38", False),
        ("f32", "-1.7e38", "1.7e38", True),
        ("f32", "-1.71e38", "1.7e38", False),
        ("f32", "3.4028234663852886e38", "3.4028234663852886e38", True),
        ("f32", "0", "3.4028234663852886e38", True),
        ("f64", "-8.9e307", "8.9e307", True),
    ],
)
def test_the_widest_ranges(tmp_path, dtype, low, high, accepted):
    path = write_cases(tmp_path / "c.csv", ROW | {"dtype": dtype, "dy_lo": low, "dy_hi": high})
    if not accepted:
        assert ":2: column dy_lo: -1.71e+38 is too far below dy_hi, 1.7e+38; at most 3.40282e+38" in refusal_of_cases(
            path
        )
        return
    (case,) = _check.read_cases(path)
    assert all(np.isfinite(tensor).all() for tensor in _check_rotary.make_tensors(case.id, case.problem).values())


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
path = Path(sys.argv[1])
start = peak()
cases = _check.read_cases(path)
before = peak()
outcomes = list(_check.run_cases(cases, threads=1))
assert all(outcome.ok for outcome in outcomes)
if len(cases) == 1:
    print(peak() - before, cases[0].operator.bytes_of(cases[0].problem))
else:
    print(peak() - start, _check.BYTES_A_CHARACTER * path.stat().st_size)
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


@pytest.mark.parametrize(
    ("header", "line"),
    [(HEADER, "{:x},0,f32,2,2,0,0,0,0,0,0,0,0"), (CONCAT_HEADER, "{:x},f32,0,1,2,0,0,0,0,0,0,0,0,0")],
    ids=["rotary", "norm_rope_concat"],
)
def test_files_take_no_more_than_they_are_counted_for(tmp_path, header, line):
    """Of the shortest lines that there are, which take the most for their length."""
    path = tmp_path / "c.csv"
    path.write_text("\n".join([header, *(line.format(number) for number in range(10_000))]))
    done = subprocess.run([sys.executable, "-c", PEAK, path], capture_output=True, text=True, check=True)
    taken, counted = map(int, done.stdout.split())
    assert counted / 10 < taken < counted

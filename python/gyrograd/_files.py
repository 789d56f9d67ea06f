"""Named tensors in .npy, .npz and .safetensors files. bfloat16 in NumPy's files is the two-byte void type it saves."""

import io
import os
import stat
import tempfile
import tokenize
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import ml_dtypes
import numpy as np
import safetensors
import safetensors.numpy
from safetensors import SafetensorError

from gyrograd._inputs import InputError
from gyrograd._memory import require_memory

ARCHIVES = (".npz", ".safetensors")
# Bytes of what says what is in a file, which libraries read whole before they know anything else of it: a .npy file's
# header (as many as NumPy takes), a .safetensors file's, a .npz file's directory.
LONGEST_HEADER, LONGEST_SAFETENSORS_HEADER, LONGEST_DIRECTORY = 10_000, 2**20, 2**16


@dataclass(frozen=True)
class Known:
    """The names that tensors may have, and what to add to a refusal of others."""

    names: tuple[str, ...]
    hint: Callable[[Iterable[str]], str] = lambda _: ""

    def require(self, names: Iterable[str]) -> None:
        """ValueError where there are others among the names of a file."""
        unknown = [name for name in names if name not in self.names]
        if unknown:
            raise ValueError(
                f"unknown tensor {', '.join(unknown)}; known are {', '.join(self.names)}{self.hint(names)}"
            )


def read_tensors(inputs: Iterable[str], known: Known) -> dict[str, np.ndarray]:
    """The tensors of all inputs: archives, .npy files called after their tensors, or NAME=FILE.npy."""
    tensors: dict[str, np.ndarray] = {}
    _require_room([_split(text, known)[1] for text in inputs])
    for text in inputs:
        for name, tensor in _read_input(text, known).items():
            if name in tensors:
                raise InputError(f"{text}: {name} was given already")
            tensors[name] = tensor
    return tensors


def _read_input(text: str, known: Known) -> dict[str, np.ndarray]:
    name, path = _split(text, known)
    if path.suffix == ".npy":
        if name is None and path.stem not in known.names:
            say = f"a .npy file holds one tensor; say which: {known.names[0]}={path}"
            raise InputError(f"{path}: {say}{known.hint([path.stem])}")
        name = path.stem if name is None else name
        _guarded(text, lambda: known.require([name]))
        return {name: _guarded(path, lambda: _native(_load_npy(path)))}
    if path.suffix not in ARCHIVES or name is not None:
        raise InputError(f"{text}: not a .npz or .safetensors file, nor NAME=FILE.npy")
    load = _load_npz if path.suffix == ".npz" else _load_safetensors
    return _guarded(path, lambda: {name: _native(tensor) for name, tensor in load(path, known).items()})


def _split(text: str, known: Known) -> tuple[str | None, Path]:
    """NAME=FILE in its two parts; a path with an equals sign of its own as it is."""
    name, equals, rest = text.partition("=")
    if not equals or (name not in known.names and os.path.exists(text)):
        return None, Path(text)
    return name, Path(rest)


def _require_room(paths: Iterable[Path]) -> None:
    """Refuses files whose tensors, with as much again for the gradients, would not fit: an archive of kilobytes can
    unpack to anything.
    """
    paths = list(paths)
    unpacked = sum(map(_unpacked_bytes, paths))
    require_memory(f"{' '.join(map(str, paths))}: the tensors and their gradients", 2 * unpacked)


def _unpacked_bytes(path: Path) -> int:
    """What reading can give at most: zipfile reads no more of a member than its directory says. 0 where nothing can be
    read.
    """
    try:
        _require_regular(path)
        if path.suffix == ".npz" and zipfile.is_zipfile(path):
            with _Directory(path) as file, zipfile.ZipFile(file) as archive:
                return sum(member.file_size for member in archive.infolist())
        return path.stat().st_size
    except (OSError, ValueError, NotImplementedError, zipfile.BadZipFile):
        return 0


def _require_regular(path: Path) -> None:
    """A device has no end, and who opens a pipe waits for a writer."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise ValueError("not a regular file")


class _Directory(io.FileIO):
    """A .npz file of which zipfile reads the directory, at once."""

    def read(self, size: int = -1) -> bytes:
        if size > LONGEST_DIRECTORY:
            raise ValueError(f"its directory has {size} bytes; at most {LONGEST_DIRECTORY} are read")
        return super().read(size)


# What a file's library raises about what is in it; zlib, RuntimeError and NotImplementedError: of zip archives;
# SyntaxError and TokenError: of NumPy's headers.
_BROKEN = (
    ValueError, TypeError, KeyError, EOFError, RuntimeError, SyntaxError, tokenize.TokenError,
    zipfile.BadZipFile, zlib.error, SafetensorError,
)  # fmt: skip


def _guarded(path: object, read: Callable):
    """Whatever the file's library raises about a file becomes one error that names the file."""
    try:
        return read()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error
    except _BROKEN as error:
        raise InputError(f"{path}: {error.args[0] if isinstance(error, KeyError) else error}") from error


def _load_npy(path: Path) -> np.ndarray:
    _require_kind(path)
    with path.open("rb") as file:
        _require_header("the array", file)
    return _array("the array", lambda: np.load(path, allow_pickle=False))


def _load_npz(path: Path, known: Known) -> dict[str, np.ndarray]:
    _require_kind(path)
    with _Directory(path) as file, zipfile.ZipFile(file):
        pass
    with np.load(path, allow_pickle=False) as archive:
        known.require(archive.files)
        twice = [name for name in archive.files if archive.files.count(name) > 1]
        if twice:
            raise ValueError(f"{twice[0]} is there twice")
        for name, member in zip(archive.files, archive.zip.infolist(), strict=True):
            with archive.zip.open(member) as file:
                _require_header(name, file)
        return {name: _array(name, lambda name=name: archive[name]) for name in archive.files}


def _require_kind(path: Path) -> None:
    """NumPy would take what it does not know for a pickle, and advise to allow that."""
    _require_regular(path)
    with path.open("rb") as file:
        kind = ".npz" if zipfile.is_zipfile(file) else ""
        file.seek(0)
        kind = ".npy" if file.read(len(np.lib.format.MAGIC_PREFIX)) == np.lib.format.MAGIC_PREFIX else kind
    if kind != path.suffix:
        raise ValueError(f"not a {path.suffix} file{f' but a {kind} file by content' if kind else ''}")


def _require_header(name: str, file: BinaryIO) -> None:
    """Of a .npy file, by the length that it says it has: NumPy would read all of it."""
    start = file.read(np.lib.format.MAGIC_LEN + 4)
    if not start.startswith(np.lib.format.MAGIC_PREFIX):
        return
    version, length = start[6:7], start[8:]
    number = int.from_bytes(length[:2] if version == b"\1" else length, "little")
    if number > LONGEST_HEADER and version in (b"\1", b"\2", b"\3"):
        raise ValueError(f"{name} has a header of {number} bytes; at most {LONGEST_HEADER} are read")


def _array(name: str, load: Callable[[], object]) -> np.ndarray:
    try:
        with warnings.catch_warnings(action="ignore"):  # headers can be odd and legal
            array = load()
    except ValueError as error:
        is_object = "Object arrays" in str(error)
        raise ValueError(f"{name} holds Python objects, not numbers" if is_object else f"{name}: {error}") from error
    if not isinstance(array, np.ndarray):
        raise ValueError(f"{name} is not an array")
    return array


_SAFETENSORS_DTYPES = ("F64", "F32", "F16", "BF16")


def _load_safetensors(path: Path, known: Known) -> dict[str, np.ndarray]:
    with _open_safetensors(path) as archive:
        names = list(archive.keys())
        known.require(names)
        for name in names:
            dtype = archive.get_slice(name).get_dtype()
            if dtype not in _SAFETENSORS_DTYPES:
                raise ValueError(f"{name} has type {dtype}; types are {', '.join(_SAFETENSORS_DTYPES)}")
        return {name: archive.get_tensor(name) for name in names}


def _open_safetensors(path: Path):
    _require_regular(path)
    with path.open("rb") as file:
        number = int.from_bytes(file.read(8), "little")
        if LONGEST_SAFETENSORS_HEADER < number <= os.fstat(file.fileno()).st_size - 8:
            raise ValueError(f"its header has {number} bytes; at most {LONGEST_SAFETENSORS_HEADER} are read")
    try:
        return safetensors.safe_open(path, framework="np")
    except SafetensorError as error:
        raise ValueError(f"not a .safetensors file ({error})") from error


def _native(tensor: np.ndarray) -> np.ndarray:
    if tensor.dtype == np.dtype("V2"):
        return tensor.view(ml_dtypes.bfloat16)
    return tensor.astype(tensor.dtype.newbyteorder("="), copy=False)


def plan_outputs(output: str, names: tuple[str, ...]) -> dict[str, Path]:
    """Which file each tensor goes to: all to one archive, each to a .npy file in a folder, or one to one .npy file."""
    path = Path(output)
    if path.is_dir() or (path.suffix == "" and not path.exists()):
        parent, files = path.parent, {name: path / f"{name}.npy" for name in names}
    elif path.suffix in ARCHIVES:
        parent, files = path.parent, dict.fromkeys(names, path)
    elif path.suffix == ".npy" and len(names) == 1:
        parent, files = path.parent, {names[0]: path}
    elif path.suffix == ".npy":
        raise InputError(f"{output}: a .npy file holds one tensor, and {', '.join(names)} are wanted; name a folder")
    else:
        raise InputError(f"{output}: not a .npz, .safetensors or .npy file, nor a folder")
    if not parent.is_dir():
        raise InputError(f"{output}: the folder {parent} does not exist")
    return files


def require_apart(inputs: Iterable[str], outputs: Iterable[Path]) -> None:
    """Refuses an output that would overwrite an input."""
    read = {
        Path(text.partition("=")[2] if "=" in text and not os.path.exists(text) else text).resolve() for text in inputs
    }
    for path in outputs:
        if path.resolve() in read:
            raise InputError(f"{path}: is an input too, and would be overwritten; name another output")


def write_tensors(files: Mapping[str, Path], tensors: Mapping[str, np.ndarray]) -> None:
    """Writes every file beside its place and moves all there at the end: a failure leaves old files as they were."""
    contents: dict[Path, dict[str, np.ndarray]] = {}
    for name, path in files.items():
        contents.setdefault(path, {})[name] = np.ascontiguousarray(tensors[name])
    written: list[tuple[str, Path]] = []
    try:
        for path, content in contents.items():
            path.parent.mkdir(exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
            written.append((temporary, path))
            with os.fdopen(handle, "wb") as file:
                _write(file, path.suffix, content)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(temporary, 0o666 & ~_umask())
        while written:
            os.replace(*written[0])
            written.pop(0)
    except OSError as error:
        raise InputError(f"{error.filename2 or error.filename or path}: {error.strerror or error}") from error
    finally:
        for temporary, _ in written:
            Path(temporary).unlink(missing_ok=True)


def _write(file, suffix: str, content: Mapping[str, np.ndarray]) -> None:
    if suffix == ".npy":
        (tensor,) = content.values()
        np.save(file, tensor)
    elif suffix == ".npz":
        np.savez(file, **content)
    else:
        file.write(safetensors.numpy.save(dict(content)))


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask

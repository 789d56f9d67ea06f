"""Named tensors in .npy, .npz and .safetensors files. bfloat16 in NumPy's files is the two-byte void type it saves."""

import os
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import ml_dtypes
import numpy as np
import safetensors
import safetensors.numpy

from gyrograd._inputs import InputError

ARCHIVES = (".npz", ".safetensors")


def read_tensors(inputs: Iterable[str], names: tuple[str, ...]) -> dict[str, np.ndarray]:
    """The tensors of these names.

    Each input is an archive (tensors of other names in it are left alone), a .npy file called after its tensor, or
    NAME=FILE.npy.
    """
    tensors: dict[str, np.ndarray] = {}
    for text in inputs:
        for name, tensor in _read_input(text, names).items():
            if name in tensors:
                raise InputError(f"{text}: {name} was given already")
            tensors[name] = tensor
    return tensors


def _read_input(text: str, names: tuple[str, ...]) -> dict[str, np.ndarray]:
    name, equals, rest = text.partition("=")
    named = bool(equals) and name in names
    path = Path(rest if named else text)
    if path.suffix == ".npy":
        name = name if named else path.stem
        if name not in names:
            raise InputError(f"{path}: a .npy file holds one tensor; say which: {names[0]}={path}")
        return {name: _guarded(path, lambda: _native(_load_npy(path)))}
    if path.suffix not in ARCHIVES or named:
        raise InputError(f"{text}: not a .npz or .safetensors file, nor NAME=FILE.npy")
    load = _load_npz if path.suffix == ".npz" else _load_safetensors
    return _guarded(path, lambda: {name: _native(tensor) for name, tensor in load(path, names).items()})


def _guarded(path: Path, read: Callable):
    """Whatever the file's library raises about a file becomes one error that names the file."""
    try:
        return read()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error
    except (ValueError, KeyError, EOFError, zipfile.BadZipFile, safetensors.SafetensorError) as error:
        raise InputError(f"{path}: {error}") from error


def _load_npy(path: Path) -> np.ndarray:
    tensor = np.load(path, allow_pickle=False)
    if not isinstance(tensor, np.ndarray):
        raise ValueError("the file is an .npz archive by content")
    return tensor


def _load_npz(path: Path, names: tuple[str, ...]) -> dict[str, np.ndarray]:
    archive = np.load(path, allow_pickle=False)
    if isinstance(archive, np.ndarray):
        raise ValueError("the file is a .npy file by content")
    with archive:
        return {name: archive[name] for name in names if name in archive.files}


def _load_safetensors(path: Path, names: tuple[str, ...]) -> dict[str, np.ndarray]:
    with safetensors.safe_open(path, framework="np") as archive:
        return {name: archive.get_tensor(name) for name in set(names) & set(archive.keys())}


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
        Path(text.partition("=")[2] if "=" in text and not Path(text).exists() else text).resolve() for text in inputs
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

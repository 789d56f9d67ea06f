"""`uninstall` takes back what an install laid down: its files and its folders, and nothing else."""

from __future__ import annotations

import os
import pathlib
import shutil

import pytest
from installed_tree import BUILD, run


def install(prefix: pathlib.Path, **environment: str) -> list[pathlib.Path]:
    run(["cmake", "--install", BUILD, "--prefix", prefix], env=os.environ | environment)
    return [pathlib.Path(line) for line in (BUILD / "install_manifest.txt").read_text().splitlines()]


def uninstall(**environment: str) -> None:
    run(["cmake", "--build", BUILD, "--target", "uninstall"], env=os.environ | environment)


def everything_in(folder: pathlib.Path) -> dict[pathlib.Path, bytes | None]:
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def test_of_a_new_prefix(tmp_path: pathlib.Path):
    files = install(tmp_path / "a" / "prefix")
    assert len(files) > 20
    assert all(path.exists() for path in files)
    uninstall()
    assert not everything_in(tmp_path)


@pytest.mark.parametrize("installs", [1, 2])
def test_of_a_prefix_in_use(tmp_path: pathlib.Path, installs: int):
    """Others' files stay, in folders of ours too, and so do folders that were there and empty."""
    libraries = install(tmp_path)[0].parent
    uninstall()
    for name in ("include/other.h", f"{libraries.name}/pkgconfig/other.pc", "include/gyrograd/own.h"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / libraries.name / "cmake").mkdir()
    before = everything_in(tmp_path)
    for _ in range(installs):
        install(tmp_path)
    assert len(everything_in(tmp_path)) > len(before) + 20
    uninstall()
    assert everything_in(tmp_path) == before


def test_where_files_are_gone_already(tmp_path: pathlib.Path):
    prefix = tmp_path / "prefix"
    first, *_ = install(prefix)
    first.unlink()
    shutil.rmtree(prefix / "include")
    uninstall()
    assert not everything_in(tmp_path)


def test_of_a_staged_tree(tmp_path: pathlib.Path):
    """DESTDIR, as packagers use it."""
    (tmp_path / "stage").mkdir()
    files = install(pathlib.Path("/opt/gyrograd-test"), DESTDIR=str(tmp_path / "stage"))
    assert all((tmp_path / "stage" / path.relative_to("/")).exists() for path in files)
    uninstall(DESTDIR=str(tmp_path / "stage"))
    assert not everything_in(tmp_path / "stage")


def test_without_an_install():
    (BUILD / "install_manifest.txt").unlink(missing_ok=True)
    with pytest.raises(AssertionError, match="nothing to uninstall"):
        uninstall()

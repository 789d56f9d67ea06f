"""The wheel: built without a network, it stands alone where it is installed, exports Python's entry points alone, and
computes the same bits on a processor without AVX.
"""

from __future__ import annotations

import json
import os
import pathlib
import platform
import re
import subprocess
import sys
import sysconfig
import zipfile

import pytest
from installed_tree import ROOT, clean_environment, exported, isolated, run

PYTHON_BUILD = pathlib.Path(os.environ.get("GYROGRAD_PYTHON_BUILD_DIR", ROOT / "build" / "python"))
DIGESTS = ROOT / "tests" / "python" / "digests.py"
# What a C++ compiler's runtime and OpenMP bring; the rest is inside.
SYSTEM_LIBRARIES = re.compile(r"(lib(c|m|stdc\+\+|gcc_s|gomp|pthread)|ld-linux-[\w-]+)\.so\.\d+")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("wheel")
    options = ["--no-deps", "--no-index", "--no-build-isolation", f"--config-settings=build-dir={PYTHON_BUILD}"]
    run(isolated([sys.executable, "-m", "pip", "wheel", ROOT, "-w", folder, *options]))
    (found,) = folder.glob("gyrograd-*.whl")
    return found


@pytest.fixture(scope="module")
def environment(wheel: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A fresh environment that holds the wheel, and what it depends on from this one."""
    folder = tmp_path_factory.mktemp("environment")
    run([sys.executable, "-m", "venv", "--without-pip", folder])
    python = folder / "bin" / "python"
    run([sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps", "--no-index", wheel])
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder


def report_of(environment: pathlib.Path, *before: str) -> dict:
    """What digests.py prints there."""
    report = json.loads(run([*before, environment / "bin" / "python", DIGESTS], env=clean_environment()))
    assert pathlib.Path(report["file"]).is_relative_to(environment)
    return report


def test_what_it_holds(wheel: pathlib.Path):
    names = zipfile.ZipFile(wheel).namelist()
    modules = sorted(name.partition(".")[0] for name in names if name.endswith(".so"))
    assert modules == ["gyrograd/_bench", "gyrograd/_core", "gyrograd/_reference"]
    strangers = [name for name in names if not re.match(r"gyrograd(-[\w.]+\.dist-info)?/", name)]
    assert not strangers
    assert "gyrograd/py.typed" in names


def extension_modules(environment: pathlib.Path) -> list[pathlib.Path]:
    found = sorted(environment.glob("lib/python*/site-packages/gyrograd/*.so"))
    assert len(found) == 3
    return found


def test_what_it_needs_of_the_system(environment: pathlib.Path):
    for module in extension_modules(environment):
        dynamic = run(["readelf", "-dW", module])
        needed = re.findall(r"\(NEEDED\).*\[(.+)\]", dynamic)
        assert needed
        assert not [name for name in needed if not SYSTEM_LIBRARIES.fullmatch(name)]
        assert not re.findall(r"\((?:RPATH|RUNPATH)\)", dynamic)


def test_what_it_exports(environment: pathlib.Path):
    for module in extension_modules(environment):
        assert exported(module) == [f"PyInit_{module.name.partition('.')[0]}"]


def test_it_computes(environment: pathlib.Path):
    report = report_of(environment)
    assert len(set(report["digests"].values())) == len(report["digests"]) == 12
    script = run([environment / "bin" / "gyrograd", "info", "--json"], env=clean_environment())
    assert json.loads(script)["cpu_target"] == report["target"]


if platform.machine() == "x86_64":

    def test_it_computes_the_same_bits_without_avx(environment: pathlib.Path):
        here = report_of(environment)
        nehalem = report_of(environment, "qemu-x86_64", "-cpu", "Nehalem")
        assert nehalem["target"] == "portable"
        assert nehalem["digests"] == here["digests"]


def test_it_does_not_take_another_library_for_its_own(environment: pathlib.Path, tmp_path: pathlib.Path):
    """A library of the same names that was loaded before, for all to see, has no part in what the module computes."""
    source = tmp_path / "other.cpp"
    source.write_text('namespace gyrograd { const char* Version() { return "another"; } }\n')
    library = tmp_path / "libother.so"
    run(["c++", "-shared", "-fPIC", source, "-o", library])
    code = "import gyrograd; print(gyrograd.info().version)"
    preloaded = clean_environment() | {"LD_PRELOAD": str(library)}
    result = subprocess.run(
        [environment / "bin" / "python", "-c", code], env=preloaded, capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() != "another"

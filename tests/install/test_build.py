"""The build reaches for nothing beyond the machine: no network past the package manager."""

from __future__ import annotations

import pathlib
import re
import sys

from installed_tree import ROOT, isolated, run

FETCHING = re.compile(
    r"FetchContent|ExternalProject|DOWNLOAD|CPM|(?:^|[\s/;&|(\"])(?:curl|wget|git|pip)(?=[\s\"])", re.MULTILINE
)
EVERYTHING = ["-DGYROGRAD_BUILD_TESTS=ON", "-DGYROGRAD_BUILD_BENCH=ON", "-DGYROGRAD_BUILD_PYTHON=ON"]


def test_no_cmake_file_fetches_anything():
    files = [
        path for path in ROOT.rglob("CMakeLists.txt") if not path.relative_to(ROOT).parts[0].startswith(("build", "."))
    ]
    files += (ROOT / "cmake").iterdir()
    assert len(files) > 10
    for path in files:
        code = re.sub(r"#.*", "", path.read_text())
        assert not FETCHING.search(code), path


def test_configures_and_compiles_without_a_network(tmp_path: pathlib.Path):
    """All that configuring looks for is found; no command of the build fetches; one object of the library compiles."""
    python = f"-DPython_EXECUTABLE={sys.executable}"
    run(isolated(["cmake", "-S", ROOT, "-B", tmp_path, "-G", "Ninja", python, *EVERYTHING]))
    commands = run(["ninja", "-C", tmp_path, "-t", "commands", "all"])
    assert "src/cpu/rotary.cc" in commands
    assert not FETCHING.search(commands)
    run(isolated(["ninja", "-C", tmp_path, "CMakeFiles/gyrograd_objects.dir/src/core/strides.cc.o"]))

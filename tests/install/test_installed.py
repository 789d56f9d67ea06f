"""The installed library, built against by find_package and pkg-config, where it was installed and moved elsewhere."""

from __future__ import annotations

import pathlib
import platform
import re
import shutil

import pytest
from installed_tree import BUILD, ROOT, Installed, clean_environment, exported, run, run_program

EXAMPLES = ROOT / "examples"
HALF_MODE_DX = [5, 6, 7, 8, -1, -2, -3, -4]  # of dy = 1..8 where cos is 0 and sin is 1
# What each of the C interface's examples prints first.
CANN_EXAMPLES = {
    "cann_rotary_grad": HALF_MODE_DX,
    "cann_norm_rope_concat_grad": [2, 6, -2, -6, 1, 2, 3, 4, 5, 6, 7, 8, -3, 4, 1, -2, 3, 4, -1, -2],
}
CMAKE_PROJECT = """
cmake_minimum_required(VERSION 3.22)
project(user LANGUAGES C CXX)
find_package(gyrograd 0.1 REQUIRED)
add_executable(cpp_rotary {examples}/cpp_rotary.cpp)
target_link_libraries(cpp_rotary PRIVATE gyrograd::gyrograd)
foreach(example rotary_grad norm_rope_concat_grad)
  foreach(language c cpp)
    add_executable(cann_${{example}}_${{language}} {examples}/cann_${{example}}.${{language}})
    target_link_libraries(cann_${{example}}_${{language}} PRIVATE gyrograd::cann)
  endforeach()
endforeach()
"""


def numbers(text: str) -> list[float]:
    return [float(word) for word in re.findall(r"(?<![\w.])-?\d+(?:\.\d+)?(?:e[-+]?\d+)?(?![\w.])", text)]


def copied(name: str, folder: pathlib.Path) -> pathlib.Path:
    return pathlib.Path(shutil.copy(EXAMPLES / name, folder))


def test_cpp_example_by_pkg_config(tree: Installed, tmp_path: pathlib.Path):
    program = tree.compile(copied("cpp_rotary.cpp", tmp_path), "gyrograd", "c++20")
    assert numbers(run_program(program)) == HALF_MODE_DX


if platform.machine() == "x86_64":

    def test_cpp_example_without_avx(installed: Installed, tmp_path: pathlib.Path):
        program = installed.compile(copied("cpp_norm_rope.cpp", tmp_path), "gyrograd", "c++20")
        assert run(["qemu-x86_64", "-cpu", "Nehalem", program], env=clean_environment()) == run_program(program)


@pytest.mark.parametrize("example", CANN_EXAMPLES)
def test_cann_examples_by_pkg_config(tree: Installed, tmp_path: pathlib.Path, example: str):
    from_c = run_program(tree.compile(copied(f"{example}.c", tmp_path), "gyrograd-cann", "c11"))
    from_cpp = run_program(tree.compile(copied(f"{example}.cpp", tmp_path), "gyrograd-cann", "c++17"))
    check_cann_example(example, from_c, from_cpp)


def check_cann_example(example: str, from_c: str, from_cpp: str):
    want = CANN_EXAMPLES[example]
    assert numbers(from_c)[: len(want)] == want
    assert numbers(from_c) == numbers(from_cpp)


def test_examples_by_find_package(tree: Installed, tmp_path: pathlib.Path):
    (tmp_path / "CMakeLists.txt").write_text(CMAKE_PROJECT.format(examples=EXAMPLES))
    run(["cmake", "-S", tmp_path, "-B", tmp_path / "build", f"-DCMAKE_PREFIX_PATH={tree.prefix}"])
    run(["cmake", "--build", tmp_path / "build"])
    assert numbers(run_program(tmp_path / "build" / "cpp_rotary")) == HALF_MODE_DX
    for example in CANN_EXAMPLES:
        check_cann_example(example, *(run_program(tmp_path / "build" / f"{example}_{kind}") for kind in ("c", "cpp")))


@pytest.mark.parametrize("package", ["gyrograd", "gyrograd-cann"])
def test_flags_point_into_the_tree(tree: Installed, package: str):
    paths = [flag for flag in tree.flags(package) if flag.startswith(("-I", "-L", "-Wl,"))]
    assert paths
    for flag in paths:
        path = pathlib.Path(re.sub(r"^(-I|-L|-Wl,-rpath,)", "", flag))
        assert path.resolve().is_relative_to(tree.prefix.resolve()), flag
        assert path.is_dir(), flag


def test_no_file_names_where_it_was_built(installed: Installed):
    """Text files of the package must work anywhere: neither the source, the build folder nor the prefix in them."""
    texts = [path for path in installed.prefix.rglob("*") if path.suffix in (".cmake", ".pc", ".h")]
    assert len(texts) > 10
    for path in texts:
        text = path.read_text()
        for place in (ROOT, BUILD, installed.prefix):
            assert str(place) not in text, f"{path} names {place}"


def documented(folder: pathlib.Path) -> set[str]:
    """What the C++ headers mark with GYROGRAD_API: functions, and the members of classes that are functions."""
    names = set()
    for header in folder.glob("*.h"):
        code = re.sub(r"//.*", "", header.read_text())
        names |= set(re.findall(r"^GYROGRAD_API [^(]*?(\w+)\(", code, re.MULTILINE))
        for name, body in re.findall(r"^class GYROGRAD_API (\w+) \{(.*?)^\};", code, re.MULTILINE | re.DOTALL):
            names |= {f"{name}::{member}" for member in re.findall(r"(\w+)\([^()]*\)(?: const)?;", body)}
    return {f"gyrograd::{name}" for name in names}


def test_the_documented_names_alone_are_exported(installed: Installed):
    (library,) = installed.prefix.rglob("libgyrograd.so")
    names = {re.sub(r"\[abi:\w+\]|\(.*", "", name) for name in exported(library)}
    assert len(names) > 30
    assert names == documented(ROOT / "include" / "gyrograd")


def test_the_c_interface_exports_what_its_headers_declare(installed: Installed):
    (library,) = installed.prefix.rglob("libgyrograd_cann.so")
    code = "".join(path.read_text() for path in (ROOT / "include" / "cann").rglob("*.h"))
    code = re.sub(r"//.*|^\s*#.*", "", re.sub(r"/\*.*?\*/", "", code, flags=re.DOTALL), flags=re.MULTILINE)
    declared = set(re.findall(r"\b((?:acl|AclSet)\w+)\(", code))
    assert len(declared) > 30
    assert set(exported(library)) == declared


# Prints what loading a library did to the words that hold rounding, flushing, traps and flags.
LOADING = """
#include <dlfcn.h>
#include <cfenv>
#include <cstdio>
#include <cstring>
int main(int count, char** names) {
  for (int i = 1; i < count; ++i) {
    std::fenv_t before, after;
    std::fesetround(i % 2 == 0 ? FE_UPWARD : FE_TONEAREST);
    std::fegetenv(&before);
    if (dlopen(names[i], RTLD_NOW) == nullptr) return std::puts(dlerror()), 1;
    std::fegetenv(&after);
    std::printf("%d\\n", std::memcmp(&before, &after, sizeof(before)));
  }
}
"""


def test_loading_leaves_the_floating_point_environment(installed: Installed, tmp_path: pathlib.Path):
    source = tmp_path / "loading.cpp"
    source.write_text(LOADING)
    program = tmp_path / "loading"
    run(["c++", "-std=c++20", source, "-o", program, "-ldl"])
    libraries = [next(installed.prefix.rglob(f"lib{name}.so")) for name in ("gyrograd", "gyrograd_cann")]
    assert run([program, *libraries], env=clean_environment()).split() == ["0", "0"]


@pytest.mark.parametrize("header", sorted(path.name for path in (ROOT / "include" / "gyrograd").glob("*.h")))
def test_each_public_header_stands_alone(installed: Installed, tmp_path: pathlib.Path, header: str):
    source = tmp_path / "header.cpp"
    source.write_text(f'#include "gyrograd/{header}"\nint main() {{ return 0; }}\n')
    installed.compile(source, "gyrograd", "c++20")


CANN_HEADERS = sorted(
    str(path.relative_to(ROOT / "include" / "cann")) for path in (ROOT / "include" / "cann").rglob("*.h")
)


@pytest.mark.parametrize(("suffix", "standard"), [("c", "c11"), ("cpp", "c++11")])
@pytest.mark.parametrize("header", CANN_HEADERS)
def test_each_cann_header_stands_alone(
    installed: Installed, tmp_path: pathlib.Path, header: str, suffix: str, standard: str
):
    source = tmp_path / f"header.{suffix}"
    source.write_text(f'#include "{header}"\nint main(void) {{ return 0; }}\n')
    installed.compile(source, "gyrograd-cann", standard)

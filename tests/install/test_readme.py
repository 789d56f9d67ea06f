"""The README's programs, cut out of it, built against the installed library and run: what it prints must be true."""

from __future__ import annotations

import pathlib
import re
import sys
from dataclasses import dataclass

import pytest
from installed_tree import ROOT, Installed, clean_environment, run, run_program

FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass
class Program:
    """A code block of the README and the text block after it, which shows what the program prints."""

    language: str
    code: str
    printed: str


def programs(language: str) -> list[Program]:
    blocks = FENCE.findall((ROOT / "README.md").read_text())
    found = []
    for (kind, code), (next_kind, text) in zip(blocks, [*blocks[1:], ("", "")], strict=True):
        if kind == language:
            assert next_kind == "text", f"the README's {language} block is not followed by what it prints"
            found.append(Program(kind, code, text))
    return found


def same_words(got: str, want: str) -> None:
    assert got.split() == want.split()


@pytest.mark.parametrize(
    ("language", "suffix", "package", "standard"),
    [("cpp", ".cpp", "gyrograd", "c++20"), ("c", ".c", "gyrograd-cann", "c11")],
)
def test_compiled_block(
    installed: Installed, tmp_path: pathlib.Path, language: str, suffix: str, package: str, standard: str
):
    (program,) = programs(language)
    source = tmp_path / f"program{suffix}"
    source.write_text(program.code)
    same_words(run_program(installed.compile(source, package, standard)), program.printed)


def test_python_block(tmp_path: pathlib.Path):
    (program,) = programs("python")
    source = tmp_path / "program.py"
    source.write_text(program.code)
    same_words(run([sys.executable, source], cwd=tmp_path, env=clean_environment()), program.printed)


@pytest.mark.parametrize(("language", "example"), [("cpp", "cpp_rotary.cpp"), ("c", "cann_rotary_grad.c")])
def test_compiled_block_is_the_example(language: str, example: str):
    (program,) = programs(language)
    assert program.code == (ROOT / "examples" / example).read_text()


def test_links_lead_somewhere():
    text = (ROOT / "README.md").read_text()
    links = re.findall(r"\]\((?!https?:)([^)#]+)", text)
    assert len(links) > 5
    for link in links:
        assert (ROOT / link).exists(), link

"""The programs of the README and of docs/torch.md, cut out, built against the installed library and run: what the page
says that they print must be true.
"""

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
    """A code block of a page and the text block after it, which shows what the program prints."""

    language: str
    code: str
    printed: str


def programs(language: str, page: str = "README.md") -> list[Program]:
    blocks = FENCE.findall((ROOT / page).read_text())
    found = []
    for (kind, code), (next_kind, text) in zip(blocks, [*blocks[1:], ("", "")], strict=True):
        if kind == language:
            assert next_kind == "text", f"a {language} block of {page} is not followed by what it prints"
            found.append(Program(kind, code, text))
    return found


def same_words(got: str, want: str) -> None:
    assert got.split() == want.split()


# Every compiled block: the nth one of its language, and the example that it is.
COMPILED = [
    ("cpp", 0, "cpp_rotary.cpp"),
    ("cpp", 1, "cpp_rotary_plan.cpp"),
    ("cpp", 2, "cpp_norm_rope.cpp"),
    ("c", 0, "cann_rotary_grad.c"),
]
PACKAGES = {"cpp": ("gyrograd", "c++20"), "c": ("gyrograd-cann", "c11")}


@pytest.mark.parametrize(("language", "index", "example"), COMPILED)
def test_compiled_block(installed: Installed, tmp_path: pathlib.Path, language: str, index: int, example: str):
    program = programs(language)[index]
    assert program.code == (ROOT / "examples" / example).read_text()
    source = tmp_path / example
    source.write_text(program.code)
    same_words(run_program(installed.compile(source, *PACKAGES[language])), program.printed)


def test_every_compiled_block_is_tested():
    assert [language for language, _, _ in COMPILED] == [language for language in PACKAGES for _ in programs(language)]


PYTHON = programs("python") + programs("python", "docs/torch.md")
NAMES = ["model", "rotary", "norm_rope", "torch", "dtensor", "jax", "docs/torch.md"]


@pytest.mark.parametrize("program", PYTHON, ids=NAMES)
def test_python_block(tmp_path: pathlib.Path, program: Program):
    source = tmp_path / "program.py"
    source.write_text(program.code)
    same_words(run([sys.executable, source], cwd=tmp_path, env=clean_environment()), program.printed)


@pytest.mark.parametrize("page", ["README.md", "docs/torch.md"])
def test_links_lead_somewhere(page: str):
    text = FENCE.sub("", (ROOT / page).read_text())  # a lambda in a program looks like a link
    links = re.findall(r"\]\((?!https?:)([^)#]+)", text)
    assert len(links) > 3
    for link in links:
        assert ((ROOT / page).parent / link).exists(), link

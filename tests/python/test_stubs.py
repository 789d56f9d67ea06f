"""The stubs and the documented signatures say what the extension module has, and the package has no other names."""

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import gyrograd as gg
from gyrograd import _core, _reference

STUBS = Path(gg.__file__).parent


def functions(source):
    """Name -> the parameters' names, of every definition in a source text; overloads must agree."""
    found = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef):
            names = [argument.arg for argument in (*node.args.args, None, *node.args.kwonlyargs) if argument]
            assert found.setdefault(node.name, names) == names
    return found


@pytest.mark.parametrize("module", [_core, _reference], ids=lambda module: module.__name__)
def test_stubs_match_the_module(module):
    stubs = functions((STUBS / f"{module.__name__.split('.')[-1]}.pyi").read_text())
    public = {name: value for name, value in vars(module).items() if callable(value) and not name.startswith("_")}
    assert stubs.keys() == public.keys()
    for name, function in public.items():
        (overload,) = function.__nb_signature__
        signature = re.sub(r"\\\d+", "...", overload[0])  # nanobind keeps its defaults apart
        assert functions(signature + ": ...") == {name: stubs[name]}


@pytest.mark.parametrize("function", [gg.rotary, gg.rotary_backward], ids=lambda function: function.__name__)
def test_documented_defaults_are_real(function):
    """The text of help() names every keyword's true default: an explicit default changes nothing."""
    (definition,) = ast.parse(function.__nb_signature__[0][0] + ": ...").body
    keywords = zip(definition.args.kwonlyargs, definition.args.kw_defaults, strict=True)
    defaults = {argument.arg: ast.literal_eval(value) for argument, value in keywords}
    first = np.arange(1, 9, dtype=np.float32).reshape(2, 4)
    tables = np.array([[0.5, 0.25, 2, 4]], np.float32)
    want = function(first, tables, tables)
    np.testing.assert_array_equal(function(first, tables, tables, **defaults), want)
    for name in defaults:
        assert name in function.__doc__


@pytest.mark.parametrize("function", [gg.norm_rope, gg.norm_rope_concat], ids=lambda function: function.__name__)
def test_documented_keywords(function):
    """Every option is in the text of help(), and the backward has the same but for eps."""
    backward = inspect.signature(getattr(gg, f"{function.__name__}_backward")).parameters
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is parameter.KEYWORD_ONLY or name.endswith("_type"):
            assert name in function.__doc__
            assert name == "eps" or backward[name].default == parameter.default


def test_names_of_the_package():
    """In a new process, since importing a module of the package names it too."""
    program = "import gyrograd; print(*(name for name in dir(gyrograd) if not name.startswith('_')))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert sorted(done.stdout.split()) == sorted(gg.__all__)
    for name in gg.__all__:
        assert getattr(gg, name).__module__.split(".")[0] == "gyrograd"

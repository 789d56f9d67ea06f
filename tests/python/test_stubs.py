"""The stubs, overloads and documented signatures say what the calls have, and the package has no other names."""

import ast
import inspect
import pydoc
import re
import subprocess
import sys
import typing
from pathlib import Path

import numpy as np
import pytest

import gyrograd as gg
import gyrograd.jax as gj
import gyrograd.torch as gt
from gyrograd import _bench, _core, _reference
from gyrograd._types import Array, Array_co

STUBS = Path(gg.__file__).parent


def functions(source):
    """Name -> the parameters' names, of every definition in a source text; overloads must agree."""
    found = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef):
            names = [argument.arg for argument in (*node.args.args, None, *node.args.kwonlyargs) if argument]
            assert found.setdefault(node.name, names) == names
    return found


@pytest.mark.parametrize("module", [_bench, _core, _reference], ids=lambda module: module.__name__)
def test_stubs_match_the_module(module):
    stubs = functions((STUBS / f"{module.__name__.split('.')[-1]}.pyi").read_text())
    public = {name: value for name, value in vars(module).items() if callable(value) and not name.startswith("_")}
    assert stubs.keys() == public.keys()
    for name, function in public.items():
        (overload,) = function.__nb_signature__
        signature = re.sub(r"\\\d+", "...", overload[0])  # nanobind keeps its defaults apart
        assert functions(signature + ": ...") == {name: stubs[name]}


CALLS = [
    gg.rotary, gg.rotary_backward, gg.norm_rope, gg.norm_rope_backward, gg.norm_rope_concat,
    gg.norm_rope_concat_backward,
]  # fmt: skip
RESULTS = [gg.NormRope, gg.NormRopeGradients, gg.NormRopeConcat, gg.NormRopeConcatGradients]


FRAMEWORK_CALLS = [getattr(module, name) for module in (gt, gj) for name in module.__all__]
OWN = {gt: set(), gj: {"in_place"}}  # keywords that the plain calls have not


def name_of(value):
    return value.__name__


@pytest.mark.parametrize("function", [*CALLS, *FRAMEWORK_CALLS], ids=lambda f: f"{f.__module__}.{f.__name__}")
def test_calls_are_introspectable(function):
    """inspect and help() have every parameter with its type, and the result's."""
    signature = inspect.signature(function)
    assert signature.return_annotation is not signature.empty
    assert all(parameter.annotation is not parameter.empty for parameter in signature.parameters.values())
    text = pydoc.plain(pydoc.render_doc(function))
    for name in signature.parameters:
        assert re.search(rf"\b{name}: .", text)
    if "outputs" in signature.parameters:
        assert "without outputs no other" in " ".join(function.__doc__.split())


@pytest.mark.parametrize("function", [gg.rotary, gg.rotary_backward], ids=name_of)
def test_documented_defaults_are_real(function):
    """An explicit default changes nothing."""
    parameters = inspect.signature(function).parameters
    defaults = {name: p.default for name, p in parameters.items() if p.kind is p.KEYWORD_ONLY}
    first = np.arange(1, 9, dtype=np.float32).reshape(2, 4)
    tables = np.array([[0.5, 0.25, 2, 4]], np.float32)
    want = function(first, tables, tables)
    np.testing.assert_array_equal(function(first, tables, tables, **defaults), want)
    for name in defaults:
        assert name in function.__doc__


def overloads():
    return [(function, overload) for function in CALLS for overload in typing.get_overloads(function)]


@pytest.mark.parametrize(("function", "overload"), overloads(), ids=lambda value: value.__name__)
def test_overloads_have_the_calls_keywords(function, overload):
    """Of the same types; those that do not choose results lack outputs and out."""
    hints = typing.get_type_hints(overload)
    keywords = typing.get_type_hints(typing.get_args(hints.pop("options"))[0])
    of_call = typing.get_type_hints(function)
    assert not hints.keys() & keywords.keys()
    chooses = {"outputs", "out"} if "outputs" in hints else set()
    assert hints.keys() | keywords.keys() == of_call.keys() - {"outputs", "out"} | chooses
    assert keywords == {name: of_call[name] for name in keywords}


@pytest.mark.parametrize("function", [call for call in CALLS if call is not gg.rotary], ids=name_of)
def test_results_that_are_always_there_are_typed_as_arrays(function):
    """In the overloads without outputs= and out=."""
    for overload in typing.get_overloads(function):
        hints = typing.get_type_hints(overload)
        result = hints["return"]
        arrays = typing.get_args(result) or (result,)
        sure = arrays == (Array,) * len(arrays)
        assert sure == ("outputs" not in hints)


@pytest.mark.parametrize("result", RESULTS, ids=name_of)
def test_fields_of_results(result):
    hints = typing.get_type_hints(result)
    always = {"y", "dx"} if len(hints) == 3 else {"query", "key", "value"}
    assert {name for name, hint in hints.items() if hint is Array_co} == always & hints.keys()
    assert {hint for name, hint in hints.items() if name not in always} == {Array_co | None}


@pytest.mark.parametrize("module", OWN, ids=name_of)
@pytest.mark.parametrize("name", ["rotary", "norm_rope", "norm_rope_concat"])
def test_framework_calls_have_the_plain_calls_parameters(module, name):
    """Their names, order and defaults, but for what chooses results, memory and threads; and each is documented."""
    plain, ours = (inspect.signature(getattr(m, name)).parameters for m in (gg, module))
    kept = {key: p.default for key, p in plain.items() if key not in ("outputs", "out", "threads", "cpu_target")}
    ours = {key: p.default for key, p in ours.items() if key not in OWN[module]}
    assert ours == kept
    assert list(ours) == list(kept)


@pytest.mark.parametrize("function", FRAMEWORK_CALLS, ids=name_of)
def test_framework_calls_are_documented(function):
    for name in inspect.signature(function).parameters:
        word = "norm_query_weight, norm_query_bias ..." if re.match("norm_.*_(weight|bias)$", name) else name
        assert re.search(rf"\b{re.escape(word)}", function.__doc__)
    for section in ("Args:", "Returns:", "Raises:"):
        assert section in function.__doc__


@pytest.mark.parametrize("function", [gg.norm_rope, gg.norm_rope_concat], ids=name_of)
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

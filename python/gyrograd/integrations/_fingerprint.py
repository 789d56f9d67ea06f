"""Known code is recognised by a hash of its source, never by its name."""

import ast
import functools
import hashlib
import inspect
import textwrap
import types
from collections.abc import Callable
from typing import Any

_DIGITS = 16
# What says nothing about a result: annotations, comments on types, where names are loaded or stored. New versions of
# Python add type_params.
_LEFT_OUT = frozenset(("annotation", "ctx", "decorator_list", "kind", "name", "returns", "type_comment", "type_params"))


@functools.cache
def fingerprint(*functions: Callable[..., Any]) -> str | None:
    """The first 16 hex digits of sha256 over the sources of these functions, in this order.

    Names of arguments, defaults and bodies count; docstrings, comments, decorators, annotations, formatting and the
    functions' own names do not. None where a source can't be had, or where a function is a wrapper that another package
    than its own put around it: what such a wrapper does is not known.
    """
    texts = [_normal_source(function) for function in functions]
    if not texts or None in texts:
        return None
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:_DIGITS]


def with_helpers(function: Callable[..., Any], find: Callable[[Any], Any] = lambda found: found) -> tuple[Any, ...]:
    """The function, then the functions of its own package that its code names as globals, and those that they name, in
    the order of their names.

    find: from what a name stands for, the function behind it.
    """
    found = [function]
    for one in found:
        inner = unwrapped(one)
        if inner is None:
            continue
        names = inner.__globals__
        helpers = (find(names[name]) for name in sorted(_names(inner.__code__)) if name in names)
        found += [
            helper
            for helper in helpers
            if inspect.isfunction(helper) and helper not in found and _package(helper) == _package(inner)
        ]
    return tuple(found)


def _names(code: types.CodeType) -> set[str]:
    """The names in a function's code and in that of comprehensions in it, which Python 3.12 made part of it."""
    nested = (_names(constant) for constant in code.co_consts if isinstance(constant, types.CodeType))
    return set(code.co_names).union(*nested)


def _normal_source(function: Callable[..., Any]) -> str | None:
    inner = unwrapped(function)
    if inner is None:
        return None
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(inner)))
    except (OSError, TypeError, SyntaxError):
        return None
    definition = tree.body[0]
    return _serial(definition) if isinstance(definition, ast.FunctionDef) else None


def unwrapped(function: Any) -> Any:
    """The function within its own package's wrappers; None where a wrapper is of another package."""
    while hasattr(function, "__wrapped__"):
        if _package(function) != _package(function.__wrapped__):
            return None
        function = function.__wrapped__
    return function if inspect.isfunction(function) else None


def _package(function: Any) -> str | None:
    """Where the code was written: functools.wraps changes __module__, not the globals."""
    names = getattr(function, "__globals__", {})
    return names.get("__name__", "").partition(".")[0] or None


def _serial(node: Any) -> str:
    """A text of a syntax tree that is the same in every version of Python; ast.dump's and ast.unparse's are not."""
    if isinstance(node, list):
        return "[" + ",".join(map(_serial, node)) + "]"
    if not isinstance(node, ast.AST):
        return repr(node)
    if isinstance(node, ast.AnnAssign) and node.value is not None:
        node = ast.Assign(targets=[node.target], value=node.value)
    fields = {name: value for name, value in ast.iter_fields(node) if name not in _left_out(node)}
    if isinstance(node, ast.FunctionDef) and ast.get_docstring(node, clean=False) is not None:
        fields["body"] = node.body[1:]
    present = (f"{name}={_serial(value)}" for name, value in fields.items() if value is not None and value != [])
    return f"{type(node).__name__}({','.join(present)})"


def _left_out(node: ast.AST) -> frozenset[str]:
    """An import's or an exception's name does count."""
    return _LEFT_OUT if isinstance(node, ast.FunctionDef) else _LEFT_OUT - {"name"}

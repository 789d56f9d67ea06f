"""Models of transformers, switched to gyrograd's rotary position embedding and QK-norm."""

import inspect
import re
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
import transformers

from gyrograd.integrations import _transformers_attention, _transformers_rotary
from gyrograd.integrations._fingerprint import fingerprint, unwrapped, with_helpers
from gyrograd.integrations._known_transformers import ATTENTIONS, LEFT, LEFT_ATTENTIONS, NORMS, ROTARIES
from gyrograd.integrations._switch import Plan, Report, Switch, place_of, stock, unreplaced
from gyrograd.integrations._transformers_attention import Norm
from gyrograd.integrations._transformers_rotary import Rotary

__all__ = ["Report", "Switch", "switch_to_gyrograd"]

Source = torch.nn.Module | types.ModuleType
# Remote code that AutoModel loads lives in transformers_modules.
_PACKAGES = ("transformers", "transformers_modules")
# Names say where to look, and fingerprints what is there.
_ROTARY_NAME = re.compile(r"apply_(\w+_)?(rotary|rope)|rotate_queries_or_keys")
_UNKNOWN = "code that gyrograd does not know"
_NORM_NAMES = {"q_norm", "k_norm", "qk_norm", "q_layernorm", "k_layernorm", "query_layernorm", "key_layernorm"}


def switch_to_gyrograd(models: Source | Iterable[Source], *, qk_norm: bool = True) -> Switch:
    """Replaces the rotary functions that models of transformers call, and QK-norm with them, by gyrograd's.

    What is replaced are functions of the package's modeling modules and forwards of their attention classes, so that
    all models of the same modules in this process are switched, those made later too; their parameters, states and
    files are untouched. Code is known by its fingerprint; what is not known stays as it is, and one warning names it.
    A call that gyrograd does not take (tensors on another device, types that do not go together) is the stock
    function's, as before.

    Args:
      models: a model, a module of the package such as transformers.models.llama.modeling_llama, or several of these.
      qk_norm: False: norms of queries and keys stay as they are. The gradients of the fused call can't be
        differentiated again.

    Returns:
      Switch: its report says what was found, replaced and left, its undo() puts the stock functions back.

    Raises:
      TypeError: models are neither models nor modules.
      RuntimeError: a place that was switched before holds something else now. Nothing is replaced then.
    """
    return plan_for(models, qk_norm).switch()


def plan_for(models: Source | Iterable[Source], qk_norm: bool) -> Plan:
    """What a switch would do."""
    plan = Plan(f"transformers {transformers.__version__}")
    for module in _modules(models):
        _search(plan, module, qk_norm)
    return plan


def _modules(models: Source | Iterable[Source]) -> list[types.ModuleType]:
    """The modules of the package that the models' classes come from, each once, in order."""
    is_several = isinstance(models, Iterable) and not isinstance(models, Source | str | Mapping)
    found: dict[str, types.ModuleType] = {}
    for source in models if is_several else [models]:
        if isinstance(source, types.ModuleType):
            found[source.__name__] = source
        elif isinstance(source, torch.nn.Module):
            for part in source.modules():
                for one in type(part).__mro__:
                    if one.__module__.partition(".")[0] in _PACKAGES and one.__module__ in sys.modules:
                        found[one.__module__] = sys.modules[one.__module__]
        else:
            kind = type(source).__name__
            raise TypeError(f"switch_to_gyrograd: a {kind} is neither a model nor a module of Python")
    return list(found.values())


def _search(plan: Plan, module: types.ModuleType, qk_norm: bool) -> None:
    rotaries = _search_functions(plan, module)
    norms = dict(_norms(module))
    for one in _classes(module):
        _search_methods(plan, one)
        forward = plain_function(stock(one, "forward"))
        if forward is not None:
            _search_attention(plan, one, forward, rotaries, norms, qk_norm)


# ---- functions


def plain_function(thing: Any) -> types.FunctionType | None:
    """The function that a name stands for. Where the package `kernels` is installed, transformers' hook for kernels has
    made a layer of it: a module whose forward calls the function that it closes over.
    """
    thing = unreplaced(thing)
    if inspect.isfunction(thing):
        return thing
    if not (isinstance(thing, torch.nn.Module) and hasattr(type(thing), "kernel_layer_name")):
        return None
    cells = getattr(type(thing).forward, "__closure__", None) or ()
    inner = [cell.cell_contents for cell in cells if inspect.isfunction(cell.cell_contents)]
    return inner[0] if len(inner) == 1 else None


def _fingerprint(function: Callable[..., Any]) -> str | None:
    return fingerprint(*with_helpers(function, plain_function))


def _search_functions(plan: Plan, module: types.ModuleType) -> dict[str, Rotary]:
    """Notes the module's rotary functions; those that are known, by name."""
    named = {name: thing for name, thing in vars(module).items() if _ROTARY_NAME.search(name) and callable(thing)}
    found = {name: plain_function(thing) for name, thing in named.items()}
    for name in [name for name, function in found.items() if function is None]:
        del found[name]
        _leave(plan, module, name, None)
    helpers = [helper for function in found.values() for helper in with_helpers(function, plain_function)[1:]]
    known = {}
    for name, function in found.items():
        code = _fingerprint(function)
        if code in ROTARIES:
            rotary = known[name] = ROTARIES[code].form
            plan.replace(module, name, _maker(rotary), "rotary", rotary.words)
        elif function not in helpers:
            _leave(plan, module, name, code)
    return known


def _maker(rotary: Rotary) -> Callable[[Any], Any]:
    return lambda found: _transformers_rotary.replacement(rotary, plain_function(found))


def _leave(plan: Plan, owner: Any, name: str, code: str | None) -> None:
    why = LEFT[code].form if code in LEFT else _UNKNOWN
    plan.leave(place_of(owner, name), "rotary", why, is_known=code in LEFT)


# ---- classes


def _classes(module: types.ModuleType) -> Iterator[type]:
    for thing in list(vars(module).values()):
        if isinstance(thing, type) and thing.__module__ == module.__name__:
            yield thing


def _search_methods(plan: Plan, owner: type) -> None:
    """Rotary in methods: none is replaced."""
    for name, thing in vars(owner).items():
        function = thing.__func__ if isinstance(thing, staticmethod | classmethod) else thing
        if _ROTARY_NAME.search(name) and inspect.isfunction(function):
            _leave(plan, owner, name, _fingerprint(function))


def _norms(module: types.ModuleType) -> Iterator[tuple[type, Norm]]:
    for one in _classes(module):
        methods = [vars(one).get("forward"), vars(one).get("_norm")]
        norm = NORMS.get(fingerprint(*[method for method in methods if inspect.isfunction(method)]))
        if norm is not None:
            yield one, norm


def _search_attention(
    plan: Plan,
    owner: type,
    forward: Callable[..., Any],
    rotaries: dict[str, Rotary],
    norms: dict[type, Norm],
    qk_norm: bool,
) -> None:
    """Notes QK-norm beside rotary in a forward."""
    inner = unwrapped(forward)
    names = set() if inner is None else set(inner.__code__.co_names)
    called = [name for name in rotaries if name in names]
    if not called or not names & _NORM_NAMES:
        return
    code = fingerprint(forward)
    place = place_of(owner, "forward")
    if code in LEFT_ATTENTIONS:
        plan.leave(place, "QK-norm", LEFT_ATTENTIONS[code].form)
    elif code not in ATTENTIONS:
        plan.leave(place, "QK-norm", _UNKNOWN, is_known=False)
    elif not norms or not _transformers_attention.is_taken_with_norm(rotaries[called[0]]):
        plan.leave(place, "QK-norm", "a norm or a rotary that norm_rope has not")
    elif not qk_norm:
        plan.leave(place, "QK-norm", "qk_norm is False")
    else:
        attention, name = ATTENTIONS[code].form, called[0]
        rotary = rotaries[name]

        def make(found: Callable[..., Any]) -> Callable[..., Any]:
            return _transformers_attention.replacement(attention, rotary, name, frozenset(norms.items()), found)

        plan.replace(owner, "forward", make, "QK-norm and rotary", f"RMSNorm with weight, then {rotary.words}")

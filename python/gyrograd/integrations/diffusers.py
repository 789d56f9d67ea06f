"""Transformers of diffusers with rotary, QK-norm and concatenation by gyrograd.

from gyrograd.integrations.diffusers import switch_to_gyrograd

switch = switch_to_gyrograd(transformer)
print(switch.report)
...
switch.undo()
"""

import inspect
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import diffusers
import torch
from diffusers.models import embeddings

from gyrograd.integrations import _diffusers_attention, _diffusers_rotary
from gyrograd.integrations._fingerprint import fingerprint, unwrapped
from gyrograd.integrations._known_diffusers import ATTENTION, PACKAGE, ROTARY, VERSIONS, Known
from gyrograd.integrations._switch import Plan, Report, Switch, place_of, stock

__all__ = ["Report", "Switch", "switch_to_gyrograd"]


def switch_to_gyrograd(model: torch.nn.Module) -> Switch:
    """Replaces the rotary embeddings of a model of diffusers, and where the fit is exact the norms of queries and keys,
    rotary and concatenation of its attention, by gyrograd's operators.

    What is replaced are functions of modules and `__call__` of attention processors' classes: the effect is on every
    model in this process that uses them, and the model itself is not changed. So it saves, loads, compiles, checkpoints
    and casts as before. Code is known by fingerprints; what is not known is left as it is, with one warning. What
    gyrograd does not take when it runs (a GPU, float64, hooks on a norm) goes to the stock function. Gradients of
    gradients through replaced norms raise NotImplementedError.

    Args:
      model: a transformer, such as a pipeline's `transformer`; compiled and wrapped ones too. Attention processors are
        those that it has now: switch after set_attn_processor() and fuse_qkv_projections().

    Returns:
      The Switch: its `report` says what was found, what was replaced, what was left and why; `undo()` puts the very
      functions back. It is a context manager, too.

    Raises:
      TypeError: model is no torch.nn.Module.
      RuntimeError: something else has been put in the place of a replacement that stands.
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(
            f"switch_to_gyrograd: model is a {type(model).__name__}; it must be a torch.nn.Module, such as the "
            "transformer of a pipeline"
        )
    plan = Plan(f"{PACKAGE} {diffusers.__version__}")
    calls = {}  # of each call in the model: the attention modules that make it
    for owner, attribute, attn in _calls(model):
        calls.setdefault((owner, attribute), []).append(attn)
    functions: dict[tuple[Any, str], None] = {}
    for (owner, attribute), attns in calls.items():
        _plan_call(plan, owner, attribute, [attn for attn in attns if attn is not None])
        functions |= dict.fromkeys(_rotary_functions(stock(owner, attribute)))
    for owner, name in functions:
        _plan_function(plan, owner, name)
    return plan.switch()


# ---- what a model calls


def _calls(model: torch.nn.Module) -> Iterator[tuple[Any, str, Any]]:
    """(class, method, attention module) of every processor, and (class, "forward", None) of every module, as far as
    the methods are diffusers' own.
    """
    for module in model.modules():
        processor = getattr(module, "processor", None)
        for thing, attribute, attn in ((processor, "__call__", module), (module, "forward", None)):
            owner = next((one for one in type(thing).__mro__ if attribute in vars(one)), object)
            if owner.__module__.partition(".")[0] == PACKAGE:
                yield owner, attribute, attn


def _is_rotary(name: str) -> bool:
    return "apply" in name and "rotary_emb" in name


def _rotary_functions(function: Callable[..., Any]) -> Iterator[tuple[Any, str]]:
    """(module, name) of the rotary embeddings that a function calls, of its own module or imported within it."""
    inner = unwrapped(function)
    if inner is None:
        return
    for name in filter(_is_rotary, inner.__code__.co_names):
        for owner in (sys.modules.get(inner.__globals__["__name__"]), embeddings):
            if owner is not None and inspect.isfunction(vars(owner).get(name)):
                yield owner, name
                break


def _has_own_rotary(function: Callable[..., Any]) -> bool:
    """Whether a rotary embedding is defined in it, where nothing else can stand in its place."""
    inner = unwrapped(function)
    nested = () if inner is None else inner.__code__.co_consts
    return any(isinstance(code, types.CodeType) and _is_rotary(code.co_name) for code in nested)


# ---- what becomes of it


def _plan_call(plan: Plan, owner: Any, attribute: str, attns: list[Any]) -> None:
    function = stock(owner, attribute)
    place = place_of(owner, attribute)
    known = ATTENTION.get(fingerprint(function) or "") if attribute == "__call__" else None
    if known is None:
        _leave_call(plan, place, owner, function, attns)
        return
    unknown = _unknown_helpers(known, function)
    if unknown:
        plan.leave(place, known.what, f"it calls {', '.join(unknown)}, whose code is not known", is_known=False)
        return
    reasons = [_diffusers_attention.misfit(attn, known.turns) if known.is_joint else None for attn in attns]
    misfits = [reason for reason in reasons if reason is not None]
    why = f"{len(misfits)} of {len(attns)} attention modules stay: {', '.join(sorted(set(misfits)))}"
    if misfits and len(misfits) == len(attns):
        plan.leave(place, known.what, why)
        return
    how = f"{known.how}; {why}" if misfits else known.how
    plan.replace(owner, attribute, getattr(_diffusers_attention, known.make), known.what, how)


def _leave_call(plan: Plan, place: str, owner: Any, function: Callable[..., Any], attns: list[Any]) -> None:
    """Reports what stays of a processor or a module that is not known."""
    name = f"{owner.__module__}.{owner.__qualname__}".removeprefix("diffusers.models.")
    if any(name in known.places for known in ATTENTION.values()):
        why = f"its code is not that of diffusers {', '.join(VERSIONS)}"
        plan.leave(place, "QK-norm and rotary", why, is_known=False)
    elif _has_own_rotary(function):
        why = "it defines a rotary embedding of its own, and its code is not known"
        plan.leave(place, "rotary", why, is_known=False)
    elif any(getattr(attn, "norm_q", None) is not None for attn in attns):
        plan.leave(place, "QK-norm", "no replacement of this processor's norms is written")


def _unknown_helpers(known: Known, function: Callable[..., Any]) -> list[str]:
    names = unwrapped(function).__globals__
    unknown = []
    for name, digits in known.helpers.items():
        owner = sys.modules[names["__name__"]] if name in names else embeddings
        helper = stock(owner, name)
        if helper is None or fingerprint(helper) != digits:
            unknown.append(name)
    return unknown


def _plan_function(plan: Plan, owner: Any, name: str) -> None:
    known = ROTARY.get(fingerprint(stock(owner, name)) or "")
    if known is None:
        plan.leave(place_of(owner, name), "rotary", "its code is not known", is_known=False)
    else:
        plan.replace(owner, name, getattr(_diffusers_rotary, known.make), known.what, known.how)

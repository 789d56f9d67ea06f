"""Which of two ways a call takes, and what both refuse.

The direct way, for plain eager tensors, is an autograd.Function, or nothing, around the core. Where PyTorch must see an
operator (torch.compile, export, tracing, functorch transforms, tensor subclasses, modes, autocast, views that negate
their memory), the call is one of a registered operator, over the same core.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.autograd import forward_ad

from gyrograd import _core
from gyrograd.torch._sharded import is_sharded, register_rules_once

_are_plain_tensors = _core.are_plain_tensors
_is_grad_enabled = torch.is_grad_enabled
_is_compiling = torch.compiler.is_dynamo_compiling
_tracing_state = torch._C._get_tracing_state
_functorch_is_active = torch._C._are_functorch_transforms_active
_dispatch_modes = torch._C._len_torch_dispatch_stack
_function_modes = torch._C._len_torch_function_stack
_autocasts = torch._C._is_any_autocast_enabled


# Of tensors that may be plain: subclasses mean more.
PLAIN_TYPES = frozenset((torch.Tensor, torch.nn.Parameter))


# Quotes follow no letter, as apostrophes do.
_QUOTED_OR_WORD = r"""(?<!\w)'(?:[^'\\]|\\.)*'|(?<!\w)"(?:[^"\\]|\\.)*"|(?<![\w'])[a-z]+\b"""


class NotPlain(Exception):
    """A direct call has a tensor that is not plain, or is refused: the registered operator takes it, or says why."""


def is_unobserved() -> bool:
    """Whether nobody but autograd needs to see a call, as long as its tensors are plain."""
    return not (
        _is_compiling()
        or _functorch_is_active()
        or _dispatch_modes()
        or _function_modes()
        or _tracing_state() is not None
        or _autocasts()
        or forward_ad._current_level >= 0
    )


def is_direct(*tensors: torch.Tensor | None) -> bool:
    """is_unobserved of a call on these tensors."""
    return is_unobserved() and _are_plain_tensors(*tensors)


def is_unobserved_backward() -> bool:
    """The same of the backward of a direct call that nobody differentiates again, as long as its tensors are plain.
    Fewer can need to see it: tracers and function modes have not seen the call, autocast casts no gradient, and what
    transforms wrap is not plain.
    """
    return not (_is_compiling() or _is_grad_enabled() or _dispatch_modes() or forward_ad._current_level >= 0)


def is_direct_backward(*tensors: torch.Tensor | None) -> bool:
    """is_unobserved_backward of these tensors."""
    return is_unobserved_backward() and _are_plain_tensors(*tensors)


def plain_apply(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """Its apply without the handling of functorch's transforms and wrappers, of which is_direct has found none."""
    apply: Callable[..., Any] = super(torch.autograd.Function, function).apply
    return apply


def check_tensors(operation: str, **tensors: torch.Tensor | None) -> None:
    """What the core says of arguments on the direct way, for the registered operators.

    Raises:
      TypeError: an argument is no tensor.
      ValueError: one is not on the CPU, not strided, nested or quantized.
    """
    if not _is_compiling():
        register_rules_once()
    for name, tensor in tensors.items():
        if tensor is None:
            continue
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{operation}: {name} is a {type(tensor).__name__}; it must be a torch.Tensor")
        if tensor.device.type != "cpu":
            raise ValueError(
                f"{operation}: {name} is on device {tensor.device}; it must be on the CPU: move it with .cpu()"
            )
        if tensor.is_nested or tensor.is_quantized:
            kind = "nested" if tensor.is_nested else "quantized"
            raise ValueError(f"{operation}: {name} is a {kind} tensor; it must be a plain one")
        if tensor.layout is not torch.strided:
            raise ValueError(f"{operation}: {name} has layout {tensor.layout}; it must be strided, as from to_dense()")


def refuse_whole_shapes(trace: Callable[..., Any], tensors: Sequence[torch.Tensor | None]) -> None:
    """Of DTensors, what the core says of their whole shapes; of one rank's part only that rank would say it.

    Args:
      trace: is given each tensor's shape, and a type that all have: the types are no rank's own.
    """
    if not _is_compiling() and any(is_sharded(tensor) for tensor in tensors):
        trace(*(None if tensor is None else (tuple(tensor.shape), "float32") for tensor in tensors))


def require_tensors(operation: str, **tensors: object) -> None:
    """For arguments that may not be None, which is_direct passes over."""
    for name, tensor in tensors.items():
        if tensor is None:
            raise TypeError(f"{operation}: {name} is None; it must be a torch.Tensor")


def renamed(error: Exception, operation: str, names: Mapping[str, str]) -> Exception:
    """A refusal by rotary in the words of the call that the user made; texts within quotes are values. Any other error
    stays as it is.
    """
    refusing, _, rule = str(error).partition(": ")
    if refusing != "rotary":
        return error
    words = re.sub(_QUOTED_OR_WORD, lambda found: names.get(found[0], found[0]), rule)
    return type(error)(f"{operation}: {words}")

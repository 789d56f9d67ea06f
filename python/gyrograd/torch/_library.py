"""Registering operators in PyTorch's namespace `gyrograd`, all in one way."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd import forward_ad

from gyrograd.torch._sharded import as_float32, register_rules_once

Tensors = tuple[torch.Tensor, ...]
LIBRARY = torch.library.Library("gyrograd", "DEF")
# Any strides go in, and results are contiguous whatever they are: a compiler need not keep an input's layout.
TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.flexible_layout)


def register(
    name: str,
    signature: str,
    *,
    kernel: Callable[..., Any],
    fake: Callable[..., Any],
    setup_context: Callable[..., None],
    backward: Callable[..., Any],
    vmap: Callable[..., Any],
    autocast: Callable[..., Sequence[Any]] | None = None,
) -> Any:
    """Registers an operator and returns it.

    Args:
      signature: the schema after the name.
      kernel: the values on the CPU. fake: their shapes, types and strides.
      setup_context, backward: as in torch.library.register_autograd, but that needs_input_grad has one item more, and
        backward returns no gradient for it; vmap as in register_vmap.
      autocast: the arguments as they shall be where autocast is on; without it autocast changes nothing.
    """
    LIBRARY.define(name + signature, tags=TAGS)
    LIBRARY.impl(name, kernel, "CPU")
    full_name = f"gyrograd::{name}"
    torch.library.register_fake(full_name, fake, lib=LIBRARY)
    torch.library.register_vmap(full_name, vmap, lib=LIBRARY)
    operator = getattr(torch.ops.gyrograd, name).default
    LIBRARY.impl(name, _autograd_kernel(operator, setup_context, backward), "Autograd", with_keyset=True)
    if autocast is not None:
        LIBRARY.impl(name, _autocast_kernel(operator, autocast), "AutocastCPU")
    return operator


def _autograd_kernel(
    operator: Any, setup_context: Callable[..., None], backward: Callable[..., Any]
) -> Callable[..., Any]:
    """What torch.library.register_autograd makes, and under functorch's transforms (torch.func.grad) too: a node of one
    level, as the kernels of PyTorch's own operators make it.
    """

    def below(keys: Any, arguments: Sequence[Any]) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            return operator.redispatch(keys & torch._C._after_autograd_keyset, *arguments)

    class Node(torch.autograd.function._SingleLevelFunction):
        @staticmethod
        def forward(ctx: Any, *arguments: Any) -> Any:
            *inputs, keys = arguments
            # A node records nothing while it computes, but the transforms below this level shall, and see tangents.
            is_transformed = torch._C._are_functorch_transforms_active()
            with torch.set_grad_enabled(is_transformed), forward_ad._set_fwd_grad_enabled(is_transformed):
                results = below(keys, inputs)
            setup_context(ctx, inputs, results)
            return results

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
            return *backward(ctx, *gradients), None

        _compiled_autograd_key = staticmethod(torch.autograd.Function._compiled_autograd_key)

    Node.__name__ = f"Gyrograd_{operator._opname}"

    names = [argument.name for argument in operator._schema.arguments]

    def kernel(keys: Any, *arguments: Any) -> Any:
        register_rules_once()
        if forward_ad._current_level >= 0:
            _refuse_tangents(operator._opname, names, arguments)
        if not (torch.is_grad_enabled() and torch._C._any_requires_grad(*arguments)):
            return below(keys, arguments)
        with enable_single_level_autograd_function():
            return Node.apply(*arguments, keys)

    return kernel


def _refuse_tangents(operation: str, names: Sequence[str], arguments: Sequence[Any]) -> None:
    """They would be lost."""
    for name, argument in zip(names, arguments, strict=True):
        if isinstance(argument, torch.Tensor) and forward_ad.unpack_dual(argument).tangent is not None:
            raise NotImplementedError(
                f"{operation}: {name} carries a forward-mode tangent; gradients are computed in reverse mode alone"
            )


def _autocast_kernel(operator: Any, autocast: Callable[..., Sequence[Any]]) -> Callable[..., Any]:
    def kernel(*arguments: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)):
            return operator(*autocast(*arguments))

    return kernel


def widened(rows: torch.Tensor, *others: torch.Tensor | None) -> list[torch.Tensor | None]:
    """Tables or weights beside rows of a type that they do not go with, as float32, which changes no value. float64 is
    none of autocast's business: it stays.
    """
    kinds = (torch.float32, torch.float16, torch.bfloat16)
    present = {other.dtype for other in others if other is not None}
    fit = len(present) <= 1 and present <= {rows.dtype, torch.float32}
    if fit or rows.dtype not in kinds or not present <= set(kinds):
        return list(others)
    return [None if other is None else as_float32(other) for other in others]


def to_front(tensor: torch.Tensor, axis: int | None, count: int) -> torch.Tensor:
    """A batched tensor with its batch first; an unbatched one expanded."""
    return tensor.expand(count, *tensor.shape) if axis is None else tensor.movedim(axis, 0)


def filled(like: torch.Tensor, results: Sequence[torch.Tensor | None]) -> Tensors:
    """An operator's results: a tensor without elements stands for one that is not there."""
    return tuple(like.new_empty(0) if result is None else result for result in results)


def named_results(results: Sequence[torch.Tensor | None], are_there: Sequence[bool]) -> tuple[torch.Tensor | None, ...]:
    """The opposite of filled."""
    return tuple(result if is_there else None for result, is_there in zip(results, are_there, strict=True))


def looped_vmap(name: str) -> Callable[..., Any]:
    """A rule of vmap that calls the operator of this name for each sample."""

    def rule(info: Any, in_axes: Sequence[Any], *arguments: Any) -> tuple[Tensors, tuple[int, ...]]:
        operator = getattr(torch.ops.gyrograd, name).default
        pairs = list(zip(arguments, in_axes, strict=True))
        if info.batch_size == 0:
            results = operator(*(_sample_of_none(*pair) for pair in pairs))
            return tuple(result.unsqueeze(0)[:0] for result in results), (0,) * len(results)
        samples = [operator(*(_sample(i, *pair) for pair in pairs)) for i in range(info.batch_size)]
        results = tuple(torch.stack(results) for results in zip(*samples, strict=True))
        return results, (0,) * len(results)

    return rule


def _sample(i: int, argument: Any, axis: Any) -> Any:
    is_batched = isinstance(argument, torch.Tensor) and axis is not None
    return argument.select(axis, i) if is_batched else argument


def _sample_of_none(argument: Any, axis: Any) -> Any:
    """Zeros of a sample's shape, that stay in autograd's graph."""
    is_batched = isinstance(argument, torch.Tensor) and axis is not None
    return argument.sum(axis) if is_batched else argument

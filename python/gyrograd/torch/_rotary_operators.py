"""torch.ops.gyrograd.rotary and rotary_backward: the rotary embedding as registered operators."""

from collections.abc import Sequence
from typing import Any

import torch

from gyrograd import _core
from gyrograd.torch._library import Tensors, filled, named_results, register, to_front, widened
from gyrograd.torch._sharded import reduced, widened_if_sharded

NAMES = ("dx", "dcos", "dsin")
OPTIONS = {"mode": "str", "per_pair_tables": "bool", "rotary_dim": "SymInt?", "rotary_offset": "SymInt"}
_SCHEMA = ", ".join(f"{kind} {name}" for name, kind in OPTIONS.items())


def compute_rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *options: Any) -> torch.Tensor:
    """The forward, by the core."""
    return _core.rotary(x, cos, sin, *options, None, torch.get_num_threads(), None)


def compute_rotary_backward(
    dy: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    x: torch.Tensor | None,
    wanted: Sequence[bool],
    *options: Any,
) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
    """dx, dcos, dsin by the core; None where not wanted. x is needed for dcos and dsin alone."""
    if x is None and not (wanted[1] or wanted[2]):
        return (
            _core.rotary_backward(dy, cos, sin, None, *options, None, None, torch.get_num_threads(), None),
            None,
            None,
        )
    names = [name for name, is_wanted in zip(NAMES, wanted, strict=True) if is_wanted]
    return _core.rotary_backward(dy, cos, sin, x, *options, names, None, torch.get_num_threads(), None)


# ---- forward


def _fake(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *options: Any) -> torch.Tensor:
    return x.new_empty(x.shape)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    x, cos, sin, *ctx.options = inputs
    needs = ctx.needs_input_grad
    ctx.save_for_backward(cos, sin, x if needs[1] or needs[2] else None)


def _gradients(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    cos, sin, x = ctx.saved_tensors
    return *differentiable_backward(dy, cos, sin, x, ctx.needs_input_grad[:3], ctx.options), *[None] * len(ctx.options)


def _table_to_front(tables: Sequence[torch.Tensor], axes: Sequence[int | None], count: int, each: bool) -> list:
    """Both tables with the batch as first axis: of extent 1 where neither has it and `each` sample needs none of its
    own.
    """
    if not each and all(axis is None for axis in axes):
        return [table.unsqueeze(0) for table in tables]
    return [to_front(table, axis, count) for table, axis in zip(tables, axes, strict=True)]


def _vmap(info: Any, in_axes: Any, x: Any, cos: Any, sin: Any, *options: Any) -> tuple[torch.Tensor, int]:
    count = info.batch_size
    if x.dim() == (in_axes[0] is not None):  # without channels: the batch would pass for them
        return ROTARY(*(rows.new_empty(()) for rows in (x, cos, sin)), *options), 0
    cos, sin = _table_to_front((cos, sin), in_axes[1:3], count, False)
    return ROTARY(to_front(x, in_axes[0], count), cos, sin, *options), 0


def _autocast(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *options: Any) -> tuple[Any, ...]:
    return x, *widened(x, cos, sin), *options


# ---- backward


def differentiable_backward(
    dy: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    x: torch.Tensor | None,
    wanted: Sequence[bool],
    options: Sequence[Any],
) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
    """dx, dcos, dsin by the registered operator; None where not wanted."""
    dtype = cos.dtype
    if dy.layout is not torch.strided:  # a sparse gradient
        dy = dy.to_dense()
    if wanted[1] or wanted[2]:
        cos, sin = widened_if_sharded(cos, sin)
    dx, *sums = named_results(ROTARY_BACKWARD(dy, cos, sin, x, list(wanted), *options), wanted)
    return dx, *(reduced(total, dtype) for total in sums)


def _backward_kernel(dy: Any, cos: Any, sin: Any, x: Any, wanted: Sequence[bool], *options: Any) -> Tensors:
    return filled(dy, compute_rotary_backward(dy, cos, sin, x, wanted, *options))


def _backward_fake(dy: Any, cos: Any, sin: Any, x: Any, wanted: Sequence[bool], *options: Any) -> Tensors:
    models = zip((dy, cos, sin), wanted, strict=True)
    return filled(dy, [model.new_empty(model.shape) if is_wanted else None for model, is_wanted in models])


def _backward_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensors) -> None:
    dy, cos, sin, x, ctx.wanted, *ctx.options = inputs
    ctx.save_for_backward(dy, cos, sin, x)
    ctx.set_materialize_grads(False)


def _backward_gradients(ctx: Any, *gradients: torch.Tensor | None) -> tuple[Any, ...]:
    """The gradients of the backward, which is linear in dy, in the tables and in x each. With

        L = <gdx, dx> + <gdcos, dcos> + <gdsin, dsin>

    L is <rotary(gdx, cos, sin), dy> + <rotary(x, gdcos, gdsin), dy>, the second over the channels that turn.
    """
    dy, cos, sin, x = ctx.saved_tensors
    gdx, gdcos, gdsin = named_results(gradients, ctx.wanted)
    mode, per_pair, rotary_dim, offset = ctx.options
    needs_dy, needs_cos, needs_sin, needs_x = ctx.needs_input_grad[:4]
    ddy = dcos = dsin = dx = None
    if gdx is not None:
        if needs_dy:
            ddy = ROTARY(gdx, cos, sin, *ctx.options)
        if needs_cos or needs_sin:
            _, dcos, dsin = differentiable_backward(dy, cos, sin, gdx, (False, needs_cos, needs_sin), ctx.options)
    if gdcos is not None or gdsin is not None:
        gdcos = torch.zeros_like(cos) if gdcos is None else gdcos
        gdsin = torch.zeros_like(sin) if gdsin is None else gdsin
        width = dy.shape[-1]
        turning = width if rotary_dim is None else rotary_dim
        row = (mode, per_pair, turning, 0)  # only the channels that turn, as a row of their own
        margins = (offset, width - offset - turning)
        if needs_dy:
            turned = ROTARY(x.narrow(-1, offset, turning), gdcos, gdsin, *row)
            turned = torch.nn.functional.pad(turned, margins)
            ddy = turned if ddy is None else ddy + turned
        if needs_x:
            part = dy.narrow(-1, offset, turning)
            dx, _, _ = ROTARY_BACKWARD(part, gdcos, gdsin, None, [True, False, False], *row)
            dx = torch.nn.functional.pad(dx, margins)
    return ddy, dcos, dsin, dx, None, *[None] * len(ctx.options)


def _backward_vmap(
    info: Any, in_axes: Any, dy: Any, cos: Any, sin: Any, x: Any, wanted: Sequence[bool], *options: Any
) -> tuple[Tensors, tuple[int | None, ...]]:
    count = info.batch_size
    cos, sin = _table_to_front((cos, sin), in_axes[1:3], count, wanted[1] or wanted[2])
    dy, x = (
        None if rows is None else to_front(rows, axis, count) for rows, axis in ((dy, in_axes[0]), (x, in_axes[3]))
    )
    axes = tuple(0 if is_wanted else None for is_wanted in wanted)
    return ROTARY_BACKWARD(dy, cos, sin, x, wanted, *options), axes


ROTARY = register(
    "rotary",
    f"(Tensor x, Tensor cos, Tensor sin, {_SCHEMA}) -> Tensor",
    kernel=compute_rotary,
    fake=_fake,
    setup_context=_setup,
    backward=_gradients,
    vmap=_vmap,
    autocast=_autocast,
)
ROTARY_BACKWARD = register(
    "rotary_backward",
    f"(Tensor dy, Tensor cos, Tensor sin, Tensor? x, bool[] wanted, {_SCHEMA}) -> (Tensor, Tensor, Tensor)",
    kernel=_backward_kernel,
    fake=_backward_fake,
    setup_context=_backward_setup,
    backward=_backward_gradients,
    vmap=_backward_vmap,
)

"""Attention of transformers that norms its queries and keys before they turn: a forward with both in one call each."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

import gyrograd.torch as gt
from gyrograd.integrations._fingerprint import unwrapped
from gyrograd.integrations._switch import like
from gyrograd.integrations._tensors import fits, is_taken
from gyrograd.integrations._transformers_rotary import Rotary

Tensor = torch.Tensor
_any_global_hook = torch.nn.modules.module._has_any_global_hook


@dataclass(frozen=True)
class Norm:
    """An RMSNorm with weight. eps: its attribute. adds_one: the weight is stored less one, and the norm keeps its
    rows' type; otherwise the result has the type that PyTorch promotes rows and weight to.
    """

    eps: str
    adds_one: bool


@dataclass(frozen=True)
class Attention:
    """A forward: projections, QK-norm, rotary, the cache, the attention interface, projection.

    norms, output: the names of the submodules. passes_window: it gives the interface a sliding window.
    has_layer_types: in a model that has windows, layers without one do not turn. has_gate: the projection of queries
    is twice as wide, and the second half of each head gates the result. has_dropout: training drops attention weights.
    condition: the attribute without which nothing is normed.
    """

    norms: tuple[str, str] = ("q_norm", "k_norm")
    output: str = "o_proj"
    passes_window: bool = False
    has_layer_types: bool = False
    has_gate: bool = False
    has_dropout: bool = True
    condition: str | None = None


def is_taken_with_norm(rotary: Rotary) -> bool:
    """Whether norm_rope turns like this."""
    has_form = rotary.arguments == "q, k" and rotary.types == "promoted" and not rotary.negates_sin
    return has_form and rotary.tables == "whole" and rotary.mode in ("half", "interleave") and rotary.part != "last"


@functools.cache
def replacement(
    attention: Attention,
    rotary: Rotary,
    rotary_name: str,
    known_norms: frozenset[tuple[type, Norm]],
    stock: Callable[..., Any],
) -> Callable[..., Any]:
    """A forward of the stock one's meaning; the same one each time. known_norms: classes of the same module. What the
    module offers, its rotary function among it, is looked up in it at each call.
    """
    norms = {kind: (norm, kind.forward) for kind, norm in known_norms}
    inner = unwrapped(stock)
    module = inner.__globals__

    def forward(
        self: Any,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        attention_mask: Tensor | None = None,
        cache: Any = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        is_normed = attention.condition is None or getattr(self, attention.condition)
        if position_embeddings is None or "past_key_values" in kwargs or not is_normed:
            if "past_key_values" not in kwargs or cache is not None:
                kwargs["cache"] = cache  # under its old name the stock forward takes it alone
            return stock(self, hidden_states, position_embeddings, attention_mask, **kwargs)
        query, key, value, gate = _projected(attention, self, hidden_states)
        q_norm, k_norm = (getattr(self, name) for name in attention.norms)
        cos, sin = position_embeddings
        turns = not attention.has_layer_types or self.sliding_window is None or self.is_sliding
        normed_query = _normed(rotary, norms, q_norm, query, cos, sin) if turns else None
        normed_key = None if normed_query is None else _normed(rotary, norms, k_norm, key, cos, sin)
        if normed_key is not None:
            query, key = normed_query, normed_key
        else:
            query, key = q_norm(query).transpose(1, 2), k_norm(key).transpose(1, 2)
            if turns:
                query, key = module[rotary_name](query, key, cos, sin)
        if cache is not None:
            key, value = cache.update(key, value, self.layer_idx, kwargs=kwargs)

        options = {"scaling": self.scaling}
        if attention.passes_window:
            is_full = attention.has_layer_types and not self.is_sliding
            options["sliding_window"] = None if is_full else self.sliding_window
        options["dropout"] = self.attention_dropout if attention.has_dropout and self.training else 0.0
        attend = module["ALL_ATTENTION_FUNCTIONS"].get_interface(
            self.config._attn_implementation, module["eager_attention_forward"]
        )
        result, weights = attend(self, query, key, value, attention_mask, **options, **kwargs)
        result = result.reshape(*hidden_states.shape[:-1], -1).contiguous()
        if gate is not None:
            result = result * torch.sigmoid(gate)
        return getattr(self, attention.output)(result), weights

    forward.__defaults__ = inner.__defaults__  # arguments that the stock forward requires are required
    return like(stock)(forward)


def _projected(attention: Attention, module: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Query and key [B, S, N, D], value [B, N, S, D], gate [B, S, N * D]."""
    shape = x.shape[:-1]
    heads = (*shape, -1, module.head_dim)
    query, gate = module.q_proj(x), None
    if attention.has_gate:
        query, gate = query.view(*shape, -1, 2 * module.head_dim).chunk(2, -1)
        gate = gate.reshape(*shape, -1)
    else:
        query = query.view(heads)
    return query, module.k_proj(x).view(heads), module.v_proj(x).view(heads).transpose(1, 2), gate


def _normed(
    rotary: Rotary,
    norms: Mapping[type, tuple[Norm, Callable[..., Any]]],
    module: torch.nn.Module,
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
) -> Tensor | None:
    """Rows [B, S, N, D], normed and turned by tables [B, S, R], as [B, N, S, D]; None where gyrograd can't.

    norms: of each class, and its forward.
    """
    kind = type(module)
    norm, known = norms.get(kind, (None, None))
    if norm is None or kind.forward is not known or _is_changed(module):
        return None
    if not _fit(rotary, x, module.weight, cos, sin):
        return None
    weight = 1.0 + module.weight.float() if norm.adds_one else module.weight
    result = x.dtype if norm.adds_one else torch.promote_types(x.dtype, weight.dtype)
    result = torch.promote_types(result, cos.dtype)
    options = {
        "norm_type": "rms_affine",
        "rope_type": rotary.mode,
        "eps": getattr(module, norm.eps),
        "rotary_dim": None if rotary.part == "all" else cos.shape[-1],
        "out_layout": "BSND" if rotary.is_elementwise else "BNSD",
    }
    weight = weight if weight.dtype == result else weight.float()
    cos, sin = (table.unsqueeze(1).to(result) for table in (cos, sin))
    y = gt.norm_rope(x.to(result), weight, None, cos, sin, **options).y
    return y.transpose(1, 2) if rotary.is_elementwise else y


def _fit(rotary: Rotary, x: Tensor, weight: Tensor, cos: Tensor, sin: Tensor) -> bool:
    """Whether norm_rope takes these: tables without gradients, nothing in float64, where stock norms in float32."""
    if not is_taken(x, weight, cos, sin) or torch.float64 in (x.dtype, weight.dtype, cos.dtype):
        return False
    if (cos.requires_grad or sin.requires_grad) and torch.is_grad_enabled():
        return False
    if cos.dim() != 3 or cos.shape != sin.shape or cos.dtype != sin.dtype:
        return False
    width, channels = cos.shape[-1], x.shape[-1]
    if width % 2 or width == 0 or weight.shape != (channels,):
        return False
    if width != channels if rotary.part == "all" else width > channels:
        return False
    return fits(x.transpose(1, 2), cos.unsqueeze(1))


def _is_changed(module: torch.nn.Module) -> bool:
    """Whether something watches or replaces this module's forward."""
    return bool(
        _any_global_hook()
        or module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or "forward" in module.__dict__
    )

"""Attention processors of diffusers, their norms, rotary embedding and concatenation by gyrograd: each `make` takes the
stock `__call__` and returns its replacement.

A replacement calls the stock one where the fit is not exact: another device or type, norms of other widths or classes,
norms with different eps, hooks on a norm, tables that require grad or that do not cover the positions that turn.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from diffusers.models.normalization import FP32LayerNorm, RMSNorm
from torch import nn

from gyrograd.integrations._diffusers_rotary import TYPES, are_rows, are_tables, parts, projected_type, wan_turned
from gyrograd.integrations._fingerprint import fingerprint
from gyrograd.integrations._known_diffusers import NORMS
from gyrograd.integrations._switch import otherwise
from gyrograd.integrations._tensors import is_taken
from gyrograd.torch import norm_rope_concat

Call = Callable[..., Any]
Rows = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # query, key, value, each [B, S, N, D]

_OWN_NORMS = [one for one in (FP32LayerNorm, RMSNorm) if fingerprint(one.forward) == NORMS[one.__name__]]
_NORM_CLASSES = (nn.LayerNorm, nn.RMSNorm, *_OWN_NORMS)
_NORM_NAMES = ("norm_q", "norm_k", "norm_added_q", "norm_added_k")
_any_global_hook = torch.nn.modules.module._has_any_global_hook
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


# ---- the norms of an attention module


class Norms(NamedTuple):
    """What they are to norm_rope_concat."""

    norm_type: str
    norm_added_type: str
    eps: float


def norms_of(attn: Any, head_dim: int, with_text: bool) -> Norms | str:
    """The norms of an attention module, or in words why they do not fit."""
    types, eps = [], []
    for names in (_NORM_NAMES[:2], _NORM_NAMES[2:]) if with_text else (_NORM_NAMES[:2],):
        query, key = (getattr(attn, name, None) for name in names)
        for name, norm in zip(names, (query, key), strict=True):
            problem = _norm_problem(norm, head_dim)
            if problem is not None:
                return f"{name} {problem}"
        if _norm_type(query) != _norm_type(key):
            return f"{names[0]} and {names[1]} are of different kinds"
        types.append(_norm_type(query))
        eps += [norm.eps for norm in (query, key) if norm is not None]
    if any(one != eps[0] for one in eps):
        return "their norms have different eps"
    return Norms(types[0], types[1] if with_text else "none", eps[0] if eps else 0.0)


def _norm_problem(norm: Any, head_dim: int) -> str | None:
    """Why a norm is not one of norm_rope_concat's."""
    if norm is None:
        return None
    kind = type(norm)
    if kind not in _NORM_CLASSES:
        return f"is a {kind.__name__}, which is not known"
    if "forward" in norm.__dict__ or any(getattr(norm, hooks) for hooks in _HOOKS):
        return "has hooks"
    width = norm.dim if kind is RMSNorm else norm.normalized_shape
    if tuple(width) != (head_dim,):
        return f"is over {tuple(width)}, not over a head's {head_dim} channels"
    if isinstance(norm, nn.LayerNorm) and (norm.weight is None) != (norm.bias is None):
        return "has a weight without a bias"
    if kind is RMSNorm and norm.bias is not None:
        return "has a bias"
    return "has no eps of its own" if norm.eps is None else None


def _norm_type(norm: Any) -> str:
    if norm is None:
        return "none"
    prefix = "layer" if isinstance(norm, nn.LayerNorm) else "rms"
    return prefix if norm.weight is None else f"{prefix}_affine"


def _have_fitting_weights(attn: Any, names: Sequence[str], rows: torch.dtype) -> bool:
    """float32 weights beside 16-bit rows go where the norm, or autocast after it, gives the rows' type back."""
    norms = [norm for norm in (getattr(attn, name, None) for name in names) if norm is not None]
    weights = [one for norm in norms for one in (norm.weight, norm.bias if hasattr(norm, "bias") else None)]
    weights = [one for one in weights if one is not None]
    if not weights:
        return True
    dtype = weights[0].dtype
    if not is_taken(*weights) or any(one.dtype != dtype for one in weights):
        return False
    if dtype == rows:
        return True
    keeps = torch.is_autocast_enabled("cpu") or not any(type(norm) is RMSNorm for norm in norms)
    return keeps and dtype == torch.float32


def _query_type(attn: Any, rows: torch.dtype, with_text: bool) -> torch.dtype:
    """The type of the stock queries after norm and concatenation, which the stock attention's result has."""
    for name in ("norm_q", "norm_added_q") if with_text else ("norm_q",):
        norm = getattr(attn, name, None)
        if type(norm) is RMSNorm and norm.weight is not None:
            rows = torch.promote_types(rows, norm.weight.dtype)
    return rows


# ---- norm, rotary, concatenation


class Tables(NamedTuple):
    """Of one stream, [L, R]."""

    cos: torch.Tensor
    sin: torch.Tensor


def _real_tables(image_rotary_emb: Any, length: int) -> Tables | None:
    """cos and sin as they come, where they are for so many positions."""
    if not (isinstance(image_rotary_emb, (tuple, list)) and len(image_rotary_emb) == 2):
        return None
    tables = Tables(*image_rotary_emb)
    return tables if _cover(tables, length) else None


def _complex_tables(freqs: Any, length: int) -> Tables | None:
    pair = parts(freqs)
    if pair is None:
        return None
    return Tables(*pair) if _cover(Tables(*pair), length) else None


def _cover(tables: Tables, length: int) -> bool:
    return is_taken(*tables) and all(
        one.dim() == 2 and one.shape[0] == length and not one.requires_grad for one in tables
    )


def _joined(
    attn: Any,
    image: Rows,
    text: Rows | None,
    norms: Norms,
    tables: Tables | None = None,
    text_tables: Tables | None = None,
    *,
    order: str = "stream_first",
    layout: str = "BSND",
    start: int = 0,
    per_pair: bool = False,
) -> Rows | None:
    """Query, key and value as attention takes them, or None where gyrograd does not take them."""
    names = _NORM_NAMES if text is not None else _NORM_NAMES[:2]
    query, key, value = image
    if not are_rows(*image, *(text or ())):
        return None
    if not _go_together(attn, names, query.dtype, query.shape[-1], (tables, text_tables), per_pair):
        return None
    encoder = dict(zip(("encoder_query", "encoder_key", "encoder_value"), text or (), strict=False))
    turning: dict[str, Any] = {}
    if tables is not None:
        turning = {"rope_cos": tables.cos, "rope_sin": tables.sin, "rope_type": "interleave", "rope_start": start}
    if text_tables is not None:
        turning |= {"encoder_rope_cos": text_tables.cos, "encoder_rope_sin": text_tables.sin}
    joint = norm_rope_concat(
        query,
        key,
        value if text is not None else None,  # alone it stays where it is
        **encoder,
        **_weights(attn, names),
        **turning,
        norm_type=norms.norm_type,
        norm_added_type=norms.norm_added_type,
        concat_order=order,
        eps=norms.eps,
        per_pair_tables=per_pair,
        out_layout=layout,
    )
    if text is not None:
        return joint.query, joint.key, joint.value
    return joint.query, joint.key, value if layout == "BSND" else value.transpose(1, 2)


def _go_together(
    attn: Any, names: Sequence[str], rows: torch.dtype, channels: int, tables: Sequence[Tables | None], per_pair: bool
) -> bool:
    """Whether rows of this type and width go with the norms' weights and the tables."""
    if rows not in TYPES or not _have_fitting_weights(attn, names, rows):
        return False
    for pair in tables:
        if pair is None:
            continue
        width = pair.cos.shape[-1] * (2 if per_pair else 1)
        if not are_tables(rows, *pair) or width != channels or channels % 2:
            return False
    return True


def _weights(attn: Any, names: Sequence[str]) -> dict[str, torch.Tensor]:
    weights = {}
    for name in names:
        norm = getattr(attn, name, None)
        full = name.replace("_q", "_query").replace("_k", "_key")
        if norm is not None and norm.weight is not None:
            weights[f"{full}_weight"] = norm.weight
            if isinstance(norm, nn.LayerNorm):
                weights[f"{full}_bias"] = norm.bias
    return weights


def _projected(attn: Any, rows: torch.Tensor) -> Rows:
    return attn.to_q(rows), attn.to_k(rows), attn.to_v(rows)


def _added(attn: Any, text: torch.Tensor) -> Rows:
    return attn.add_q_proj(text), attn.add_k_proj(text), attn.add_v_proj(text)


def _heads(rows: Sequence[torch.Tensor], head_dim: int) -> Rows:
    query, key, value = (one.unflatten(-1, (-1, head_dim)) for one in rows)
    return query, key, value


def _attended(stock: Call, processor: Any, rows: Rows, mask: Any, *, is_parallel: bool = True) -> torch.Tensor:
    """By what the stock function's module has now, as stock does."""
    result: torch.Tensor = stock.__globals__["dispatch_attention_fn"](
        *rows,
        attn_mask=mask,
        dropout_p=0.0,
        is_causal=False,
        backend=processor._attention_backend,
        parallel_config=processor._parallel_config if is_parallel else None,
    )
    return result


def _out(attn: Any, rows: torch.Tensor) -> torch.Tensor:
    """The output projection and its dropout."""
    for layer in attn.to_out:
        rows = layer(rows)
    return rows


def head_dim_of(attn: Any) -> int:
    """The width of a head, of both kinds of attention module."""
    return int(attn.head_dim) if hasattr(attn, "head_dim") else attn.inner_dim // attn.heads


def has_text_rows(attn: Any) -> bool:
    """Whether the second stream has projections, and so norms, of its own."""
    return getattr(attn, "add_q_proj", None) is not None


def misfit(attn: Any, turns: bool) -> str | None:
    """Why nothing of this attention module can be gyrograd's; None where it fits."""
    norms = norms_of(attn, head_dim_of(attn), has_text_rows(attn))
    if isinstance(norms, str):
        return norms
    return None if turns or _has_norm(norms) else "they have no norm, and nothing turns"


def _has_norm(norms: Norms) -> bool:
    return norms.norm_type != "none" or norms.norm_added_type != "none"


def _fitting(
    attn: Any, rows: Any, with_text: bool, image_rotary_emb: Any, *tables: Tables | None, per_pair: bool = False
) -> Norms | None:
    """The norms, where there is something for gyrograd to do and all that can be seen before the projections fits: a
    stock call after them would project again, and so run their hooks and draw their random numbers twice.

    tables: of each stream that turns; None where image_rotary_emb has none that fit.
    """
    turns = image_rotary_emb is not None
    if not is_taken(rows) or _any_global_hook() or any((one is None) == turns for one in tables):
        return None
    size, names = head_dim_of(attn), _NORM_NAMES if with_text else _NORM_NAMES[:2]
    norms = norms_of(attn, size, with_text)
    if isinstance(norms, str) or not (turns or _has_norm(norms)):
        return None
    return norms if _go_together(attn, names, projected_type(rows), size, tables, per_pair) else None


# ---- the models


def cogvideox(stock: Call) -> Call:
    """One LayerNorm for both streams, text before image; neighbours turn, at the image's positions."""

    @otherwise(stock)
    def __call__(
        self: Any,
        attn: Any,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        image_rotary_emb: Any = None,
    ) -> Any:
        tables = _real_tables(image_rotary_emb, hidden_states.shape[1])
        norms = _fitting(attn, hidden_states, False, image_rotary_emb, tables)
        if norms is None or attn.is_cross_attention:
            return None
        length = encoder_hidden_states.shape[1]
        joint = torch.cat([encoder_hidden_states, hidden_states], dim=1)
        rows = _heads(_projected(attn, joint), head_dim_of(attn))
        turned = _joined(attn, rows, None, norms, tables, layout="BNSD", start=length)
        if turned is None:
            return None
        mask = attention_mask
        if mask is not None:
            mask = attn.prepare_attention_mask(mask, joint.shape[1], joint.shape[0])
            mask = mask.view(joint.shape[0], attn.heads, -1, mask.shape[-1])
        result = F.scaled_dot_product_attention(*turned, attn_mask=mask, dropout_p=0.0, is_causal=False)
        result = _out(attn, result.transpose(1, 2).flatten(2))
        return result[:, length:], result[:, :length]

    return __call__


def sd3(stock: Call) -> Call:
    """A norm for each stream, image before text; nothing turns. Also the image stream alone."""

    @otherwise(stock)
    def __call__(
        self: Any,
        attn: Any,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        with_text = encoder_hidden_states is not None
        norms = _fitting(attn, hidden_states, with_text, None)
        if norms is None:
            return None
        size, length = head_dim_of(attn), hidden_states.shape[1]
        image = _heads(_projected(attn, hidden_states), size)
        text = _heads(_added(attn, encoder_hidden_states), size) if with_text else None
        turned = _joined(attn, image, text, norms, layout="BNSD")
        if turned is None:
            return None
        result = F.scaled_dot_product_attention(*turned, dropout_p=0.0, is_causal=False)
        result = result.transpose(1, 2).flatten(2).to(_query_type(attn, image[0].dtype, with_text))
        if not with_text:
            return _out(attn, result)
        added = result[:, length:]
        if not attn.context_pre_only:
            added = attn.to_add_out(added)
        return _out(attn, result[:, :length]), added

    return __call__


def flux(stock: Call) -> Call:
    """A norm for each stream, text before image; neighbours turn, at all positions. Also both in one stream."""

    @otherwise(stock)
    def __call__(
        self: Any,
        attn: Any,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        image_rotary_emb: Any = None,
    ) -> Any:
        with_text = encoder_hidden_states is not None
        length = encoder_hidden_states.shape[1] if with_text else 0
        tables = _real_tables(image_rotary_emb, length + hidden_states.shape[1])
        norms = _fitting(attn, hidden_states, with_text, image_rotary_emb, tables)
        if norms is None or with_text != has_text_rows(attn):
            return None
        rows = stock.__globals__["_get_qkv_projections"](attn, hidden_states, encoder_hidden_states)
        image, text = _heads(rows[:3], attn.head_dim), _heads(rows[3:], attn.head_dim) if with_text else None
        turned = _joined(attn, image, text, norms, tables, order="encoder_first")
        if turned is None:
            return None
        result = _attended(stock, self, turned, attention_mask)
        result = result.flatten(2, 3).to(_query_type(attn, image[0].dtype, with_text))
        if not with_text:
            return result
        added = attn.to_add_out(result[:, :length].contiguous())
        return _out(attn, result[:, length:].contiguous()), added

    return __call__


def hunyuan_video(stock: Call) -> Call:
    """Image before text; neighbours turn, at the image's positions. A norm for each stream, or one for both."""

    @otherwise(stock)
    def __call__(
        self: Any,
        attn: Any,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        image_rotary_emb: Any = None,
    ) -> Any:
        if encoder_hidden_states is None or encoder_hidden_states.shape[1] == 0:
            return None
        with_text, size = has_text_rows(attn), head_dim_of(attn)
        length = hidden_states.shape[1]
        tables = _real_tables(image_rotary_emb, length)
        norms = _fitting(attn, hidden_states, with_text, image_rotary_emb, tables)
        if norms is None:
            return None
        states = hidden_states if with_text else torch.cat([hidden_states, encoder_hidden_states], dim=1)
        image = _heads(_projected(attn, states), size)
        text = _heads(_added(attn, encoder_hidden_states), size) if with_text else None
        turned = _joined(attn, image, text, norms, tables)
        if turned is None:
            return None
        result = _attended(stock, self, turned, attention_mask)
        result = result.flatten(2, 3).to(_query_type(attn, image[0].dtype, with_text))
        result, added = result[:, :length], result[:, length:]
        if attn.to_out is not None:
            result = _out(attn, result)
        if attn.to_add_out is not None:
            added = attn.to_add_out(added)
        return result, added

    return __call__


def qwen_image(stock: Call) -> Call:
    """A norm for each stream, and complex tables for each; text before image."""

    @otherwise(stock)
    def __call__(
        self: Any,
        attn: Any,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor | None = None,
        encoder_hidden_states_mask: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        image_rotary_emb: Any = None,
    ) -> Any:
        if encoder_hidden_states is None or attention_mask is not None:
            return None  # which refuses it
        length, size = encoder_hidden_states.shape[1], head_dim_of(attn)
        tables = text_tables = None
        if image_rotary_emb is not None:
            image_freqs, text_freqs = image_rotary_emb
            tables = _complex_tables(image_freqs, hidden_states.shape[1])
            text_tables = _complex_tables(text_freqs, length)
        norms = _fitting(attn, hidden_states, True, image_rotary_emb, tables, text_tables, per_pair=True)
        if norms is None:
            return None
        image = _heads(_projected(attn, hidden_states), size)
        text = _heads(_added(attn, encoder_hidden_states), size)
        turned = _joined(attn, image, text, norms, tables, text_tables, order="encoder_first", per_pair=True)
        if turned is None:
            return None
        mask = None
        if encoder_hidden_states_mask is not None:
            seen = torch.ones(hidden_states.shape[:2], dtype=torch.bool, device=hidden_states.device)
            mask = torch.cat([encoder_hidden_states_mask, seen], dim=1)[:, None, None, :]
        result = _attended(stock, self, turned, mask)
        result = result.flatten(2, 3).to(_query_type(attn, image[0].dtype, True))
        added = attn.to_add_out(result[:, :length].contiguous())
        return _out(attn, result[:, length:].contiguous()), added

    return __call__


def wan(stock: Call) -> Call:
    """Its rotary alone: its norms are over all heads of a position."""

    @otherwise(stock)
    def __call__(
        self: Any,
        attn: Any,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        rotary_emb: Any = None,
    ) -> Any:
        if rotary_emb is None or attn.add_k_proj is not None or not is_taken(hidden_states):
            return None  # cross-attention: nothing turns
        rows_type = projected_type(hidden_states)
        if rows_type not in TYPES or not are_tables(rows_type, *rotary_emb):
            return None
        query, key, value = stock.__globals__["_get_qkv_projections"](attn, hidden_states, encoder_hidden_states)
        rows = (attn.norm_q(query), attn.norm_k(key), value)
        query, key, value = (one.unflatten(2, (attn.heads, -1)) for one in rows)
        query, key = (wan_turned(one, *rotary_emb) for one in (query, key))
        if query is None or key is None:
            return None
        result = _attended(stock, self, (query, key, value), attention_mask, is_parallel=encoder_hidden_states is None)
        return _out(attn, result.flatten(2, 3).type_as(query))

    return __call__

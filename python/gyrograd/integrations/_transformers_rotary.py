"""The rotary functions of transformers in gyrograd's terms: a `Rotary` says what one computes, and `replacement` makes
another that computes it with gyrograd.torch, and takes the stock function where gyrograd can't.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

import gyrograd.torch as gt
from gyrograd.integrations._switch import otherwise
from gyrograd.integrations._tensors import fits, is_taken, with_rank

Tensor = torch.Tensor
Function = Callable[..., Any]


@dataclass(frozen=True)
class Rotary:
    """What a rotary function computes.

    arguments: its signature, by a name of `_SIGNATURES`.
    mode: gyrograd's name.
    tables: "whole", a value a channel; "pairs", a value a pair; "first half", a value a channel of which the first half
      serves as values of the pairs; "complex".
    part: which channels turn: all, or as many as the tables are wide, the first or the last.
    types: "promoted", the result has the type that PyTorch promotes rows and tables to; "kept", the rows' type;
      "upcast", the rows' type, computed in float32.
    unsqueeze: the axis that is put into the tables; None: the caller says, or none where its signature has no such
      argument.
    is_elementwise: its result has the memory order of the rows; otherwise it is contiguous.
    negates_sin: it turns the other way.
    """

    arguments: str
    mode: Literal["half", "interleave", "quarter", "interleave-half"]
    tables: Literal["whole", "pairs", "first half", "complex"] = "whole"
    part: Literal["all", "first", "last"] = "all"
    types: Literal["promoted", "kept", "upcast"] = "promoted"
    unsqueeze: int | None = None
    is_elementwise: bool = True
    negates_sin: bool = False

    @property
    def words(self) -> str:
        """For reports and the documentation."""
        words = [self.mode]
        if self.part != "all":
            words.append("partial")
        if self.tables != "whole":
            words.append("complex tables" if self.tables == "complex" else "tables per pair")
        if self.negates_sin:
            words.append("sine negated")
        return ", ".join(words)


@functools.cache
def replacement(rotary: Rotary, stock: Function) -> Function:
    """A function of the stock function's meaning and signature; the same one each time, so that a model that is
    switched again is not compiled again.
    """
    return otherwise(stock)(_SIGNATURES[rotary.arguments](rotary))


# ---- the call


def types_of(rule: str, rows: torch.dtype, table: torch.dtype) -> tuple[torch.dtype, torch.dtype] | None:
    """The types that rows and tables take for the result to have the stock function's type; None: gyrograd has none."""
    if rule == "promoted":
        common = torch.promote_types(rows, table)
        return common, common
    if rows == torch.float64 or table == torch.float64:
        return (rows, table) if rule == "kept" and rows == table else None
    return rows, rows if table == rows else torch.float32


def _turned(
    rotary: Rotary, rows: Sequence[Any], cos: Any, sin: Any, unsqueeze: int | None
) -> tuple[Tensor, ...] | None:
    """The rows, one or two tensors, turned by tables that get an axis; None where gyrograd can't."""
    if not is_taken(*rows, cos, sin) or cos.shape != sin.shape or cos.dtype != sin.dtype or cos.dim() == 0:
        return None
    if unsqueeze is not None:
        if not -cos.dim() - 1 <= unsqueeze <= cos.dim():
            return None
        cos, sin = cos.unsqueeze(unsqueeze), sin.unsqueeze(unsqueeze)
    if rotary.tables == "first half":
        half = cos.shape[-1] // 2
        cos, sin = cos[..., :half], sin[..., :half]
    width = cos.shape[-1] if rotary.tables == "whole" else 2 * cos.shape[-1]
    types = types_of(rotary.types, rows[0].dtype, cos.dtype)
    if types is None or not _fit(rotary, rows, cos, width):
        return None
    first = rows[0]
    if cos.dim() < first.dim():
        cos, sin = with_rank(cos, first.dim()), with_rank(sin, first.dim())
    if cos.dtype != types[1]:
        cos, sin = cos.to(types[1]), sin.to(types[1])
    if first.dtype != types[0]:
        rows = [x.to(types[0]) for x in rows]
    return _called(rotary, rows, cos, -sin if rotary.negates_sin else sin, width)


def _fit(rotary: Rotary, rows: Sequence[Tensor], table: Tensor, width: int) -> bool:
    """Whether these rows turn by a table that turns so many channels."""
    first = rows[0]
    rank, channels = first.dim(), first.shape[-1]
    if width == 0 or width % (4 if rotary.mode == "quarter" else 2) or table.dim() > rank:
        return False
    if width != channels if rotary.part == "all" else width > channels:
        return False
    table = with_rank(table, rank)
    for x in rows:
        if x.dim() != rank or x.dtype != first.dtype or x.shape[-1] != channels or not fits(x, table):
            return False
    return True


def _called(rotary: Rotary, rows: Sequence[Tensor], cos: Tensor, sin: Tensor, width: int) -> tuple[Tensor, ...]:
    """By one call where the rows have one memory order, which stock's results have too; a new tensor of the core is
    contiguous.
    """
    first = rows[0]
    orders = {_is_swapped(x) for x in rows} - {None} if rotary.is_elementwise and first.dim() == 4 else set()
    if len(orders) == 2:
        return tuple([_called(rotary, [x], cos, sin, width)[0] for x in rows])
    options: dict[str, Any] = {"per_pair_tables": rotary.tables != "whole"}
    if rotary.part != "all":
        options["rotary_dim"] = width
        options["rotary_offset"] = first.shape[-1] - width if rotary.part == "last" else 0
    swaps = True in orders
    if swaps:
        rows = [x.transpose(1, 2) for x in rows]
        cos, sin = cos.transpose(1, 2), sin.transpose(1, 2)
    if len(rows) == 2:
        results = gt.rotary_qk(*rows, cos, sin, rotary.mode, **options)
    else:
        results = (gt.rotary(rows[0], cos, sin, rotary.mode, **options),)
    return tuple([y.transpose(1, 2) for y in results]) if swaps else results


def _is_swapped(x: Tensor) -> bool | None:
    """[B, N, S, D] as a view of [B, S, N, D]; None for one head or one position, which is both."""
    shape, strides = x.shape, x.stride()
    return None if shape[1] == 1 or shape[2] == 1 else strides[1] < strides[2]


def _pair(rotary: Rotary, q: Any, k: Any, cos: Any, sin: Any, unsqueeze: int | None) -> tuple[Tensor, ...] | None:
    return _turned(rotary, (q, k), cos, sin, unsqueeze)


def _one(rotary: Rotary, x: Any, cos: Any, sin: Any, unsqueeze: int | None) -> Tensor | None:
    results = _turned(rotary, (x,), cos, sin, unsqueeze)
    return None if results is None else results[0]


# ---- signatures: functions that give None where gyrograd can't


def _q_k(rotary: Rotary) -> Function:
    def apply(q: Any, k: Any, cos: Any, sin: Any, unsqueeze_dim: int = 1) -> Any:
        return _pair(rotary, q, k, cos, sin, unsqueeze_dim)

    return apply


def _q_k_positions(rotary: Rotary) -> Function:
    """With an argument position_ids that the function does not read."""

    def apply(q: Any, k: Any, cos: Any, sin: Any, position_ids: Any = None, unsqueeze_dim: int = 1) -> Any:
        return _pair(rotary, q, k, cos, sin, unsqueeze_dim)

    return apply


def _q_k_or_none(rotary: Rotary) -> Function:
    """Where k is None, the second result is None."""

    def apply(q: Any, k: Any, cos: Any, sin: Any, unsqueeze_dim: int = 1) -> Any:
        if k is not None:
            return _pair(rotary, q, k, cos, sin, unsqueeze_dim)
        turned = _one(rotary, q, cos, sin, unsqueeze_dim)
        return None if turned is None else (turned, None)

    return apply


def _q_optional_k(rotary: Rotary) -> Function:
    """Without k there is one result."""

    def apply(q: Any, k: Any = None, cos: Any = None, sin: Any = None, unsqueeze_dim: int = 1) -> Any:
        tables = cos, sin, unsqueeze_dim
        return _one(rotary, q, *tables) if k is None else _pair(rotary, q, k, *tables)

    return apply


def _q_k_fixed(rotary: Rotary) -> Function:
    """No unsqueeze_dim: the axis is the function's own."""

    def apply(q: Any, k: Any, cos: Any, sin: Any) -> Any:
        return _pair(rotary, q, k, cos, sin, rotary.unsqueeze)

    return apply


def _q_k_last(rotary: Rotary) -> Function:
    """Queries are the last positions of the keys'."""

    def apply(q: Any, k: Any, cos: Any, sin: Any, unsqueeze_dim: int = 1) -> Any:
        turned_k = _one(rotary, k, cos, sin, unsqueeze_dim)
        if turned_k is None or not isinstance(q, torch.Tensor) or q.dim() != k.dim() or q.dtype != k.dtype:
            return None
        length = q.shape[-2]
        last_cos, last_sin = (table.unsqueeze(unsqueeze_dim)[..., -length:, :] for table in (cos, sin))
        turned_q = _one(rotary, q, last_cos, last_sin, None)
        return None if turned_q is None else (turned_q, turned_k)

    return apply


def _q_k_v_positions(rotary: Rotary) -> Function:
    """Values turn too, and the tables are looked up by position."""

    def apply(q: Any, k: Any, v: Any, cos: Any, sin: Any, position_ids: Any, unsqueeze_dim: int = 1) -> Any:
        if not is_taken(cos, sin):
            return None
        tables = cos[position_ids], sin[position_ids]
        turned = _pair(rotary, q, k, *tables, unsqueeze_dim)
        turned_v = None if turned is None else _one(rotary, v, *tables, unsqueeze_dim)
        return None if turned_v is None else (*turned, turned_v)

    return apply


def _q_k_memory(rotary: Rotary) -> Function:
    """Keys may end in some that do not turn, and repeat the tables: such calls are the stock's."""

    def apply(q: Any, k: Any, cos: Any, sin: Any, num_k_exclude_rope: int = 0, repeat_freqs_k: bool = False) -> Any:
        is_plain = num_k_exclude_rope == 0 and not repeat_freqs_k
        return _pair(rotary, q, k, cos, sin, None) if is_plain else None

    return apply


def _x(rotary: Rotary) -> Function:
    def apply(x: Any, cos: Any, sin: Any, unsqueeze_dim: int = 1) -> Any:
        return _one(rotary, x, cos, sin, unsqueeze_dim)

    return apply


def _x_positions(rotary: Rotary) -> Function:
    """With two axes of positions it is half mode on each half, which is quarter mode."""

    def apply(x: Any, cos: Any, sin: Any, position_ids: Any, unsqueeze_dim: int = 2) -> Any:
        return _one(rotary, x, cos, sin, unsqueeze_dim) if position_ids.shape[-1] == 2 else None

    return apply


def _tensor_sin_cos(rotary: Rotary) -> Function:
    """Sine first."""

    def apply(tensor: Any, sin: Any, cos: Any) -> Any:
        return _one(rotary, tensor, cos, sin, rotary.unsqueeze)

    return apply


def _complex_pair(rotary: Rotary, q: Any, k: Any, tables: Any) -> tuple[Tensor, ...] | None:
    """By complex numbers of rank 4, read in place."""
    if tables.dtype != torch.complex64:
        return None
    parts = torch.view_as_real(tables.resolve_conj())
    return _pair(rotary, q, k, parts[..., 0], parts[..., 1], None)


def _complex_q_k(rotary: Rotary) -> Function:
    """Rows of rank 4, tables of rank 3 [batch, sequence, pairs]."""

    def apply(xq: Any, xk: Any, freqs_cis: Any) -> Any:
        is_taken_here = isinstance(freqs_cis, torch.Tensor) and freqs_cis.dim() == 3
        return _complex_pair(rotary, xq, xk, freqs_cis.unsqueeze(rotary.unsqueeze)) if is_taken_here else None

    return apply


def _complex_vision(rotary: Rotary) -> Function:
    """Rows [batch, sequence, heads, channels], tables of as many numbers as sequence and pairs have."""

    def apply(query: Any, key: Any, freqs_ci: Any) -> Any:
        if not is_taken(query, key) or query.dim() != 4 or not isinstance(freqs_ci, torch.Tensor):
            return None
        length, pairs = query.shape[1], query.shape[-1] // 2
        if freqs_ci.numel() != length * pairs or not freqs_ci.is_contiguous():
            return None
        return _complex_pair(rotary, query, key, freqs_ci.view(1, length, 1, pairs))

    return apply


def _q_k_prefix(rotary: Rotary) -> Function:
    """Positions before those of the tables pass: [B, N, prefix + S, D] with tables [S, D]."""

    def apply(q: Any, k: Any, cos: Any, sin: Any, **others: Any) -> Any:
        return _after_prefix(rotary, q, k, cos, sin)

    return apply


def _after_prefix(rotary: Rotary, q: Any, k: Any, cos: Any, sin: Any) -> tuple[Tensor, ...] | None:
    if not is_taken(q, k, cos, sin) or q.dim() != 4 or k.dim() != 4 or q.dtype != k.dtype:
        return None
    length = q.shape[-2]
    if k.shape[-2] != length or cos.shape != sin.shape or cos.dtype != sin.dtype or cos.dim() not in (2, 4):
        return None
    if (cos.requires_grad or sin.requires_grad) and torch.is_grad_enabled():
        return None  # norm_rope has no gradients of tables
    rows_type, table_type = types_of(rotary.types, q.dtype, cos.dtype) or (None, None)
    count = cos.shape[-2]
    if rows_type is None or not 0 < count <= length:
        return None
    cos, sin = (with_rank(table, 4).to(table_type) for table in (cos, sin))
    if any(x.shape[-1] != cos.shape[-1] or cos.shape[-1] % 2 or not fits(x[..., :count, :], cos) for x in (q, k)):
        return None
    options = {"norm_type": "none", "rope_type": rotary.mode, "rope_start": length - count}
    results = (gt.norm_rope(x.to(rows_type).transpose(1, 2), None, None, cos, sin, **options).y for x in (q, k))
    return tuple(results)


_SIGNATURES: dict[str, Callable[[Rotary], Function]] = {
    "q, k": _q_k,
    "q, k, positions": _q_k_positions,
    "q, k or none": _q_k_or_none,
    "q, optional k": _q_optional_k,
    "q, k, fixed axis": _q_k_fixed,
    "q of the last, k": _q_k_last,
    "q, k, v, positions": _q_k_v_positions,
    "q, k after a prefix": _q_k_prefix,
    "q, k, memory": _q_k_memory,
    "x": _x,
    "x, positions": _x_positions,
    "tensor, sin, cos": _tensor_sin_cos,
    "complex q, k": _complex_q_k,
    "complex q, k, vision": _complex_vision,
}

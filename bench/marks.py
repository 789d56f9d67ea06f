"""The marks P1 to P12 as data: which problems are measured, against what, and what each may take.

A value is a time through another's in the same rounds, unless its mark says otherwise: through the fastest plain copy
of the problem's bytes, or, a byte each, through the time of a `base`, the plain case.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from gyrograd import _bench

MODES = ("half", "interleave", "quarter", "interleave-half")
TYPES = ("bf16", "f16", "f32")
SIZES = {"bf16": 2, "f16": 2, "f32": 4}
NORMS = ("none", "layer", "layer_affine", "rms", "rms_affine")
ROTATIONS = ("none", "interleave", "half")
LAYOUTS = ("BNSD 11SD", "BSND 1S1D", "SBND S11D", "TND T1D", "BNSD B1SD", "BNSD full")
CACHE_BYTES = 1 << 20
MOST_BYTES = 1_500_000_000
BATCH, HEADS, HEAD_DIM = 2, 32, 128


@dataclass(frozen=True)
class Entry:
    """One value of a mark."""

    mark: str
    what: str
    problem: str
    limit: float
    base: str | None = None  # None: the copy


WORDS = {
    "P1": ("dx, memory", "<= 1.10 x the copy"),
    "P1 avx2": ("the same, AVX2", "<= 1.10 x the copy"),
    "P1 portable": ("the same, portable", "<= 3 x the copy"),
    "P2": ("dx, dcos and dsin, memory", "<= 1.20 x the copy"),
    "P2 avx2": ("the same, AVX2", "<= 1.20 x the copy"),
    "P2 portable": ("the same, portable", "<= 3 x the copy"),
    "P3": ("dcos and dsin alone, memory", "<= 1.20 x the copy"),
    "P4": ("norm + rotary + concat, memory", "<= 1.5 x the copy"),
    "P5": ("against torch.compile's better form and JAX", ">= 8 (bf16), 4 (f32; with tables 6); joint >= 6, 4"),
    "P6": ("against PyTorch eager", ">= 15; joint >= 9"),
    "P7": ("in cache, 1 MiB", "<= 1.3 (f32), 3 (16 bits) x the copy"),
    "P7 peers": ("the same, against torch.compile", ">= 3"),
    "P8": ("a small call, microseconds", "<= 1 a call, 0.3 a plan's run, 5 from NumPy"),
    "P8 autograd": ("forward and backward through PyTorch, by eager's", "<= 0.45"),
    "P9": ("time a byte, by the least above the cache", "<= 1.3"),
    "P9 threads": ("2 threads by 1, in cache", ">= 1.8"),
    "P9 beside": ("calls that alternate with PyTorch's own, by both alone", "<= 1.1"),
    "P10": ("extra memory, by what is allowed", "<= 1"),
    "P11": ("strided views, by the contiguous case", "<= 1.25"),
    "P12": ("odd head dims, misaligned; per pair, strided tables; partial", "<= 1.5; 1.15; 1.25"),
}


def is_least(mark: str) -> bool:
    """Whether a mark's goals are the least that is asked for, not the most."""
    return WORDS[mark][1].startswith(">=")


def memory_bytes() -> int:
    return min(4 * _bench.last_level_cache_bytes(), MOST_BYTES)


def problem(dy: tuple[int, ...], tables: tuple[int, ...], **fields: object) -> str:
    """A rotary problem's line of text, two threads unless said."""
    named = {"dy": "x".join(map(str, dy)), "tables": "x".join(map(str, tables)), "threads": 2} | fields
    return "rotary:" + ",".join(f"{name}={value}" for name, value in named.items())


def shapes(layout: str, length: int, head_dim: int = HEAD_DIM) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """dy and the tables of a layout, for sequences of a length."""
    if layout == "BSND 1S1D":
        return (BATCH, length, HEADS, head_dim), (1, length, 1, head_dim)
    if layout == "SBND S11D":
        return (length, BATCH, HEADS, head_dim), (length, 1, 1, head_dim)
    if layout == "TND T1D":
        return (length, BATCH * HEADS, head_dim), (length, 1, head_dim)
    tables = {"BNSD 11SD": (1, 1), "BNSD B1SD": (BATCH, 1), "BNSD full": (BATCH, HEADS)}[layout]
    return (BATCH, HEADS, length, head_dim), (*tables, length, head_dim)


def sized(layout: str, total: int, dtype: str, outputs: str, head_dim: int = HEAD_DIM, **fields: object) -> str:
    """The problem of a layout whose tensors take about `total` bytes together."""
    rows, tables = (SIZES[dtype] * math.prod(shape) for shape in shapes(layout, 1, head_dim))
    dx, sums = "dx" in outputs, "tables" in outputs
    each = (1 + dx + sums) * rows + 2 * (dx + sums) * tables
    length = max(1, total // each)
    length -= length % 128 if length > 128 else 0
    return problem(*shapes(layout, length, head_dim), types=dtype, outputs=outputs, **fields)


def grid(mark: str, total: int, outputs: str, limits: dict[str, float], **fields: object) -> Iterator[Entry]:
    words = f" {outputs}" if mark == "P7" else ""
    for mode in MODES:
        for layout in LAYOUTS:
            for dtype in TYPES:
                text = sized(layout, total, dtype, outputs, mode=mode, **fields)
                yield Entry(mark, f"{dtype} {mode} {layout}{words}", text, limits[dtype])


def same(limit: float) -> dict[str, float]:
    return dict.fromkeys(TYPES, limit)


def joint_problem(norm: str, rotation: str, dtype: str, **fields: object) -> str:
    """The joint operator on 4096 positions of an image and 512 of a text, 24 heads of 128."""
    named = {"types": dtype, "heads": 24, "head_dim": HEAD_DIM, "query": 4096, "key": 4096}
    named |= {"encoder_query": 512, "encoder_key": 512, "norm": norm, "norm_added": norm, "threads": 2}
    if rotation != "none":
        named |= {"rotary": rotation, "rope": 4608}
    return "norm_rope_concat:" + ",".join(f"{name}={value}" for name, value in (named | fields).items())


def joint() -> Iterator[Entry]:
    for norm in NORMS:
        for rotation in ROTATIONS:
            for memory, layout in (("BNSD", "contiguous"), ("BSND", "swapped")):
                for dtype in TYPES:
                    text = joint_problem(norm, rotation, dtype, joint_layout=layout)
                    yield Entry("P4", f"{dtype} {norm} {rotation} {memory}", text, 1.5)


def strided(total: int) -> Iterator[Entry]:
    """P11: slices of packed projections, and transposed views, of dy, x and dx."""
    for layout, views in (("BSND 1S1D", "packed"), ("BNSD 11SD", "swapped")):
        for outputs in ("dx", "dx+tables"):
            for dtype in TYPES:
                for names in (("dy",), ("dy", "x", "dx")):
                    fields = {f"{name}_layout": views for name in names}
                    yield Entry(
                        "P11",
                        f"{dtype} {outputs} {layout} {views} {'+'.join(names)}",
                        sized(layout, total, dtype, outputs, **fields),
                        1.25,
                        sized(layout, total, dtype, outputs),
                    )


def odd(total: int) -> Iterator[Entry]:
    """P12."""
    layout = "BSND 1S1D"
    for outputs in ("dx", "dx+tables"):
        for dtype in TYPES:
            plain = sized(layout, total, dtype, outputs)
            for head_dim in (6, 30, 126):
                text = sized(layout, total, dtype, outputs, head_dim)
                yield Entry("P12", f"{dtype} {outputs} head_dim {head_dim}", text, 1.5, plain)
            others = {
                "misaligned": (1.5, {f"{name}_layout": "offset_one" for name in ("dy", "x", "dx", "tables")}),
                "table stride 2": (1.15, {"tables_layout": "last_stride_2"}),
                "table stride 4": (1.15, {"tables_layout": "last_stride_4"}),
            }
            for name, (limit, fields) in others.items():
                text = sized(layout, total, dtype, outputs, **fields)
                yield Entry("P12", f"{dtype} {outputs} {name}", text, limit, plain)
            for name, limit, width, fields in (
                ("per pair", 1.15, HEAD_DIM // 2, {"per_pair": 1}),
                ("partial, 64 of 128", 1.25, 64, {"rotary_dim": 64}),
            ):
                text = narrowed(plain, width, **fields)
                yield Entry("P12", f"{dtype} {outputs} {name}", text, limit, plain)


def narrowed(text: str, width: int, **fields: object) -> str:
    """The problem with tables of another width."""
    before, _, rest = text.partition("tables=")
    shape, comma, after = rest.partition(",")
    *outer, _ = shape.split("x")
    more = "".join(f",{name}={value}" for name, value in fields.items())
    return f"{before}tables={'x'.join((*outer, str(width)))}{comma}{after}{more}"


def timed(total: int) -> Iterator[Entry]:
    """All values that are a problem's time through the copy's or a base's."""
    yield from grid("P1", total, "dx", same(1.10))
    yield from grid("P2", total, "dx+tables", same(1.20))
    yield from grid("P3", total, "tables", same(1.20))
    yield from joint()
    for outputs in ("dx", "dx+tables"):
        yield from grid("P7", CACHE_BYTES, outputs, {"bf16": 3, "f16": 3, "f32": 1.3})
    yield from strided(total)
    yield from odd(total)
    for target, limits in (("avx2", (1.10, 1.20)), ("portable", (3, 3))):
        yield from grid(f"P1 {target}", total, "dx", same(limits[0]), target=target)
        yield from grid(f"P2 {target}", total, "dx+tables", same(limits[1]), target=target)


def sizes(most: int) -> list[int]:
    """P9: bytes in all, doubling, from 1 MiB."""
    return [1 << power for power in range(20, 33) if 1 << power <= most]


def workspaces() -> Iterator[tuple[str, str, int]]:
    """P10: what, a problem, and the bytes of workspace that it may take."""
    for dtype in TYPES:
        for layout in LAYOUTS:
            dy, tables = shapes(layout, 4096)
            yield f"{dtype} dx {layout}", problem(dy, tables, types=dtype, outputs="dx"), 0
            allowed = (2 << 20) + 2 * 8 * 2 * math.prod(tables)
            yield f"{dtype} dx+tables {layout}", problem(dy, tables, types=dtype, outputs="dx+tables"), allowed
        yield (
            f"{dtype} joint, layer_affine half",
            joint_problem("layer_affine", "half", dtype),
            (2 << 20) + 64 * 8 * 8 * HEAD_DIM,
        )

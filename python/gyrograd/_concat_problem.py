"""A problem of norm_rope_concat_backward, by its sizes: the shapes and keywords of the call."""

import inspect
from dataclasses import dataclass

import gyrograd

# Every keyword of the call and its default.
DEFAULTS = {
    name: None if parameter.default is parameter.empty else parameter.default
    for name, parameter in inspect.signature(gyrograd.norm_rope_concat_backward).parameters.items()
}
OPTIONS = ("norm_type", "norm_added_type", "rope_type", "concat_order")
SIZES = (
    "batch", "heads", "head_dim", "seq_query", "seq_key", "seq_encoder_query", "seq_encoder_key", "seq_rope",
)  # fmt: skip


@dataclass(frozen=True)
class ConcatProblem:
    """Sizes and options. Streams of length 0 are absent."""

    dtype: str
    batch: int
    heads: int
    head_dim: int
    seq_query: int
    seq_key: int
    seq_encoder_query: int
    seq_encoder_key: int
    seq_rope: int
    norm_type: str
    norm_added_type: str
    rope_type: str
    concat_order: str
    key_heads: int | None = None
    table_dtype: str | None = None
    weight_dtype: str | None = None
    table_width: int | None = None

    def shapes(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """The shape and type of every array that the call takes, by name."""
        return self._rows() | self._norms() | self._tables()

    def options(self) -> dict[str, str]:
        return {name: getattr(self, name) for name in OPTIONS}

    def keywords(self, arrays: dict[str, object], **more: object) -> dict[str, object]:
        """Every keyword of the call, with these arrays."""
        return DEFAULTS | arrays | self.options() | more

    def sizes(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in SIZES} | {"key_heads": self._key_heads}

    @property
    def _key_heads(self) -> int:
        return self.heads if self.key_heads is None else self.key_heads

    def streams(self) -> list[tuple[str, str, str, int, int]]:
        """Of each that is there: its name, its norm's, the norm's type, its length and heads."""
        streams = [
            ("query", "norm_query", self.norm_type, self.seq_query, self.heads),
            ("key", "norm_key", self.norm_type, self.seq_key, self._key_heads),
            ("encoder_query", "norm_added_query", self.norm_added_type, self.seq_encoder_query, self.heads),
            ("encoder_key", "norm_added_key", self.norm_added_type, self.seq_encoder_key, self._key_heads),
        ]
        return [stream for stream in streams if stream[3] > 0 or not stream[0].startswith("encoder")]

    def _rows(self) -> dict[str, tuple[tuple[int, ...], str]]:
        query, key = self.seq_query + self.seq_encoder_query, self.seq_key + self.seq_encoder_key
        joint = {"query": (self.heads, query), "key": (self._key_heads, key), "value": (self._key_heads, key)}
        return {
            f"grad_{name}_output": ((self.batch, heads, length, self.head_dim), self.dtype)
            for name, (heads, length) in joint.items()
        } | {
            name: ((self.batch, length, heads, self.head_dim), self.dtype)
            for name, _, _, length, heads in self.streams()
        }

    def _norms(self) -> dict[str, tuple[tuple[int, ...], str]]:
        arrays = {}
        for _, norm, norm_type, length, heads in self.streams():
            statistics = ((self.batch, length, heads, 1), "f64" if self.dtype == "f64" else "f32")
            if norm_type.endswith("affine"):
                arrays[f"{norm}_weight"] = ((self.head_dim,), self.weight_dtype or self.dtype)
            if norm_type.startswith("layer"):
                arrays[f"{norm}_mean"] = statistics
            if norm_type != "none":
                arrays[f"{norm}_rstd"] = statistics
        return arrays

    def _tables(self) -> dict[str, tuple[tuple[int, ...], str]]:
        if self.rope_type == "none":
            return {}
        width = self.head_dim if self.table_width is None else self.table_width
        table = ((self.seq_rope, width), self.table_dtype or self.dtype)
        return {"rope_sin": table, "rope_cos": table}

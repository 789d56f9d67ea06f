"""Problems of the joint operator for the tests: arrays by keyword, and what the formulas make of them."""

from dataclasses import dataclass, field

import numpy as np
from formulas import (
    EPS,
    assert_close,
    backward_input,
    concat,
    f64,
    has_mean,
    is_affine,
    norm_backward,
    norm_forward,
    random,
    split,
    turn,
)

import gyrograd as gg

STREAMS = ("query", "key", "value")
NORM_OF = {
    "query": "norm_query",
    "key": "norm_key",
    "encoder_query": "norm_added_query",
    "encoder_key": "norm_added_key",
}


@dataclass
class Problem:
    """A call's arrays and options. Lengths are those of query, key, encoder query, encoder key; None: absent."""

    seed: int = 1
    dtype: type = np.float32
    table_dtype: type | None = None
    weight_dtype: type | None = None
    batch: int = 2
    heads: tuple[int, int, int] = (3, 3, 3)
    lengths: tuple[int | None, ...] = (5, 4, 3, 2)
    dim: int = 8
    norm: str = "none"
    added: str = "none"
    rope: str = "none"
    order: str = "stream_first"
    table_shape: tuple[int, ...] | None = None  # default: [4, R]
    rotation: dict = field(default_factory=dict)  # rope_start, per_pair_tables, rotary_dim, rotary_offset
    eps: float = EPS

    def __post_init__(self):
        rng = np.random.default_rng(self.seed)
        self.inputs, self.weights = {}, {}
        for stream, heads in zip(STREAMS, self.heads, strict=True):
            for name in (stream, f"encoder_{stream}"):
                length = self.length(name)
                if length is not None:
                    self.inputs[name] = random(rng, (self.batch, length, heads, self.dim), self.dtype)
        for name, norm in NORM_OF.items():
            if is_affine(self.norm_of(name)) and name in self.inputs:
                for member in ("weight", "bias") if self.norm_of(name) == "layer_affine" else ("weight",):
                    self.weights[f"{norm}_{member}"] = random(rng, (self.dim,), self.weight_dtype or self.dtype)
        self.tables = {}
        if self.rope != "none":
            width = self.rotation.get("rotary_dim") or self.dim
            width = width // 2 if self.rotation.get("per_pair_tables") else width
            shape = (*(self.table_shape or (4,)), width)
            self.tables = {f"rope_{n}": random(rng, shape, self.table_dtype or self.dtype) for n in ("sin", "cos")}
        self.grads = {
            stream: random(rng, (self.batch, heads, self.joint(stream), self.dim), self.dtype)
            for stream, heads in zip(STREAMS, self.heads, strict=True)
            if self.joint(stream) is not None
        }

    def length(self, name):
        """Value's is key's."""
        query, key, encoder_query, encoder_key = self.lengths
        encoder = name.startswith("encoder")
        if name.endswith("query"):
            return encoder_query if encoder else query
        return encoder_key if encoder else key

    def joint(self, stream):
        lengths = [self.length(name) for name in (stream, f"encoder_{stream}")]
        return None if lengths == [None, None] else sum(length or 0 for length in lengths)

    def norm_of(self, name):
        if name.endswith("value"):
            return "none"
        return self.added if name.startswith("encoder") else self.norm

    @property
    def options(self):
        return {
            "norm_type": self.norm,
            "norm_added_type": self.added,
            "rope_type": self.rope,
            "concat_order": self.order,
            **self.rotation,
        }

    # What the library is called with.

    def forward(self, **more):
        inputs = {"query": None} | self.inputs
        return gg.norm_rope_concat(**(inputs | self.weights | self.tables | self.options | {"eps": self.eps} | more))

    def statistics(self):
        results = self.forward()._asdict()
        return {name: value for name, value in results.items() if value is not None and name.startswith("norm")}

    def backward_arrays(self):
        """Every array of the backward by its keyword."""
        grads = {f"grad_{stream}_output": grad for stream, grad in self.grads.items()}
        inputs = {name: x for name, x in self.inputs.items() if not name.endswith("value")}
        weights = {name: w for name, w in self.weights.items() if name.endswith("weight")}
        return {"grad_query_output": None} | grads | inputs | weights | self.statistics() | self.tables

    def backward(self, **more):
        return gg.norm_rope_concat_backward(**(self.backward_arrays() | self.options | more))

    # What the formulas give.

    def turned(self, joint, function=None):
        keywords = {"function": function} if function else {}
        keywords |= {
            "start": self.rotation.get("rope_start", 0),
            "per_pair": self.rotation.get("per_pair_tables", False),
            "rotary_dim": self.rotation.get("rotary_dim"),
            "rotary_offset": self.rotation.get("rotary_offset", 0),
        }
        return turn(joint, self.tables.get("rope_cos"), self.tables.get("rope_sin"), self.rope, **keywords)

    def expected_forward(self):
        want = {}
        for stream in STREAMS:
            rows = [self.normed(name) for name in (stream, f"encoder_{stream}")]
            if all(row is None for row in rows):
                continue
            joint = concat(*rows, self.order)
            want[stream] = joint if stream == "value" else self.turned(joint)
        return want

    def normed(self, name):
        if name not in self.inputs:
            return None
        weight, bias = (self.weights.get(f"{NORM_OF.get(name)}_{member}") for member in ("weight", "bias"))
        return norm_forward(self.inputs[name], self.norm_of(name), weight, bias, self.eps)

    def expected_backward(self, statistics):
        want = {}
        for stream, grad in self.grads.items():
            g = f64(grad) if stream == "value" else self.turned(f64(grad), backward_input)
            lengths = [self.length(name) or 0 for name in (stream, f"encoder_{stream}")]
            for name, rows in zip((stream, f"encoder_{stream}"), split(g, *lengths, self.order), strict=True):
                if name in self.inputs:
                    want |= self.of_stream(name, rows, statistics)
        return want

    def of_stream(self, name, rows, statistics):
        norm = NORM_OF.get(name)
        saved = [statistics.get(f"{norm}_{member}") for member in ("mean", "rstd")]
        weight = self.weights.get(f"{norm}_weight")
        dx, dweight, dbias = norm_backward(rows, self.inputs[name], self.norm_of(name), weight, *saved)
        found = {name: dx, f"{norm}_weight": dweight, f"{norm}_bias": dbias}
        return {key: value for key, value in found.items() if value is not None}

    def check_forward(self):
        got = {name: value for name, value in self.forward()._asdict().items() if value is not None}
        want = self.expected_forward()
        assert {name for name in got if not name.startswith("norm")} == want.keys()
        for name, value in want.items():
            assert_close(got[name], value, self.dtype)
        saved = np.float64 if self.dtype == np.float64 else np.float32
        for name, norm in NORM_OF.items():
            if name not in self.inputs:
                continue
            x = f64(self.inputs[name])
            mean = x.mean(-1, keepdims=True) if has_mean(self.norm_of(name)) else 0
            assert (f"{norm}_mean" in got) == has_mean(self.norm_of(name))
            assert (f"{norm}_rstd" in got) == (self.norm_of(name) != "none")
            if has_mean(self.norm_of(name)):
                assert_close(got[f"{norm}_mean"], mean, saved)
            if self.norm_of(name) != "none":
                rstd = 1 / np.sqrt(((x - mean) ** 2).mean(-1, keepdims=True) + self.eps)
                assert_close(got[f"{norm}_rstd"], rstd, saved)

    def check_backward(self):
        got = {name: value for name, value in self.backward()._asdict().items() if value is not None}
        want = self.expected_backward(self.statistics())
        assert got.keys() == want.keys()
        for name, value in want.items():
            weights = self.weight_dtype or self.dtype
            assert_close(got[name], value, weights if name.startswith("norm") else self.dtype)

"""gyrograd.jax over four devices: the rows' bits of one device, sums within their bounds, and no rows on the way."""

import json
import math
import re
import subprocess
import sys
from pathlib import Path

import pytest

WORKER = Path(__file__).with_name("jax_devices.py")
WAYS = ("auto", "explicit", "shard_map")
# What is split: rows and tables of [B, S, N, D], tables [1, S, 1, D], and the mesh.
SPLITS = {
    "batch": (["a"], [], [4]),
    "sequence": ([None, "a"], [None, "a"], [4]),
    "heads": ([None, None, "a"], [], [4]),
    "batch and sequence": (["a", "b"], [None, "b"], [2, 2]),
    "batch and heads": (["a", None, "b"], [], [2, 2]),
    "batch over two axes": ([["a", "b"]], [], [2, 2]),
}
ROWS = ((4, 8, 4, 16), (1, 8, 1, 16))
TYPES = {"f32": ("f32", "f32"), "bf16": ("bf16", "bf16"), "f16": ("f16", "f16"), "mixed": ("bf16", "f32")}


def specs(parts):
    return [tuple(part) if isinstance(part, list) else part for part in parts]


def cases():
    found = {}
    for way in WAYS:
        for split, (rows, tables, mesh) in SPLITS.items():
            for types in TYPES if split == "batch and heads" else ("bf16",):
                dtype, table_dtype = TYPES[types]
                case = {"rows": rows, "tables": tables, "mesh_shape": mesh, "dtype": dtype, "table_dtype": table_dtype}
                found[f"rotary, {split}, {types}, {way}"] = ("rotary", case | {"way": way, "shape": ROWS})
        for split, (rows, tables, mesh) in SPLITS.items():
            padded = [*rows, None, None][:3]
            case = {"rows": padded, "tables": tables[1:], "mesh_shape": mesh, "way": way}
            layout = "BSND" if split in ("heads", "sequence") else "BNSD"
            case |= {"dtype": "bf16", "options": {"out_layout": layout}}
            found[f"norm_rope, {split}, {way}"] = ("norm_rope", case)
        for name, rows, encoder in (("two streams", ["a", None, "b"], True), ("one stream", ["a", "b", None], False)):
            for norm in ("none", "layer_affine"):
                case = {"way": way, "rows": rows, "encoder": encoder, "norm": norm}
                found[f"concat, {name}, {norm}, {way}"] = ("concat", case)
    return found


CASES = cases()


@pytest.fixture(scope="module")
def findings():
    done = subprocess.run([sys.executable, WORKER], input=json.dumps(CASES), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def elements(shape):
    """The largest array of a collective's result, "(f32[2,4]{1,0}, f32[8]{0})"."""
    return max(
        math.prod(map(int, extents.split(","))) if extents else 1 for extents in re.findall(r"\[([\d,]*)\]", shape)
    )


@pytest.mark.parametrize("name", CASES)
def test_over_four_devices(findings, name):
    found = findings[name]
    bits = found.get("bits", [found.get("y"), found.get("dx")])
    assert bits == [True] * len(bits)
    assert all(ratio <= 1 for ratio in found.get("within", []))
    assert all(found.get("close", [True]))
    assert found["kept"], "results are split as the rows are"
    # Sums of tables and weights travel, in float32, and nothing else.
    assert {kind for kind, _ in found["collectives"]} <= {"all-reduce"}
    for _, shape in found["collectives"]:
        assert set(re.findall(r"(\w+)\[", shape)) == {"f32"}
        assert elements(shape) <= 8 * 16


def test_sums_are_added_once(findings):
    """Nothing travels where the tables are split with the sequence, and sums do where rows are split otherwise."""
    for way in WAYS:
        assert findings[f"rotary, sequence, bf16, {way}"]["collectives"] == []
        assert findings[f"rotary, batch, bf16, {way}"]["collectives"] != []

"""gyrograd.jax over four devices: the rows' bits of one device, sums within their bounds, and no rows on the way."""

import itertools
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


# Calls on operands that are not all split as the call splits them: a spec each.
BATCH, SEQUENCE, HEADS, CHANNELS, WHOLE = ["a"], [None, "a"], [None, None, "a"], [None, None, None, "a"], []
GATHERED = {
    "channels of rows": ("rotary", CHANNELS, WHOLE, WHOLE),
    "tables alone": ("rotary", WHOLE, SEQUENCE, SEQUENCE),
    "channels of tables": ("rotary", WHOLE, CHANNELS, CHANNELS),
    "channels of tables, rows by batch": ("rotary", BATCH, CHANNELS, CHANNELS),
    "rows by batch, tables by sequence": ("rotary", BATCH, SEQUENCE, SEQUENCE),
    "one table": ("rotary", HEADS, SEQUENCE, WHOLE),
    "rows on one device": ("rotary", None, SEQUENCE, SEQUENCE),
    "tables on one device": ("rotary", BATCH, None, None),
    "some channels": ("rotary of some channels", CHANNELS, SEQUENCE, WHOLE),
    "second order": ("second order", CHANNELS, SEQUENCE, WHOLE),
    "samples": ("vmap of rotary", [None, "a"], WHOLE, SEQUENCE),
    "weight, rows whole": ("norm_rope", WHOLE, ["a"]),
    "weight, rows by batch": ("norm_rope", BATCH, ["a"]),
    "batch of samples": ("vmap of norm_rope", [None, "a"]),
    "part of the sequence": ("norm_rope of part", SEQUENCE),
    "two streams by sequence": ("two streams", SEQUENCE, SEQUENCE),
    "one stream by batch": ("two streams", BATCH, WHOLE),
    "encoder by heads": ("two streams", WHOLE, HEADS),
    "key alone": ("key alone", WHOLE, HEADS),
}


def gathered_cases():
    found = {}
    for (name, (call, *specs)), way in itertools.product(GATHERED.items(), ("auto", "explicit")):
        shapes = [ROWS[0]] * len(specs)
        if "rotary" in call or call == "second order":
            shapes[1:] = [ROWS[1]] * 2
        if call == "norm_rope":
            shapes[1] = (16,)
        if call.startswith("vmap"):
            shapes[0] = (4, *ROWS[0])
        found[f"{name}, {way}"] = (
            "gathered",
            {"way": way, "call": call, "operands": list(zip(shapes, specs, strict=True))},
        )
    return found


GATHERINGS = gathered_cases()
CASES = cases()
# Rows, tables and the tables' shape; where types say how arrays are split, gradients must have their arrays' types.
EXPLICIT = {
    "tables are whole": ([None, "a"], [], (1, 8, 1, 16)),
    "tables are split otherwise": (["a"], [None, "a"], (4, 8, 1, 16)),
}


def other_cases():
    """More than what is split travels here."""
    found = {}
    for name, (rows, tables, table_shape) in EXPLICIT.items():
        case = {"rows": rows, "tables": tables, "mesh_shape": [2, 2], "dtype": "bf16", "table_dtype": "bf16"}
        found[name] = ("rotary", case | {"way": "explicit", "shape": (ROWS[0], table_shape)})
    for check_vma in (False, True):
        found[f"outside of jit, check_vma {check_vma}"] = ("outside_jit", {"check_vma": check_vma})
    for rows, weights in ((["a"], False), (["a", "b"], True), ([None, "a"], False), ([None, "a"], True)):
        found[f"vmap, {rows}, {weights}"] = ("vmapped", {"rows": rows, "weights": weights})
    return found


OTHER_CASES = other_cases()


@pytest.fixture(scope="module")
def findings():
    done = subprocess.run(
        [sys.executable, WORKER],
        input=json.dumps(CASES | GATHERINGS | OTHER_CASES),
        capture_output=True,
        text=True,
    )
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


@pytest.mark.parametrize("name", GATHERINGS)
def test_gradients_of_what_is_gathered(findings, name):
    """Eager and compiled, each in the type, which on explicit axes has the sharding, of its operand."""
    assert all(findings[name]["close"])
    assert all(findings[name]["kept"])


@pytest.mark.parametrize("name", OTHER_CASES)
def test_types_and_transformations(findings, name):
    found = findings[name]
    bits = found.get("bits", [found.get("y", True), found.get("dx", True)])
    assert bits == [True] * len(bits)
    assert all(ratio <= 1 for ratio in found.get("within", []))
    assert all(found.get("close", [True]))
    assert found.get("kept", True), "gradients are split as their arrays are"


def test_sums_are_added_once(findings):
    """Nothing travels where the tables are split with the sequence, and sums do where rows are split otherwise."""
    for way in WAYS:
        assert findings[f"rotary, sequence, bf16, {way}"]["collectives"] == []
        assert findings[f"rotary, batch, bf16, {way}"]["collectives"] != []

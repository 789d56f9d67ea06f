"""Run in a process of its own: the operators over four devices against one, JSON of the findings to stdout.

Each case names a mesh, how rows and tables are split, and the way: jit, with the shardings on the arrays, on a mesh
whose axes are automatic or explicit, or shard_map.
"""

import json
import os
import re
import sys

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"

import jax
import jax.numpy as jnp
import numpy as np
from formulas import BF16, problem, sum_to, table_terms
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import gyrograd.jax as gj

WAYS = ("auto", "explicit", "shard_map")
TYPES = {"f32": np.float32, "bf16": BF16, "f16": np.float16}


def devices(way, *shape):
    kind = AxisType.Explicit if way == "explicit" else AxisType.Auto
    return jax.make_mesh(shape, ("a", "b")[: len(shape)], axis_types=(kind,) * len(shape))


def collectives(compiled):
    """(name, shape) of every collective of a compiled program."""
    found = re.findall(
        r"= (.*?) (all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter)\(", compiled.as_text()
    )
    return [[name, shape] for shape, name in found]


def run(way, mesh, function, arrays, in_specs, out_specs):
    """The results over the mesh as NumPy arrays, and the program's collectives."""
    split = [jax.device_put(array, NamedSharding(mesh, spec)) for array, spec in zip(arrays, in_specs, strict=True)]
    if way == "shard_map":
        function = jax.shard_map(function, mesh=mesh, in_specs=tuple(in_specs), out_specs=tuple(out_specs))
    compiled = jax.jit(function).lower(*split).compile()
    results = compiled(*split)
    kept = all(
        result.sharding.is_equivalent_to(NamedSharding(mesh, spec), result.ndim)
        for result, spec in zip(results, out_specs, strict=True)
    )
    return [np.asarray(result) for result in results], collectives(compiled), kept


def same(got, want):
    return got.dtype == want.dtype and got.shape == want.shape and got.tobytes() == want.tobytes()


def rotary_gradients(dy, cos, sin, x):
    y, backward = jax.vjp(gj.rotary, x, cos, sin)
    return y, *backward(dy)


def rotary(way, shape, rows, tables, dtype, table_dtype, mesh_shape):
    """The bits of y and dx, and how far the tables' gradients are within their bounds (below 1: they are)."""
    arrays = problem(1, *shape, TYPES[dtype], TYPES[table_dtype])
    specs = [P(*rows), P(*tables), P(*tables), P(*rows)]
    out_specs = [specs[0], specs[0], specs[1], specs[1]]
    mesh = devices(way, *mesh_shape)
    got, used, kept = run(way, mesh, rotary_gradients, arrays, specs, out_specs)
    want = [np.asarray(array) for array in rotary_gradients(*map(jnp.asarray, arrays))]
    dy, _, _, x = arrays
    within = []
    for gradient, terms in zip(got[2:], table_terms(dy, x, "half"), strict=True):
        exact, magnitude = (sum_to(t, gradient.shape, "half", False) for t in (terms, np.abs(terms)))
        half_ulp = np.abs(exact) * float(jnp.finfo(gradient.dtype).eps) / 2
        bound = (1e-6 + 4 * 2.0**-24) * magnitude + half_ulp + 2.0**-149
        within.append(float(np.max(np.abs(gradient.astype(np.longdouble) - exact) / bound)))
    return {
        "y": same(got[0], want[0]),
        "dx": same(got[1], want[1]),
        "within": within,
        "collectives": used,
        "kept": kept,
    }


def norm_rope(way, rows, tables, dtype, mesh_shape, options):
    """The same of norm_rope: y, statistics and dx bit by bit, dweight and dbias by their distance from one device's, in
    units of 2^-24 sum M and roundings.
    """
    rng = np.random.default_rng(2)
    bsnd = options.get("out_layout") == "BSND"
    x = rng.standard_normal((4, 8, 4, 16)).astype(TYPES[dtype])
    dy = rng.standard_normal(x.shape if bsnd else (4, 4, 8, 16)).astype(TYPES[dtype])
    weight, bias = (rng.standard_normal(16).astype(TYPES[dtype]) for _ in range(2))
    cos, sin = (rng.standard_normal((8, 16)).astype(TYPES[dtype]) for _ in range(2))
    b, s, n = rows
    specs = [P(b, s, n) if bsnd else P(b, n, s), P(b, s, n), P(), P(), P(*tables), P(*tables)]

    def gradients(dy, x, weight, bias, cos, sin):
        def forward(x, weight, bias):
            result = gj.norm_rope(x, weight, bias, cos, sin, norm_type="layer_affine", rope_type="half", **options)
            return result.y, result

        _, backward, result = jax.vjp(forward, x, weight, bias, has_aux=True)
        return *result, *backward(dy)

    arrays = (dy, x, weight, bias, cos, sin)
    out_specs = [specs[0], P(b, s, n), P(b, s, n), specs[1], P(), P()]
    got, used, kept = run(way, devices(way, *mesh_shape), gradients, arrays, specs, out_specs)
    want = [np.asarray(array) for array in gradients(*map(jnp.asarray, arrays))]
    # |x_hat| <= 4 and R <= |cos dy| + |sin dy|: a coarse M, for a bound that rounding each part to 16 bits would break.
    wide = np.abs(x.astype(np.float64) - x.astype(np.float64).mean(-1, keepdims=True))
    x_hat = wide / x.astype(np.float64).std(-1, keepdims=True)
    turned = dy.astype(np.float64) if bsnd else dy.astype(np.float64).swapaxes(1, 2)
    table = (np.abs(cos.astype(np.float64)) + np.abs(np.roll(sin.astype(np.float64), 8, -1)))[:, None]
    r = table * (np.abs(turned) + np.abs(np.roll(turned, 8, -1)))
    within = []
    for ours, theirs, magnitude in zip(got[4:], want[4:], ((r * x_hat).sum((0, 1, 2)), r.sum((0, 1, 2))), strict=True):
        ulp = np.abs(theirs.astype(np.float64)) * float(jnp.finfo(ours.dtype).eps)
        bound = (2 * 1.25e-6 + 4 * 2.0**-24) * magnitude + ulp
        within.append(float(np.max(np.abs(ours.astype(np.float64) - theirs.astype(np.float64)) / bound)))
    bits = [same(a, b) for a, b in zip(got[:4], want[:4], strict=True)]
    return {"bits": bits, "within": within, "collectives": used, "kept": kept}


def concat(way, rows, encoder, norm):
    """norm_rope_concat of one or two streams: joints and rows' gradients bit by bit, weights' nearly so."""
    from attention import Problem

    lengths = (8, 8, 4, 4) if encoder else (8, 8, None, None)
    joint = Problem(seed=3, batch=4, heads=(4, 2, 2), lengths=lengths, dim=16, norm=norm, added=norm, rope="half",
                    table_shape=(8,))  # fmt: skip
    leaves = joint.inputs | joint.weights
    b, s, n = rows
    row_spec, joint_spec = P(b, s, n), P(b, n, s)
    names = [*joint.grads, *leaves, *joint.tables]
    arrays = [*joint.grads.values(), *leaves.values(), *joint.tables.values()]
    specs = [joint_spec] * 3 + [row_spec if name in joint.inputs else P() for name in leaves] + [P(s)] * 2

    def gradients(*arrays):
        named = dict(zip(names[3:], arrays[3:], strict=True))
        tables = {name: named.pop(name) for name in joint.tables}

        def forward(leaves):
            result = gj.norm_rope_concat(**leaves, **tables, **joint.options)
            return list(result[:3])

        ys, backward = jax.vjp(forward, named)
        (gradients,) = backward(list(arrays[:3]))
        return *ys, *(gradients[name] for name in leaves)

    out_specs = [joint_spec] * 3 + specs[3 : 3 + len(leaves)]
    got, used, kept = run(way, devices(way, 2, 2), gradients, arrays, specs, out_specs)
    want = [np.asarray(array) for array in gradients(*map(jnp.asarray, arrays))]
    count = 3 + len(joint.inputs)
    close = [bool(np.allclose(a, b, 1e-5, 1e-5)) for a, b in zip(got[count:], want[count:], strict=True)]
    bits = [same(a, b) for a, b in zip(got[:count], want[:count], strict=True)]
    return {"bits": bits, "close": close, "collectives": used, "kept": kept}


def norm_of_part(x):
    """Tables for some of the positions."""
    cos, sin = np.random.default_rng(4).standard_normal((2, 6, 16)).astype(np.float32)
    return gj.norm_rope(x, None, None, cos, sin, norm_type="rms", rope_type="half").y


def key_alone(query, key):
    """Of two joints that turn, one does not reach the loss."""
    cos, sin = np.random.default_rng(5).standard_normal((2, 8, 16)).astype(np.float32)
    return gj.norm_rope_concat(query, key, norm_type="rms", rope_type="half", rope_cos=cos, rope_sin=sin).key


CALLS = {
    "rotary": gj.rotary,
    "rotary of some channels": lambda x, cos, sin: gj.rotary(x, cos[..., :8], sin[..., :8], rotary_dim=8),
    "second order": lambda x, cos, sin: jax.grad(lambda cos: jnp.sin(gj.rotary(x, cos, sin)).sum())(cos),
    "vmap of rotary": jax.vmap(gj.rotary, (0, None, None)),
    "norm_rope": lambda x, weight: gj.norm_rope(x, weight, norm_type="rms_affine").y,
    "vmap of norm_rope": jax.vmap(lambda x: gj.norm_rope(x, norm_type="rms").y),
    "norm_rope of part": norm_of_part,
    "two streams": lambda x, y: gj.norm_rope_concat(x, encoder_query=y, norm_type="rms", norm_added_type="layer").query,
    "key alone": key_alone,
}


def gathered(way, call, operands):
    """Gradients of operands, (shape, spec) each, in their own types, and as on one device; eager and compiled."""
    rng = np.random.default_rng(6)
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape, _ in operands]
    gradients = jax.grad(lambda *arrays: jnp.sin(CALLS[call](*arrays)).sum(), tuple(range(len(arrays))))
    want = gradients(*map(jnp.asarray, arrays))
    close, kept = [], []
    with jax.set_mesh(devices(way, 4)):
        split = [array if spec is None else jax.device_put(array, P(*spec))
                 for array, (_, spec) in zip(map(jnp.asarray, arrays), operands, strict=True)]  # fmt: skip
        for function in (gradients, jax.jit(gradients)):
            got = function(*split)
            kept += [jax.typeof(a) == jax.typeof(b) for a, b in zip(got, split, strict=True)]
            close += [bool(np.allclose(a, b, 1e-5, 1e-5)) for a, b in zip(got, want, strict=True)]
    return {"close": close, "kept": kept}


def outside_jit(check_vma):
    """Gradients of a function under shard_map that is not compiled: rows' bits, sums nearly so."""
    mesh = devices("shard_map", 4)
    dy, cos, sin, x = map(jnp.asarray, problem(4, (4, 8, 4, 16), (1, 8, 1, 16)))
    weight = jnp.linspace(0.5, 1.5, 16)

    def norm(x, weight):
        return gj.norm_rope(x, weight, norm_type="rms_affine", out_layout="BSND").y

    bits, close = [], []
    for function, inputs in ((gj.rotary, (x, cos, sin)), (norm, (x, weight))):
        specs = (P("a"), *[P()] * (len(inputs) - 1))
        split = jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=P("a"), check_vma=check_vma)
        (dx, *sums), (want, *want_sums) = (jax.vjp(f, *inputs)[1](dy) for f in (split, function))
        bits.append(same(np.asarray(dx), np.asarray(want)))
        close += [bool(np.allclose(a, b, 1e-5, 1e-5)) for a, b in zip(sums, want_sums, strict=True)]
    return {"bits": bits, "close": close}


def vmapped(rows, weights):
    """Gradients under vmap where types say that rows [samples, B, S, N, D] are split: of their own splits, and close.
    Weights are of each sample, split as the samples are, or one.
    """
    mesh = devices("explicit", 2, 2)
    rng = np.random.default_rng(5)
    x = rng.standard_normal((4, 4, 3, 2, 16)).astype(np.float32)
    cos, sin = rng.standard_normal((2, 4, 3, 1, 16)).astype(np.float32)
    weight = rng.standard_normal((4, 16) if weights else (16,)).astype(np.float32)
    axis = 0 if weights else None

    def norm(x, weight):
        return gj.norm_rope(x, weight, norm_type="rms_affine", out_layout="BSND").y

    def loss(x, weight, cos):
        y = jax.vmap(norm, (0, axis))(jax.vmap(gj.rotary, (0, None, None))(x, cos, sin), weight)
        return (y**2).sum()

    gradients = jax.grad(loss, (0, 1, 2))
    want = gradients(*map(jnp.asarray, (x, weight, cos)))
    with jax.set_mesh(mesh):
        specs = (P(*rows), P(*rows[:1]) if weights else P(), P())
        split = [jax.device_put(a, NamedSharding(mesh, spec)) for a, spec in zip((x, weight, cos), specs, strict=True)]
        got = jax.jit(gradients)(*split)
        kept = [jax.typeof(a) == jax.typeof(b) for a, b in zip(got, split, strict=True)]
    close = [bool(np.allclose(a, b, 1e-4, 1e-4)) for a, b in zip(got, want, strict=True)]
    return {"close": close, "kept": all(kept)}


def main():
    cases = json.loads(sys.stdin.read())
    calls = {"rotary": rotary, "norm_rope": norm_rope, "concat": concat, "outside_jit": outside_jit, "vmapped": vmapped}
    calls["gathered"] = gathered
    print(json.dumps({name: calls[call](**case) for name, (call, case) in cases.items()}))


if __name__ == "__main__":
    main()

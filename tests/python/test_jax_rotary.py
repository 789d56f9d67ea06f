"""gyrograd.jax.rotary and rotary_qk: gradients of all orders, the plain calls' bits, and JAX's transformations."""

import re
import subprocess
import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from formulas import BF16, MODES, problem
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.test_util import check_grads
from jax_formulas import as_jax, assert_close, assert_equal, custom_calls, rotary, x64

import gyrograd as gg
import gyrograd.jax as gj

SHAPE, TABLE = (2, 5, 3, 16), (1, 5, 1, 16)
# Options, and the width of the tables beside 8 channels.
OPTIONS = [
    ({}, 8),
    ({"per_pair_tables": True}, 4),
    ({"rotary_dim": 4, "rotary_offset": 2}, 4),
    ({"rotary_dim": 4, "rotary_offset": 3, "per_pair_tables": True}, 2),
]
TYPES = [(np.float32, None), (BF16, None), (np.float16, None), (BF16, np.float32), (np.float16, np.float32)]


def arrays(seed, shape=SHAPE, table=TABLE, dtype=np.float32, table_dtype=None):
    """dy, cos, sin, x."""
    return as_jax(*problem(seed, shape, table, dtype, table_dtype))


def vjp(function, dy, *inputs):
    """The result and the gradients."""
    y, backward = jax.vjp(function, *inputs)
    return y, *backward(dy)


# ---- gradients and bits


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("options", "width"), OPTIONS)
def test_gradients_of_three_orders(mode, options, width):
    with x64():
        _, cos, sin, x = arrays(1, (2, 3, 2, 8), (1, 3, 1, width), np.float64)
        check_grads(lambda *inputs: gj.rotary(*inputs, mode, **options), (x, cos, sin), 3, ["rev"])


@pytest.mark.parametrize("argnums", [(0,), (1,), (2,), (0, 2), (1, 2)])
def test_second_order_of_some(argnums):
    with x64():
        _, cos, sin, x = arrays(2, (2, 3, 2, 4), (2, 1, 1, 4), np.float64)
        inputs = [x, cos, sin]

        def function(*some):
            full = dict(enumerate(inputs)) | dict(zip(argnums, some, strict=True))
            return gj.rotary(*full.values())

        check_grads(function, [inputs[i] for i in argnums], 2, ["rev"])


@pytest.mark.parametrize("mode", MODES)
def test_against_the_formula(mode):
    with x64():
        dy, cos, sin, x = arrays(3, dtype=np.float64)
        got = vjp(lambda *inputs: gj.rotary(*inputs, mode), dy, x, cos, sin)
        assert_close(got, vjp(lambda *inputs: rotary(*inputs, mode), dy, x, cos, sin), 1e-12)


@pytest.mark.parametrize("compile", [jax.jit, lambda function: function], ids=["jit", "eager"])
@pytest.mark.parametrize(("dtype", "table_dtype"), TYPES)
@pytest.mark.parametrize("mode", MODES)
def test_bits(compile, dtype, table_dtype, mode):
    dy, cos, sin, x = arrays(4, dtype=dtype, table_dtype=table_dtype)
    got = compile(lambda *inputs: vjp(lambda *leaves: gj.rotary(*leaves, mode), *inputs))(dy, x, cos, sin)
    assert_equal(got, [gg.rotary(x, cos, sin, mode=mode), *gg.rotary_backward(dy, cos, sin, x, mode=mode)])


def test_bits_of_float64():
    with x64():
        dy, cos, sin, x = arrays(5, dtype=np.float64)
        got = vjp(gj.rotary, dy, x, cos, sin)
        assert_equal(got, [gg.rotary(x, cos, sin), *gg.rotary_backward(dy, cos, sin, x)])


@st.composite
def problems(draw):
    mode = draw(st.sampled_from(MODES))
    extents = draw(st.lists(st.integers(0, 3), max_size=4))
    width = draw(st.integers(0, 4)) * 4
    turning = draw(st.integers(1, max(width // 4, 1))) * 4 if width else 0
    options = {"per_pair_tables": draw(st.booleans())}
    if draw(st.booleans()) and width:
        options |= {"rotary_dim": turning, "rotary_offset": draw(st.integers(0, width - turning))}
    else:
        turning = width
    table = [draw(st.sampled_from((1, extent))) for extent in extents]
    table_width = turning // 2 if options["per_pair_tables"] else turning
    types = draw(st.sampled_from(TYPES))
    return mode, options, problem(draw(st.integers(0, 9)), (*extents, width), (*table, table_width), *types)


@settings(max_examples=40)  # each is two compilations
@given(problems())
def test_bits_of_any_problem(drawn):
    mode, options, (dy, cos, sin, x) = drawn
    got = vjp(lambda *inputs: gj.rotary(*inputs, mode, **options), *as_jax(dy, x, cos, sin))
    plain = {"mode": mode, **options}
    assert_equal(got, [gg.rotary(x, cos, sin, **plain), *gg.rotary_backward(dy, cos, sin, x, **plain)])


@pytest.mark.parametrize("mode", [1, np.int64(1), "interleave"])
def test_options_are_taken_as_by_the_plain_call(mode):
    _, cos, sin, x = arrays(6, table=(1, 5, 1, 4))
    options = {"mode": mode, "rotary_dim": np.int32(4), "rotary_offset": np.uint8(2)}
    assert_equal([gj.rotary(x, cos, sin, **options)], [gg.rotary(x, cos, sin, **options)])


def test_numpy_arrays_are_taken():
    _, cos, sin, x = problem(7, SHAPE, TABLE, BF16)
    assert isinstance(gj.rotary(x, cos, sin), jax.Array)
    assert_equal([gj.rotary(x, cos, sin)], [gg.rotary(x, cos, sin)])


# ---- what is asked for, and no more


@pytest.mark.parametrize("compile", [jax.jit, lambda function: function], ids=["jit", "eager"])
@pytest.mark.parametrize("argnums", [(0,), (1,), (2,), (0, 1), (1, 2), (0, 1, 2)])
def test_only_what_is_asked_for_is_computed(compile, argnums):
    dy, cos, sin, x = arrays(8)

    def loss(*inputs):
        return (compile(gj.rotary)(*inputs) * dy).sum()

    gradients = jax.grad(loss, argnums)
    assert_equal(gradients(x, cos, sin), [gg.rotary_backward(dy, cos, sin, x)[i] for i in argnums])
    text = str(jax.make_jaxpr(gradients)(x, cos, sin))
    asked = {re.search(r"'wanted', np.int64\((\d)\)", text)[1]}
    assert asked == {str(sum(1 << i for i in argnums))}
    assert ("'given', np.int64(1)" in text) == (argnums != (0,))  # x, for the tables alone


@pytest.mark.parametrize(
    "wrap", [lambda function: function, jax.checkpoint, jax.jit], ids=["plain", "checkpoint", "jit"]
)
def test_what_is_asked_for_changes(wrap):
    """One traced call, differentiated by other inputs each time and again."""
    dy, cos, sin, x = arrays(8, (1, 3, 2, 8), (1, 3, 1, 8))
    want = gg.rotary_backward(dy, cos, sin, x)
    for argnums in [(0,), (0, 1, 2), (1, 2), (0, 1, 2), (0,), (2,)]:
        turn = wrap(lambda *inputs: gj.rotary(*inputs))
        gradients = jax.jit(jax.grad(lambda *inputs: (turn(*inputs) * dy).sum(), argnums))  # noqa: B023
        assert_equal(gradients(x, cos, sin), [want[i] for i in argnums])


def test_tables_made_from_parameters_are_differentiated():
    """And those that are not keep out of the way."""
    dy, _, _, x = arrays(9)
    positions = jnp.arange(5.0)[:, None]

    def loss(frequencies, turn):
        angles = (positions * frequencies)[None, :, None, :]
        return (turn(x, jnp.cos(angles), jnp.sin(angles)) * dy).sum()

    frequencies = jnp.linspace(1, 0.1, 16)
    got, want = (jax.grad(loss)(frequencies, turn) for turn in (gj.rotary, rotary))
    np.testing.assert_allclose(got, want, 1e-5, 1e-5)


# ---- transformations


@pytest.mark.parametrize(
    "axes", [(0, None, None), (1, None, None), (0, 0, 0), (None, 0, 0), (2, 1, None), (None, 0, None)]
)
@pytest.mark.parametrize("order", ["vmap of grad", "grad of vmap"])
def test_vmap(axes, order):
    samples = 3
    dy, cos, sin, x = arrays(10)
    rng = np.random.default_rng(10)

    def batch(array, axis):
        if axis is None:
            return array
        return jnp.stack([array * float(factor) for factor in rng.integers(1, 5, samples)], axis)

    inputs = [batch(array, axis) for array, axis in zip((x, cos, sin), axes, strict=True)]

    def make(turn):
        def loss(*leaves):
            return (turn(*leaves) * dy).sum()

        if order == "vmap of grad":
            return jax.vmap(jax.grad(loss, (0, 1, 2)), axes)
        return jax.grad(lambda *leaves: jax.vmap(loss, axes)(*leaves).sum(), (0, 1, 2))

    got, want = jax.jit(make(gj.rotary))(*inputs), make(rotary)(*inputs)
    assert_close(got, want, 3e-5)
    targets, _ = custom_calls(make(gj.rotary), *inputs)
    assert set(targets) == {"gyrograd_rotary_backward"}


def test_vmap_leaves_tables_alone():
    """One call, and tables of extent 1 along the batch."""
    dy, cos, sin, x = arrays(11)
    dy, x = (jnp.stack([array, array * 2, array - 1]) for array in (dy, x))
    function = jax.vmap(lambda dy, x: vjp(lambda x: gj.rotary(x, cos, sin), dy, x))
    text = str(jax.make_jaxpr(function)(dy, x))
    assert "f32[1,1,5,1,16]" in text
    assert "f32[3,1,5,1,16]" not in text
    assert_equal(function(dy, x), [gg.rotary(x, cos[None], sin[None]), gg.rotary_backward(dy, cos[None], sin[None])])


def test_nested_vmap():
    _, cos, sin, x = arrays(12, (2, 3, 4, 8), (2, 1, 4, 8))
    got = jax.vmap(lambda x, cos, sin: jax.vmap(lambda rows: gj.rotary(rows, cos[0], sin[0]))(x))(x, cos, sin)
    assert_equal([got], [gg.rotary(x, cos, sin)])


def test_scan():
    """Layers in a scan, tables learned by all of them."""
    dy, cos, sin, x = arrays(13)
    scales = jnp.linspace(0.5, 1.5, 4)

    def loss(turn, x, cos, sin):
        y, _ = jax.lax.scan(lambda x, scale: (turn(x, cos, sin) * scale, None), x, scales)
        return (y * dy).sum()

    got, want = (jax.jit(jax.grad(partial(loss, turn), (0, 1, 2)))(x, cos, sin) for turn in (gj.rotary, rotary))
    assert_close(got, want, 1e-4)


@pytest.mark.parametrize("policy", [None, jax.checkpoint_policies.dots_saveable])
def test_checkpoint(policy):
    """The forward runs again in the backward, to the same bits."""
    dy, cos, sin, x = arrays(14)

    def loss(*inputs):
        return (jnp.sin(gj.rotary(*inputs)) * dy).sum()

    inputs = (x, cos, sin)
    got = jax.jit(jax.grad(jax.checkpoint(loss, policy=policy), (0, 1, 2)))(*inputs)
    assert_equal(got, jax.jit(jax.grad(loss, (0, 1, 2)))(*inputs))


def test_forward_mode_is_refused():
    _, cos, sin, x = arrays(15)
    function = lambda x: gj.rotary(x, cos, sin)  # noqa: E731
    for attempt in (lambda: jax.jvp(function, (x,), (x,)), lambda: jax.jacfwd(function)(x)):
        with pytest.raises(TypeError, match="forward-mode"):
            attempt()


# ---- memory


def test_donated_memory_is_used_in_place():
    dy, cos, sin, x = arrays(16)
    want = [gg.rotary(x, cos, sin), gg.rotary_backward(dy, cos, sin)]
    forward = jax.jit(lambda x: gj.rotary(x, cos, sin, in_place=True), donate_argnums=0)
    backward = jax.jit(
        lambda dy, x: jax.vjp(lambda x: gj.rotary(x, cos, sin, in_place=True), x)[1](dy)[0], donate_argnums=0
    )
    for function, inputs, expected in ((forward, (x,), want[0]), (backward, (dy, x), want[1])):
        assert function.lower(*inputs).compile().memory_analysis().temp_size_in_bytes == 0
        first = jnp.array(inputs[0], copy=True)
        address = first.unsafe_buffer_pointer()
        y = function(first, *inputs[1:])
        assert y.unsafe_buffer_pointer() == address
        assert first.is_deleted()
        assert_equal([y], [expected])


def test_memory_that_is_needed_further_on_is_not_written():
    dy, cos, sin, x = arrays(17)
    before = np.array(x)

    @jax.jit
    def function(dy, x, cos, sin):
        y, backward = jax.vjp(lambda *inputs: gj.rotary(*inputs, in_place=True), x, cos, sin)
        return x + 1, y, backward(dy), dy * 2

    got = function(dy, x, cos, sin)
    want = (x + 1, gg.rotary(x, cos, sin), gg.rotary_backward(dy, cos, sin, x), dy * 2)
    assert_equal(jax.tree.leaves(got), jax.tree.leaves(want))
    np.testing.assert_array_equal(x, before)


# ---- queries and keys


@pytest.mark.parametrize("mode", MODES)
def test_queries_and_keys(mode):
    """Four query heads and one key head."""
    dq, cos, sin, q = arrays(18, (2, 4, 5, 16), (1, 1, 5, 16))
    dk, _, _, k = arrays(19, (2, 1, 5, 16), (1, 1, 5, 16))
    got, backward = jax.vjp(lambda *inputs: gj.rotary_qk(*inputs, mode), q, k, cos, sin)
    assert_equal(got, (gg.rotary(q, cos, sin, mode=mode), gg.rotary(k, cos, sin, mode=mode)))
    of_q, of_k = (gg.rotary_backward(dy, cos, sin, rows, mode=mode) for dy, rows in ((dq, q), (dk, k)))
    assert_equal(backward((dq, dk)), (of_q[0], of_k[0], of_q[1] + of_k[1], of_q[2] + of_k[2]))


# ---- refusals


def bad_arguments():
    _, cos, sin, x = arrays(20)
    return {
        "no array": ((x.tolist(), cos, sin), {}, TypeError, "rotary: x is a list; it must be a jax.Array"),
        "none": ((x, None, sin), {}, TypeError, "rotary: cos is None; it must be a jax.Array"),
        "type": ((x.astype(int), cos, sin), {}, TypeError, "rotary: x has type int32; it must be float64, float32, "),
        "types": ((x, cos.astype(BF16), sin.astype(BF16)), {}, TypeError, "rotary: cos has type bf16"),
        "shape": ((x, cos[:, :4], sin), {}, ValueError, "rotary: cos has shape"),
        "width": ((x, cos[..., :8], sin[..., :8]), {}, ValueError, "rotary_dim = 8 for partial rotary"),
        "rank": ((x, cos[0, :, 0], sin[0, :, 0]), {}, ValueError, r"such as cos\[None, :, None, :\]"),
        "mode": ((x, cos, sin, "both"), {}, ValueError, "rotary: mode is 'both'; it must be 'half'"),
        "offset": ((x, cos, sin), {"rotary_offset": 1}, ValueError, "rotary: rotary_offset"),
        "in_place": ((x, cos, sin), {"in_place": 1}, TypeError, "rotary: in_place is 1; it must be True or False"),
        "no option": ((x, cos, sin), {"rotary_dim": [4]}, TypeError, r"rotary: rotary_dim is \[4\]"),
        "flag": ((x, cos, sin), {"per_pair_tables": 1}, TypeError, "rotary: per_pair_tables is 1; it must be True"),
    }


@pytest.mark.parametrize("case", bad_arguments())
@pytest.mark.parametrize("compile", [False, True])
def test_refusals(case, compile):
    """When the program is traced, in the core's words."""
    arguments, options, error, message = bad_arguments()[case]
    with pytest.raises(error, match=message):
        if compile and all(isinstance(argument, jax.Array) for argument in arguments):
            jax.jit(lambda *inputs: gj.rotary(*inputs, **options))(*arguments)
        else:
            gj.rotary(*arguments, **options)


@pytest.mark.parametrize("name", ["mode", "per_pair_tables", "rotary_dim", "rotary_offset", "in_place"])
def test_traced_options_are_refused_by_name(name):
    _, cos, sin, x = arrays(21)
    with pytest.raises(TypeError, match=f"rotary: {name} is traced by JAX; .*static_argnames"):
        jax.jit(lambda option: gj.rotary(x, cos, sin, **{name: option}))(0)


def test_ranks_that_vmap_has_changed():
    _, cos, sin, x = arrays(22)
    words = "rotary: cos has shape .*; hint: vmap has taken an axis of x, and none of cos and sin"
    with pytest.raises(ValueError, match=words):
        jax.vmap(lambda x: gj.rotary(x, cos, sin))(x)
    with pytest.raises(ValueError) as caught:
        gj.rotary(x[0], cos, sin)
    assert "vmap" not in str(caught.value)


def test_whole_tables_beside_a_part_of_the_rows():
    """In shard_map, where each device passes its own."""
    _, cos, sin, x = arrays(23)
    mesh, spec = jax.make_mesh((1,), ("a",)), jax.sharding.PartitionSpec()
    for call, name in (
        (lambda x: gj.rotary(x[:, :3], cos, sin), "rotary: cos"),
        (
            lambda x: gj.norm_rope(x[:, :3], None, None, cos[0, :, 0], sin[0, :, 0], rope_type="half").y,
            "norm_rope: cos",
        ),
    ):
        words = f"{name} has shape .*; hint: in shard_map shapes are those of one device"
        with pytest.raises(ValueError, match=words):
            jax.shard_map(call, mesh=mesh, in_specs=spec, out_specs=spec)(x)


# ---- export


def test_symbolic_shapes_are_refused_by_name():
    _, cos, sin, x = arrays(24)
    symbolic = jax.ShapeDtypeStruct(jax.export.symbolic_shape("b, 5, 3, 16"), x.dtype)
    for call, name in (
        (lambda x: gj.rotary(x, cos, sin), "rotary: x"),
        (lambda x: gj.rotary(jnp.ones(SHAPE), x, x), "rotary: cos"),
        (lambda x: gj.norm_rope(x, norm_type="rms"), "norm_rope: x"),
        (lambda x: gj.norm_rope_concat(cos, encoder_query=x), "norm_rope_concat: encoder_query"),
    ):
        with pytest.raises(ValueError, match=rf"{name} has shape \[b, 5, 3, 16\]; each extent must be a number"):
            jax.eval_shape(call, symbolic)


def test_export():
    """Of fixed shapes, by the custom calls' names as the documentation has them."""
    _, cos, sin, x = arrays(25)
    weight = jnp.linspace(0.5, 1.5, 16)

    def loss(x, cos, sin, weight):
        y = gj.rotary(x, cos, sin)
        z = gj.norm_rope(y, weight, norm_type="rms_affine", out_layout="BSND").y
        return jnp.sin(gj.norm_rope_concat(z, encoder_query=z, norm_type="layer").query).sum()

    gradients, inputs = jax.jit(jax.grad(loss, (0, 1, 2, 3))), (x, cos, sin, weight)
    operators = ("rotary", "norm_rope", "norm_rope_concat")
    names = [f"gyrograd_{operator}{direction}" for operator in operators for direction in ("", "_backward")]
    checks = [jax.export.DisabledSafetyCheck.custom_call(name) for name in names]
    exported = jax.export.export(gradients, disabled_checks=checks)(*inputs)
    assert_equal(exported.call(*inputs), gradients(*inputs))


def test_symbolic_shapes_are_refused():
    """As jax.export has them."""
    batch, rows = jax.export.symbolic_shape("b, s")
    x, table = (jax.ShapeDtypeStruct((n, rows, 3, 16), np.float32) for n in (batch, 1))
    with pytest.raises(ValueError, match=r"rotary: x has shape \[b, s, 3, 16\]; each extent must be a number"):
        jax.eval_shape(gj.rotary, x, table, table)


def test_importing_gyrograd_imports_no_jax():
    code = "import sys, gyrograd; assert not {'jax', 'jaxlib', 'gyrograd.jax'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)

"""The custom calls below gyrograd.jax: the interface's structures, what is refused, and that no Python runs in them."""

import ctypes
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from formulas import problem
from jax_formulas import as_jax, assert_equal, custom_calls

import gyrograd as gg
import gyrograd.jax as gj

ROOT = Path(__file__).parents[2]


def test_the_structures_are_those_of_jaxlib():
    compiler = shutil.which("c++")
    assert compiler, "a C++ compiler, as for building the package"
    includes = [f"-I{ROOT}", f"-I{jax.ffi.include_dir()}"]
    done = subprocess.run(
        [compiler, "-std=c++20", "-fsyntax-only", *includes, ROOT / "tests/python/xla_ffi_abi.cc"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def call(target, results, *operands, **numbers):
    return jax.ffi.ffi_call(f"gyrograd_{target}", results)(*operands, **numbers)


NUMBERS = {"mode": 0, "per_pair_tables": 0, "rotary_dim": -1, "rotary_offset": 0}


def numbers(**more):
    return {name: np.int64(number) for name, number in (NUMBERS | more).items()}


def test_what_the_core_refuses_is_an_error_of_xla():
    """Where tracing could not tell: here a program that the package does not write."""
    _, cos, sin, x = as_jax(*problem(1, (2, 5, 3, 16), (1, 5, 1, 16)))
    like = jax.ShapeDtypeStruct(x.shape, x.dtype)
    assert_equal([call("rotary", like, x, cos, sin, **numbers())], [gg.rotary(x, cos, sin)])
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"INVALID_ARGUMENT: rotary: cos has shape .* rotary_dim = 8"):
        call("rotary", like, x, cos[..., :8], sin[..., :8], **numbers()).block_until_ready()
    with pytest.raises(jax.errors.JaxRuntimeError, match="INVALID_ARGUMENT: rotary: mode is 9"):
        call("rotary", like, x, cos, sin, **numbers(mode=9)).block_until_ready()


@pytest.mark.parametrize("lack", ["an argument", "a result", "a type", "mode"])
def test_malformed_calls_are_errors_of_xla(lack):
    _, cos, sin, x = as_jax(*problem(2, (2, 5, 3, 16), (1, 5, 1, 16)))
    like = jax.ShapeDtypeStruct(x.shape, x.dtype)
    operands, results, options = [x, cos, sin], [like], numbers()
    if lack == "an argument":
        operands.pop()
    elif lack == "a result":
        results.pop()
    elif lack == "a type":
        operands[1] = jnp.ones(cos.shape, int)
    else:
        options["mode"] = np.int32(1)
    with pytest.raises(jax.errors.JaxRuntimeError, match=f"gyrograd: a custom call lacks {lack}"):
        jax.block_until_ready(jax.ffi.ffi_call("gyrograd_rotary", results, has_side_effect=True)(*operands, **options))


# ---- no Python


def training_step():
    """Gradients by every custom call, and their arguments."""
    _, cos, sin, x = as_jax(*problem(3, (2, 64, 4, 32), (1, 64, 1, 32)))
    weight = jnp.linspace(0.5, 1.5, 32)
    tables = [table[0, :, 0] for table in (cos, sin)]

    def loss(x, cos, sin, weight):
        y = gj.rotary(x, cos, sin)
        z = gj.norm_rope(y, weight, None, *tables, norm_type="rms_affine", rope_type="half", out_layout="BSND").y
        both = gj.norm_rope_concat(z, z, z, norm_type="layer", rope_cos=tables[0], rope_sin=tables[1], rope_type="half")
        return sum(jnp.sin(joint).sum() for joint in both[:3])

    return jax.grad(loss, (0, 1, 2, 3)), (x, cos, sin, weight)


@pytest.fixture
def no_forced_switches():
    """Threads change only where one lets go of the GIL by itself."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    yield
    sys.setswitchinterval(interval)


def is_done_without_the_gil(compiled, arguments, gate, tries):
    """Whether a compiled program, which waits for `gate`, ends while this thread never lets go of the GIL.

    `gate` is an array that is not there yet, so that the program cannot have run before. `tries` count from there on.
    """
    hold = ctypes.PyDLL(None).usleep  # unlike CDLL's, a call that keeps the GIL
    results = jax.tree.leaves(compiled(*arguments, gate))
    while not gate.is_ready():
        hold(1000)
    for _ in range(tries):
        hold(1000)
        if all(result.is_ready() for result in results):
            return True
    return False


def slow_gate():
    """A number that takes long to compute; no Python in it."""
    matrix = jnp.ones((600, 600)) / 600
    return jax.jit(lambda m: jax.lax.fori_loop(0, 20, lambda _, power: power @ m, m)[0, 0] * 0)(matrix)


@pytest.mark.parametrize("calls_python", [False, True])
def test_no_python_runs_in_a_compiled_function(no_forced_switches, calls_python):
    """The thread that asked for a result holds the GIL until it is there; a program that calls Python never ends so."""
    gradients, arguments = training_step()

    def function(*inputs):
        *inputs, gate = inputs
        if calls_python:
            gate = jax.pure_callback(lambda value: value, jax.ShapeDtypeStruct((), jnp.float32), gate)
        return gradients(inputs[0] + gate, *inputs[1:])

    compiled = jax.jit(function).lower(*arguments, jnp.float32(0)).compile()
    assert jax.block_until_ready(compiled(*arguments, jnp.float32(0)))
    assert is_done_without_the_gil(compiled, arguments, slow_gate(), 300 if calls_python else 60_000) != calls_python


def test_the_custom_calls_are_all_there_is():
    gradients, arguments = training_step()
    targets, text = custom_calls(gradients, *arguments)
    operators = ["norm_rope", "norm_rope_backward", "norm_rope_concat", "norm_rope_concat_backward", "rotary",
                 "rotary_backward"]  # fmt: skip
    assert targets == [f"gyrograd_{name}" for name in operators]
    assert "callback" not in text

"""A small transformer in plain JAX trains with gyrograd.jax as with the formulas."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax_formulas import norm, rotary

import gyrograd.jax as gj

LAYERS, HEADS, WIDTH, ROWS, WORDS, STEPS = 2, 4, 64, 24, 50, 20
DIM = WIDTH // HEADS


def parameters():
    keys = iter(jax.random.split(jax.random.key(0), 40))

    def matrix(*shape):
        return jax.random.normal(next(keys), shape) / np.sqrt(shape[0])

    layers = [
        {
            "qkv": matrix(WIDTH, 3 * WIDTH),
            "out": matrix(WIDTH, WIDTH),
            "up": matrix(WIDTH, 4 * WIDTH),
            "down": matrix(4 * WIDTH, WIDTH),
            "q_norm": jnp.ones(DIM),
            "k_norm": jnp.ones(DIM),
        }
        for _ in range(LAYERS)
    ]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *layers)
    return {"words": matrix(WORDS, WIDTH), "layers": stacked, "frequencies": 10000.0 ** -jnp.linspace(0, 1, DIM // 2)}


def stock_attention_input(x, weight, cos, sin):
    return rotary(norm(x, "rms_affine", weight).swapaxes(1, 2), cos[None, None], sin[None, None])


def normed_attention_input(x, weight, cos, sin):
    """norm and rotary in one call; its tables are not learned."""
    cos, sin = jax.lax.stop_gradient((cos, sin))
    return gj.norm_rope(x, weight, None, cos, sin, norm_type="rms_affine", rope_type="half").y


def turned_attention_input(x, weight, cos, sin):
    """rotary alone, whose tables are learned."""
    return gj.rotary(norm(x, "rms_affine", weight).swapaxes(1, 2), cos[None, None], sin[None, None], in_place=True)


def loss(parameters, tokens, attention_input):
    angles = jnp.arange(ROWS)[:, None] * parameters["frequencies"]
    angles = jnp.concatenate([angles, angles], -1)
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    x = parameters["words"][tokens]

    @jax.checkpoint
    def layer(x, p):
        q, k, v = jnp.split((norm(x, "rms") @ p["qkv"]).reshape(*x.shape[:2], 3 * HEADS, DIM), 3, 2)
        q, k = attention_input(q, p["q_norm"], cos, sin), attention_input(k, p["k_norm"], cos, sin)
        scores = jnp.einsum("bnsd,bntd->bnst", q, k) / np.sqrt(DIM)
        scores = jnp.where(jnp.tril(jnp.ones((ROWS, ROWS), bool)), scores, -jnp.inf)
        y = jnp.einsum("bnst,btnd->bsnd", jax.nn.softmax(scores), v).reshape(x.shape)
        x = x + y @ p["out"]
        return x + jax.nn.gelu(norm(x, "rms") @ p["up"]) @ p["down"], None

    x, _ = jax.lax.scan(layer, x, parameters["layers"])
    logits = jax.nn.log_softmax(norm(x, "rms") @ parameters["words"].T)
    return -jnp.take_along_axis(logits[:, :-1], tokens[:, 1:, None], -1).mean()


def train(attention_input, learns_tables):
    def step(parameters, tokens):
        value, gradients = jax.value_and_grad(loss)(parameters, tokens, attention_input)
        if not learns_tables:
            gradients["frequencies"] = jnp.zeros_like(gradients["frequencies"])
        return jax.tree.map(lambda p, g: p - 0.05 * g, parameters, gradients), value

    step = jax.jit(step, donate_argnums=0)
    state, losses = parameters(), []
    for i in range(STEPS):
        tokens = jax.random.randint(jax.random.key(i), (4, ROWS), 0, WORDS) // 2
        state, value = step(state, tokens)
        losses.append(float(value))
    return losses, state


@pytest.mark.parametrize(("ours", "learns_tables"), [(normed_attention_input, False), (turned_attention_input, True)])
def test_losses_are_equal(ours, learns_tables):
    """Up to what compilers may fuse in the stock's arithmetic."""
    (losses, state), (want, stock) = (train(function, learns_tables) for function in (ours, stock_attention_input))
    assert want[-1] < want[0] - 0.2, "nothing was learned"
    np.testing.assert_allclose(losses, want, rtol=2e-6)
    for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(stock), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    assert (state["frequencies"] != parameters()["frequencies"]).any() == learns_tables

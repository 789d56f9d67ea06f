"""The smallest JAX program: a rotary embedding's gradients, of its input and its tables, in a compiled function."""

import jax
import jax.numpy as jnp

import gyrograd.jax as gj

x = jnp.arange(1.0, 9).reshape(1, 8)
cos, sin = jnp.zeros((1, 8)), jnp.ones((1, 8))


@jax.jit
def gradients(dy: jax.Array, x: jax.Array, cos: jax.Array, sin: jax.Array) -> tuple[jax.Array, ...]:
    y, backward = jax.vjp(gj.rotary, x, cos, sin)  # mode half, unless said
    return y, *backward(dy)


for result in gradients(x, x, cos, sin):
    print(result[0].tolist())

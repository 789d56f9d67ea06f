"""The arrays of a call: what is taken, what is refused, and what is told of them to the core."""

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

_TYPES = {jnp.dtype(name): name for name in ("float64", "float32", "float16", "bfloat16")}
Named = dict[str, jax.Array | None]


def taken(operation: str, **arrays: Any) -> Named:
    """JAX's arrays, traced ones too, as they are; NumPy's as JAX takes them.

    Raises:
      TypeError: an argument is no array, or of a type that no operator has.
      ValueError: one is not on the CPU.
    """
    return {name: _taken(operation, name, array) for name, array in arrays.items()}


def _taken(operation: str, name: str, array: Any) -> jax.Array | None:
    if array is None:
        return None
    if isinstance(array, np.ndarray):
        array = jnp.asarray(array)
    if not isinstance(array, jax.Array):
        raise TypeError(f"{operation}: {name} is a {type(array).__name__}; it must be a jax.Array")
    if array.dtype not in _TYPES:
        types = " or ".join(", ".join(_TYPES.values()).rsplit(", ", 1))
        raise TypeError(f"{operation}: {name} has type {array.dtype.name}; it must be {types}")
    if not isinstance(array, jax.core.Tracer):
        platform = next(iter(array.sharding.device_set)).platform
        if platform != "cpu":
            raise ValueError(f"{operation}: {name} is on {platform}; it must be on the CPU")
    return array


def required(operation: str, arrays: Named) -> None:
    """Raises TypeError where an array is None."""
    for name, array in arrays.items():
        if array is None:
            raise TypeError(f"{operation}: {name} is None; it must be a jax.Array")


def shapes(arrays: Named) -> dict[str, tuple[tuple[int, ...], str] | None]:
    """(shape, type) of each, as the core takes them in place of arrays."""
    return {name: None if array is None else (array.shape, _TYPES[array.dtype]) for name, array in arrays.items()}


def is_narrow(array: Any) -> bool:
    return array.dtype.itemsize == 2


def widened(arrays: Named, names: Iterable[str]) -> Named:
    """Those of 16 bits as float32, which changes no value, and so no result but the type of their gradients."""
    narrow = [name for name in names if arrays[name] is not None and is_narrow(arrays[name])]
    return arrays | {name: arrays[name].astype(jnp.float32) for name in narrow}


def _mesh_axes(array: jax.Array) -> frozenset[str]:
    """The axes of shard_map's mesh that it varies over."""
    axes: frozenset[str] = jax.typeof(array).mat.varying
    return axes


def varying(arrays: Named, groups: Iterable[Iterable[str]]) -> Named:
    """Inside shard_map: every array as one that varies over the mesh's axes that any varies over.

    The gradient of an array that is the same on several devices is then their sum. Of `groups`, arrays of one type that
    get sums for gradients, the partial sums are float32: they are added before they are rounded.
    """
    axes = {name: _mesh_axes(array) for name, array in arrays.items() if array is not None}
    everything = frozenset().union(*axes.values())
    if all(own == everything for own in axes.values()):
        return arrays
    for group in groups:
        group = [name for name in group if name in axes]
        if any(axes[name] != everything for name in group):
            arrays = widened(arrays, group)
    result = dict(arrays)
    for name, own in axes.items():
        if own != everything:
            result[name] = jax.lax.pcast(arrays[name], tuple(sorted(everything - own)), to="varying")
    return result


def flagged(flags: Iterable[bool]) -> jax.Array:
    """Flags that are known when a program is traced, as the shape of an array. What custom_vjp's rules hand on must be
    of one tree whatever is differentiated: JAX keeps the tree of the last trace for programs of earlier ones.
    """
    return jnp.zeros(tuple(int(flag) for flag in flags), bool)


def flags_of(array: jax.Array) -> tuple[bool, ...]:
    """The opposite of flagged."""
    return tuple(extent == 1 for extent in array.shape)

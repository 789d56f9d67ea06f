"""The arrays of a call: what is taken, what is refused, and what is told of them to the core."""

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

_TYPES = {jnp.dtype(name): name for name in ("float64", "float32", "float16", "bfloat16")}
Named = dict[str, jax.Array | None]


def taken(operation: str, **arrays: Any) -> Named:
    """JAX's arrays, traced ones too, as they are; NumPy's as JAX takes them.

    Raises:
      TypeError: an argument is no array, or of a type that no operator has.
      ValueError: one is not on the CPU, or its shape is not known when the program is traced.
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
    if not all(isinstance(extent, int) for extent in array.shape):
        shape = ", ".join(map(str, array.shape))
        raise ValueError(f"{operation}: {name} has shape [{shape}]; each extent must be a number, not a symbol")
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


def untraced(operation: str, **options: Any) -> None:
    """Raises TypeError where an option is known only when the program runs."""
    for name, option in options.items():
        if isinstance(option, jax.core.Tracer):
            raise TypeError(
                f"{operation}: {name} is traced by JAX; it must be known when the program is traced, as one of jit's "
                "static_argnames is"
            )


def hinted(error: ValueError, arrays: Named) -> ValueError:
    """The core's refusal, of a shape with what the transformation at work has to do with it."""
    text = str(error)
    if " has shape " not in text:
        return error
    mapped = [name for name, array in arrays.items() if type(array).__name__ == "BatchTracer"]  # JAX shows it to nobody
    others = [name for name, array in arrays.items() if array is not None and name not in mapped]
    if "rank" in text and mapped and others:
        text += f"; hint: vmap has taken an axis of {' and '.join(mapped)}, and none of {' and '.join(others)}"
    if jax.sharding.get_abstract_mesh().manual_axes:
        text += "; hint: in shard_map shapes are those of one device, whose rows take their own part of the tables"
    return ValueError(text)


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


@jax.tree_util.register_static
class Static(tuple):
    """What the types of a call's arrays tell: part of a tree, and no array."""


def shardings(*arrays: jax.Array | None) -> Static:
    """How each is split over the explicit axes of a mesh, as its type says."""
    return Static(None if array is None else jax.typeof(array).sharding for array in arrays)


def split_as(array: jax.Array | None, sharding: NamedSharding) -> jax.Array | None:
    """A gradient, split over a mesh's explicit axes as the array that it is of, which its type must be."""
    own = None if array is None else jax.typeof(array).sharding
    if own is None or own.mesh.empty or own.spec == sharding.spec:
        return array
    return jax.sharding.reshard(array, own.update(spec=sharding.spec))


def flagged(flags: Iterable[bool]) -> jax.Array:
    """Flags that are known when a program is traced, as the shape of an array. What custom_vjp's rules hand on must be
    of one tree whatever is differentiated: JAX keeps the tree of the last trace for programs of earlier ones.
    """
    return jnp.zeros(tuple(int(flag) for flag in flags), bool)


def flags_of(array: jax.Array) -> tuple[bool, ...]:
    """The opposite of flagged."""
    return tuple(extent == 1 for extent in array.shape)

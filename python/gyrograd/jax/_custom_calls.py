"""Custom calls of XLA: the core's handlers, how a call is split over devices, and how it is batched."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import NamedSharding, PartitionSpec

from gyrograd import _core
from gyrograd.jax._arrays import is_narrow

Arrays = tuple[jax.Array, ...]
Shapes = Sequence[tuple[int, ...]]
Names = tuple[str, ...]
Numbers = tuple[tuple[str, int | float], ...]

for _name, _handler in _core.xla_handlers().items():
    jax.ffi.register_ffi_target(f"gyrograd_{_name}", _handler, platform="cpu", api_version=1)


@dataclass(frozen=True)
class Result:
    """One result.

    Attributes:
      axes: the names of its axes.
      model: the operand that has its type.
      is_statistic: it has the arithmetic's type instead, float64 beside float64 and otherwise float32.
      summed: the names of the axes that it is a sum over.
    """

    axes: Names
    model: int = 0
    is_statistic: bool = False
    summed: Names = ()


@dataclass(frozen=True)
class Axes:
    """The axes of a call's arrays by names. Axes of one name have one extent, and are split alike over devices.

    Attributes:
      whole: the names of axes that are not split.
      extents: those of results' axes that no operand has.
    """

    operands: tuple[Names, ...]
    results: tuple[Result, ...]
    whole: frozenset[str]
    extents: Mapping[str, int]

    def sizes(self, shapes: Shapes) -> dict[str, int]:
        """Name -> extent."""
        sizes = dict(self.extents)
        for names, shape in zip(self.operands, shapes, strict=True):
            sizes |= dict(zip(names, shape, strict=True))
        return sizes


@dataclass(frozen=True)
class CustomCall:
    """A custom call with its numbers.

    Attributes:
      axes: the axes, for operands of these shapes. The first operand has every axis that others may be split over.
      widened: the operands that become float32 where a result of their type is added up over devices.
      aliases: operand -> the result that takes its memory.
    """

    target: str
    numbers: Numbers
    axes: Callable[[Shapes], Axes]
    widened: tuple[int, ...] = ()
    aliases: tuple[tuple[int, int], ...] = ()

    def compute(self, *operands: jax.Array) -> Arrays:
        """The call on these operands, as it is."""
        avals = [jax.typeof(operand) for operand in operands]
        axes = self.axes([aval.shape for aval in avals])
        results = [_result_aval(axes, result, avals) for result in axes.results]
        call = jax.ffi.ffi_call(f"gyrograd_{self.target}", results, input_output_aliases=dict(self.aliases))
        return tuple(call(*operands, **{name: _attribute(number) for name, number in self.numbers}))

    def build(self, batch: Callable[..., Any]) -> Callable[..., Arrays]:
        """The call as JAX's transformations take it.

        Args:
          batch: the rule of vmap, which is given the result, too: (function, samples, batched, operands) -> results.
        """
        partitioned = custom_partitioning(self.compute)
        partitioned.def_partition(self._partition, sharding_rule=self._sharding_rule)
        function = custom_vmap(lambda *operands: partitioned(*operands))

        @function.def_vmap
        def rule(samples: int, batched: Sequence[bool], *operands: jax.Array) -> tuple[Arrays, tuple[bool, ...]]:
            results = tuple(batch(function, samples, batched, operands))
            return results, (True,) * len(results)

        return function

    # ---- splitting over devices

    def _sharding_rule(self, mesh: Any, operands: Sequence[Any], results: Sequence[Any]) -> tuple[str, dict[str, Any]]:
        """The names of axes in the words of Shardy, which need not know of sums: _partition adds."""
        axes = self.axes([tuple(operand.shape) for operand in operands])
        left = ", ".join(" ".join(names) for names in axes.operands)
        right = ", ".join(" ".join(result.axes) for result in axes.results)
        used = dict.fromkeys(name for names in (*axes.operands, *(r.axes for r in axes.results)) for name in names)
        whole = tuple(name for name in used if name in axes.whole)  # in the order in which they appear, as it must be
        return f"{left} -> {right}", {"need_replication_factors": whole}

    def _partition(self, mesh: Any, operands: Sequence[Any], results: Sequence[Any]) -> tuple[Any, ...]:
        """What each device computes, and how the arrays are split for it."""
        axes = self.axes([operand.shape for operand in operands])
        specs = [getattr(operand.sharding, "spec", ()) for operand in operands]
        places = _places(mesh, axes, [operand.shape for operand in operands], specs)

        def split(names: Names) -> NamedSharding:
            return NamedSharding(mesh, PartitionSpec(*(places.get(name) for name in names)))

        added = [_mesh_axes(places, result.summed) for result in axes.results]
        dtypes = [result.dtype for result in results]

        def local(*operands: jax.Array) -> Arrays:
            if any(added):
                operands = tuple(
                    operand.astype(jnp.float32) if i in self.widened and is_narrow(operand) else operand
                    for i, operand in enumerate(operands)
                )
            parts = zip(self.compute(*operands), added, dtypes, strict=True)
            return tuple((jax.lax.psum(part, over) if over else part).astype(dtype) for part, over, dtype in parts)

        result_shardings = tuple(split(result.axes) for result in axes.results)
        return mesh, local, result_shardings, tuple(split(names) for names in axes.operands)


def _attribute(number: float) -> np.generic:
    return np.float64(number) if isinstance(number, float) else np.int64(number)


def _result_aval(axes: Axes, result: Result, avals: Sequence[Any]) -> Any:
    """A result's shape and type, on the mesh that the operands are on, and split as they are where types say so."""
    shapes = [aval.shape for aval in avals]
    meshes = [aval.sharding.mesh for aval in avals]
    mesh = next((mesh for mesh in meshes if not mesh.empty), meshes[0])
    places = _places(mesh, axes, shapes, [aval.sharding.spec for aval in avals])
    sizes = axes.sizes(shapes)
    dtype = avals[result.model].dtype
    return avals[0].update(
        shape=tuple(sizes[name] for name in result.axes),
        dtype=jnp.dtype(jnp.float32) if result.is_statistic and dtype.itemsize < 8 else dtype,
        weak_type=False,
        sharding=avals[0].sharding.update(mesh=mesh, spec=PartitionSpec(*(places.get(name) for name in result.axes))),
    )


def _tuple(place: Any) -> tuple[str, ...]:
    return place if isinstance(place, tuple) else (place,)


def _mesh_axes(places: Mapping[str, Any], names: Names) -> tuple[str, ...]:
    return tuple(axis for name in names if name in places for axis in _tuple(places[name]))


def _places(mesh: Any, axes: Axes, shapes: Shapes, specs: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """Name -> the mesh's axes that it is split over, as the operands are. Where two operands disagree the first has it.
    Axes that do not divide stay whole: what pads them would be summed.
    """
    places: dict[str, Any] = {}
    together = [set(names) for names in (*axes.operands, *(result.axes for result in axes.results))]
    for names, shape, spec in zip(axes.operands, shapes, specs, strict=True):
        for name, extent, place in zip(names, shape, spec, strict=False):
            if place is None or name in axes.whole or name in places:
                continue
            taken = {n for group in together if name in group for n in group}
            parts = np.prod([mesh.shape[axis] for axis in _tuple(place)])
            if extent % parts == 0 and not set(_tuple(place)) & set(_mesh_axes(places, tuple(taken))):
                places[name] = place
    return places


def place_of(array: jax.Array, axis: int) -> Any:
    """The explicit axes of a mesh that an axis of the array is split over, as its type says; None where it is whole."""
    return jax.typeof(array).sharding.spec[axis]


def with_samples_at(place: Any, array: jax.Array) -> jax.Array:
    """An array whose first axis, vmap's, is split over these explicit axes of a mesh."""
    sharding = jax.typeof(array).sharding
    others = {axis for part in sharding.spec[1:] if part is not None for axis in _tuple(part)}
    if sharding.spec[0] == place or (place is not None and others & set(_tuple(place))):
        return array
    return jax.sharding.reshard(array, sharding.update(spec=PartitionSpec(place, *sharding.spec[1:])))


def looped(
    function: Callable[..., Arrays], samples: int, batched: Sequence[bool], operands: Sequence[jax.Array]
) -> Arrays:
    """A rule of vmap that calls once a sample. Samples that are split over explicit axes of a mesh are gathered before
    the loop, which takes none, and the results split after it.
    """
    some = [operand for operand, is_batched in zip(operands, batched, strict=True) if is_batched]
    places = [place_of(operand, 0) for operand in some]
    some = [with_samples_at(None, operand) for operand in some]

    def one(slices: Sequence[jax.Array]) -> Arrays:
        left = iter(slices)
        return function(
            *(next(left) if is_batched else operand for operand, is_batched in zip(operands, batched, strict=True))
        )

    place = next((place for place in places if place is not None), None)
    return tuple(with_samples_at(place, result) for result in jax.lax.map(one, some))

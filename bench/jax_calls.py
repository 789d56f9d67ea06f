"""Times gyrograd.jax against the formula under jax.jit: small calls, the backward, and what splitting it adds.

Contestants take turns round by round; each turn is one call to warm up and a batch that is timed. A figure is the
median of a contestant's times per call, and its ratio the median over the rounds of its time through the first one's.
With --devices the CPU is cut into so many devices, and the backward over all of them is timed beside that of one.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

Work = Callable[[], Any]
SHAPE, TABLE_SHAPE = (2, 4096, 32, 128), (1, 4096, 1, 128)
CALL_SHAPE, CALL_TABLE_SHAPE = (1, 16, 4, 64), (1, 16, 1, 64)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--sequence", type=int, default=SHAPE[1], help="rows of the large problem (%(default)s)")
    parser.add_argument("--devices", type=int, default=0, help="also split the heads over so many devices")
    return parser.parse_args()


def timed(work: Work, calls: int) -> float:
    import jax

    jax.block_until_ready(work())
    start = time.perf_counter()
    for _ in range(calls):
        result = work()
    jax.block_until_ready(result)
    return (time.perf_counter() - start) / calls


def report(title: str, contestants: dict[str, Work], rounds: int, calls: int) -> None:
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, work in contestants.items():
            times[name].append(timed(work, calls))
    first = next(iter(times))
    for name, own in times.items():
        ratio = statistics.median(mine / base for mine, base in zip(own, times[first], strict=True))
        print(f"{title:44} {name:24} {statistics.median(own) * 1e6:12.1f} us  {ratio:6.2f}")


def formula(x: Any, cos: Any, sin: Any) -> Any:
    """The usual way of writing it, in half mode."""
    import jax.numpy as jnp

    first, second = jnp.split(x, 2, -1)
    return x * cos + jnp.concatenate([-second, first], -1) * sin


def arrays(shape: tuple[int, ...], table_shape: tuple[int, ...], dtype: str) -> list[Any]:
    """dy, x, cos, sin."""
    import jax.numpy as jnp
    import numpy as np

    rng = np.random.default_rng(7)
    angles = rng.uniform(-3, 3, table_shape)
    rows = [rng.standard_normal(shape, np.float32) for _ in range(2)]
    return [jnp.asarray(array, dtype) for array in (*rows, np.cos(angles), np.sin(angles))]


def gradients(turn: Callable[..., Any], argnums: tuple[int, ...]) -> Callable[..., Any]:
    """The backward alone: dx, or all three."""
    import jax

    def backward(dy: Any, *inputs: Any) -> Any:
        wanted = [inputs[i] for i in argnums]
        _, pull = jax.vjp(lambda *some: turn(*some, *inputs[len(argnums) :]), *wanted)
        return pull(dy)

    return backward


def run(options: argparse.Namespace) -> None:
    import jax

    import gyrograd.jax as gj

    turns = {"gyrograd": gj.rotary, "formula": formula}
    dy, *inputs = arrays(CALL_SHAPE, CALL_TABLE_SHAPE, "float32")
    ways: dict[str, Work] = {f"{name}, jit": partial(jax.jit(turn), *inputs) for name, turn in turns.items()}
    ways |= {f"{name}, eager": partial(turn, *inputs) for name, turn in turns.items()}
    report(f"forward {CALL_SHAPE} float32", ways, options.rounds, 200)
    shape, table = ((*own[:1], options.sequence, *own[2:]) for own in (SHAPE, TABLE_SHAPE))
    for dtype in ("bfloat16", "float32"):
        dy, *inputs = arrays(shape, table, dtype)
        for title, argnums in (("dx", (0,)), ("dx, dcos, dsin", (0, 1, 2))):
            works: dict[str, Work] = {}
            for name, turn in turns.items():
                works[name] = partial(jax.jit(gradients(turn, argnums)), dy, *inputs)
            if options.devices:
                everywhere = partial(jax.jit(gradients(gj.rotary, argnums)), *split(dy, inputs))
                works[f"gyrograd, {options.devices} devices"] = everywhere
            report(f"{title} {shape} {dtype}", works, options.rounds, 1)


def split(dy: Any, inputs: list[Any]) -> list[Any]:
    """Rows over the heads, tables on every device."""
    import jax
    from jax.sharding import AxisType, NamedSharding, PartitionSpec

    mesh = jax.make_mesh((jax.device_count(),), ("heads",), axis_types=(AxisType.Auto,))
    rows, whole = (NamedSharding(mesh, spec) for spec in (PartitionSpec(None, None, "heads"), PartitionSpec()))
    return [
        jax.device_put(array, place) for array, place in zip((dy, *inputs), (rows, rows, whole, whole), strict=True)
    ]


def main() -> None:
    options = parse()
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    if options.devices:
        flag = f"--xla_force_host_platform_device_count={options.devices}"
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}"
    run(options)


if __name__ == "__main__":
    main()

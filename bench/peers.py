"""Times gyrograd against PyTorch and JAX on the same arrays, each doing the whole job of the backward.

Contestants take turns round by round; each turn is one call to warm up and one that is timed. A contestant's figure is
the median of its times, and its ratio the median over the rounds of its time through gyrograd's. A framework that is
not installed is left out.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import pathlib
import statistics
import time
from collections.abc import Callable

import ml_dtypes
import numpy as np

import gyrograd

try:
    import torch

    import gyrograd.torch
except ImportError:
    torch = None
try:
    import jax
    import jax.numpy as jnp
except ImportError:
    jax = None

SHAPE = (2, 4096, 32, 128)
TABLE_SHAPE = (1, 4096, 1, 128)
CALL_SHAPE = (1, 16, 4, 64)
CALL_TABLE_SHAPE = (1, 16, 1, 64)
NUMPY_TYPES = {"bf16": ml_dtypes.bfloat16, "f32": np.float32}
Work = Callable[[], object]


@dataclasses.dataclass(frozen=True)
class Problem:
    """One line of the comparison."""

    mode: str
    dtype: str
    tables: bool

    @property
    def outputs(self) -> str:
        return "dx+tables" if self.tables else "dx"


def make_arrays(shape: tuple[int, ...], table_shape: tuple[int, ...], dtype: str) -> list[np.ndarray]:
    """dy, cos, sin, x; the two table values of a pair are equal, as models have them."""
    rng = np.random.default_rng(7)
    angles = rng.uniform(-3, 3, table_shape).astype(np.float32)
    arrays = [
        rng.standard_normal(shape, np.float32),
        np.cos(angles),
        np.sin(angles),
        rng.standard_normal(shape, np.float32),
    ]
    return [array.astype(NUMPY_TYPES[dtype]) for array in arrays]


# --- PyTorch ---


def torch_tensors(arrays: list[np.ndarray]) -> list[torch.Tensor]:
    if arrays[0].dtype == np.float32:
        return [torch.from_numpy(array) for array in arrays]
    return [torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16) for array in arrays]


def torch_forward(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, mode: str) -> torch.Tensor:
    """The usual way of writing it: x*cos + rotate(x)*sin."""
    if mode == "half":
        first, second = x.chunk(2, dim=-1)
        rotated = torch.cat((-second, first), dim=-1)
    else:
        rotated = torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)
    return x * cos + rotated * sin


def torch_pairs(tensor: torch.Tensor, mode: str) -> tuple[torch.Tensor, torch.Tensor]:
    tensor = tensor.float()
    return tensor.chunk(2, dim=-1) if mode == "half" else (tensor[..., ::2], tensor[..., 1::2])


def torch_join(first: torch.Tensor, second: torch.Tensor, mode: str) -> torch.Tensor:
    return torch.cat((first, second), dim=-1) if mode == "half" else torch.stack((first, second), dim=-1).flatten(-2)


def torch_formula(
    dy: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, x: torch.Tensor, mode: str, tables: bool
) -> list[torch.Tensor]:
    """The backward written out, in f32."""
    dy0, dy1 = torch_pairs(dy, mode)
    cos0, cos1 = torch_pairs(cos, mode)
    sin0, sin1 = torch_pairs(sin, mode)
    results = [torch_join(cos0 * dy0 + sin1 * dy1, cos1 * dy1 - sin0 * dy0, mode)]
    if tables:
        x0, x1 = torch_pairs(x, mode)
        axes = [axis for axis in range(dy.dim()) if cos.shape[axis] != dy.shape[axis]]
        results.append(torch_join(dy0 * x0, dy1 * x1, mode).sum(axes, keepdim=True))
        results.append(torch_join(-dy0 * x1, dy1 * x0, mode).sum(axes, keepdim=True))
    return [result.to(dy.dtype) for result in results]


def torch_backward(forward: Callable, tensors: list[torch.Tensor], problem: Problem) -> Work:
    """The backward alone, by autograd; the forward has run before."""
    dy, cos, sin, x = (tensor.clone() for tensor in tensors)
    wanted = [x, cos, sin] if problem.tables else [x]
    for tensor in wanted:
        tensor.requires_grad_()
    y = forward(x, cos, sin, problem.mode)
    return lambda: torch.autograd.grad(y, wanted, dy, retain_graph=True)


def torch_contestants(problem: Problem, tensors: list[torch.Tensor], compiled: bool) -> dict[str, Work]:
    works = {
        "gyrograd.torch": torch_backward(gyrograd.torch.rotary, tensors, problem),
        "torch eager": torch_backward(torch_forward, tensors, problem),
    }
    if compiled:
        torch.compiler.reset()
        works["torch compiled autograd"] = torch_backward(torch.compile(torch_forward), tensors, problem)
        formula = torch.compile(torch_formula)
        works["torch compiled formula"] = lambda: formula(*tensors, problem.mode, problem.tables)
    return works


# --- JAX ---


def jax_forward(x: jax.Array, cos: jax.Array, sin: jax.Array, mode: str) -> jax.Array:
    dtype = x.dtype
    x, cos, sin = (array.astype(jnp.float32) for array in (x, cos, sin))
    if mode == "half":
        first, second = jnp.split(x, 2, axis=-1)
        rotated = jnp.concatenate((-second, first), axis=-1)
    else:
        rotated = jnp.stack((-x[..., 1::2], x[..., ::2]), axis=-1).reshape(x.shape)
    return (x * cos + rotated * sin).astype(dtype)


def jax_contestant(problem: Problem, arrays: list[np.ndarray]) -> Work:
    dy, cos, sin, x = (jnp.asarray(array) for array in arrays)

    @jax.jit
    def backward(dy, cos, sin, x):
        if problem.tables:
            return jax.vjp(lambda x, cos, sin: jax_forward(x, cos, sin, problem.mode), x, cos, sin)[1](dy)
        return jax.vjp(lambda x: jax_forward(x, cos, sin, problem.mode), x)[1](dy)

    return lambda: jax.block_until_ready(backward(dy, cos, sin, x))


# --- the comparison ---


def gyrograd_contestants(problem: Problem, arrays: list[np.ndarray], threads: int) -> dict[str, Work]:
    dy, cos, sin, x = arrays
    options = {"mode": problem.mode, "threads": threads}
    if problem.tables:
        out = (np.empty_like(dy), np.empty_like(cos), np.empty_like(sin))
        inputs = (dy, cos, sin, x)
    else:
        out = np.empty_like(dy)
        inputs = (dy, cos, sin)
    return {
        "gyrograd": lambda: gyrograd.rotary_backward(*inputs, **options, out=out),
        "gyrograd, new arrays": lambda: gyrograd.rotary_backward(*inputs, **options),
    }


def take_turns(works: dict[str, Work], rounds: int, repeats: int = 1) -> dict[str, list[float]]:
    """Seconds a call, by contestant and round."""
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for work in works.values():
        work()  # compiles
    for _ in range(rounds):
        for name, work in works.items():
            work()
            start = time.perf_counter()
            for _ in range(repeats):
                work()
            seconds[name].append((time.perf_counter() - start) / repeats)
    return seconds


def ratio(seconds: dict[str, list[float]], name: str, base: str = "gyrograd") -> float:
    return statistics.median(theirs / ours for theirs, ours in zip(seconds[name], seconds[base], strict=True))


def compare_problems(
    problems: list[Problem], rounds: int, threads: int, compiled: bool, writer: csv.DictWriter
) -> None:
    print(f"Backward of {SHAPE}, tables {TABLE_SHAPE}, {threads} threads, {rounds} rounds: ms, and times gyrograd's")
    for problem in problems:
        arrays = make_arrays(SHAPE, TABLE_SHAPE, problem.dtype)
        works = gyrograd_contestants(problem, arrays, threads)
        if torch:
            works |= torch_contestants(problem, torch_tensors(arrays), compiled)
        if jax:
            works["JAX jit"] = jax_contestant(problem, arrays)
        seconds = take_turns(works, rounds)
        print(f"\n{problem.dtype} {problem.mode} {problem.outputs}")
        for name in works:
            row = {
                "type": problem.dtype,
                "mode": problem.mode,
                "outputs": problem.outputs,
                "contestant": name,
                "ms": f"{statistics.median(seconds[name]) * 1e3:.3f}",
                "ratio": f"{ratio(seconds, name):.2f}",
            }
            writer.writerow(row)
            print(f"  {name:<26}{row['ms']:>10}{row['ratio']:>8} x", flush=True)


def autograd_step(arrays: list[np.ndarray], forward: Callable) -> Work:
    """Forward and backward through autograd, as a training step makes them."""
    dy, cos, sin, x = torch_tensors(arrays)
    x.requires_grad_()

    def step():
        x.grad = None
        forward(x, cos, sin, "half").backward(dy)

    return step


def empty_forward() -> Callable:
    """What an operator of Python's costs before it does anything."""

    class Empty(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, cos, sin, mode):
            return x.detach()

        @staticmethod
        def backward(ctx, dy):
            return dy, None, None, None

    return Empty.apply


def write_calls(title: str, base: str, works: dict[str, Work], rounds: int, writer: csv.DictWriter) -> None:
    seconds = take_turns(works, rounds, repeats=300)
    print(f"\n{title}: us, and times that of {base}")
    for name in works:
        microseconds = statistics.median(seconds[name]) * 1e6
        times = ratio(seconds, name, base)
        print(f"  {name:<34}{microseconds:>8.2f}{times:>8.2f} x", flush=True)
        row = {"type": "f32", "mode": "half", "outputs": "small call", "contestant": name}
        writer.writerow(row | {"ms": f"{microseconds / 1e3:.6f}", "ratio": f"{times:.2f}"})


def compare_calls(rounds: int, compiled: bool, writer: csv.DictWriter) -> None:
    """What a small call costs from Python, one thread: of the plain call, and through PyTorch's autograd."""
    arrays = make_arrays(CALL_SHAPE, CALL_TABLE_SHAPE, "f32")
    works = gyrograd_contestants(Problem("half", "f32", False), arrays, threads=1)
    write_calls(f"A small call, {CALL_SHAPE} f32 dx, one thread", "gyrograd", works, rounds, writer)
    if not torch:
        return
    torch.set_num_threads(1)
    forwards = {
        "torch eager": torch_forward,
        "gyrograd.torch": gyrograd.torch.rotary,
        "an empty autograd.Function": empty_forward(),
    }
    if compiled:
        torch.compiler.reset()
        forwards["torch compiled"] = torch.compile(torch_forward)
        forwards["gyrograd.torch compiled"] = torch.compile(gyrograd.torch.rotary)
    works = {name: autograd_step(arrays, forward) for name, forward in forwards.items()}
    write_calls("The same, forward and backward through autograd", "torch eager", works, rounds, writer)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one problem, without torch.compile")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--csv", type=pathlib.Path, default=pathlib.Path("peers.csv"))
    options = parser.parse_args()
    if torch:
        torch.set_num_threads(options.threads)
    problems = [
        Problem(mode, dtype, tables)
        for dtype in ("bf16", "f32")
        for mode in ("half", "interleave")
        for tables in (False, True)
    ]
    with options.csv.open("w", newline="") as file:
        writer = csv.DictWriter(file, ["type", "mode", "outputs", "contestant", "ms", "ratio"])
        writer.writeheader()
        chosen = problems[:1] if options.quick else problems
        compare_problems(chosen, options.rounds, options.threads, not options.quick, writer)
        compare_calls(options.rounds, not options.quick, writer)


if __name__ == "__main__":
    main()

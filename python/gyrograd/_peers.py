"""What gyrograd is compared with: the backwards as PyTorch and JAX compute them, each doing the whole job.

A peer's forms: PyTorch's autograd of the usual formula, eager and compiled; the backward written out in f32, compiled;
JAX's vjp of the formula in f32, under jit.
"""

from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import ml_dtypes
import numpy as np

import gyrograd
from gyrograd._concat_problem import ConcatProblem
from gyrograd._inputs import DTYPES
from gyrograd._turns import Work

EPS = 1e-5
# Parts of a rotary problem that the peers' formulas do not have, and what they must be.
PLAIN = {"mode": ("half", "interleave"), "per_pair_tables": (False,), "rotary_dim": (None,), "rotary_offset": (0,)}


def refusal(parts: dict[str, Any]) -> str | None:
    """Why the peers do not compute a problem of these parts; None where they do."""
    if parts["operator"] == "rotary":
        for name, values in PLAIN.items():
            if parts[name] not in values:
                return f"the peers know no {name} {parts[name]}"
        if "dx" not in parts["outputs"]:
            return "the peers compute no table gradients alone"
    elif not parts["is_plain"]:
        return "the peers know plain rotations of contiguous rows by one pair of tables"
    elif parts["rope_type"] not in ("none", "half", "interleave") or parts["key_heads"] != parts["heads"]:
        return "the peers know rotations half and interleave, and one number of heads"
    if parts["dtype"] not in ("f32", "bf16") or parts["table_dtype"] != parts["dtype"]:
        return "the peers are compared in f32 and bf16, all tensors of one type"
    return None


def contestants(parts: dict[str, Any], threads: int, compiled: bool, jax: bool = True) -> dict[str, Work]:
    """gyrograd and those peers that are installed, on the same contiguous arrays."""
    case = _RotaryCase(parts, threads) if parts["operator"] == "rotary" else _ConcatCase(parts, threads)
    works = {"gyrograd": case.gyrograd()}
    if find_spec("torch"):
        torch: Any = import_module("torch")
        torch.set_num_threads(threads)
        torch.compiler.reset()
        works |= case.torch_works(torch, compiled)
    if jax and find_spec("jax"):
        works["JAX jit"] = case.jax_work(import_module("jax"))
    return works


def autograd_steps(parts: dict[str, Any]) -> dict[str, Work]:
    """Forward and backward of a rotary problem through PyTorch's autograd, as a step of training has them, one thread.

    An empty function is what an operator of Python's costs before it does anything.
    """
    import torch

    import gyrograd.torch

    class Empty(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, cos: Any, sin: Any) -> Any:
            return x.detach()

        @staticmethod
        def backward(ctx: Any, dy: Any) -> Any:
            return dy, None, None

    torch.set_num_threads(1)
    case = _RotaryCase(parts, 1)
    dy, x, cos, sin = (torch_tensor(torch, array) for array in (case.dy, case.x, case.cos, case.sin))
    x.requires_grad_()

    def step(forward: Callable[..., Any]) -> Work:
        def work() -> None:
            x.grad = None
            forward(x, cos, sin).backward(dy)

        return work

    return {
        "PyTorch eager": step(lambda x, cos, sin: torch_rotary(torch, x, cos, sin, case.mode)),
        "gyrograd.torch": step(lambda x, cos, sin: gyrograd.torch.rotary(x, cos, sin, case.mode)),
        "an empty autograd.Function": step(Empty.apply),
    }


# ---- what the operators share


def torch_tensor(torch: Any, array: np.ndarray) -> Any:
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _torch_backward(torch: Any, forward: Callable[..., Any], inputs: Sequence[Any], gradients: Sequence[Any]) -> Work:
    """Autograd of a forward that has run before: the gradients of all `inputs` that require grad."""
    outputs = forward(*inputs)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    wanted = [tensor for tensor in inputs if tensor is not None and tensor.requires_grad]
    return lambda: torch.autograd.grad(outputs, wanted, gradients, retain_graph=True)


def _angles(numbers: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> tuple[np.ndarray, np.ndarray]:
    """cos and sin; the two values of a pair are equal, as models have them."""
    angles = numbers.uniform(-3, 3, shape).astype(np.float32)
    return np.cos(angles).astype(dtype), np.sin(angles).astype(dtype)


def torch_rotated(torch: Any, x: Any, mode: str) -> Any:
    """rotate(x), in the words of transformers."""
    if mode == "half":
        first, second = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
        return torch.cat((-second, first), dim=-1)
    return torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)


def torch_rotary(torch: Any, x: Any, cos: Any, sin: Any, mode: str) -> Any:
    """The usual way of writing it."""
    return (x * cos) + (torch_rotated(torch, x, mode) * sin)


def _torch_members(tensor: Any, mode: str) -> tuple[Any, Any]:
    return tensor.chunk(2, dim=-1) if mode == "half" else (tensor[..., ::2], tensor[..., 1::2])


def _torch_join(torch: Any, first: Any, second: Any, mode: str) -> Any:
    return torch.cat((first, second), dim=-1) if mode == "half" else torch.stack((first, second), dim=-1).flatten(-2)


def _torch_rotary_back(torch: Any, dy: Any, cos: Any, sin: Any, mode: str) -> Any:
    """dx of f32 tensors."""
    dy0, dy1 = _torch_members(dy, mode)
    cos0, cos1 = _torch_members(cos, mode)
    sin0, sin1 = _torch_members(sin, mode)
    return _torch_join(torch, cos0 * dy0 + sin1 * dy1, cos1 * dy1 - sin0 * dy0, mode)


def _jax_rotary(jnp: Any, x: Any, cos: Any, sin: Any, mode: str) -> Any:
    if mode == "half":
        first, second = jnp.split(x, 2, axis=-1)
        rotated = jnp.concatenate((-second, first), axis=-1)
    else:
        rotated = jnp.stack((-x[..., 1::2], x[..., ::2]), axis=-1).reshape(x.shape)
    return x * cos + rotated * sin


# ---- rotary


class _RotaryCase:
    """The backward of one rotary problem."""

    def __init__(self, parts: dict[str, Any], threads: int) -> None:
        numbers = np.random.default_rng(7)
        dtype = DTYPES[parts["dtype"]]
        self.mode, self.threads = parts["mode"], threads
        self.with_tables = len(parts["outputs"]) > 1
        self.dy, self.x = (numbers.standard_normal(parts["dy"], np.float32).astype(dtype) for _ in range(2))
        self.cos, self.sin = _angles(numbers, parts["tables"], dtype)

    @property
    def arrays(self) -> tuple[np.ndarray, ...]:
        return self.dy, self.cos, self.sin, self.x

    def gyrograd(self) -> Work:
        out: Any = np.empty_like(self.dy)
        inputs: tuple[np.ndarray, ...] = (self.dy, self.cos, self.sin)
        if self.with_tables:
            inputs, out = self.arrays, (out, np.empty_like(self.cos), np.empty_like(self.sin))
        return lambda: gyrograd.rotary_backward(*inputs, mode=self.mode, threads=self.threads, out=out)

    def torch_works(self, torch: Any, compiled: bool) -> dict[str, Work]:
        import gyrograd.torch

        def usual(x: Any, cos: Any, sin: Any) -> Any:
            return torch_rotary(torch, x, cos, sin, self.mode)

        def ours(x: Any, cos: Any, sin: Any) -> Any:
            return gyrograd.torch.rotary(x, cos, sin, self.mode)

        works = {"gyrograd.torch": self._autograd(torch, ours), "PyTorch eager": self._autograd(torch, usual)}
        if compiled:
            works["PyTorch compiled"] = self._autograd(torch, torch.compile(usual))
            formula = torch.compile(self._torch_formula(torch))
            tensors = [torch_tensor(torch, array) for array in self.arrays]
            works["PyTorch compiled formula"] = lambda: formula(*tensors)
        return works

    def _autograd(self, torch: Any, forward: Callable[..., Any]) -> Work:
        dy, *inputs = (torch_tensor(torch, array).clone() for array in (self.dy, self.x, self.cos, self.sin))
        for tensor in inputs if self.with_tables else inputs[:1]:
            tensor.requires_grad_()
        return _torch_backward(torch, forward, inputs, (dy,))

    def _torch_formula(self, torch: Any) -> Callable[..., Any]:
        def formula(dy: Any, cos: Any, sin: Any, x: Any) -> list[Any]:
            dtype, axes = dy.dtype, [axis for axis in range(dy.dim()) if cos.shape[axis] != dy.shape[axis]]
            dy, cos, sin, x = (tensor.float() for tensor in (dy, cos, sin, x))
            results = [_torch_rotary_back(torch, dy, cos, sin, self.mode)]
            if self.with_tables:
                results.append((dy * x).sum(axes, keepdim=True))
                results.append((dy * torch_rotated(torch, x, self.mode)).sum(axes, keepdim=True))
            return [result.to(dtype) for result in results]

        return formula

    def jax_work(self, jax: Any) -> Work:
        jnp = jax.numpy

        def forward(*inputs: Any) -> Any:
            return _jax_rotary(jnp, *(array.astype(jnp.float32) for array in inputs), self.mode).astype(self.dy.dtype)

        @jax.jit
        def backward(dy: Any, cos: Any, sin: Any, x: Any) -> Any:
            if self.with_tables:
                return jax.vjp(forward, x, cos, sin)[1](dy)
            return jax.vjp(lambda x: forward(x, cos, sin), x)[1](dy)

        arrays = [jnp.asarray(array) for array in self.arrays]
        return lambda: jax.block_until_ready(backward(*arrays))


# ---- norm, rotary and concatenation

IMAGES = ("query", "key", "value")


class _ConcatCase:
    """The backward of one problem of the joint operator: rows of up to six streams, and the norms' parameters."""

    def __init__(self, parts: dict[str, Any], threads: int) -> None:
        fields = ConcatProblem.__dataclass_fields__
        self.problem = problem = ConcatProblem(**{name: parts[name] for name in parts if name in fields})
        self.threads = threads
        self.mode = problem.rope_type
        numbers = np.random.default_rng(7)
        self.arrays = {
            name: numbers.standard_normal(shape, np.float32).astype(DTYPES[dtype])
            for name, (shape, dtype) in problem.shapes().items()
        }
        for image, length in (("value", problem.seq_key), ("encoder_value", problem.seq_encoder_key)):
            shape = (problem.batch, length, problem.heads, problem.head_dim)
            if length > 0:
                self.arrays[image] = numbers.standard_normal(shape, np.float32).astype(DTYPES[problem.dtype])
        self._fill_statistics()
        if self.mode != "none":
            shape, dtype = problem.shapes()["rope_cos"]
            self.arrays["rope_cos"], self.arrays["rope_sin"] = _angles(numbers, shape, DTYPES[dtype])

    def _fill_statistics(self) -> None:
        for stream, norm, norm_type in self.normed():
            x = self.arrays[stream].astype(np.float32)
            mean = x.mean(-1, keepdims=True) if norm_type.startswith("layer") else np.float32(0)
            if norm_type.startswith("layer"):
                self.arrays[f"{norm}_mean"] = mean
            self.arrays[f"{norm}_rstd"] = 1 / np.sqrt(np.square(x - mean).mean(-1, keepdims=True) + np.float32(EPS))

    def normed(self) -> list[tuple[str, str, str]]:
        """Of each stream with a norm: its name, its norm's, and the norm's type."""
        return [(name, norm, kind) for name, norm, kind, _, _ in self.problem.streams() if kind != "none"]

    def streams(self) -> list[str]:
        return [name for image in IMAGES for name in (image, f"encoder_{image}") if name in self.arrays]

    def parameters(self) -> list[str]:
        """Weights, and biases of LayerNorm."""
        names = []
        for _, norm, kind in self.normed():
            if kind.endswith("affine"):
                names.append(f"{norm}_weight")
            if kind == "layer_affine":
                names.append(f"{norm}_bias")
        return names

    def bias(self) -> np.ndarray:
        return np.zeros(self.problem.head_dim, DTYPES[self.problem.weight_dtype or self.problem.dtype])

    def gyrograd(self) -> Work:
        taken = {name: array for name, array in self.arrays.items() if name in self.problem.shapes()}
        keywords = self.problem.keywords(taken, threads=self.threads)
        results = gyrograd.norm_rope_concat_backward(**keywords)._asdict()
        out = {name: array for name, array in results.items() if array is not None}
        keywords["out"] = out
        return lambda: gyrograd.norm_rope_concat_backward(**keywords)

    # The forward, for autograd, of tensors by name.

    def _norm_of(self, name: str) -> tuple[str, str] | None:
        return next(((norm, kind) for stream, norm, kind in self.normed() if stream == name), None)

    def _torch_normed(self, torch: Any, tensors: dict[str, Any], name: str) -> Any:
        x, found = tensors[name], self._norm_of(name)
        if found is None:
            return x
        norm, kind = found
        weight, bias = tensors.get(f"{norm}_weight"), tensors.get(f"{norm}_bias")
        shape = (self.problem.head_dim,)
        if kind.startswith("layer"):
            return torch.nn.functional.layer_norm(x, shape, weight, bias, EPS)
        return torch.nn.functional.rms_norm(x, shape, weight, EPS)

    def _order(self, image: str) -> list[str]:
        names = [name for name in (image, f"encoder_{image}") if name in self.arrays]
        return names if self.problem.concat_order == "stream_first" else names[::-1]

    def _torch_forward(self, torch: Any) -> Callable[..., Any]:
        names = self.streams() + self.parameters() + self._tables()

        def forward(*inputs: Any) -> tuple[Any, ...]:
            tensors = dict(zip(names, inputs, strict=True))
            outputs = []
            for image in IMAGES:
                joint = torch.cat([self._torch_normed(torch, tensors, name) for name in self._order(image)], dim=1)
                if image != "value" and self.mode != "none":
                    cos, sin = (tensors[name][:, None, :] for name in ("rope_cos", "rope_sin"))
                    turned = torch_rotary(torch, joint[:, : cos.shape[0]], cos, sin, self.mode)
                    joint = (
                        torch.cat((turned, joint[:, cos.shape[0] :]), 1) if cos.shape[0] < joint.shape[1] else turned
                    )
                outputs.append(joint.transpose(1, 2))
            return tuple(outputs)

        return forward

    def _tables(self) -> list[str]:
        return [] if self.mode == "none" else ["rope_cos", "rope_sin"]

    def _gradients(self) -> list[np.ndarray]:
        return [self.arrays[f"grad_{image}_output"] for image in IMAGES]

    def torch_works(self, torch: Any, compiled: bool) -> dict[str, Work]:
        def work(forward: Callable[..., Any]) -> Work:
            inputs = []
            for name in self.streams() + self.parameters() + self._tables():
                tensor = torch_tensor(torch, self.arrays.get(name, self.bias())).clone()
                inputs.append(tensor.requires_grad_(not name.startswith("rope")))
            return _torch_backward(torch, forward, inputs, [torch_tensor(torch, one) for one in self._gradients()])

        forward = self._torch_forward(torch)
        works = {"PyTorch eager": work(forward)}
        if compiled:
            works["PyTorch compiled"] = work(torch.compile(forward))
            formula, names = torch.compile(self._torch_formula(torch)), list(self.problem.shapes())
            tensors = {name: torch_tensor(torch, self.arrays[name]) for name in names}
            works["PyTorch compiled formula"] = lambda: formula(tensors)
        return works

    def _torch_formula(self, torch: Any) -> Callable[..., Any]:
        def formula(tensors: dict[str, Any]) -> list[Any]:
            results = []
            for image in IMAGES:
                grad = tensors[f"grad_{image}_output"].transpose(1, 2)
                dtype, grad = grad.dtype, grad.float()
                if image != "value" and self.mode != "none":
                    cos, sin = (tensors[name][:, None, :].float() for name in ("rope_cos", "rope_sin"))
                    back = _torch_rotary_back(torch, grad[:, : cos.shape[0]], cos, sin, self.mode)
                    grad = torch.cat((back, grad[:, cos.shape[0] :]), 1) if cos.shape[0] < grad.shape[1] else back
                start = 0
                for name in self._order(image):
                    length = self.arrays[name].shape[1]
                    part = grad[:, start : start + length]
                    start += length
                    results += [one.to(dtype) for one in self._norm_back(torch, tensors, name, part)]
            return results

        return formula

    def _norm_back(self, torch: Any, tensors: dict[str, Any], name: str, grad: Any) -> list[Any]:
        """dx, and the gradients of weight and bias where there are such, of f32 rows."""
        found = self._norm_of(name)
        if found is None:
            return [grad]
        norm, kind = found
        x, rstd = tensors[name].float(), tensors[f"{norm}_rstd"]
        x_hat = (x - tensors[f"{norm}_mean"] if kind.startswith("layer") else x) * rstd
        results = []
        if kind.endswith("affine"):
            results.append((grad * x_hat).sum((0, 1, 2)))
            if kind == "layer_affine":
                results.append(grad.sum((0, 1, 2)))
            grad = grad * tensors[f"{norm}_weight"].float()
        inner = grad - x_hat * (grad * x_hat).mean(-1, keepdim=True)
        if kind.startswith("layer"):
            inner = inner - grad.mean(-1, keepdim=True)
        return [rstd * inner, *results]

    def jax_work(self, jax: Any) -> Work:
        jnp = jax.numpy
        names = self.streams() + self.parameters()

        def normed(arrays: dict[str, Any], name: str) -> Any:
            x, found = arrays[name], self._norm_of(name)
            if found is None:
                return x
            norm, kind = found
            if kind.startswith("layer"):
                x = x - x.mean(-1, keepdims=True)
            x = x / jnp.sqrt(jnp.square(x).mean(-1, keepdims=True) + EPS)
            if kind.endswith("affine"):
                x = x * arrays[f"{norm}_weight"]
            return x + arrays[f"{norm}_bias"] if kind == "layer_affine" else x

        def forward(tables: list[Any], inputs: list[Any]) -> tuple[Any, ...]:
            arrays = {name: one.astype(jnp.float32) for name, one in zip(names, inputs, strict=True)}
            outputs = []
            for image in IMAGES:
                joint = jnp.concatenate([normed(arrays, name) for name in self._order(image)], axis=1)
                if image != "value" and tables:
                    cos, sin = (table[:, None, :].astype(jnp.float32) for table in tables)
                    turned = _jax_rotary(jnp, joint[:, : cos.shape[0]], cos, sin, self.mode)
                    joint = jnp.concatenate((turned, joint[:, cos.shape[0] :]), axis=1)
                outputs.append(joint.transpose(0, 2, 1, 3).astype(self._gradients()[0].dtype))
            return tuple(outputs)

        @jax.jit
        def backward(tables: list[Any], inputs: list[Any], gradients: tuple[Any, ...]) -> Any:
            return jax.vjp(lambda inputs: forward(tables, inputs), inputs)[1](gradients)

        tables = [jnp.asarray(self.arrays[name]) for name in self._tables()]
        inputs = [jnp.asarray(self.arrays.get(name, self.bias())) for name in names]
        gradients = tuple(jnp.asarray(one) for one in self._gradients())
        return lambda: jax.block_until_ready(backward(tables, inputs, gradients))

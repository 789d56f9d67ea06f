"""The two ways of a call of gyrograd.torch, for the tests: direct, and through the registered operators;
and arrays as tensors, and back.
"""

import contextlib

import numpy as np
import torch
from formulas import BF16
from torch.utils._python_dispatch import TorchDispatchMode

WAYS = ("direct", "registered")


class Watched(TorchDispatchMode):
    """Keeps the names of this package's operators that were called, forward and backward; a mode, so that calls are of
    these.
    """

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.namespace == "gyrograd":
            self.calls.append(function._opname)
        return function(*args, **(kwargs or {}))


def way(name):
    """A context in which calls go this way."""
    return Watched() if name == "registered" else contextlib.nullcontext()


def to_torch(array):
    if array.dtype == BF16:
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(array.copy())


def to_numpy(tensor):
    if isinstance(tensor, torch.Tensor) and tensor.dtype == torch.bfloat16:
        return tensor.contiguous().view(torch.int16).numpy().view(BF16)
    return np.asarray(tensor)


def leaves(*tensors):
    """Copies that require grad."""
    return [tensor.detach().clone().requires_grad_() for tensor in tensors]


def grads(result, inputs, dy, **options):
    return torch.autograd.grad(result, inputs, dy, allow_unused=True, **options)


def assert_equal(got, want):
    """The same bits, types and absences, of two sequences of tensors."""
    assert len(got) == len(want)
    for a, b in zip(got, want, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            assert a.dtype == b.dtype
            assert torch.equal(a, b)


def raised(call):
    """The error's type and words, for two calls to be compared by; an assertion where there is none."""
    try:
        call()
    except Exception as error:
        return type(error), str(error)
    raise AssertionError("nothing was refused")

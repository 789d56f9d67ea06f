"""Gradients of rotary position embedding, and of the norms and concatenations around it, for NumPy, PyTorch and JAX
arrays on the CPU.
"""

from dataclasses import dataclass as _dataclass

from gyrograd import _core
from gyrograd._norm_rope import (
    NormRope,
    NormRopeConcat,
    NormRopeConcatGradients,
    NormRopeGradients,
    norm_rope,
    norm_rope_backward,
    norm_rope_concat,
    norm_rope_concat_backward,
)
from gyrograd._rotary import rotary, rotary_backward

__all__ = [
    "Info",
    "NormRope",
    "NormRopeConcat",
    "NormRopeConcatGradients",
    "NormRopeGradients",
    "info",
    "norm_rope",
    "norm_rope_backward",
    "norm_rope_concat",
    "norm_rope_concat_backward",
    "rotary",
    "rotary_backward",
]
__version__ = _core.version()


@_dataclass(frozen=True)
class Info:
    """What runs here.

    Attributes:
      version: the library's version.
      cpu_target: the instruction set that calls use unless told otherwise.
      cpu_targets: all that this build holds and this processor runs, best first.
      threads: how many threads a call uses unless told otherwise.
    """

    version: str
    cpu_target: str
    cpu_targets: tuple[str, ...]
    threads: int


def info() -> Info:
    """The version, the CPU targets and the number of threads."""
    targets = tuple(_core.cpu_targets())
    return Info(__version__, targets[0], targets, _core.default_threads())

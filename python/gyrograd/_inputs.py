"""What the commands read from their users: shapes, types, and the error that says what is wrong with them."""

import re

import ml_dtypes
import numpy as np

MODES = ("half", "interleave", "quarter", "interleave-half")  # in the order of CANN's numbers
DTYPES = {"f64": np.float64, "f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}


class InputError(Exception):
    """The input is refused; the text says where and why."""


def parse_shape(text: str) -> tuple[int, ...]:
    """The extents of "2x4096x32x128"."""
    if not re.fullmatch(r"[0-9]+(x[0-9]+)*", text):
        raise ValueError(f"{text!r} is not a shape such as 2x4096x32x128")
    shape = tuple(int(extent) for extent in text.split("x"))
    if max(shape) >= 2**63:
        raise ValueError(f"{max(shape)} is no extent; the largest is 2^63 - 1")
    return shape


def format_shape(shape: tuple[int, ...]) -> str:
    """The text that parse_shape reads."""
    return "x".join(map(str, shape))


def parse_mode(text: str) -> str:
    """A mode's name, from its name or its number."""
    if text in MODES:
        return text
    if text in ("0", "1", "2", "3"):
        return MODES[int(text)]
    raise ValueError(f"{text!r} is not a mode; modes are {', '.join(MODES)} (or 0 to 3)")


def parse_dtype(text: str) -> str:
    """The short name of a type."""
    if text in DTYPES:
        return text
    for name, dtype in DTYPES.items():
        if text == np.dtype(dtype).name:
            return name
    raise ValueError(f"{text!r} is not a type; types are {', '.join(DTYPES)}")

"""What the commands read from their users: shapes, types, and the error that says what is wrong with them."""

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np

# In the order of CANN's numbers.
MODES = ("half", "interleave", "quarter", "interleave-half")
NORM_TYPES = ("none", "layer", "layer_affine", "rms", "rms_affine")
ROPE_TYPES = ("none", "interleave", "half")
MORE_ROPE_TYPES = ("quarter", "interleave-half")  # without numbers
CONCAT_ORDERS = ("stream_first", "encoder_first")
DTYPES = {"f64": np.float64, "f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}


@dataclass(frozen=True)
class Kind:
    """The types of a call: of rows, and of tables and weights."""

    rows: str
    tables: str

    @property
    def name(self) -> str:
        return self.rows if self.rows == self.tables else f"{self.rows}+{self.tables}"


KINDS = {kind.name: kind for kind in (*(Kind(name, name) for name in DTYPES), Kind("f16", "f32"), Kind("bf16", "f32"))}


class InputError(Exception):
    """The input is refused; the text says where and why."""


def printable(text: str) -> str:
    """The text as one line, with escapes for what a terminal would take as a command; a file can hold any name."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def require_writable(option: str, path: Path) -> None:
    """Before minutes of work.

    Raises:
      InputError: a file can't be written there.
    """
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise InputError(f"{option} {path}: it can't be written")


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


def numbered(names: Sequence[str], more: Sequence[str] = ()) -> str:
    """The names with their numbers; `more` have none."""
    return ", ".join((*(f"{name} ({number})" for number, name in enumerate(names)), *more))


def choice_parser(what: str, names: tuple[str, ...], more: tuple[str, ...] = ()) -> Callable[[str], str]:
    """A function that reads one of these names, or its number; `more` are names without one."""

    def parse(text: str) -> str:
        if text in names or text in more:
            return text
        if text in map(str, range(len(names))):
            return names[int(text)]
        raise ValueError(f"{text!r} is not a {what}; {what}s are {numbered(names, more)}")

    return parse


parse_mode = choice_parser("mode", MODES)
parse_norm_type = choice_parser("norm type", NORM_TYPES)
parse_rope_type = choice_parser("rope type", ROPE_TYPES, MORE_ROPE_TYPES)
parse_concat_order = choice_parser("concat order", CONCAT_ORDERS)


def parse_count(text: str) -> int:
    """An extent."""
    if not re.fullmatch(r"[0-9]{1,18}", text):
        raise ValueError(f"{text!r} is not a whole number of at most 18 digits")
    return int(text)


def parse_dtype(text: str) -> str:
    """The short name of a type."""
    if text in DTYPES:
        return text
    for name, dtype in DTYPES.items():
        if text == np.dtype(dtype).name:
            return name
    raise ValueError(f"{text!r} is not a type; types are {', '.join(DTYPES)}")

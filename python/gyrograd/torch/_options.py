"""Options in the types of the operators' schemas: what the core takes, and the core's own refusal of all else."""

import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch

INTEGERS = range(-(2**63), 2**63)
# Rows for the core to refuse options by; they come before shapes there.
ROWS = torch.zeros(1, 1, 1, 2, device="cpu")


def is_bool(value: object) -> bool:
    """Python's or NumPy's, which are no integers; a torch.Tensor is neither."""
    kind = type(value)
    return kind is bool or (kind.__module__ == "numpy" and kind.__name__ in ("bool", "bool_"))


def name_of(value: object, names: tuple[str, ...]) -> object:
    """An option's name, for the number that stands for it, too; anything else stays for the core to refuse."""
    if value is None or isinstance(value, str) or is_bool(value):
        return value
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return value
    return names[number] if 0 <= number < len(names) else value


def in_schema(
    operation: str, kinds: Mapping[str, str], options: Mapping[str, Any], refuse: Callable[[], Any]
) -> dict[str, Any]:
    """The options as the schema's kinds.

    Args:
      refuse: a call of the core on these options, for its words. torch.compile cannot trace it, and need not: what it
        gives up for an error runs uncompiled, unless it is told not to.

    Raises:
      TypeError, ValueError: an option is none of its kind.
    """
    converted = {}
    for name, value in options.items():
        try:
            converted[name] = _CONVERSIONS[kinds[name]](value)
        except (TypeError, ValueError, OverflowError):
            if not torch.compiler.is_dynamo_compiling():
                refuse()
            raise TypeError(f"{operation}: {name} is {value!r}; it must be of type {kinds[name]}") from None
    return converted


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    value.encode()  # lone surrogates are a ValueError
    return value


def _flag(value: object) -> bool:
    if not is_bool(value):
        raise TypeError
    return bool(value)


def _integer(value: Any) -> Any:
    if isinstance(value, torch.SymInt):
        return value
    number = operator.index(value)
    if is_bool(value) or number not in INTEGERS:
        raise TypeError
    return number


def _real(value: Any) -> Any:
    if isinstance(value, float | torch.SymFloat | torch.SymInt):
        return value
    if is_bool(value) or not (hasattr(value, "__index__") or getattr(value, "ndim", None) == 0):
        raise TypeError
    return float(value)


def _optional(conversion: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else conversion(value)


_CONVERSIONS = {
    "str": _text,
    "str?": _optional(_text),
    "bool": _flag,
    "SymInt": _integer,
    "SymInt?": _optional(_integer),
    "float": _real,
}

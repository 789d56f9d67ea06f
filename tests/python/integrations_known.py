"""Functions for test_integrations_switch.py: pairs that shall have one fingerprint, and others that shall not."""

import functools


def rotate_half(x):
    return (-x[1], x[0])


def turn(x, cos, sin, axis=1):
    y = rotate_half(x)
    return [a * cos + b * sin for a, b in zip(x, y, strict=True)]


def own_wrapper(function):
    @functools.wraps(function)
    def wrapped(*args, **kwargs):
        return function(*args, **kwargs)

    return wrapped


@own_wrapper
def decorated(x: tuple, cos: float, sin: float, axis: int = 1) -> list:
    """Annotated, documented,

    decorated and laid out otherwise.
    """
    y: tuple = rotate_half(x)  # and with a comment
    return [
        a * cos + b * sin
        for a, b in zip(x, y, strict=True)
    ]  # fmt: skip


def other_body(x, cos, sin, axis=1):
    y = rotate_half(x)
    return [a * cos - b * sin for a, b in zip(x, y, strict=True)]


def other_default(x, cos, sin, axis=2):
    y = rotate_half(x)
    return [a * cos + b * sin for a, b in zip(x, y, strict=True)]


def other_name(x, cos, sine, axis=1):
    y = rotate_half(x)
    return [a * cos + b * sine for a, b in zip(x, y, strict=True)]


wrapped = own_wrapper(turn)

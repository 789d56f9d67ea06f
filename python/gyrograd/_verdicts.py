"""What the operators' checks share: verdicts, and the numbers that cases are made of."""

import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Verdict:
    """How one result compares.

    `worst` is the largest error: in units in the last place where bits count, elsewhere 1 being the promised bound.
    """

    ok: bool
    mismatches: int
    worst: float
    message: str


def worst(errors: Iterable[float]) -> float:
    """The largest, 0 of none; a NaN is worse than anything."""
    return max(errors, key=lambda error: math.inf if math.isnan(error) else error, default=0.0)


def generator(case_id: str) -> np.random.Generator:
    """The same numbers for the same id always."""
    seed = int.from_bytes(hashlib.sha256(case_id.encode()).digest()[:8], "little")
    return np.random.Generator(np.random.SFC64(seed))

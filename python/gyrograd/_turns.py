"""Times of contestants that take turns: of problems and plain copies of their bytes, and of calls of Python."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gyrograd import _bench

Work = Callable[[], object]


@dataclass(frozen=True)
class Measured:
    """A problem's times and those of the fastest of three copying loops of the same bytes, by round, in seconds."""

    problem: str
    bytes_read: int
    bytes_written: int
    workspace_bytes: int
    seconds: list[float]
    copy: str
    copy_seconds: list[float]

    @property
    def ms(self) -> float:
        return 1e3 * statistics.median(self.seconds)

    @property
    def copy_ms(self) -> float:
        return 1e3 * statistics.median(self.copy_seconds)

    @property
    def bytes(self) -> int:
        return self.bytes_read + self.bytes_written

    @property
    def ratio(self) -> float:
        """The median over the rounds of the problem's time through the copy's."""
        return ratio(self.seconds, self.copy_seconds)

    @property
    def spread(self) -> tuple[float, float]:
        """The quartiles of the same."""
        ratios = [mine / copy for mine, copy in zip(self.seconds, self.copy_seconds, strict=True)]
        if len(ratios) < 2:
            return ratios[0], ratios[0]
        first, _, third = statistics.quantiles(ratios, n=4, method="inclusive")
        return first, third


def ratio(seconds: Sequence[float], base: Sequence[float]) -> float:
    """The median over the rounds."""
    return statistics.median(one / other for one, other in zip(seconds, base, strict=True))


def measure(problems: Sequence[str], rounds: int, copy_threads: int) -> list[Measured]:
    """Times the backward of problems (lines of text), in turns.

    Raises:
      ValueError: a problem is refused. MemoryError: there is no memory for it. RuntimeError: a processor without AVX2.
    """
    measured = []
    for facts in _bench.take_turns(list(problems), rounds, copy_threads):
        copies = facts.pop("copies")
        copy = min(copies, key=lambda name: statistics.median(copies[name]))
        measured.append(Measured(**facts, copy=copy, copy_seconds=copies[copy]))
    return measured


def take_turns(
    works: Mapping[str, Work], rounds: int, repeats: int = 1, budget: float | None = None
) -> dict[str, list[float]]:
    """Seconds a call, by contestant and round; each turn is a call to warm up and `repeats` that are timed.

    Past `budget` seconds no round begins, but for the first.
    """
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for work in works.values():
        work()  # compiles
    begin = time.perf_counter()
    for round_ in range(rounds):
        if round_ and budget is not None and time.perf_counter() - begin > budget:
            break
        for name, work in works.items():
            work()
            start = time.perf_counter()
            for _ in range(repeats):
                work()
            seconds[name].append((time.perf_counter() - start) / repeats)
    return seconds

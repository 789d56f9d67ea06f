"""What the switches of all packages share: all is found first, then replaced at once, and put back at once."""

import functools
import threading
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

_WIDTH = 160  # of a printed report


@dataclass(frozen=True)
class Replacement:
    """One object to stand in another's place.

    owner: a module or a class. attribute: the name in it. make: from the object that stands there, the new one.
    """

    owner: Any
    attribute: str
    make: Callable[[Any], Any]

    @property
    def place(self) -> str:
        return place_of(self.owner, self.attribute)


@dataclass(frozen=True)
class Finding:
    """What was found at a place, and what became of it.

    place: the full name, such as "transformers.models.llama.modeling_llama.apply_rotary_pos_emb". what: "rotary",
    "QK-norm and rotary" and the like. is_known: whether the code there is known by its fingerprint.
    """

    place: str
    what: str
    replaced: bool
    reason: str
    is_known: bool = True


@dataclass(frozen=True)
class Report:
    """What a switch found; printed, a table."""

    findings: tuple[Finding, ...] = ()

    @property
    def replaced(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.replaced)

    @property
    def left(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if not finding.replaced)

    def __str__(self) -> str:
        from rich.box import SIMPLE
        from rich.console import Console
        from rich.table import Table

        if not self.findings:
            return "gyrograd found no rotary embedding."
        table = Table("", "what", "how, or why not", box=SIMPLE)
        table.add_column("where", overflow="fold")
        for finding in (*self.replaced, *self.left):
            table.add_row("replaced" if finding.replaced else "left", finding.what, finding.reason, finding.place)
        console = Console(width=_WIDTH, no_color=True, highlight=False)
        with console.capture() as capture:
            console.print(table)
        return "\n".join(line.rstrip() for line in capture.get().splitlines()).strip("\n")


class Switch:
    """What `switch_to_gyrograd` did. `report` says it, `undo()` takes it back; as a context manager it is undone at the
    end of the block.
    """

    def __init__(self, replacements: Sequence[Replacement], report: Report):
        self.report = report
        self._holds = _hold(replacements)

    @property
    def is_active(self) -> bool:
        """Whether its replacements stand: True until undo()."""
        return self._holds is not None

    def undo(self) -> None:
        """Puts the very objects back that stood there before. Called again, it does nothing. A place that other
        switches hold too is put back by the last of them.

        Raises:
          RuntimeError: something else has been put in a replacement's place meanwhile. Then nothing is put back: undo
            that first.
        """
        if self._holds is not None:
            _release(self._holds)
            self._holds = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.undo()

    def __str__(self) -> str:
        return str(self.report)


@dataclass
class Plan:
    """What a search found, and what is to be done; nothing is done before `switch`."""

    package: str  # the package's name and version, for its warnings
    replacements: list[Replacement] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    def replace(self, owner: Any, attribute: str, make: Callable[[Any], Any], what: str, how: str) -> None:
        replacement = Replacement(owner, attribute, make)
        self.replacements.append(replacement)
        self.findings.append(Finding(replacement.place, what, True, how))

    def leave(self, place: str, what: str, why: str, *, is_known: bool = True) -> None:
        self.findings.append(Finding(place, what, False, why, is_known))

    def switch(self) -> Switch:
        """Replaces all or, where it raises, nothing; warns once of what is not known."""
        result = Switch(self.replacements, Report(tuple(self.findings)))
        unknown = [finding.place for finding in self.findings if not finding.is_known]
        if unknown:
            _warn(f"{self.package}: left as it is, since its code is not known: {', '.join(unknown)}")
        elif not self.replacements:
            _warn(f"{self.package}: nothing was replaced; print the report to see why")
        return result


def _warn(message: str) -> None:
    warnings.warn(f"gyrograd: {message}", stacklevel=4)  # where switch_to_gyrograd was called


def place_of(owner: Any, attribute: str) -> str:
    module = getattr(owner, "__module__", None)
    name = getattr(owner, "__qualname__", None) or getattr(owner, "__name__", repr(owner))
    return ".".join(part for part in (module, name, attribute) if part)


def like(stock: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator for replacements: the stock function's name, place, signature and documentation, so that tools which
    look at them see no change and pickle finds it.
    """
    return functools.wraps(stock)


def otherwise(stock: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The same for functions that give None where gyrograd can't: the stock function answers there."""

    def decorate(attempt: Callable[..., Any]) -> Callable[..., Any]:
        attempt = like(stock)(attempt)  # which refuses wrong arguments in the stock function's name

        @like(stock)
        def replacement(*args: Any, **kwargs: Any) -> Any:
            result = attempt(*args, **kwargs)
            return stock(*args, **kwargs) if result is None else result

        return replacement

    return decorate


# ---- what stands in whose place, in this process

_lock = threading.RLock()


@dataclass
class _Hold:
    """A replacement that stands, and how many switches hold it."""

    owner: Any
    attribute: str
    stock: Any
    replacement: Any
    count: int = 0

    @property
    def place(self) -> str:
        return place_of(self.owner, self.attribute)

    def stands(self) -> bool:
        return vars(self.owner).get(self.attribute) is self.replacement


_holds: dict[tuple[int, str], _Hold] = {}  # a hold keeps its owner alive, and so the id


def stock(owner: Any, attribute: str) -> Any:
    """What the package put there: the object itself or, where a switch holds the place, the one that it replaced."""
    hold = _holds.get((id(owner), attribute))
    return hold.stock if hold is not None and hold.stands() else vars(owner).get(attribute)


def unreplaced(thing: Any) -> Any:
    """The stock object in whose place this one stands; any other object itself."""
    with _lock:
        return next((hold.stock for hold in _holds.values() if hold.replacement is thing), thing)


def _hold(replacements: Iterable[Replacement]) -> list[_Hold]:
    """Checks and makes all, then sets all; where a set fails, those before it are taken back."""
    with _lock:
        unique = {(id(one.owner), one.attribute): one for one in replacements}
        holds = {key: _holds.get(key) or _made(one) for key, one in unique.items()}
        for key, hold in holds.items():
            if key in _holds and not hold.stands():
                raise RuntimeError(
                    f"{hold.place} was switched to gyrograd before, and something else has been put there since; "
                    "undo that first"
                )
        fresh = [hold for key, hold in holds.items() if key not in _holds]
        _set_all([(hold, hold.replacement, hold.stock) for hold in fresh])
        _holds.update(holds)
        for hold in holds.values():
            hold.count += 1
        return list(holds.values())


def _made(one: Replacement) -> _Hold:
    if one.attribute not in vars(one.owner):
        raise AttributeError(f"{one.place} is not there to be replaced")
    found = vars(one.owner)[one.attribute]
    return _Hold(one.owner, one.attribute, found, one.make(found))


def _release(holds: Sequence[_Hold]) -> None:
    with _lock:
        for hold in holds:
            if not hold.stands():
                raise RuntimeError(
                    f"{hold.place} is no longer gyrograd's: something else has been put there since; undo that first"
                )
        last = [hold for hold in holds if hold.count == 1]
        _set_all([(hold, hold.stock, hold.replacement) for hold in last])
        for hold in holds:
            hold.count -= 1
        for hold in last:
            del _holds[id(hold.owner), hold.attribute]


def _set_all(changes: Sequence[tuple[_Hold, Any, Any]]) -> None:
    """Each (hold, new object, old object); all or none."""
    for done, (hold, new, _) in enumerate(changes):
        try:
            setattr(hold.owner, hold.attribute, new)
        except BaseException:
            for before, _, old in changes[:done]:
                setattr(before.owner, before.attribute, old)
            raise

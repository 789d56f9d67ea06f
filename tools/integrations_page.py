"""Writes the tables of docs/integrations.md from the lists that gyrograd.integrations and its tests use.

usage: integrations_page.py [--check]

With --check it writes nothing, and fails where the page is not what it would write.
"""

from __future__ import annotations

import pathlib
import re
import sys
from collections.abc import Iterable, Sequence

from gyrograd.integrations import _known_diffusers as diffusers
from gyrograd.integrations import _known_transformers as transformers

PAGE = pathlib.Path(__file__).resolve().parent.parent / "docs" / "integrations.md"
BLOCK = re.compile(r"(<!-- TABLE: (?P<name>[\w ]+)\. .*? -->\n)(.*?)(<!-- END OF TABLE -->)", re.DOTALL)


def page(text: str) -> str:
    """The page's text with new tables."""
    return BLOCK.sub(lambda block: block[1] + TABLES[block["name"]]() + block[4], text)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def trained_transformers() -> str:
    rows = (
        (trained.model, trained.turns, "stock's" if trained.is_exact else "within roundings")
        for trained in transformers.TRAINED.values()
    )
    return table(("model", "what is gyrograd's", "losses and gradients in float32"), rows)


def trained_diffusers() -> str:
    rows = ((model.name, model.replaced, model.left, model.exact) for model in diffusers.MODELS)
    return table(("model", "replaced", "left", "stock's bits in float32"), rows)


def all_transformers() -> str:
    """A line a model: what becomes of its rotary functions, and of its QK-norm."""
    rotary: dict[str, list[str]] = {}
    norms: dict[str, list[str]] = {}
    for known in transformers.ROTARIES.values():
        _note(rotary, known.places, known.form.words)
    for known in transformers.LEFT.values():
        _note(rotary, known.places, f"left: {known.form}")
    for known in transformers.ATTENTIONS.values():
        _note(norms, known.places, "with the rotary")
    for known in transformers.LEFT_ATTENTIONS.values():
        _note(norms, known.places, f"left: {known.form}")
    _note(norms, transformers.OTHER_NORMS, "left: another norm")
    return table(
        ("module", "rotary", "QK-norm"),
        ((model, "; ".join(rotary[model]), "; ".join(norms.get(model, ()))) for model in sorted(rotary)),
    )


def _note(lines: dict[str, list[str]], places: Iterable[str], words: str) -> None:
    for place in places:
        of_model = lines.setdefault(place.partition(".")[0], [])
        if words not in of_model:
            of_model.append(words)


def all_diffusers() -> str:
    rows = [
        (f"`{place}`", known.what, known.how)
        for known in (*diffusers.ATTENTION.values(), *diffusers.ROTARY.values())
        for place in known.places
    ]
    return table(("in diffusers.models", "what it computes", "by what it is replaced"), rows)


TABLES = {
    "transformers trained": trained_transformers,
    "transformers": all_transformers,
    "diffusers trained": trained_diffusers,
    "diffusers": all_diffusers,
}


def main(arguments: Sequence[str]) -> int:
    text = PAGE.read_text()
    names = [block["name"] for block in BLOCK.finditer(text)]
    if sorted(names) != sorted(TABLES):
        print(f"{PAGE.name} has the tables {names}; it must have {list(TABLES)}", file=sys.stderr)
        return 1
    new = page(text)
    if "--check" not in arguments:
        PAGE.write_text(new)
    elif new != text:
        print(f"{PAGE.name} is not current: run tools/integrations_page.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Prints the packages that pyproject.toml needs at build time, one a line."""

import pathlib
import tomllib

PYPROJECT = pathlib.Path(__file__).parent.parent / "pyproject.toml"
print("\n".join(tomllib.loads(PYPROJECT.read_text())["build-system"]["requires"]))

"""Prints the packages that pyproject.toml names, one a line: for `build`, or for optional groups such as `test`."""

import pathlib
import sys
import tomllib

PYPROJECT = tomllib.loads((pathlib.Path(__file__).parent.parent / "pyproject.toml").read_text())
groups = {"build": PYPROJECT["build-system"]["requires"], **PYPROJECT["project"]["optional-dependencies"]}
print("\n".join(package for purpose in sys.argv[1:] for package in groups[purpose]))

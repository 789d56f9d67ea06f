"""Prints the packages that pyproject.toml names, one a line: for `build`, or for an optional group such as `test`."""

import pathlib
import sys
import tomllib

PYPROJECT = tomllib.loads((pathlib.Path(__file__).parent.parent / "pyproject.toml").read_text())
purpose = sys.argv[1]
groups = PYPROJECT["project"]["optional-dependencies"]
print("\n".join(PYPROJECT["build-system"]["requires"] if purpose == "build" else groups[purpose]))

"""Fixtures of the install tests: an installed tree, and the same tree moved elsewhere."""

from __future__ import annotations

import shutil

import pytest
from installed_tree import BUILD, Installed, run


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    prefix = tmp_path_factory.mktemp("installed") / "prefix"
    run(["cmake", "--install", BUILD, "--prefix", prefix])
    return Installed(prefix)


@pytest.fixture(scope="session")
def moved(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """A tree that was installed elsewhere and then moved: where it was, there is nothing left."""
    first = tmp_path_factory.mktemp("first") / "prefix"
    run(["cmake", "--install", BUILD, "--prefix", first])
    prefix = tmp_path_factory.mktemp("moved") / "elsewhere"
    shutil.move(first, prefix)
    return Installed(prefix)


@pytest.fixture(params=["installed", "moved"])
def tree(request: pytest.FixtureRequest) -> Installed:
    return request.getfixturevalue(request.param)

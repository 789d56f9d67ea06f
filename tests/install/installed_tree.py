"""What the install tests share: an installed tree and the programs built against it."""

from __future__ import annotations

import os
import pathlib
import subprocess
from collections.abc import Sequence

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("GYROGRAD_BUILD_DIR", ROOT / "build" / "release"))


def run(command: Sequence[str | pathlib.Path], **options) -> str:
    """Runs a command, fails the test with everything it printed when its exit code is not 0, returns its output."""
    words = [str(word) for word in command]
    result = subprocess.run(words, capture_output=True, text=True, check=False, **options)
    assert result.returncode == 0, f"{' '.join(words)}\nexit {result.returncode}\n{result.stdout}\n{result.stderr}"
    return result.stdout


def isolated(command: Sequence[str | pathlib.Path]) -> list[str | pathlib.Path]:
    """The command without a network: in a namespace that has none, or, where those are not permitted, with a proxy that
    is not there.
    """
    namespace = ["unshare", "--map-root-user", "--net"]
    if subprocess.run([*namespace, "true"], capture_output=True, check=False).returncode == 0:
        return [*namespace, *command]
    return ["env", *(f"{name}_proxy=http://127.0.0.1:9" for name in ("http", "https", "all")), *command]


def exported(library: pathlib.Path) -> list[str]:
    """The names that others can link to, without their versions."""
    return [line.split(maxsplit=2)[2] for line in run(["nm", "-D", "-C", "--defined-only", library]).splitlines()]


class Installed:
    """An installed tree, used as a stranger would: only through find_package and pkg-config."""

    def __init__(self, prefix: pathlib.Path):
        self.prefix = prefix

    def pkg_config_file(self, name: str) -> pathlib.Path:
        (found,) = self.prefix.rglob(f"pkgconfig/{name}.pc")
        return found

    def flags(self, name: str) -> list[str]:
        folder = self.pkg_config_file(name).parent
        environment = {**os.environ, "PKG_CONFIG_PATH": str(folder)}
        return run(["pkg-config", "--cflags", "--libs", name], env=environment).split()

    def compile(self, source: pathlib.Path, package: str, standard: str) -> pathlib.Path:
        """The documented recipe: the compiler, the program, and the pkg-config line alone."""
        compiler = "c++" if source.suffix == ".cpp" else "cc"
        program = source.with_suffix(f".{package}")
        warnings = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"]
        run([compiler, f"-std={standard}", *warnings, source, *self.flags(package), "-o", program])
        return program


def clean_environment() -> dict[str, str]:
    """Without the variables that would help a program find its libraries."""
    return {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}


def run_program(program: pathlib.Path) -> str:
    return run([program], env=clean_environment())

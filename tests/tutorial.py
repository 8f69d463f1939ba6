"""A tutorial's driver, built and installed as a third party's package where only a test sees it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def blocks(page: str, language: str) -> list[str]:
    """Return a page's blocks of a language."""
    text = (ROOT / "docs" / page).read_text()
    found = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [code for word, code in found if word == language]


def block(page: str, language: str, containing: str) -> str:
    return next(each for each in blocks(page, language) if containing in each)


class Tutorial:
    """The package of a page, in a folder of its own; ``about`` is a word of its code alone."""

    def __init__(self, page: str, module: str, folder: Path, *, about: str = "@hookimpl") -> None:
        self.page, self.folder = page, folder
        package = folder / "src" / module
        package.mkdir(parents=True)
        (folder / "pyproject.toml").write_text(block(page, "toml", f'= "{module}:'))
        (package / "__init__.py").write_text(block(page, "python", about))
        self._install()

    def _install(self) -> None:
        install = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        options = ["--no-deps", "--no-build-isolation", "--no-index", "--target"]
        subprocess.run(
            [*install, *options, str(self.folder / "site"), str(self.folder)], check=True
        )

    def add_contract(self) -> None:
        """Write the page's contract test into the package."""
        (self.folder / "tests").mkdir()
        suite = block(self.page, "python", "Contract):")
        (self.folder / "tests/test_contract.py").write_text(suite)

    def run(self, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run a Python module of the environment in which the package is installed."""
        environment = {
            **os.environ,
            "PYTHONPATH": str(self.folder / "site"),
            "PYTHONWARNINGS": "default",
            "COLUMNS": "200",
        }
        return subprocess.run(
            [sys.executable, "-m", *command],
            cwd=self.folder,
            env=environment | variables,
            capture_output=True,
            text=True,
        )

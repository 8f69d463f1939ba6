"""What is held to which tests, and which survivors are explained."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

from mutation.changes import Change, changed

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Group:
    """Modules that share their tests."""

    name: str
    modules: dict[str, Path]
    tests: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Shown:
    """A change as people read it, without its line number: that moves."""

    module: str
    function: str
    was: str
    becomes: str


def groups() -> tuple[Group, ...]:
    """Return every group of ``modules.toml``."""
    said = tomllib.loads((HERE / "modules.toml").read_text("utf-8"))
    return tuple(
        Group(
            name,
            {module: _path(ROOT / one["root"], module) for module in one["modules"]},
            tuple(f"tests/{test}" for test in one["tests"]),
        )
        for name, one in said.items()
    )


def _path(root: Path, module: str) -> Path:
    """Return a module's file, in whatever package below the root it is."""
    (found,) = root.rglob(f"{module}.py")
    return found


def shown(path: Path, source: str, change: Change) -> Shown:
    """Return the lines that a change is in, before and after, with single spaces."""
    raw = source.encode()
    first = raw.rfind(b"\n", 0, change.start) + 1
    until = raw.find(b"\n", change.end)
    until = len(raw) if until < 0 else until
    after = changed(source, change).encode()
    return Shown(
        path.stem,
        change.function,
        _words(raw[first:until]),
        _words(after[first : until + len(after) - len(raw)]),
    )


def _words(text: bytes) -> str:
    return " ".join(text.decode().split())


def explained() -> dict[Shown, str]:
    """Return why a change that no test notices may stand, by what it is."""
    said = tomllib.loads((HERE / "explained.toml").read_text("utf-8"))
    return {
        Shown(module, one["in"], one["was"], one["becomes"]): one["why"]
        for module, entries in said.items()
        for one in entries
    }

"""Every member of the workspace has the same shape, and is installed as it is written."""

from __future__ import annotations

import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
MEMBERS = sorted(
    path.parent
    for pattern in ("framework/", "drivers/*/", "frontends/*/")
    for path in ROOT.glob(f"{pattern}pyproject.toml")
)


def _project(member: Path) -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads((member / "pyproject.toml").read_text())["project"]
    return project


def _id(member: Path) -> str:
    return str(member.relative_to(ROOT))


def test_every_folder_of_drivers_and_frontends_is_a_member() -> None:
    folders = [
        p for kind in ("drivers", "frontends") for p in (ROOT / kind).iterdir() if p.is_dir()
    ]

    assert {ROOT / "framework", *folders} == set(MEMBERS)


@pytest.mark.parametrize("member", MEMBERS, ids=_id)
def test_a_member_is_typed_described_and_requires_this_release(member: Path) -> None:
    project = _project(member)
    package = next((member / "src").iterdir())

    assert (package / "py.typed").exists()
    assert (member / project["readme"]).stat().st_size > 200
    assert project["requires-python"] == ">=3.11"
    if member.name != "framework":
        assert "hardpoint>=0.1,<0.2" in project["dependencies"]


def test_versions_are_in_lockstep() -> None:
    assert {_project(member)["version"] for member in MEMBERS} == {"0.1.0"}


@pytest.mark.parametrize("member", MEMBERS, ids=_id)
def test_installed_entry_points_are_those_of_the_source(member: Path) -> None:
    project = _project(member)
    declared = {
        (group, name, value)
        for group, points in project.get("entry-points", {}).items()
        for name, value in points.items()
    }
    installed = metadata.distribution(project["name"]).entry_points

    assert declared <= {(p.group, p.name, p.value) for p in installed}


@pytest.mark.parametrize("member", MEMBERS, ids=_id)
def test_every_dependency_has_a_lower_and_an_upper_bound(member: Path) -> None:
    project = _project(member)
    extras = project.get("optional-dependencies", {}).values()
    for line in (*project["dependencies"], *(each for extra in extras for each in extra)):
        assert ">=" in line, line
        assert "<" in line, line

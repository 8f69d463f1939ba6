"""The pages on security and dependencies name what the role, the manifest and the wheels have."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from tutorial import ROOT, block

SECURITY = (ROOT / "docs/explanation/security.md").read_text()
DEPENDENCIES = (ROOT / "docs/explanation/dependencies.md").read_text()
MEMBERS = [
    tomllib.loads(path.read_text())["project"]
    for pattern in ("framework", "drivers/*", "frontends/*")
    for path in ROOT.glob(f"{pattern}/pyproject.toml")
]
EXTRAS = ("cli", "kubelet")


def rows(text: str, heading: str) -> list[list[str]]:
    """Return the cells of the table below a heading, without its head."""
    section = text.split(f"## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


def rights() -> set[tuple[str, str]]:
    """Return every resource and verb of the role."""
    documents = yaml.safe_load_all((ROOT / "deploy/rbac.yaml").read_text())
    (role,) = (one for one in documents if one["kind"] == "ClusterRole")
    return {
        (resource, verb)
        for rule in role["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_the_page_names_every_right_and_no_other() -> None:
    named = {
        (re.findall(r"`([^`]+)`", resource)[0], verb)
        for resource, verbs, _ in rows(SECURITY, "Rights at the API server")
        for verb in re.findall(r"`([^`]+)`", verbs)
    }

    assert named == rights()


def test_the_page_names_every_right_of_a_policy_and_no_other() -> None:
    named = {
        (role.strip("`"), re.findall(r"`([^`]+)`", resource)[0], verb)
        for role, resource, verbs, _ in rows(SECURITY, "Rights of policies")
        for verb in re.findall(r"`([^`]+)`", verbs)
    }
    documents = list(yaml.safe_load_all((ROOT / "deploy/rbac-policies.yaml").read_text()))
    roles = {one["metadata"]["name"]: one for one in documents if one["kind"] == "ClusterRole"}
    bound = {one["roleRef"]["name"] for one in documents if one["kind"] == "ClusterRoleBinding"}

    assert bound == roles.keys()
    assert named == {
        (name, resource, verb)
        for name, role in roles.items()
        for rule in role["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_the_rights_of_one_policy_are_applied_by_its_label() -> None:
    documents = list(yaml.safe_load_all((ROOT / "deploy/rbac-policies.yaml").read_text()))
    for one in documents:
        label = one["metadata"]["labels"]["hardpoint.dev/policy"]
        assert one["metadata"]["name"] == f"hardpoint-{label.replace('_', '-')}"


def test_every_right_has_a_reason() -> None:
    reasons = [why for _, _, why in rows(SECURITY, "Rights at the API server")]
    reasons += [why for *_, why in rows(SECURITY, "Rights of policies")]

    assert all(len(why) > 20 for why in reasons)


def test_the_page_names_every_mount_of_the_manifest() -> None:
    manifest: dict[str, Any] = yaml.safe_load(block("howto/install.md", "yaml", "kind: DaemonSet"))
    pod = manifest["spec"]["template"]["spec"]
    (agent,) = pod["containers"]
    table = {path.strip("`"): access for path, access, _ in rows(SECURITY, "Paths")}

    for mount in agent["volumeMounts"]:
        assert mount["mountPath"] in table
        if mount.get("readOnly"):
            assert table[mount["mountPath"]].startswith("read-only")


@pytest.mark.parametrize("word", ["privileged", "hostPID"])
def test_the_page_names_what_the_manifest_asks_of_the_kernel(word: str) -> None:
    assert word in block("howto/install.md", "yaml", "kind: DaemonSet")
    assert any(f"`{word}`" in what for what, _, _ in rows(SECURITY, "Capabilities and kernel"))


# -- dependencies ---------------------------------------------------------------------------------


def pulled_in() -> set[str]:
    """Return every distribution that an installation of all members brings."""
    wanted = [text for member in MEMBERS for text in member["dependencies"]]
    for member in MEMBERS:
        extras = member.get("optional-dependencies", {})
        wanted += [text for extra in EXTRAS for text in extras.get(extra, ())]
    seen: set[str] = set()
    _follow(wanted, ("",), seen)
    return {name for name in seen if not name.startswith("hardpoint")}


def _follow(wanted: Iterable[str], extras: tuple[str, ...], seen: set[str]) -> None:
    for requirement in map(Requirement, wanted):
        marker = requirement.marker
        if marker and not any(marker.evaluate({"extra": extra}) for extra in extras):
            continue
        name = str(canonicalize_name(requirement.name))
        if name not in seen:
            seen.add(name)
            if not name.startswith("hardpoint"):
                inner = metadata.distribution(name).requires or ()
                _follow(inner, tuple(requirement.extras) or ("",), seen)


def test_the_audit_names_every_distribution_and_no_other() -> None:
    named = {
        name
        for names, _, licence in rows(DEPENDENCIES, "Audit")
        for name in names.split(", ")
        if licence
    }

    assert named == pulled_in()


def test_fuzzing_has_a_page_that_names_every_target() -> None:
    from fuzz.engine import names

    page = Path(ROOT / "docs/howto/fuzz.md").read_text()
    named = re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)

    assert sorted(named) == list(names())

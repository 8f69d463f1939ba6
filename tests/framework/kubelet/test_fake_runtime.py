"""The fake container runtime refuses the CDI files that runtimes refuse."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from hardpoint.model import NodeType
from hardpoint.node import NodeInfo
from hardpoint.testing.cdi import CdiError, CdiRegistry, UnresolvableDevice, minimum_version

NODE = {"path": "/dev/a", "type": "c", "major": 5, "minor": 1, "permissions": "rw"}


def _spec(**changes: Any) -> dict[str, Any]:
    spec = {
        "cdiVersion": "0.3.0",
        "kind": "hardpoint.dev/claim",
        "devices": [{"name": "a", "containerEdits": {"env": ["A=1"], "deviceNodes": [NODE]}}],
    }
    return {**copy.deepcopy(spec), **changes}


def _edits(**edits: Any) -> dict[str, Any]:
    return _spec(devices=[{"name": "a", "containerEdits": edits}], cdiVersion="1.1.0")


def _write(path: Path, spec: object) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(spec if isinstance(spec, str) else json.dumps(spec))
    return path


def test_a_device_gives_its_edits_and_the_files_once(tmp_path: Path) -> None:
    device = {"name": "b", "containerEdits": {"additionalGids": [0, 44], "mounts": []}}
    spec = _spec(
        cdiVersion="0.7.0",
        containerEdits={"env": ["ALL=1"]},
        devices=[*_spec()["devices"], device],
    )
    _write(tmp_path / "x.json", spec)

    got = CdiRegistry(tmp_path).inject(["hardpoint.dev/claim=a", "hardpoint.dev/claim=b"])

    assert (got.env, got.paths, got.gids) == (("ALL=1", "A=1"), ("/dev/a",), (44,))


def test_a_name_that_nobody_defines_is_unresolvable(tmp_path: Path) -> None:
    _write(tmp_path / "x.json", "{")

    with pytest.raises(UnresolvableDevice, match=r"unresolvable CDI devices v/c=a; x\.json: "):
        CdiRegistry(tmp_path).inject(["v/c=a"])


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ({**_spec(), "more": 1}, "unknown field more"),
        (_edits(env=["A=1"], extra=[]), "unknown field extra"),
        (_spec(cdiVersion="0.9.0"), "not known"),
        (_spec(cdiVersion="0.2.0"), "not known"),
        (_spec(kind="0vendor/claim"), "kind"),
        (_spec(kind="vendor"), "kind"),
        (_spec(devices=[]), "has no devices"),
        (_spec(devices=_spec()["devices"] * 2), "defined twice"),
        (_edits(), "has no containerEdits"),
        (_edits(env=[]), "has no edits"),
        (_edits(env=["A"]), "env"),
        (_edits(env=["=1"]), "env"),
        (_edits(deviceNodes=[{"path": ""}]), "has no path"),
        (_edits(deviceNodes=[{**NODE, "type": "x"}]), "type"),
        (_edits(deviceNodes=[{**NODE, "permissions": "rx"}]), "permissions"),
        (_edits(deviceNodes=[{**NODE, "major": "5"}]), "major is no int"),
        (_edits(deviceNodes=[{**NODE, "major": True}]), "major is no int"),
        (_edits(deviceNodes=[{**NODE, "minor": -1}]), "negative"),
        (_edits(mounts=[{"hostPath": "/a"}]), "has no containerPath"),
        (_edits(hooks=[{"hookName": "start", "path": "/a"}]), "hook"),
        (_edits(additionalGids=[-1]), "gid"),
        (_edits(intelRdt={"clos": "a"}), "unknown field clos"),
        (_edits(netDevices=[{"hostInterfaceName": "a"}]), "has no name"),
        (_spec(annotations={"a": "x" * (257 << 10)}, cdiVersion="0.6.0"), "256 KiB"),
        (_spec(annotations={"a": 1}, cdiVersion="0.6.0"), "annotations"),
        ([], "not an object"),
        (_spec(devices=[{"name": "-a", "containerEdits": {"env": ["A=1"]}}]), "device name"),
    ],
)
def test_what_a_runtime_refuses_makes_the_file_unusable(
    tmp_path: Path, spec: object, why: str
) -> None:
    path = _write(tmp_path / "x.json", spec)
    registry = CdiRegistry(tmp_path)

    assert why in registry.errors()[path]
    assert registry.names() == ()


@pytest.mark.parametrize(
    ("spec", "needs"),
    [
        (_spec(), "0.3.0"),
        (_edits(mounts=[{"hostPath": "/a", "containerPath": "/a", "type": "bind"}]), "0.4.0"),
        (_edits(deviceNodes=[{"path": "/dev/a", "hostPath": "/dev/b"}]), "0.5.0"),
        (_spec(devices=[{"name": "0a", "containerEdits": {"env": ["A=1"]}}]), "0.5.0"),
        (_spec(annotations={"a": "b"}), "0.6.0"),
        (_spec(kind="vendor/a.b"), "0.6.0"),
        (_edits(additionalGids=[44]), "0.7.0"),
        (_edits(intelRdt={"closID": "a"}), "0.7.0"),
        (_edits(intelRdt={"schemata": ["a"]}), "1.1.0"),
        (_edits(netDevices=[{"hostInterfaceName": "a", "name": "b"}]), "1.1.0"),
    ],
)
def test_a_version_lower_than_the_content_needs_is_refused(
    tmp_path: Path, spec: dict[str, Any], needs: str
) -> None:
    from hardpoint.testing.cdi import VERSIONS

    assert minimum_version(spec) == needs
    _write(tmp_path / "x.json", {**spec, "cdiVersion": needs})
    assert len(CdiRegistry(tmp_path).names()) == 1
    if needs != VERSIONS[0]:
        lower = VERSIONS[VERSIONS.index(needs) - 1]
        path = _write(tmp_path / "x.json", {**spec, "cdiVersion": lower})
        assert CdiRegistry(tmp_path).errors() == {
            path: f"cdiVersion {lower} is lower than its content needs: {needs}"
        }


def test_one_name_in_two_files_makes_both_unusable(tmp_path: Path) -> None:
    _write(tmp_path / "x.json", _spec())
    _write(tmp_path / "y.json", _spec())
    _write(tmp_path / "z.json", _spec())

    registry = CdiRegistry(tmp_path)

    assert registry.names() == ()
    assert [path.name for path in sorted(registry.errors())] == ["x.json", "y.json", "z.json"]


def test_a_later_directory_wins(tmp_path: Path) -> None:
    _write(tmp_path / "etc/x.json", _spec())
    _write(tmp_path / "run/x.json", _edits(env=["A=2"]))

    registry = CdiRegistry(tmp_path / "etc", tmp_path / "run")

    assert registry.inject(["hardpoint.dev/claim=a"]).env == ("A=2",)


def test_other_suffixes_directories_and_missing_directories_are_ignored(tmp_path: Path) -> None:
    _write(tmp_path / ".x.tmp", "{")
    (tmp_path / "d.json").mkdir()

    registry = CdiRegistry(tmp_path, tmp_path / "gone")

    assert (registry.names(), registry.errors()) == ((), {})


def test_a_yaml_file_is_read_too(tmp_path: Path) -> None:
    _write(tmp_path / "x.yaml", _spec())

    assert CdiRegistry(tmp_path).names() == ("hardpoint.dev/claim=a",)


def test_a_yaml_file_that_is_none_is_unusable(tmp_path: Path) -> None:
    path = _write(tmp_path / "x.yaml", "a: [")

    assert path in CdiRegistry(tmp_path).errors()


def test_a_node_without_numbers_is_looked_up_on_the_host(tmp_path: Path) -> None:
    _write(tmp_path / "x.json", _edits(deviceNodes=[{"path": "/dev/a", "hostPath": "/dev/b"}]))
    info = {"/dev/b": NodeInfo(NodeType.CHAR, 10, 3, 0o660, 44)}
    registry = CdiRegistry(tmp_path, info=info.get)

    (node,) = registry.inject(["hardpoint.dev/claim=a"]).nodes
    info.clear()

    assert (node["type"], node["major"], node["minor"]) == ("c", 10, 3)
    with pytest.raises(CdiError, match="failed to stat CDI host device /dev/b"):
        registry.inject(["hardpoint.dev/claim=a"])

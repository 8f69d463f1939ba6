"""The manifest of the installation page is one that the API takes, and fits the agent."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import kubernetes_validate
import pytest
import yaml
from tutorial import ROOT, block

from hardpoint.settings import AgentSettings

PAGE = "howto/install.md"


@pytest.fixture
def daemon_set() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(block(PAGE, "yaml", "kind: DaemonSet"))
    return found


def test_the_api_takes_the_daemon_set(daemon_set: dict[str, Any]) -> None:
    version = kubernetes_validate.latest_version()

    kubernetes_validate.validate(daemon_set, version, strict=True)


@pytest.mark.field_case("A13")
def test_the_agents_directories_are_mounted_where_they_are(daemon_set: dict[str, Any]) -> None:
    pod = daemon_set["spec"]["template"]["spec"]
    host = {v["name"]: v["hostPath"]["path"] for v in pod["volumes"] if "hostPath" in v}
    (agent,) = pod["containers"]
    mounts = {host[m["name"]]: m["mountPath"] for m in agent["volumeMounts"] if m["name"] in host}
    paths = AgentSettings().paths
    of_kubelet = {paths.kubelet / name for name in ("plugins", "plugins_registry", "pod-resources")}
    wanted = {paths.state, paths.cdi, paths.device_plugins, *of_kubelet}

    assert all(at == where for at, where in mounts.items())
    assert {str(path) for path in wanted} <= mounts.keys()


@pytest.mark.field_case("D06")
def test_the_agent_needs_nothing_that_the_agent_gives(daemon_set: dict[str, Any]) -> None:
    pod = daemon_set["spec"]["template"]["spec"]
    (agent,) = pod["containers"]

    assert "resourceClaims" not in pod
    assert "runtimeClassName" not in pod
    asked = agent.get("resources", {})
    names = {name for table in asked.values() for name in table}
    assert names <= {"cpu", "memory", "ephemeral-storage"}
    annotations = daemon_set["spec"]["template"]["metadata"].get("annotations", {})
    assert not any(key.startswith("cdi.k8s.io/") for key in annotations)


@pytest.mark.field_case("G04")
def test_udevs_database_is_read_and_never_written(daemon_set: dict[str, Any]) -> None:
    (agent,) = daemon_set["spec"]["template"]["spec"]["containers"]
    mounts = {mount["mountPath"]: mount for mount in agent["volumeMounts"]}
    image = block(PAGE, "dockerfile", "FROM")

    assert mounts["/run/udev"]["readOnly"] is True
    assert not any(at != "/run/udev" and "/run/udev".startswith(f"{at}/") for at in mounts)
    assert "libudev1" in image
    assert "systemd" not in image
    assert " udev" not in image


@pytest.mark.field_case("H07")
def test_only_directories_of_the_agents_and_of_cdi_are_made(daemon_set: dict[str, Any]) -> None:
    """Who makes a directory labels it: the kubelet's and udev's are theirs to make."""
    volumes = daemon_set["spec"]["template"]["spec"]["volumes"]
    made = {
        v["hostPath"]["path"]
        for v in volumes
        if v.get("hostPath", {}).get("type") == "DirectoryOrCreate"
    }

    assert made == {str(AgentSettings().paths.state), str(AgentSettings().paths.cdi)}


@pytest.mark.field_case("H08")
def test_no_page_mounts_devices_into_a_pod() -> None:
    """What is mounted is seen and may not be opened; the agent opens none."""
    mounting = {
        (str(page.relative_to(ROOT)), volume["hostPath"]["path"], pod.get("serviceAccountName"))
        for page in sorted((ROOT / "docs").rglob("*.md"))
        for found in re.findall(r"```yaml\n(.*?)```", page.read_text(), re.DOTALL)
        for document in yaml.safe_load_all(found)
        for pod in _pods(document)
        for volume in pod.get("volumes", ())
        if volume.get("hostPath", {}).get("path", "").startswith("/dev")
    }

    assert mounting == {(f"docs/{PAGE}", "/dev", "hardpoint")}


def _pods(found: Any) -> Iterator[dict[str, Any]]:
    """Yield the specs of pods that are somewhere in a document."""
    if isinstance(found, dict):
        if "containers" in found:
            yield found
        for value in found.values():
            yield from _pods(value)
    elif isinstance(found, list):
        for value in found:
            yield from _pods(value)


def test_the_daemon_set_runs_under_the_role_that_is_shipped(daemon_set: dict[str, Any]) -> None:
    role = list(yaml.safe_load_all((ROOT / "deploy/rbac.yaml").read_text()))
    (account,) = (each for each in role if each["kind"] == "ServiceAccount")

    assert (
        account["metadata"]["name"] == daemon_set["spec"]["template"]["spec"]["serviceAccountName"]
    )
    assert account["metadata"]["namespace"] == daemon_set["metadata"]["namespace"]


def test_the_probe_is_a_command_that_exists(daemon_set: dict[str, Any]) -> None:
    from hardpoint.cli.__main__ import main

    (agent,) = daemon_set["spec"]["template"]["spec"]["containers"]
    probe = agent["readinessProbe"]["exec"]["command"]

    with pytest.raises(SystemExit) as ended:
        main([*probe[1:], "--help"])
    assert ended.value.code == 0

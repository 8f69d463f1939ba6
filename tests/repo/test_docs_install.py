"""The manifest of the installation page is one that the API takes, and fits the agent."""

from __future__ import annotations

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


def test_the_agents_directories_are_mounted_where_they_are(daemon_set: dict[str, Any]) -> None:
    pod = daemon_set["spec"]["template"]["spec"]
    host = {v["name"]: v["hostPath"]["path"] for v in pod["volumes"] if "hostPath" in v}
    (agent,) = pod["containers"]
    mounts = {host[m["name"]]: m["mountPath"] for m in agent["volumeMounts"] if m["name"] in host}
    paths = AgentSettings().paths
    wanted = {paths.state, paths.cdi, paths.kubelet / "plugins", paths.kubelet / "plugins_registry"}

    assert all(at == where for at, where in mounts.items())
    assert {str(path) for path in wanted} <= mounts.keys()


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

"""The Node's labels follow drivers and settings, and nobody else's is touched."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from hardpoint import Device
from hardpoint.kube import NODES, Json
from hardpoint.policies.node_status.settings import NodeStatusSettings
from hardpoint.policies.node_status.words import fitting, is_value

from .node_world import NODE, STUCK, NodeWorld

GPU = Device(name="gpu-0", kind="gpu")


async def test_drivers_labels_are_put_below_the_prefix(node_world: NodeWorld) -> None:
    node_world.agent.set_state(earned={"gpu.count": "8", "example.com/nic": "fast"})
    async with node_world.kept(prefix="bcd.dev"):
        await node_world.until(node_world.labels)

        assert node_world.labels() == {"bcd.dev/gpu.count": "8", "example.com/nic": "fast"}


async def test_nothing_is_said_of_another_machine_that_has_our_name(node_world: NodeWorld) -> None:
    def change(node: Json) -> None:
        node.setdefault("status", {})["nodeInfo"] = {"bootID": "another"}

    node_world.server.edit("nodes", NODE).change(change)
    node_world.agent.set_state(earned={"gpu.count": "8"})
    node_world.agent.raise_condition(STUCK)
    async with node_world.kept():
        await node_world.until(lambda: node_world.agent.faults.get("policy/node_status: name"))
        await node_world.quiet()

    assert node_world.writes() == 0
    assert "another machine's" in node_world.agent.faults["policy/node_status: name"][-1]


async def test_a_node_says_who_it_is_and_where(node_world: NodeWorld) -> None:
    own = {"example.com/pool": "h100"}
    async with node_world.kept(node_id="node_01k", site="site_01k", labels=own):
        await node_world.until(node_world.labels)

        assert node_world.labels() == {
            "hardpoint.dev/node-id": "node_01k",
            "hardpoint.dev/site": "site_01k",
            "example.com/pool": "h100",
        }


async def test_a_label_that_is_not_earned_any_more_is_removed(node_world: NodeWorld) -> None:
    node_world.agent.set_state(earned={"gpu.count": "8", "gpu.driver": "590"})
    async with node_world.kept():
        await node_world.until(node_world.labels)
        node_world.agent.set_state(earned={"gpu.count": "7"})

        await node_world.until(lambda: node_world.labels() == {"hardpoint.dev/gpu.count": "7"})


async def test_a_label_that_the_settings_no_longer_name_is_removed_after_a_restart(
    node_world: NodeWorld,
) -> None:
    async with node_world.kept(labels={"example.com/a": "1", "example.com/b": "1"}):
        await node_world.until(node_world.labels)
    async with node_world.kept(labels={"example.com/b": "1"}):
        await node_world.until(lambda: node_world.labels() == {"example.com/b": "1"})


async def test_an_agent_that_starts_believes_for_a_while_what_was_earned_before_it(
    node_world: NodeWorld,
) -> None:
    """A driver that takes its time to count GPUs leaves a node that has them."""
    node_world.agent.set_state(earned={"gpu.count": "8", "gpu.driver": "570"})
    async with node_world.kept(site="s"):
        await node_world.until(lambda: len(node_world.labels()) == 3)
    node_world.agent.set_state(earned={"gpu.driver": "575"})
    async with node_world.kept(settle=60.0):
        await node_world.until(lambda: node_world.labels().get("hardpoint.dev/gpu.driver") == "575")
        assert node_world.labels()["hardpoint.dev/gpu.count"] == "8"
        assert node_world.labels()["hardpoint.dev/site"] == "s"

        node_world.clock.advance(60.0)
        await node_world.until(lambda: node_world.labels() == {"hardpoint.dev/gpu.driver": "575"})


async def test_what_somebody_else_has_set_is_never_removed(node_world: NodeWorld) -> None:
    async with node_world.kube() as other:
        theirs = {"example.com/pool": "h100", "example.com/other": "1"}
        metadata = {"name": NODE, "labels": theirs}
        body = {"apiVersion": "v1", "kind": "Node", "metadata": metadata}
        await other.apply(NODES, body, manager="somebody")
    async with node_world.kept(labels={"example.com/pool": "h100"}):
        await node_world.until(lambda: node_world.writes() == 2)
    async with node_world.kept():
        await node_world.until(lambda: node_world.writes() == 3)
        await node_world.quiet()

    assert node_world.labels() == {"example.com/pool": "h100", "example.com/other": "1"}


async def test_a_label_that_somebody_changes_is_set_again(node_world: NodeWorld) -> None:
    async with node_world.kept(site="site-1"):
        await node_world.until(node_world.labels)
        node_world.server.edit("nodes", NODE).change(
            lambda node: node["metadata"]["labels"].update({"hardpoint.dev/site": "x"})
        )

        await node_world.until(lambda: node_world.labels() == {"hardpoint.dev/site": "site-1"})


async def test_nothing_is_written_that_the_node_says_already(node_world: NodeWorld) -> None:
    async with node_world.kept(site="site-1"):
        await node_world.until(node_world.labels)
    before = node_world.writes()
    async with node_world.kept(site="site-1"):
        node_world.agent.set_state(earned={})
        await node_world.quiet()

    assert node_world.writes() == before == 1


async def test_a_node_with_nothing_to_say_is_left_alone(node_world: NodeWorld) -> None:
    async with node_world.kept():
        await node_world.quiet()

    assert node_world.writes() == 0


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("NVIDIA H100 80GB HBM3", "NVIDIA-H100-80GB-HBM3"),
        ("  -odd_. ", "odd"),
        ("Radeon™ PRO W7900 (Navi 31)", "Radeon-PRO-W7900-Navi-31"),
        ("x" * 62 + " y", "x" * 62),
        ("日本", ""),
        ("a\0b\nc", "a-b-c"),
        ("580.65.06", "580.65.06"),
    ],
)
def test_odd_hardware_makes_a_value_that_the_server_takes(text: str, value: str) -> None:
    assert fitting(text) == value
    assert is_value(value)


async def test_a_key_that_no_label_may_have_costs_only_itself(node_world: NodeWorld) -> None:
    node_world.agent.set_state(earned={"gpu count": "8", "-x": "1", "a/b/c": "1", "gpu.count": "8"})
    async with node_world.kept():
        await node_world.until(node_world.labels)

        assert node_world.labels() == {"hardpoint.dev/gpu.count": "8"}
        (said,) = node_world.agent.faults["policy/node_status: labels"]
        assert said.startswith("-x, a/b/c, gpu count: ")


@pytest.mark.parametrize(
    "key",
    [
        "kubernetes.io/hostname",
        "node-role.kubernetes.io/gpu",
        "topology.kubernetes.io/zone",
        "x.k8s.io/y",
    ],
)
async def test_no_plugin_says_where_the_clusters_pods_are_placed(
    node_world: NodeWorld, key: str
) -> None:
    """Once nobody earns it any more it would be gone: the kubelet sets it when it starts."""
    node_world.agent.set_state(earned={key: "other", "gpu.count": "8"})
    async with node_world.kept():
        await node_world.until(node_world.labels)

        assert node_world.labels() == {"hardpoint.dev/gpu.count": "8"}
        assert node_world.node["metadata"]["labels"]["kubernetes.io/hostname"] == NODE
        (said,) = node_world.agent.faults["policy/node_status: labels"]
        assert said.startswith(f"{key}: ")


async def test_an_admin_says_what_role_a_node_has(node_world: NodeWorld) -> None:
    own = {"node-role.kubernetes.io/gpu": ""}
    node_world.agent.set_state(earned={"gpu.count": "8"})
    async with node_world.kept(labels=own, prefix="gpu.k8s.io"):
        await node_world.until(node_world.labels)

        assert node_world.labels() == {**own, "gpu.k8s.io/gpu.count": "8"}


async def test_of_very_many_bad_keys_a_few_are_named(node_world: NodeWorld) -> None:
    node_world.agent.set_state(earned={f"a b{number:03}": "1" for number in range(200)})
    async with node_world.kept():
        await node_world.agent.until(lambda: bool(node_world.agent.faults))

    (said,) = node_world.agent.faults["policy/node_status: labels"]
    assert said.startswith("a b000, a b001, a b002, a b003, a b004 and 195 more: ")


@pytest.mark.parametrize("status", [403, 422, 400])
async def test_a_label_that_the_cluster_refuses_keeps_no_condition_off_the_node(
    node_world: NodeWorld, status: int
) -> None:
    """NodeRestriction, or a webhook; what was said before it refused stays said."""
    async with node_world.kept(site="site-1"):
        await node_world.until(node_world.labels)
    node_world.server.trouble(method="PATCH", saying=b"example.com/pool", status=status)
    async with node_world.kept(site="site-2", labels={"example.com/pool": "x"}):
        node_world.agent.raise_condition(STUCK)
        await node_world.until(lambda: "ReleaseStuck" in node_world.conditions())

        assert node_world.labels() == {"hardpoint.dev/site": "site-1"}
        await node_world.agent.until(
            lambda: "policy/node_status: status" in node_world.agent.faults
        )
        node_world.agent.clear_condition("ReleaseStuck")
        await node_world.until(lambda: node_world.conditions()["ReleaseStuck"][0] == "False")


async def test_a_condition_that_the_cluster_refuses_is_tried_slowly(node_world: NodeWorld) -> None:
    node_world.server.deny("patch", "nodes/status")
    node_world.agent.raise_condition(STUCK)
    async with node_world.kept():
        await node_world.agent.until(lambda: bool(node_world.agent.faults))

        assert node_world.server.writes("nodes") == []


# -- capabilities ---------------------------------------------------------------------------------


async def test_a_node_without_governed_devices_is_able_to_do_nothing(node_world: NodeWorld) -> None:
    async with node_world.kept(site="site-1", capabilities=["binding.kubernetes"]):
        await node_world.until(node_world.labels)

        assert node_world.labels() == {"hardpoint.dev/site": "site-1"}


async def test_what_a_node_is_able_to_do_goes_with_its_governed_devices(
    node_world: NodeWorld,
) -> None:
    able = ["binding.kubernetes", "devices.limits"]
    node_world.agent.set_state(governed=[GPU])
    async with node_world.kept(capability_prefix="bc.dev", capabilities=able):
        await node_world.until(node_world.labels)
        assert node_world.labels() == {
            "bc.dev/cap.binding.kubernetes": "true",
            "bc.dev/cap.devices.limits": "true",
        }

        node_world.agent.set_state(governed=[])

        await node_world.until(lambda: not node_world.labels())


async def test_limits_are_said_to_be_honoured_only_where_the_settings_say_so(
    node_world: NodeWorld,
) -> None:
    node_world.agent.set_state(governed=[GPU])
    async with node_world.kept():
        await node_world.until(node_world.labels)

        assert node_world.labels() == {"hardpoint.dev/cap.binding.kubernetes": "true"}


# -- settings -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        {"labels": {"a b": "x"}},
        {"labels": {"example.com/a": "b c"}},
        {"labels": {"example.com/a": "x" * 64}},
        {"labels": {"example.com/a/b": "x"}},
        {"prefix": "Example"},
        {"prefix": ""},
        {"capabilities": ["a/b"]},
        {"capabilities": ["a b"]},
        {"taints": ["example.com/gpu"]},
        {"taints": ["example.com/gpu=a:Explode"]},
        {"taints": ["a=1:NoSchedule", "a=2:NoSchedule"]},
        {"conditions": {"ReleaseStuck": "not one"}},
        {"conditions": {"ReleaseStuck": "Ready"}},
        {"conditions": {"ReleaseStuck": "MemoryPressure/Why"}},
        {"conditions": {"ReleaseStuck": "A/B/C"}},
        {"invented": 1},
    ],
)
def test_a_setting_that_the_server_would_refuse_is_refused_before(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        NodeStatusSettings.model_validate(wrong)

"""What happens to a device under a pod that holds it, and what Kubernetes is told of it."""

from __future__ import annotations

from typing import Any

import pytest
from cluster import pods
from cluster.waiting import until
from cluster.witness import Namespace
from cluster.world import ADAPTER, FIRST, LIKEN, WHOLE, World

ADMIN = {"resource.kubernetes.io/admin-access": "true"}


def adapter_pod(namespace: Namespace) -> None:
    namespace.create(pods.claim("adapter", adapter="zigbee-adapter"))
    namespace.create(pods.pod("p", {"adapter": "adapter"}))
    namespace.until_running("p")


def health(namespace: Namespace) -> set[str]:
    return set(namespace.health("p").values())


@pytest.mark.usefixtures("modern")
@pytest.mark.field_case("A16")
def test_a_device_that_is_unplugged_while_held_stays_tainted_and_unhealthy(
    world: World, namespace: Namespace
) -> None:
    adapter_pod(namespace)
    until("health", lambda: health(namespace) == {"Healthy"})

    world.machine.unplug_adapter()

    world.until_tainted(ADAPTER)
    until("health", lambda: health(namespace) == {"Unhealthy"})
    namespace.until_running("p")
    assert world.holds() == {ADAPTER: "held"}
    namespace.delete_pods("p")
    world.until_published(WHOLE - {ADAPTER})


@pytest.mark.field_case("G16", "G24")
@pytest.mark.usefixtures("modern")
def test_a_device_that_comes_back_under_other_numbers_is_what_the_next_container_gets(
    world: World, namespace: Namespace
) -> None:
    adapter_pod(namespace)
    world.machine.unplug_adapter()
    world.until_tainted(ADAPTER)

    world.machine.plug_adapter(devnum=9, tty=3)

    world.until_tainted(ADAPTER, tainted=False)
    until("the file follows", lambda: "ttyUSB3" in cdi_text(world))
    namespace.run("p", "kill", "1")
    until("a second life", lambda: "188,   3" in looked(namespace))
    until("health", lambda: health(namespace) == {"Healthy"})


@pytest.mark.usefixtures("modern")
@pytest.mark.field_case("A16")
def test_no_pod_is_placed_on_a_device_that_is_not_there(world: World, namespace: Namespace) -> None:
    adapter_pod(namespace)
    world.machine.unplug_adapter()
    world.until_tainted(ADAPTER)

    namespace.create(pods.claim("other", adapter="zigbee-adapter"))
    namespace.create(pods.pod("other", {"adapter": "other"}))
    namespace.until_says("other", "cannot allocate all claims")
    namespace.delete_pods("p")
    world.machine.plug_adapter()

    namespace.until_running("other")


def test_a_device_nobody_holds_leaves_the_slice_and_comes_back(world: World) -> None:
    world.machine.unplug_adapter()
    world.until_published(WHOLE - {ADAPTER})

    world.machine.plug_adapter()

    world.until_published(WHOLE)


def test_a_claims_status_says_which_device_it_was_given(namespace: Namespace) -> None:
    adapter_pod(namespace)

    def status() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = namespace.claim("adapter")["status"].get("devices", [])
        return found

    [device] = until("status.devices", status)
    assert (device["driver"], device["pool"], device["device"]) == (LIKEN, "n0", ADAPTER)
    assert device["conditions"][0]["status"] == "True"
    assert device["data"]["attributes"]["serial"] == "0001"


# -- containers -----------------------------------------------------------------------------------


def test_two_containers_of_a_pod_share_a_claim(namespace: Namespace) -> None:
    namespace.create(pods.claim("gpu", gpu="gpu-render"))
    both = [pods.container(name, uses=("gpu",)) for name in ("a", "b")]
    namespace.create(pods.pod("p", {"gpu": "gpu"}, *both))
    namespace.until_running("p")

    seen = [namespace.run("p", "ls", "/dev/dri", container=name).split() for name in ("a", "b")]

    assert seen[0] == seen[1] != []


def test_a_container_receives_the_request_that_it_names_and_no_other(namespace: Namespace) -> None:
    same = ({"requests": ["render", "display"], "matchAttribute": f"{LIKEN}/address"},)
    namespace.create(pods.claim("gpu", same, render="gpu-render", display="gpu-display"))
    parts = [
        pods.container("coder", uses=("gpu/render",)),
        pods.container("screen", uses=("gpu/display",)),
        pods.container("none"),
    ]
    namespace.create(pods.pod("p", {"gpu": "gpu"}, *parts))
    namespace.until_running("p")

    coder, screen, none = (
        namespace.run("p", "ls", "/dev/dri", container=one["name"]).split() for one in parts
    )

    assert coder[0].startswith("renderD")
    assert len(coder) == 1
    assert screen[0].startswith("card")
    assert len(screen) == 1
    assert "No such file" in " ".join(none)


@pytest.mark.field_case("A08")
def test_an_init_container_has_the_device_before_the_others(namespace: Namespace) -> None:
    namespace.create(pods.claim("gpu", gpu="gpu-render"))
    first = pods.container("init", script="ls /dev/dri", uses=("gpu",))
    body = pods.pod("p", {"gpu": "gpu"}, pods.container(uses=("gpu",)), initContainers=[first])
    namespace.create(body)
    namespace.until_running("p")

    assert namespace.log("p", "init") == namespace.run("p", "ls", "/dev/dri")


@pytest.mark.field_case("H01")
def test_a_user_who_is_not_root_can_open_what_it_was_given(namespace: Namespace) -> None:
    namespace.create(pods.claim("gpu", gpu="gpu-render"))
    user = {"runAsUser": 1000, "runAsGroup": 1000, "runAsNonRoot": True}
    namespace.create(pods.pod("p", {"gpu": "gpu"}, securityContext=user))
    namespace.until_running("p")

    opened = namespace.run("p", "/bin/sh", "-c", "id -G; : </dev/dri/renderD128")

    assert "104" in opened.split()
    assert "Permission denied" not in opened  # ENXIO is the kernel's answer: no such hardware here
    assert FIRST in namespace.allocated("gpu")


# -- what is refused ------------------------------------------------------------------------------


def test_admin_access_is_refused_at_the_pod_while_no_policy_admits_it(
    world: World, namespace: Namespace
) -> None:
    world.witness.patch("Namespace", namespace.name, {"metadata": {"labels": ADMIN}})
    wanted = {"deviceClassName": "zigbee-adapter", "adminAccess": True}
    namespace.create(pods.claim("look", adapter=wanted))
    namespace.create(pods.pod("p", {"adapter": "look"}))

    said = namespace.until_says("p", "FailedPrepareDynamicResources")

    assert "adminAccess" in said or "admin access" in said
    assert world.holds() == {}


def test_an_unknown_parameter_is_refused_at_the_pod_and_the_known_ones_are_named(
    namespace: Namespace,
) -> None:
    parameters = {"apiVersion": "hardpoint.dev/v1", "kind": "UsbParameters", "usbfz": True}
    opaque = {"driver": LIKEN, "parameters": parameters}
    claim = pods.claim("adapter", adapter="zigbee-adapter")
    claim["spec"]["devices"]["config"] = [{"opaque": opaque}]
    namespace.create(claim)
    namespace.create(pods.pod("p", {"adapter": "adapter"}))

    said = namespace.until_says("p", "FailedPrepareDynamicResources")

    assert "usbfz" in said
    assert "usbfs" in said


# -- small looks ----------------------------------------------------------------------------------


def cdi_text(world: World) -> str:
    directory = world.cluster.paths()["cdi"]
    return "".join((directory / name).read_text() for name in world.cdi_files())


def looked(namespace: Namespace) -> str:
    try:
        return namespace.run("p", "/bin/sh", "-c", "ls -l /dev/ttyUSB*")
    except Exception:  # noqa: BLE001 - between two containers
        return ""

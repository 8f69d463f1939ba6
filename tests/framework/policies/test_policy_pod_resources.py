"""Who has a released device by the kubelet's word, and that its silence is nobody's permission."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest
from plain_plugin import Plugin
from release_world import GPU, allocated, claimed, grant, offered, release

from hardpoint.allocation import device_id
from hardpoint.grants import Evidence, NodeCondition, Release, published_name
from hardpoint.kubelet import podresources_v1_pb2 as pb
from hardpoint.kubelet.podsource import Checkpoint
from hardpoint.kubelet.services import Status
from hardpoint.model import Hold
from hardpoint.node import Node
from hardpoint.policies._uses import Uses
from hardpoint.policies.pod_resources import (
    PodResourcesSettings,
    PodResourcesUsers,
    _written_down,
)
from hardpoint.testing import Container, FakeAgent, FakeKubelet, Pod

LONG = "pci-" + "0123456789-" * 5
OTHERS = Pod(name="coredns", namespace="kube-system")
"""A pod of the API server's: the kubelet knows its pods."""


@pytest.fixture
async def kubelet(short_path: Path) -> AsyncIterator[FakeKubelet]:
    plugins = short_path / "device-plugins"
    async with FakeKubelet(short_path / "kubelet", device_plugins=plugins) as made:
        await made.admit(OTHERS)
        yield made


@pytest.fixture
def agent(short_path: Path) -> FakeAgent:
    return FakeAgent(short_path)


def policy(agent: FakeAgent, settle: float = 0.0) -> PodResourcesUsers:
    node = Node(
        name="node-1", kubelet=agent.paths.kubelet, device_plugins=agent.paths.device_plugins
    )
    return PodResourcesUsers(node, PodResourcesSettings(settle=settle, worker_files=()))


async def ask(agent: FakeAgent, released: Release, *holds: Hold) -> Evidence:
    return await policy(agent).find_users(released, holds, agent)


def shows(kubelet: FakeKubelet, *pods: pb.PodResources) -> None:
    """Let the kubelet list these beside what it has."""

    async def more(answer: pb.ListPodResourcesResponse) -> pb.ListPodResourcesResponse:
        answer.pod_resources.extend(pods)
        return answer

    kubelet.answer_pods(more)


def with_id(id_: str, resource: str = GPU) -> pb.PodResources:
    held = pb.ContainerDevices(resource_name=resource, device_ids=[id_])
    containers = [pb.ContainerResources(name="main", devices=[held])]
    return pb.PodResources(name="player", namespace="media", containers=containers)


def with_claim(device: str, driver: str = "hardpoint.dev") -> pb.PodResources:
    one = pb.ClaimResource(driver_name=driver, pool_name="node-1", device_name=device)
    claim = pb.DynamicResource(claim_name="c", claim_namespace="media", claim_resources=[one])
    containers = [pb.ContainerResources(name="main", dynamic_resources=[claim])]
    return pb.PodResources(name="player", namespace="media", containers=containers)


# -- who has it -----------------------------------------------------------------------------------


async def test_a_pod_that_a_plugin_gave_the_device_to_uses_it_until_it_ends(
    kubelet: FakeKubelet, agent: FakeAgent
) -> None:
    player = Pod(
        name="player", namespace="media", containers=(Container(name="main", resources={GPU: 1}),)
    )
    async with Plugin(agent.paths.device_plugins, "gpu0@a1", resource=GPU).serving():
        await kubelet.until_allocatable(GPU, 1)
        await kubelet.admit(player)
        used = await ask(agent, release("gpu0"))
        kubelet.end(player)
        await ask(agent, release("gpu0"))  # the list itself makes the kubelet forget what ended
        kubelet.devices.save()
        free = await ask(agent, release("gpu0"))

    assert used.users == ("pod media/player",)
    assert (free.users, free.why) == ((), "")


@pytest.mark.parametrize(
    ("id_", "released"),
    [
        ("gpu0@a1", release("gpu0")),
        ("gpu0::3@a1", release("gpu0")),
        ("gpu0@another", release("gpu0")),
        ("gpu0", release("gpu0")),
        ("gpu9@a1", release("gpu0")),
        ("gpu0", release("gpu0", allocation="", source="drain")),
        ("gpu0@a2", release("gpu0", allocation="", source="drain")),
    ],
)
async def test_an_id_of_the_device_or_of_the_allocation_is_a_use(
    kubelet: FakeKubelet, agent: FakeAgent, id_: str, released: Release
) -> None:
    shows(kubelet, with_id(id_))
    assert (await ask(agent, released)).users == ("pod media/player",)


async def test_an_id_is_known_under_whatever_resource_it_was_given_out(
    kubelet: FakeKubelet, agent: FakeAgent
) -> None:
    shows(kubelet, with_id("gpu0", resource="was-called.example.com/gpu"))
    assert (await ask(agent, release("gpu0"))).users


async def test_a_shortened_id_and_name_are_known(kubelet: FakeKubelet, agent: FakeAgent) -> None:
    allocation = "reservation-" + "x" * 30
    for pod in (
        with_id(device_id(LONG, allocation)),
        with_id(device_id(LONG)),
        with_claim(published_name(LONG, allocation)),
    ):
        shows(kubelet, pod)
        assert (await ask(agent, release(LONG, allocation=allocation))).users


@pytest.mark.parametrize(
    "device", ["gpu0", published_name("gpu0", "a1"), published_name("x", "a1")]
)
async def test_a_claims_device_is_known_by_its_name_and_by_the_allocations_tag(
    kubelet: FakeKubelet, agent: FakeAgent, device: str
) -> None:
    shows(kubelet, with_claim(device))
    assert (await ask(agent, release("gpu0"))).users == ("pod media/player",)


@pytest.mark.parametrize(
    "pod",
    [
        with_id("gpu1@a2"),
        with_id("gpu1"),
        with_id("gpu00"),
        with_claim("gpu1"),
        with_claim("gpu0", driver="gpu.example.com"),
        with_claim(published_name("gpu1", "a2")),
    ],
)
async def test_other_devices_and_other_drivers_are_no_uses(
    kubelet: FakeKubelet, agent: FakeAgent, pod: pb.PodResources
) -> None:
    shows(kubelet, pod)
    found = await ask(agent, release("gpu0"))
    assert (found.users, found.why) == ((), "")


async def test_what_a_grant_keeps_of_its_devices_is_no_use_of_what_it_lost(
    kubelet: FakeKubelet, agent: FakeAgent
) -> None:
    agent.set_state(granted=[grant("a1", "gpu1")])
    agent.show(offered("gpu1", "a1"))
    for pod in (with_id("gpu1@a1"), with_claim(published_name("gpu1", "a1"))):
        shows(kubelet, pod)
        assert not (await ask(agent, release("gpu0"))).users
    shows(kubelet, with_id("gpu0@a1"))
    assert (await ask(agent, release("gpu0"))).users


async def test_what_is_offered_under_a_grant_is_no_use_of_what_nobody_knows_any_more(
    kubelet: FakeKubelet, agent: FakeAgent
) -> None:
    agent.set_state(granted=[grant("a2", "gpu0")])
    agent.show(offered("gpu0", "a2"))
    lost = release("gpu0", allocation="", source="lost")
    for pod in (with_id("gpu0@a2"), with_claim(published_name("gpu0", "a2"))):
        shows(kubelet, pod)
        assert not (await ask(agent, lost)).users
    shows(kubelet, with_id("gpu0@a1"))
    assert (await ask(agent, lost)).users


async def test_an_old_kubelet_that_lists_no_claims_devices_is_no_proof(
    kubelet: FakeKubelet, agent: FakeAgent
) -> None:
    found = await ask(agent, release("gpu0"), claimed("gpu0"))

    assert found.users == ("claim media/player-gpu",)


async def test_what_the_agent_still_holds_under_an_id_is_in_use(
    kubelet: FakeKubelet, agent: FakeAgent
) -> None:
    found = await ask(agent, release("gpu0"), allocated("gpu0", "gpu0@a1"), claimed("gpu1"))

    assert found.users == ("a container that has gpu0@a1 of hardpoint.dev/gpu",)


@pytest.mark.field_case("B14")
async def test_a_claim_that_was_unprepared_under_a_running_pod_leaves_its_device_in_use(
    kubelet: FakeKubelet, agent: FakeAgent
) -> None:
    shows(kubelet, with_claim(published_name("gpu0", "a1")))
    found = await ask(agent, release("gpu0"))  # no hold is left: the kubelet has ended it

    assert found.users == ("pod media/player",)


# -- init containers ------------------------------------------------------------------------------


@pytest.fixture
async def loading(kubelet: FakeKubelet, agent: FakeAgent) -> AsyncIterator[Pod]:
    """A pod whose init container has the device: it is in no list of the kubelet's."""
    containers = (
        Container(name="load", resources={GPU: 1}, init=True),
        Container(name="main"),
    )
    pod = Pod(name="player", namespace="media", containers=containers)
    async with Plugin(agent.paths.device_plugins, "gpu0@a1", resource=GPU).serving():
        await kubelet.until_allocatable(GPU, 1)
        await kubelet.admit(pod)
        yield pod


async def test_an_init_containers_device_is_in_use_by_the_checkpoint(
    loading: Pod, agent: FakeAgent
) -> None:
    found = await ask(agent, release("gpu0"))

    uid = loading.identity
    assert found.users == (f"pod {uid}, by the kubelet's checkpoint ({GPU} gpu0@a1)",)


async def test_what_the_checkpoint_keeps_of_a_pod_that_is_gone_is_nobodys(
    loading: Pod, agent: FakeAgent
) -> None:
    directory = agent.paths.kubelet / "pods" / loading.identity
    directory.mkdir(parents=True)
    assert (await ask(agent, release("gpu0"))).users

    directory.rmdir()
    found = await ask(agent, release("gpu0"))
    assert (found.users, found.why) == ((), "")


async def test_an_id_that_the_checkpoint_keeps_of_another_device_is_no_use(
    loading: Pod, agent: FakeAgent
) -> None:
    (agent.paths.kubelet / "pods" / loading.identity).mkdir(parents=True)
    assert (await ask(agent, release("gpu1", allocation="a2"))).users == ()


@pytest.mark.parametrize(("believed", "named"), [(True, 1), (False, 0)])
def test_whether_a_pod_without_a_uid_lives_no_directory_says(believed: bool, named: int) -> None:
    """A checkpoint of another version may not say which pod has an id."""
    written = Checkpoint(pods=frozenset({(GPU, "gpu0@a1", "")}))
    uses = Uses(release=release("gpu0"), offered=(), ended=True)

    users = list(_written_down(uses, [], written, frozenset({"uid-7"}), believed))

    assert len(users) == named
    assert all("of unknown UID" in user for user in users)


async def test_a_checkpoint_that_cannot_be_read_is_no_proof(
    kubelet: FakeKubelet, agent: FakeAgent
) -> None:
    kubelet.devices.checkpoint.write_text("{")
    assert "kubelet_internal_checkpoint" in (await ask(agent, release("gpu0"))).why


# -- kubelets that do not say ---------------------------------------------------------------------


async def _fail(answer: pb.ListPodResourcesResponse) -> pb.ListPodResourcesResponse:
    raise Status("INTERNAL", "no")


async def _too_long(answer: pb.ListPodResourcesResponse) -> pb.ListPodResourcesResponse:
    answer.pod_resources.add(name="x", namespace="n" * (17 << 20))
    return answer


@pytest.mark.parametrize("answer", [_fail, _too_long])
async def test_a_kubelet_that_does_not_answer_well_leaves_everything_in_use(
    kubelet: FakeKubelet, agent: FakeAgent, answer: object
) -> None:
    kubelet.answer_pods(answer)  # type: ignore[arg-type]
    found = await ask(agent, release("gpu0"))

    assert "cannot be asked" in found.why


async def test_an_answer_of_more_than_4_mebibytes_is_read(
    kubelet: FakeKubelet, agent: FakeAgent
) -> None:
    shows(kubelet, pb.PodResources(name="x", namespace="n" * (5 << 20)), with_id("gpu0@a1"))
    assert (await ask(agent, release("gpu0"))).users == ("pod media/player",)


async def test_a_worker_whose_kubelet_is_stopped_leaves_everything_in_use(
    kubelet: FakeKubelet, agent: FakeAgent
) -> None:
    await kubelet.stop()
    found = await ask(agent, release("gpu0"))

    assert "no such socket" in found.why
    assert not found.users


@pytest.mark.field_case("J04")
async def test_a_kubelet_that_has_just_started_is_not_believed_about_what_it_does_not_list(
    kubelet: FakeKubelet, agent: FakeAgent
) -> None:
    asked = policy(agent)
    assert not (await asked.find_users(release("gpu0"), (), agent)).why

    await kubelet.restart(api=False)
    assert "lists no pod" in (await asked.find_users(release("gpu0"), (), agent)).why

    kubelet.hear()
    assert not (await asked.find_users(release("gpu0"), (), agent)).why


async def test_a_kubelet_that_has_shown_its_pods_for_too_short_a_time_is_not_believed(
    kubelet: FakeKubelet, agent: FakeAgent
) -> None:
    found = await policy(agent, settle=30.0).find_users(release("gpu0"), (), agent)
    assert "30 s yet" in found.why


# -- workers --------------------------------------------------------------------------------------


async def test_a_machine_that_never_was_a_worker_is_not_asked(agent: FakeAgent) -> None:
    asked = policy(agent)

    assert "never was a worker" in asked.not_applicable
    found = await asked.find_users(release("gpu0"), (), agent)
    assert (found.users, found.why) == ((), "")


@pytest.mark.parametrize(
    "mark",
    ["kubelet/config.yaml", "kubelet/kubeconfig", "kubelet/pods/x", "kubelet/pod-resources/x"],
)
async def test_what_a_kubelet_left_behind_makes_a_worker_for_good(
    agent: FakeAgent, mark: str, short_path: Path
) -> None:
    asked = policy(agent)
    assert asked.not_applicable
    path = short_path / mark
    path.parent.mkdir(parents=True)
    path.touch()
    assert asked.not_applicable == "", "a machine may join after the agent's start"
    path.unlink()

    assert asked.not_applicable == "", "its pods run on"
    assert (await asked.find_users(release("gpu0"), (), agent)).why


def test_the_device_managers_checkpoint_and_the_named_files_make_a_worker(
    agent: FakeAgent, short_path: Path
) -> None:
    agent.paths.device_plugins.mkdir()
    (agent.paths.device_plugins / "kubelet_internal_checkpoint").touch()
    assert policy(agent).not_applicable == ""

    named = PodResourcesSettings(worker_files=(short_path,))
    elsewhere = Node(name="n", kubelet=short_path / "a", device_plugins=short_path / "b")
    assert PodResourcesUsers(elsewhere, named).not_applicable == ""


def test_a_driver_that_made_its_directories_makes_no_worker(
    agent: FakeAgent, short_path: Path
) -> None:
    (agent.paths.kubelet / "plugins_registry").mkdir(parents=True)
    assert policy(agent).not_applicable


def test_in_a_pod_every_machine_is_a_worker(
    agent: FakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    assert policy(agent).not_applicable == ""


# -- the condition --------------------------------------------------------------------------------


async def test_a_silent_kubelet_is_a_condition_of_the_node_while_something_is_granted(
    kubelet: FakeKubelet, agent: FakeAgent
) -> None:
    agent.set_state(granted=[grant("a1", "gpu0")])
    served = policy(agent)
    await served._look(agent)
    assert not agent.raised

    kubelet.answer_pods(_fail)
    await served._look(agent)
    assert "INTERNAL" in agent.raised["PodResourcesUnavailable"].message

    kubelet.answer_pods(None)
    await served._look(agent)
    assert not agent.raised


async def test_a_silent_kubelet_is_a_condition_while_a_release_waits_for_it_and_no_longer(
    kubelet: FakeKubelet, agent: FakeAgent
) -> None:
    served = policy(agent)
    await served._look(agent)
    agent.set_state(releasing=[release("gpu0")])
    kubelet.answer_pods(_fail)
    await served._look(agent)
    assert "PodResourcesUnavailable" in agent.raised

    agent.set_state(releasing=[])
    await served._look(agent)
    assert not agent.raised


async def test_without_grants_a_kubelet_is_asked_until_it_knows_its_pods_and_no_more(
    kubelet: FakeKubelet, agent: FakeAgent
) -> None:
    served = policy(agent)
    for _ in range(3):
        await served._look(agent)
    assert kubelet.pods.lists == 1

    await kubelet.restart()
    await served._look(agent)
    assert kubelet.pods.lists == 2
    assert not agent.raised


async def test_the_kubelet_is_looked_at_for_the_life_of_the_agent(
    kubelet: FakeKubelet, agent: FakeAgent
) -> None:
    agent.set_state(granted=[grant("a1", "gpu0")])
    kubelet.answer_pods(_fail)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(policy(agent).serve_policy, agent)
        async for _ in agent.changes():
            if agent.raised:
                break
        tasks.cancel_scope.cancel()


async def test_a_condition_that_another_policy_raised_is_left_to_it(
    kubelet: FakeKubelet, agent: FakeAgent
) -> None:
    other = NodeCondition(type="PodResourcesUnavailable", reason="Other", message="m")
    agent.raise_condition(other)
    agent.set_state(granted=[grant("a1", "gpu0")])
    kubelet.answer_pods(_fail)
    await policy(agent)._look(agent)
    kubelet.answer_pods(None)
    await policy(agent)._look(agent)

    assert agent.conditions() == (other,)

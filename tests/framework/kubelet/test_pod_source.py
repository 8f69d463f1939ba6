"""Pod-resources as the agent reads it, from kubelets that hang, lie and restart."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest
from plain_plugin import Plugin

from hardpoint.errors import CallFailed, SocketError
from hardpoint.kubelet import deviceplugin_v1beta1_pb2 as dpb
from hardpoint.kubelet import podresources_v1_pb2 as pb
from hardpoint.kubelet.podsource import CHECKPOINT, PodSource
from hardpoint.kubelet.services import Status
from hardpoint.testing import Container, FakeKubelet, Pod

GPU = "example.com/gpu"


@pytest.fixture
async def kubelet(short_path: Path) -> AsyncIterator[FakeKubelet]:
    async with FakeKubelet(short_path, device_plugins=short_path / "dp") as made:
        await made.admit(Pod(name="one"))
        yield made


async def test_each_pod_is_listed(kubelet: FakeKubelet) -> None:
    source = PodSource(kubelet.root)

    assert [pod.name for pod in await source.list()] == ["one"]
    assert (await source.get("default", "one")) is not None
    assert (await source.get("default", "two")) is None


async def test_a_socket_that_is_not_there_is_said_without_waiting(tmp_path: Path) -> None:
    source = PodSource(tmp_path)
    with pytest.raises(CallFailed, match="no such socket"):
        await source.list()
    source.path.parent.mkdir()
    source.path.write_text("")
    assert source.kubelet() is None
    with pytest.raises(CallFailed, match="no such socket"):
        await source.get("ns", "one")


async def test_a_root_that_is_too_long_for_a_socket_is_said(tmp_path: Path) -> None:
    source = PodSource(tmp_path / ("x" * 120))
    with pytest.raises((CallFailed, SocketError)):
        await source.list()


async def test_an_answer_of_a_kubelet_that_was_replaced_meanwhile_is_not_used(
    kubelet: FakeKubelet,
) -> None:
    async def replaced(answer: pb.ListPodResourcesResponse) -> pb.ListPodResourcesResponse:
        kubelet.pods.socket.chmod(0o700)  # its change time is another one
        return answer

    source = PodSource(kubelet.root)
    before = source.kubelet()
    kubelet.answer_pods(replaced)
    with pytest.raises(CallFailed, match="started anew"):
        await source.list()
    after = source.kubelet()
    assert before is not None
    assert after is not None
    assert (before.inode, before != after) == (after.inode, True)


async def test_a_kubelet_that_hangs_is_given_up(kubelet: FakeKubelet) -> None:
    async def hang(answer: pb.ListPodResourcesResponse) -> pb.ListPodResourcesResponse:
        await anyio.sleep_forever()
        raise AssertionError

    kubelet.answer_pods(hang)
    with pytest.raises(CallFailed) as failed:
        await PodSource(kubelet.root, timeout_s=0.1).list()
    assert failed.value.code == "DEADLINE_EXCEEDED"


@pytest.mark.parametrize(("mebibytes", "read"), [(5, True), (17, False)])
async def test_a_busy_nodes_list_is_read_up_to_16_mebibytes_and_asked_for_once(
    kubelet: FakeKubelet, mebibytes: int, read: bool
) -> None:
    async def long(answer: pb.ListPodResourcesResponse) -> pb.ListPodResourcesResponse:
        for number in range(mebibytes):
            answer.pod_resources.add(name=f"pod-{number}", namespace="n" * (1 << 20))
        return answer

    kubelet.answer_pods(long)
    source = PodSource(kubelet.root)
    if read:
        assert len(await source.list()) == mebibytes + 1
    else:
        with pytest.raises(CallFailed, match="larger than max"):
            await source.list()
    assert kubelet.pods.lists == 1


async def test_the_checkpoint_names_what_init_containers_have(short_path: Path) -> None:
    first = Container(name="load", resources={GPU: 1}, init=True)
    directory = short_path / "dp"
    async with (
        FakeKubelet(short_path, device_plugins=directory) as kubelet,
        Plugin(directory, "a", resource=GPU).serving(),
    ):
        source = PodSource(short_path, directory)
        await kubelet.until_allocatable(GPU, 1)
        before = await source.checkpoint()
        await kubelet.admit(Pod(name="one", containers=(first, Container(name="main"))))
        after = await source.checkpoint()

        assert [pod.resources for pod in await source.list()] == [()]
        assert not before.ids
        assert after.ids == {(GPU, "a")}
        assert {(resource, id_) for resource, id_, pod in after.pods if pod} == {(GPU, "a")}
        assert before.written != after.written
        assert after.registered == {(GPU, "a")}


@pytest.mark.parametrize(
    ("entries", "ids"),
    [
        ("null", set()),
        (
            '[{"ResourceName": "r/a", "DeviceIDs": ["1", "2"]}]',
            {("r/a", "1"), ("r/a", "2")},
        ),
        (
            '[{"ResourceName": "r/a", "DeviceIDs": {"0": null, "1": ["1"]}}]',
            {("r/a", "1")},
        ),
    ],
)
async def test_checkpoints_of_every_release_are_read(
    tmp_path: Path, entries: str, ids: set[tuple[str, str]]
) -> None:
    (tmp_path / CHECKPOINT).write_text(f'{{"Data": {{"PodDeviceEntries": {entries}}}}}')
    assert (await PodSource(tmp_path, tmp_path).checkpoint()).ids == ids


@pytest.mark.parametrize(
    "text", ["", "null", "[]", '{"Data": 1}', '{"Data": {"PodDeviceEntries": [1]}}', "[" * 100_000]
)
async def test_a_checkpoint_that_says_something_else_is_no_empty_one(
    tmp_path: Path, text: str
) -> None:
    (tmp_path / CHECKPOINT).write_text(text)
    with pytest.raises(CallFailed, match="reading"):
        await PodSource(tmp_path, tmp_path).checkpoint()


async def test_no_checkpoint_says_nothing(tmp_path: Path) -> None:
    assert not (await PodSource(tmp_path, tmp_path).checkpoint()).ids


async def test_what_may_be_given_out_is_each_healthy_device_of_each_plugin(
    short_path: Path,
) -> None:
    directory = short_path / "dp"
    async with (
        FakeKubelet(short_path, device_plugins=directory) as kubelet,
        Plugin(directory, "a", "b", resource=GPU).serving() as plugin,
    ):
        source = PodSource(short_path, directory)
        await kubelet.until_allocatable(GPU, 2)
        both = await source.allocatable()
        plugin.tell(dpb.Device(ID="a", health="Healthy"), dpb.Device(ID="b", health="Ill"))
        await kubelet.until_allocatable(GPU, 1)
        one = await source.allocatable()

    assert [(held.resource, held.ids) for held in both] == [(GPU, ("a",)), (GPU, ("b",))]
    assert [held.ids for held in one] == [("a",)]


async def test_a_device_on_two_numa_nodes_is_given_out_as_one(short_path: Path) -> None:
    directory = short_path / "dp"
    async with (
        FakeKubelet(short_path, device_plugins=directory) as kubelet,
        Plugin(directory, "a", resource=GPU).serving() as plugin,
    ):
        nodes = [dpb.NUMANode(ID=0), dpb.NUMANode(ID=1)]
        plugin.tell(dpb.Device(ID="a", health="Healthy", topology=dpb.TopologyInfo(nodes=nodes)))
        await kubelet.until(lambda: [one.numa for one in kubelet.listed(GPU).values()] == [(0, 1)])
        assert [held.ids for held in await PodSource(short_path, directory).allocatable()] == [
            ("a",),
            ("a",),
        ]


async def test_a_kubelet_that_cannot_say_what_may_be_given_out_is_an_error(
    kubelet: FakeKubelet,
) -> None:
    async def fail(answer: pb.AllocatableResourcesResponse) -> pb.AllocatableResourcesResponse:
        raise Status("INTERNAL", "no")

    kubelet.answer_allocatable(fail)
    with pytest.raises(CallFailed, match="GetAllocatableResources"):
        await PodSource(kubelet.root).allocatable()

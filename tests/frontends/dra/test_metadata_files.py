"""What a container was given, in files that it can read (KEP-5304)."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest
from dra_node import DRIVER, KEY, NODE, device, running

from hardpoint.errors import BadValue, KubeUnreachable
from hardpoint.model import Allotment, AttributeValue, Claim, ClaimKey, PreparedDevice, Version
from hardpoint.testing.agent import FakeAgent
from hardpoint.testing.cdi import CdiRegistry
from hardpoint_dra.claims import ClaimReader
from hardpoint_dra.handler import ClaimHandler
from hardpoint_dra.metadata import MetadataFiles, with_metadata

IN_CONTAINER = "/var/run/kubernetes.io/dra-device-attributes"
ATTRIBUTES: dict[str, Mapping[str, AttributeValue]] = {
    "pci-0": {"model": "A1", "cores": 4, "displayNode": True, "driverVersion": Version("1.2.3")}
}


def _prepared(request: str = "r", device: str = "pci-0") -> PreparedDevice:
    cdi_ids = (f"hardpoint.dev/device=uid-1-{device}",)
    return PreparedDevice(request=request, pool=NODE, device=device, cdi_ids=cdi_ids)


def _attributes(name: str) -> Mapping[str, AttributeValue]:
    return ATTRIBUTES.get(name, {})


class World:
    """A driver's directories below a temporary one."""

    def __init__(self, root: Path, *versions: str) -> None:
        self.plugin, self.cdi = root / "plugins" / DRIVER, root / "cdi"
        self.files = MetadataFiles(DRIVER, self.plugin, self.cdi, versions or ("v1beta1",))

    def host(self, request: str = "r", uid: str = "uid-1") -> Path:
        return self.plugin / "dra-device-metadata" / uid / request / "metadata.json"

    def read(self, request: str = "r") -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.host(request).read_text().splitlines()]

    def write(self, *devices: PreparedDevice, pod_claim_name: str = "") -> dict[str, str]:
        claim = Claim(key=KEY, pod_claim_name=pod_claim_name)
        return self.files.write(claim, devices or (_prepared(),), _attributes)


def test_a_file_says_what_the_container_was_given(tmp_path: Path) -> None:
    world = World(tmp_path, "v1alpha1", "v1beta1")

    world.write(_prepared("main/sub"))

    newest, oldest = world.read("main")
    assert newest == {
        "apiVersion": "metadata.resource.k8s.io/v1beta1",
        "kind": "DeviceMetadata",
        "metadata": {"name": "gpu", "namespace": "default", "uid": "uid-1", "generation": 1},
        "requests": [
            {
                "name": "main/sub",
                "devices": [
                    {
                        "driver": DRIVER,
                        "pool": NODE,
                        "name": "pci-0",
                        "attributes": {
                            "cores": {"int": 4},
                            "displayNode": {"bool": True},
                            "driverVersion": {"version": "1.2.3"},
                            "model": {"string": "A1"},
                        },
                    }
                ],
            }
        ],
    }
    assert oldest == {**newest, "apiVersion": "metadata.resource.k8s.io/v1alpha1"}


@pytest.mark.parametrize(
    ("pod_claim_name", "where"),
    [("", "resourceclaims/gpu"), ("mine", "resourceclaimtemplates/mine")],
)
def test_the_runtime_mounts_it_read_only_where_programs_look(
    tmp_path: Path, pod_claim_name: str, where: str
) -> None:
    world = World(tmp_path)

    names = world.write(pod_claim_name=pod_claim_name)

    (mount,) = CdiRegistry(world.cdi).inject([names["r"]]).mounts
    assert mount == {
        "hostPath": str(world.host()),
        "containerPath": f"{IN_CONTAINER}/{where}/r/{DRIVER}-metadata.json",
        "options": ["ro", "bind"],
    }


def test_each_request_has_a_file_and_its_first_device_the_name(tmp_path: Path) -> None:
    world = World(tmp_path)
    devices = (_prepared("a"), _prepared("a", "pci-1"), _prepared("b/x", "pci-2"))

    names = world.write(*devices)

    assert names == {
        "a": f"{DRIVER}/metadata=uid-1_a",
        "b": f"{DRIVER}/metadata=uid-1_b",
    }
    given = with_metadata(devices, names)
    assert [device.cdi_ids[1:] for device in given] == [(names["a"],), (), (names["b"],)]
    assert CdiRegistry(world.cdi).errors() == {}
    assert len(list(world.cdi.iterdir())) == 1
    assert [d["name"] for d in world.read("a")[0]["requests"][0]["devices"]] == ["pci-0", "pci-1"]


@pytest.mark.parametrize("uid", ["0f8fad5b-d9cb-469f-a165-70867728950e", "a-1"])
def test_uids_of_every_shape_make_a_file_that_runtimes_take(tmp_path: Path, uid: str) -> None:
    world = World(tmp_path)
    claim = Claim(key=ClaimKey(uid, "default", "gpu", DRIVER))

    names = world.files.write(claim, [_prepared()], _attributes)

    assert CdiRegistry(world.cdi).names() == (names["r"],)


def test_programs_that_are_not_root_can_read_it(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        world = World(tmp_path)
        world.write()
    finally:
        os.umask(before)

    assert world.host().stat().st_mode & 0o777 == 0o644
    assert next(world.cdi.iterdir()).stat().st_mode & 0o777 == 0o644


def test_writing_the_same_again_changes_nothing(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.write()
    before = world.host().stat()

    world.write()

    after = world.host().stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_a_changed_device_is_told_in_the_same_file(tmp_path: Path) -> None:
    """The file is bind-mounted: another one under its name would not be seen inside."""
    world = World(tmp_path, "v1beta1", "v1alpha1")
    world.write()
    with world.host().open() as mounted:
        world.files.refresh(lambda name: {"model": "A2"})
        seen = [json.loads(line) for line in mounted.read().splitlines()]

    assert [doc["metadata"]["generation"] for doc in seen] == [2, 2]
    device = seen[0]["requests"][0]["devices"][0]
    assert device["attributes"] == {"model": {"string": "A2"}}


def test_a_device_that_is_not_known_now_keeps_what_was_said(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.write()

    world.files.refresh(lambda name: {})

    assert world.read()[0]["metadata"]["generation"] == 1


def test_a_known_claim_gets_its_names_back_after_a_reboot(tmp_path: Path) -> None:
    world = World(tmp_path)
    names = world.write()
    for path in world.cdi.iterdir():
        path.unlink()

    assert world.files.again(KEY) == names
    assert CdiRegistry(world.cdi).names() == (names["r"],)


def test_a_claim_that_was_never_described_has_no_names(tmp_path: Path) -> None:
    assert World(tmp_path).files.again(KEY) == {}


def test_removing_takes_everything_and_works_twice(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.write()

    world.files.remove("uid-1")
    world.files.remove("uid-1")

    assert list(world.cdi.iterdir()) == []
    assert not world.host().parents[1].exists()


def test_after_a_start_held_claims_are_made_whole_and_old_leavings_go(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.write()
    other = Claim(key=ClaimKey("uid-2", "default", "old", DRIVER))
    world.files.write(other, [_prepared()], _attributes)
    for path in world.cdi.iterdir():
        path.unlink()

    world.files.restore([KEY], before=time.time() + 60)

    assert world.host().exists()
    assert not world.host(uid="uid-2").exists()
    assert CdiRegistry(world.cdi).names() == (f"{DRIVER}/metadata=uid-1_r",)


@pytest.mark.field_case("B17")
def test_what_is_younger_than_this_process_is_nobodys_leavings(tmp_path: Path) -> None:
    """Its claim may be about to be held (kubernetes-sigs/dranet issue 232)."""
    world = World(tmp_path)
    world.write()

    world.files.restore([], before=world.host().parents[1].stat().st_mtime - 1)

    assert world.host().exists()


@pytest.mark.parametrize("content", ["", "{", "[]", '{"apiVersion": 1}', '{"kind": "x"}\n'])
def test_a_damaged_file_is_written_anew(tmp_path: Path, content: str) -> None:
    world = World(tmp_path)
    world.write()
    world.host().write_text(content)

    assert world.files.again(KEY) == {}
    names = world.write()

    assert list(names) == ["r"]
    assert world.read()[0]["metadata"]["generation"] == 1


@pytest.mark.parametrize("uid", ["../../etc", "", "a/b", "."])
def test_a_uid_that_is_a_path_is_refused(tmp_path: Path, uid: str) -> None:
    world = World(tmp_path)
    with pytest.raises(BadValue, match="claim UID"):
        world.files.write(
            Claim(key=ClaimKey(uid, "default", "gpu", DRIVER)), [_prepared()], _attributes
        )
    with pytest.raises(BadValue, match="claim UID"):
        world.files.remove(uid)


def test_a_driver_name_that_cdi_refuses_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(BadValue, match="a letter first"):
        MetadataFiles("0gpu.example.com", tmp_path, tmp_path)


# -- with the agent -------------------------------------------------------------------------------


def _handler(root: Path, agent: FakeAgent) -> tuple[ClaimHandler, MetadataFiles]:
    files = MetadataFiles(DRIVER, root / "plugin", agent.paths.cdi)

    class Reader(ClaimReader):
        async def read(self, key: ClaimKey) -> Claim:
            return Claim(key=key, allotments=(Allotment(request="r", device="pci-0", pool=NODE),))

    def connect() -> Any:
        raise AssertionError

    return ClaimHandler(agent, DRIVER, Reader(connect, NODE), metadata=files), files


async def test_a_claim_that_was_unprepared_meanwhile_leaves_no_files(tmp_path: Path) -> None:
    agent = FakeAgent(tmp_path)
    agent.show(device())
    handler, files = _handler(tmp_path, agent)
    prepare = agent.prepare

    async def overtaken(key: ClaimKey, read: Any) -> tuple[PreparedDevice, ...]:
        devices = await prepare(key, read)
        await handler.unprepare(key)
        return devices

    agent.prepare = overtaken  # type: ignore[method-assign]

    (prepared,) = await handler.prepare(KEY)

    assert len(prepared.cdi_ids) == 1
    assert files.again(KEY) == {}


async def test_files_that_were_lost_are_written_again_for_a_held_claim(tmp_path: Path) -> None:
    agent = FakeAgent(tmp_path)
    agent.show(device())
    handler, _ = _handler(tmp_path, agent)
    before = await handler.prepare(KEY)
    shutil.rmtree(tmp_path / "plugin/dra-device-metadata")

    assert await handler.prepare(KEY) == before
    assert (tmp_path / "plugin/dra-device-metadata/uid-1/r/metadata.json").exists()


async def test_an_api_server_that_is_away_costs_lost_files_and_not_the_claim(
    tmp_path: Path,
) -> None:
    agent = FakeAgent(tmp_path)
    agent.show(device())
    handler, _ = _handler(tmp_path, agent)
    (before,) = await handler.prepare(KEY)
    shutil.rmtree(tmp_path / "plugin/dra-device-metadata")

    async def away(key: ClaimKey) -> Claim:
        raise KubeUnreachable("no route")

    handler._reader.read = away  # type: ignore[method-assign]

    (after,) = await handler.prepare(KEY)

    assert after.cdi_ids == before.cdi_ids[:1]


async def test_files_that_could_not_be_removed_go_with_the_next_claim_that_ends(
    tmp_path: Path,
) -> None:
    agent = FakeAgent(tmp_path)
    agent.show(device())
    handler, _ = _handler(tmp_path, agent)
    await handler.prepare(KEY)
    directory = tmp_path / "plugin/dra-device-metadata/uid-1"
    spare = tmp_path / "spare"
    directory.rename(spare)
    directory.write_text("no directory, so that it cannot be removed as one")

    await handler.unprepare(KEY)
    assert "metadata files are not up to date" in str(agent.faults)
    directory.unlink()
    spare.rename(directory)
    await handler.unprepare(ClaimKey("uid-2", "default", "other", DRIVER))

    assert not directory.exists()
    assert agent.faults == {}


@pytest.mark.parametrize("writing", [True, False])
async def test_only_the_agent_that_writes_removes_leavings(tmp_path: Path, writing: bool) -> None:
    agent = FakeAgent(tmp_path, writing=writing)
    handler, files = _handler(tmp_path, agent)
    names = files.write(Claim(key=KEY), [_prepared()], _attributes)
    directory = tmp_path / "plugin/dra-device-metadata/uid-1"
    hour_ago = time.time() - 3600
    os.utime(directory, (hour_ago, hour_ago))

    await handler.restore_metadata()

    assert files.again(KEY) == ({} if writing else names)


async def test_what_the_offer_says_of_a_held_device_reaches_its_file(tmp_path: Path) -> None:
    agent = FakeAgent(tmp_path)
    agent.show(device(attributes={"model": "A1"}))
    handler, _ = _handler(tmp_path, agent)
    await handler.prepare(KEY)
    file = tmp_path / "plugin/dra-device-metadata/uid-1/r/metadata.json"
    async with running(handler.refresh_metadata):
        agent.show(device(attributes={"model": "A2"}))
        with anyio.fail_after(5):
            while '"A2"' not in file.read_text():
                await anyio.wait_all_tasks_blocked()

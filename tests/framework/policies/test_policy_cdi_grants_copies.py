"""Holds whose nodes are not their devices' any more: corrected for the runtime while they last."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import pytest
from hold_files import Ground, device, node_entry, spec

from hardpoint import Device, DeviceNode, Offered, TryAgain
from hardpoint.cdi_files import CdiDirectory
from hardpoint.cdi_rules import check
from hardpoint.testing.agent import FakeAgent
from hardpoint.testing.durable import DurableRun, Kill, Reboot, heard, told, walk

COPY = "grant_bcd-a.json"


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    """A host with two GPUs and the node that both need."""
    made = Ground(tmp_path)
    for minor in (0, 1):
        made.host(f"/dev/nvidia{minor}", minor)
    made.host("/dev/nvidiactl", 255)
    return made


def nodes(document: dict[str, Any], name: str) -> list[tuple[str, int, int]]:
    entry = next(one for one in document["devices"] if one["name"] == name)
    found = [
        *entry["containerEdits"].get("deviceNodes", ()),
        *document.get("containerEdits", {}).get("deviceNodes", ()),
    ]
    return [(one["path"], one["major"], one["minor"]) for one in found]


def admit(ground: Ground, device: Device, allocation: str = "a") -> None:
    domain = ground.agent.domains[0]
    ground.source.admit_claim((Offered(device=device, domain=domain, allocation=allocation),))


async def test_a_hold_that_is_right_is_not_copied(ground: Ground) -> None:
    common = {"deviceNodes": [node_entry(255, path="/dev/nvidiactl")]}
    ground.hold("a", spec("gpu-0", containerEdits=common))
    ground.offer("a", device("gpu-0", 0))

    grant = (await ground.grants())["a"]

    assert grant.devices[0].cdi_id == "bcd.dev/gpu=gpu-0"
    assert ground.copies == {}
    admit(ground, device("gpu-0", 0))


async def test_a_device_that_was_renumbered_is_delivered_by_a_corrected_copy(
    ground: Ground,
) -> None:
    """Its old name is another device's now: not even that may reach the container."""
    common = {"deviceNodes": [node_entry(255, path="/dev/nvidiactl")], "env": ["A=b"]}
    hold = ground.hold("a", spec("gpu-0", containerEdits=common))
    written = hold.read_bytes()
    ground.offer("a", device("gpu-0", 1))

    grant = (await ground.grants())["a"]

    copy = ground.copies[COPY]
    check(copy)
    assert nodes(copy, "gpu-0") == [("/dev/nvidia1", 195, 1), ("/dev/nvidiactl", 195, 255)]
    assert {**copy, "devices": []} == {**json.loads(written), "devices": []}
    assert [node.path for node in grant.devices[0].nodes] == ["/dev/nvidia1", "/dev/nvidiactl"]
    assert grant.devices[0].cdi_id == "bcd.dev/gpu=gpu-0"
    assert hold.read_bytes() == written
    admit(ground, device("gpu-0", 1))


async def test_another_number_under_the_same_name_is_corrected(ground: Ground) -> None:
    ground.host("/dev/nvidia0", 7)
    ground.hold("a", spec("gpu-0"))
    ground.offer("a", device("gpu-0", 7, at="/dev/nvidia0"))

    await ground.grants()

    assert nodes(ground.copies[COPY], "gpu-0") == [("/dev/nvidia0", 195, 7)]


async def test_two_devices_that_changed_places_are_put_right_together(ground: Ground) -> None:
    ground.hold("a", spec("gpu-0", "gpu-1"))
    ground.offer("a", device("gpu-0", 1), device("gpu-1", 0))

    await ground.grants()

    copy = ground.copies[COPY]
    assert nodes(copy, "gpu-0") == [("/dev/nvidia1", 195, 1)]
    assert nodes(copy, "gpu-1") == [("/dev/nvidia0", 195, 0)]


async def test_a_partitions_shared_node_is_corrected_as_well(ground: Ground) -> None:
    node = DeviceNode(path="/dev/nvidia1", major=195, minor=1, shared=True)
    ground.hold("a", spec("gpu-0"))
    ground.offer("a", Device(name="gpu-0", kind="gpu.mig", nodes=(node,), driver="x"))

    await ground.grants()

    assert nodes(ground.copies[COPY], "gpu-0") == [("/dev/nvidia1", 195, 1)]


async def test_a_device_that_is_known_by_its_uuid_is_corrected(ground: Ground) -> None:
    entry = spec("gpu-0")["devices"][0] | {"annotations": {"bcd.dev/uuid": "GPU-7"}}
    ground.hold("a", spec(entry))
    ground.offer("a", device("card-7", 1, uuid="GPU-7"))

    await ground.grants()

    assert nodes(ground.copies[COPY], "gpu-0") == [("/dev/nvidia1", 195, 1)]


async def test_what_else_a_hold_delivers_keeps_its_place_and_gets_the_hosts_numbers(
    ground: Ground,
) -> None:
    ground.host("/dev/fabric", 9, major=240)
    extra = [node_entry(0), node_entry(4, path="/dev/fabric", major=240, permissions="rw")]
    gone = node_entry(5, path="/dev/gone", major=241)
    ground.hold("a", spec({"name": "gpu-0", "containerEdits": {"deviceNodes": [*extra, gone]}}))
    ground.offer("a", device("gpu-0", 0))

    await ground.grants()

    entry = ground.copies[COPY]["devices"][0]["containerEdits"]["deviceNodes"]
    assert entry[0] == node_entry(0)
    assert {**entry[1], "type": "c"} == {**extra[1], "minor": 9, "type": "c"}
    assert len(entry) == 2


async def test_a_hold_with_no_node_of_its_own_needs_no_copy(ground: Ground) -> None:
    """The claim's own file has them."""
    ground.hold("a", spec({"name": "gpu-0", "containerEdits": {"env": ["A=b"]}}))
    ground.offer("a", device("gpu-0", 1))

    grant = (await ground.grants())["a"]

    assert ground.copies == {}
    assert grant.devices[0].nodes == ()
    admit(ground, device("gpu-0", 1))


async def test_a_copy_leaves_with_its_hold(ground: Ground) -> None:
    path = ground.hold("a", spec("gpu-0"))
    ground.offer("a", device("gpu-0", 1))
    await ground.grants()
    assert COPY in ground.copies

    path.unlink()
    await ground.grants()

    assert ground.copies == {}


async def test_a_copy_leaves_when_the_hold_is_right_again(ground: Ground) -> None:
    ground.hold("a", spec("gpu-0"))
    ground.offer("a", device("gpu-0", 1))
    await ground.grants()

    ground.offer("a", device("gpu-0", 0))
    await ground.grants()

    assert ground.copies == {}


async def test_a_copy_follows_a_hold_that_is_written_anew(ground: Ground) -> None:
    ground.hold("a", spec("gpu-0"))
    ground.offer("a", device("gpu-0", 1))
    await ground.grants()

    ground.hold("a", spec("gpu-0", containerEdits={"env": ["NEW=1"]}))
    await ground.grants()

    assert ground.copies[COPY]["containerEdits"] == {"env": ["NEW=1"]}


async def test_a_bad_hold_keeps_its_copy(ground: Ground) -> None:
    ground.hold("a", spec("gpu-0"))
    ground.offer("a", device("gpu-0", 1))
    before = await ground.grants(), ground.copies

    ground.hold("a", b"")

    assert (await ground.grants(), ground.copies) == before


async def test_while_its_device_is_not_known_a_copy_stays(ground: Ground) -> None:
    """An agent that has just started offers nothing yet, and containers start again meanwhile."""
    ground.hold("a", spec("gpu-0", "gpu-1"))
    ground.offer("a", device("gpu-0", 1), device("gpu-1", 0))
    await ground.grants()
    before = ground.copies

    ground.restart()
    ground.agent.show()
    grant = (await ground.grants())["a"]
    nothing = ground.copies
    ground.offer("a", device("gpu-1", 0))
    await ground.grants()

    assert nothing == before == ground.copies
    assert [node.path for node in grant.devices[0].nodes] == ["/dev/nvidia1"]


async def test_a_copy_of_a_hold_that_was_another_does_not_stay(ground: Ground) -> None:
    ground.hold("a", spec("gpu-0"))
    ground.offer("a", device("gpu-0", 1))
    await ground.grants()

    ground.restart()
    ground.agent.show()
    ground.hold("a", spec("gpu-1"))
    await ground.grants()

    assert ground.copies == {}


async def test_what_a_crash_left_behind_goes_and_others_files_stay(ground: Ground) -> None:
    runtime = ground.agent.paths.cdi
    left = ("grant_bcd-b.json", ".grant_bcd-a.json.tmp", "grant_bcd-bad.json")
    others = ("bcd-a.json", "hardpoint.dev-uid.json", "grant_acme-a.json", "nvidia.yaml")
    for name in (*left, *others):
        (runtime / name).write_text("{")
    (runtime / "grant_bcd-dir.json").mkdir()

    await ground.grants()

    assert {path.name for path in runtime.iterdir()} == {*others, "grant_bcd-dir.json"}


async def test_a_copy_that_was_spoilt_is_written_again(ground: Ground) -> None:
    ground.hold("a", spec("gpu-0"))
    ground.offer("a", device("gpu-0", 1))
    await ground.grants()
    before = ground.copies

    (ground.agent.paths.cdi / COPY).write_text("{")
    await ground.grants()

    assert ground.copies == before


async def test_a_link_in_the_place_of_a_copy_is_not_followed(ground: Ground) -> None:
    elsewhere = ground.root / "elsewhere"
    elsewhere.write_text("mine")
    (ground.agent.paths.cdi / COPY).symlink_to(elsewhere)
    ground.hold("a", spec("gpu-0"))
    ground.offer("a", device("gpu-0", 1))

    await ground.grants()

    assert elsewhere.read_text() == "mine"
    assert nodes(ground.copies[COPY], "gpu-0") == [("/dev/nvidia1", 195, 1)]


def test_no_copy_is_taken_for_a_claims_file(tmp_path: Path) -> None:
    (tmp_path / "grant_hardpoint.dev-a.json").write_text("{}")

    good, bad = CdiDirectory(tmp_path).claims(["hardpoint.dev", "grant.dev"])

    assert (good, bad) == ([], [])


async def test_only_the_agent_that_writes_corrects_and_the_other_waits(ground: Ground) -> None:
    ground.hold("a", spec("gpu-0"))
    ground.agent = FakeAgent(ground.root, node=ground.node, writing=False)
    ground.offer("a", device("gpu-0", 1))

    grant = (await ground.grants())["a"]

    assert ground.copies == {}
    assert grant.devices[0].cdi_id == ""
    with pytest.raises(TryAgain, match="the agent that writes"):
        admit(ground, device("gpu-0", 1))
    ground.agent.become_writer()
    await ground.grants()
    admit(ground, device("gpu-0", 1))


async def test_where_no_copy_can_be_written_nobody_gets_the_holds_names(ground: Ground) -> None:
    ground.agent.paths.cdi.rmdir()
    ground.agent.paths.cdi.write_text("in the way")
    ground.hold("a", spec("gpu-0"))
    ground.offer("a", device("gpu-0", 1))

    grant = (await ground.grants())["a"]

    assert grant.devices[0].cdi_id == ""
    assert grant.devices[0].nodes == ()
    assert "names other nodes" in ground.agent.faults["policy/cdi_grants bcd-a.json"][0]
    with pytest.raises(TryAgain):
        admit(ground, device("gpu-0", 1))


async def test_in_one_directory_with_its_hold_a_copy_would_spoil_both(tmp_path: Path) -> None:
    """Runtimes take neither of two devices of one name in directories of one priority."""
    ground = Ground(tmp_path)
    ground.host("/dev/nvidia1", 1)
    ground.hold("a", spec("gpu-0"))
    ground.agent.paths.cdi.rmdir()
    ground.agent.paths.cdi.symlink_to(ground.directory)
    ground.offer("a", device("gpu-0", 1))

    grant = (await ground.grants())["a"]

    assert set(ground.copies) == {"bcd-a.json"}
    assert grant.devices[0].cdi_id == ""
    assert "another directory" in ground.agent.faults["policy/cdi_grants bcd-a.json"][0]


async def test_a_claim_waits_until_a_hold_was_held_against_the_devices_new_nodes(
    ground: Ground,
) -> None:
    ground.hold("a", spec("gpu-0"))
    ground.offer("a", device("gpu-0", 0))
    await ground.grants()
    admit(ground, device("gpu-0", 0))

    with pytest.raises(TryAgain, match="not been looked at"):
        admit(ground, device("gpu-0", 1))
    admit(ground, device("gpu-0", 1), allocation="another source's")


async def test_an_offer_with_other_nodes_is_looked_at_at_once(ground: Ground) -> None:
    ground.hold("a", spec("gpu-0"))
    ground.offer("a", device("gpu-0", 0))
    await ground.grants()
    hints = 0
    hinted = anyio.Event()

    def hint() -> None:
        nonlocal hints, hinted
        hints += 1
        hinted.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ground.source.watch_devices, hint)
        await hinted.wait()  # the directory, at first
        hinted = anyio.Event()
        tasks.start_soon(ground.source.serve_policy, ground.agent)
        ground.offer("a", device("gpu-0", 1))
        with anyio.fail_after(10):
            await hinted.wait()
        tasks.cancel_scope.cancel()

    await ground.grants()
    admit(ground, device("gpu-0", 1))


async def test_a_copy_that_cannot_be_removed_is_told_of(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = ground.hold("a", spec("gpu-0"))
    ground.offer("a", device("gpu-0", 1))
    await ground.grants()
    path.unlink()

    def fails(path: Path) -> bool:
        raise PermissionError(1, "Operation not permitted", str(path))

    with monkeypatch.context() as patch:
        patch.setattr("hardpoint.policies.cdi_grants.copies.files.remove", fails)
        assert await ground.grants() == {}
    told = ground.agent.faults.pop("policy/cdi_grants copies")
    await ground.grants()

    assert f"{COPY}: Operation not permitted" in told[0]
    assert ground.copies == {}
    assert ground.agent.faults == {}


async def test_an_entry_that_is_left_with_nothing_is_still_a_good_one(ground: Ground) -> None:
    """A device without nodes, whose hold names one that is gone."""
    ground.hold("a", spec({"name": "gpu-0", "containerEdits": {"deviceNodes": [node_entry(9)]}}))
    plain = DeviceNode(path="/dev/nvidia0", major=195, minor=0, absent_ok=True)
    ground.offer("a", Device(name="gpu-0", kind="gpu", nodes=(plain,), driver="x"))

    await ground.grants()
    await ground.grants()

    check(ground.copies[COPY])
    assert nodes(ground.copies[COPY], "gpu-0") == []


async def test_of_a_device_whose_numbers_are_not_known_yet_nothing_is_said(ground: Ground) -> None:
    ground.hold("a", spec("gpu-0"))
    bare = Device(name="gpu-0", kind="gpu", nodes=(DeviceNode(path="/dev/late"),), driver="x")
    ground.offer("a", bare)

    await ground.grants()

    assert ground.copies == {}


async def test_a_node_in_the_common_edits_that_is_another_devices_goes(ground: Ground) -> None:
    common = {"deviceNodes": [node_entry(0), node_entry(255, path="/dev/nvidiactl")]}
    ground.host("/dev/nvidiactl", 255, major=196)
    common["deviceNodes"][1]["major"] = 196
    ground.hold(
        "a",
        spec({"name": "gpu-0", "containerEdits": {"env": ["A=b"]}}) | {"containerEdits": common},
    )
    ground.offer("a", device("gpu-0", 1))

    await ground.grants()

    assert nodes(ground.copies[COPY], "gpu-0") == [
        ("/dev/nvidia1", 195, 1),
        ("/dev/nvidiactl", 196, 255),
    ]


class Corrects(DurableRun):
    """A hold is corrected, and goes."""

    watch = ("cdi",)

    def work(self, root: Path) -> None:
        ground = _swapped(root)
        anyio.run(ground.grants)
        told(root, "corrected")
        (ground.directory / "bcd-a.json").unlink()
        told(root, "gone")
        anyio.run(ground.grants)

    def reboot(self, root: Path) -> None:
        for path in (root / "cdi").glob("*"):
            path.unlink()

    def look(self, root: Path) -> None:
        gone = ["gone"] in heard(root) if (root / "told").exists() else False
        (root / "etc-cdi").rename(root / "before")
        ground = _swapped(root)
        if gone:
            (ground.directory / "bcd-a.json").unlink()
        anyio.run(ground.grants)
        assert set(ground.copies) == (set() if gone else {COPY})
        assert not list(ground.agent.paths.cdi.glob(".*"))


def _swapped(root: Path) -> Ground:
    ground = Ground(root)
    ground.host("/dev/nvidia1", 1)
    ground.hold("a", spec("gpu-0"))
    ground.offer("a", device("gpu-0", 1))
    return ground


@pytest.mark.parametrize("fault", [Kill(), Reboot()], ids=("kill", "reboot"))
def test_after_a_crash_a_hold_is_corrected_and_nothing_of_it_is_left(
    tmp_path: Path, fault: Kill | Reboot
) -> None:
    walked = walk(Corrects, tmp_path, fault)

    assert not walked.problems
    assert walked.rounds > 4

"""The stand-in for a GPU driver keeps the contract, and tells a test what was done to its GPUs."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import anyio
import pytest

from hardpoint import Condition, Device, Hold, Node
from hardpoint.errors import TryAgain
from hardpoint.model import ClaimKey, parts_of
from hardpoint.testing import DriverContract, DriverUnderTest, FakeMachine, hold_on
from hardpoint.testing.gpus import FakeGpus, GpuStandIn


class TestGpuStandIn(DriverContract):
    plugin = GpuStandIn

    @pytest.fixture
    def populated(self, machine: FakeMachine) -> FakeMachine:
        gpus = FakeGpus(machine)
        gpus.add(numa=1)
        gpus.add(mig=2)
        gpus.add(slots=3)
        return machine


class TestGpuStandInWithFullNames(TestGpuStandIn):
    settings: ClassVar[dict[str, Any]] = {"full_names": True}


@pytest.fixture
def gpus(machine: FakeMachine) -> FakeGpus:
    return FakeGpus(machine)


def _driver(gpus: FakeGpus, **settings: Any) -> DriverUnderTest:
    return DriverUnderTest(GpuStandIn, gpus.machine.node(writable=True), settings)


def _devices(gpus: FakeGpus, **settings: Any) -> dict[str, Device]:
    return {device.name: device for device in _driver(gpus, **settings).scan().devices}


def _hold_of(namespace: str, device: Device) -> Hold:
    return Hold(claim=ClaimKey("u", namespace, "other", "d"), device=device, request="r")


def _contend(one: Device, other: Device) -> bool:
    first, second = parts_of(one, one.nodes), parts_of(other, other.nodes)
    return any(a.contends(b) for a in first for b in second)


def test_each_kind_says_what_a_control_plane_knows_it_by(gpus: FakeGpus) -> None:
    whole, cut, sliced = gpus.add(numa=1), gpus.add(mig=1), gpus.add(slots=1)

    found = _devices(gpus)

    assert sorted(found) == sorted([whole.name, *cut.parts, *sliced.parts])
    short = whole.uuid[4:12]
    assert whole.name == f"gpu-{short}"
    assert cut.parts == [f"{cut.name}-gi1-ci0"]
    assert sliced.parts == [f"{sliced.name}-s0"]
    kinds = [(d.kind, d.attributes["class"]) for d in map(found.get, (whole.name, *cut.parts)) if d]
    assert kinds == [("gpu", "gpu"), ("gpu.mig", "gpu.mig")]
    assert found[whole.name].attributes["uuid"] == whole.uuid
    assert found[whole.name].attributes["numaNode"] == 1
    assert found[whole.name].topology.numa_node == 1
    assert str(found[cut.parts[0]].attributes["uuid"]).startswith("MIG-")
    assert found[sliced.parts[0]].attributes["uuid"] == sliced.uuid


def test_full_names_are_the_seeds_and_leave_room_for_a_tag(gpus: FakeGpus) -> None:
    whole, cut = gpus.add(), gpus.add(mig=1)

    found = _devices(gpus, full_names=True)

    bare = cut.uuid.removeprefix("GPU-")
    assert set(found) == {whole.uuid.lower(), f"gpu-{bare}-gi1-ci0"}
    assert all(len(name) + len("-01234567") <= 63 for name in found)


def test_a_whole_gpu_contends_with_its_parts_and_they_not_among_themselves(gpus: FakeGpus) -> None:
    other, both, sliced = gpus.add(), gpus.add(mig=2, whole=True), gpus.add(slots=2)

    found = _devices(gpus)
    one, two = (found[name] for name in both.parts)
    first, second = (found[name] for name in sliced.parts)

    assert not _contend(one, two)
    assert not _contend(first, second)
    assert _contend(found[both.name], one)
    assert _contend(found[both.name], two)
    assert not _contend(found[other.name], found[both.name])
    assert {n.path for n in one.nodes} == {n.path for n in two.nodes} == {"/dev/acme/gpu1"}
    assert _contend(one, one)
    assert _contend(first, first)


def test_a_divided_gpu_says_why_it_is_not_offered_whole(gpus: FakeGpus) -> None:
    gpus.add(slots=2)

    (withheld,) = _driver(gpus).scan().withheld

    assert (withheld.subject, withheld.rule) == ("gpu0", "divided")


def test_an_unhealthy_gpu_takes_its_parts_along_and_no_other(gpus: FakeGpus) -> None:
    other, cut = gpus.add(), gpus.add(mig=2)
    driver, found = _driver(gpus), _devices(gpus)

    def health(name: str) -> tuple[Condition, str]:
        answer = driver.call("check_device", name, device=found[name])
        return answer.condition, answer.message

    cut.fail("xid 48", cut.parts[1])
    assert health(cut.parts[0])[0] is Condition.HEALTHY
    assert health(cut.parts[1]) == (Condition.UNHEALTHY, "xid 48")
    cut.fail("row remap pending")
    assert health(cut.parts[0]) == (Condition.UNHEALTHY, "row remap pending")
    assert health(other.name)[0] is Condition.HEALTHY
    cut.mend()
    cut.mend(cut.parts[1])
    assert health(cut.parts[1])[0] is Condition.HEALTHY


def test_a_part_that_is_none_is_said(gpus: FakeGpus) -> None:
    cut = gpus.add(mig=1)

    with pytest.raises(LookupError, match=f"no part s7: {cut.name}-gi1-ci0"):
        cut.fail("xid 48", "s7")


def test_a_node_is_labelled_by_its_gpus_and_one_without_is_not(
    gpus: FakeGpus, tmp_path: Path
) -> None:
    empty = DriverUnderTest(GpuStandIn, FakeMachine(tmp_path / "empty").node())
    gpus.add()
    gpus.add(mig=2)
    alike = _driver(gpus).call("label_node")
    gpus.add(product="Acme G200")

    assert empty.call("label_node") == {}
    assert alike == {
        "gpu.count": "2",
        "gpu.product": "Acme-G100-80GB",
        "gpu.driver": "570.86.15",
    }
    assert _driver(gpus).call("label_node")["gpu.product"] == "mixed"


def test_what_was_done_to_a_gpu_is_in_its_log(gpus: FakeGpus) -> None:
    gpu = gpus.add()
    driver, device = _driver(gpus), _devices(gpus)[gpu.name]
    hold = hold_on(device)

    driver.prepare(device, hold)
    assert gpu.user() == "contract/claim"
    driver.unprepare(device, hold)
    assert gpu.user() == ""
    gpu.fail_scrub("its memory is busy")
    with pytest.raises(TryAgain, match="memory is busy"):
        driver.call("release_device", device=device, hold=hold)
    gpu.fail_scrub("")
    driver.call("release_device", device=device, hold=hold)

    assert gpus.log == [
        f"prepared {gpu.name} for contract/claim",
        f"unprepared {gpu.name} of contract/claim",
        f"scrubbed {gpu.name} after contract/claim",
    ]


@pytest.mark.parametrize("part_first", [True, False])
def test_two_owners_of_one_gpu_are_in_its_log(gpus: FakeGpus, part_first: bool) -> None:
    both = gpus.add(mig=2, whole=True)
    driver, found = _driver(gpus), _devices(gpus)
    first, second = (both.parts[1], both.name) if part_first else (both.name, both.parts[1])
    driver.prepare(found[first], _hold_of("media", found[first]))
    assert "contended" not in " ".join(gpus.log)

    driver.prepare(found[second], hold_on(found[second]))

    assert f"contended {second}: media/other has it, contract/claim comes" in gpus.log


def test_a_recorded_machine_is_not_written(gpus: FakeGpus) -> None:
    gpu = gpus.add()
    device = _devices(gpus)[gpu.name]
    driver = DriverUnderTest(GpuStandIn, gpus.machine.node())

    with pytest.raises(Exception, match="recorded machine"):
        driver.prepare(device, hold_on(device))
    assert gpu.user() == ""


async def test_the_machine_says_when_something_changed(gpus: FakeGpus) -> None:
    gpu = gpus.add()
    node: Node = gpus.machine.node()
    driver = GpuStandIn(node, GpuStandIn.Settings())
    told = anyio.Event()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(driver.watch_devices, told.set)
        with anyio.fail_after(10):
            while not told.is_set():
                gpu.fail("xid 48")
                with anyio.move_on_after(0.3):
                    await told.wait()
        tasks.cancel_scope.cancel()


def test_a_gpu_that_was_taken_out_is_gone_with_its_parts(gpus: FakeGpus) -> None:
    other, cut = gpus.add(), gpus.add(mig=2)

    cut.remove()

    assert set(_devices(gpus)) == {other.name}

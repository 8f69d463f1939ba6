"""What becomes of a device under the device plugin API: told in allocatable and in pods' status."""

from __future__ import annotations

import pytest
from cluster.plugged import BOARD, USB, Plugged, boards_of, lives, pod
from cluster.waiting import until
from cluster.witness import Namespace

FAULT = "memory bank 2 does not answer"
LOOK = ("/bin/sh", "-c", "ls -l /dev/ttyUSB*")


def adapter(namespace: Namespace) -> None:
    namespace.create(pod("p", USB))
    namespace.until_running("p")


@pytest.mark.field_case("A16")
def test_a_fault_takes_a_device_out_of_allocatable_alone_and_back(
    plugged: Plugged, namespace: Namespace
) -> None:
    namespace.create(pod("p"))
    namespace.until_running("p")
    [board] = set(boards_of(namespace, "p"))

    plugged.set(board, fault=FAULT)

    plugged.until_allocatable(BOARD, 2)
    assert plugged.capacity(BOARD) == 3
    namespace.until_running("p")
    assert boards_of(namespace, "p") == [board, board]
    plugged.set(board, fault=None)
    plugged.until_allocatable(BOARD, 3)
    assert plugged.held()[board] == board


@pytest.mark.usefixtures("modern")
def test_a_fault_and_its_recovery_are_in_the_pods_status(
    plugged: Plugged, namespace: Namespace
) -> None:
    namespace.create(pod("p"))
    namespace.until_running("p")
    [board] = set(boards_of(namespace, "p"))
    until("healthy", lambda: namespace.health("p") == {board: "Healthy"})

    plugged.set(board, fault=FAULT)

    until("unhealthy", lambda: namespace.health("p") == {board: "Unhealthy"})
    plugged.set(board, fault=None)
    until("healthy", lambda: namespace.health("p") == {board: "Healthy"})


@pytest.mark.field_case("A16")
def test_a_device_that_nobody_has_goes_and_comes_back(
    plugged: Plugged, namespace: Namespace
) -> None:
    plugged.until_allocatable(USB, 1)
    plugged.machine.unplug_adapter()
    plugged.until_allocatable(USB, 0)
    namespace.create(pod("p", USB))
    namespace.until_says("p", f"Insufficient {USB}")

    plugged.machine.plug_adapter(devnum=5, tty=1)

    namespace.until_running("p")
    assert "188,   1" in namespace.run("p", *LOOK)


@pytest.mark.field_case("G16", "G24")
def test_a_device_that_comes_back_under_other_numbers_is_what_the_next_container_gets(
    plugged: Plugged, namespace: Namespace
) -> None:
    adapter(namespace)
    plugged.machine.unplug_adapter()
    plugged.until_allocatable(USB, 0)
    namespace.until_running("p")
    assert lives(namespace, "p") == 0

    plugged.machine.plug_adapter(devnum=9, tty=3)

    plugged.until_allocatable(USB, 1)
    until(
        "the file follows",
        lambda: any("ttyUSB3" in plugged.cdi_text(f) for f in plugged.cdi_files()),
    )
    namespace.run("p", "kill", "1")
    until("a second life", lambda: "188,   3" in looked(namespace))


def looked(namespace: Namespace) -> str:
    try:
        return namespace.run("p", *LOOK)
    except Exception:  # noqa: BLE001 - between two containers
        return ""

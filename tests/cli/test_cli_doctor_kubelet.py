"""The doctor says where it looked for the kubelet, what it found there, and what to do."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from shell import Shell

from hardpoint.cli import doctor
from hardpoint.settings import load

Found = dict[str, tuple[str, str, str]]


def _kubelet(shell: Shell) -> Found:
    subjects = ("kubelet", "pod-resources", "device plugins")
    answers = {one["subject"]: one for one in shell("doctor", "--json").json}
    return {s: (answers[s]["level"], answers[s]["found"], answers[s]["do"]) for s in subjects}


@pytest.mark.field_case("A12")
def test_where_no_kubelet_is_every_place_that_was_looked_at_is_named(shell: Shell) -> None:
    level, found, do = _kubelet(shell)["kubelet"]

    assert (level, do) == ("warn", "is this a node?")
    for root in (str(shell.kubelet), *doctor.KUBELET_ROOTS):
        assert root in found


@pytest.mark.field_case("A12")
def test_a_root_that_is_elsewhere_is_found_and_the_setting_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "data/kubelet"
    (elsewhere / "plugins_registry").mkdir(parents=True)
    monkeypatch.setattr(doctor, "KUBELET_ROOTS", ("/no/such/kubelet", str(elsewhere)))
    settings = load(environment={"HARDPOINT_PATHS__KUBELET": str(tmp_path / "nothing")})

    (finding, *_) = doctor._kubelet(settings)

    assert finding.level == "fail"
    assert finding.do == f'set [paths] kubelet = "{elsewhere}" and mount it at that path'


@pytest.mark.field_case("A04", "A12")
def test_a_socket_that_nobody_answers_at_is_told_from_one_that_is_not_there(shell: Shell) -> None:
    left = shell.kubelet / "pod-resources/kubelet.sock"
    left.parent.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(left))

    found = _kubelet(shell)

    assert found["pod-resources"][0] == found["device plugins"][0] == "warn"
    assert found["pod-resources"][1].startswith(f"{left} does not answer: ")
    assert found["device plugins"][1].endswith("device-plugins/kubelet.sock is not there")
    assert found["device plugins"][2] == "needed by the device plugin frontend only"
    assert left.is_socket()


def test_what_cannot_be_known_without_pod_resources_is_said(shell: Shell) -> None:
    level, _, do = _kubelet(shell)["pod-resources"]

    assert level == "warn"
    assert "devices of pods that ended stay held" in do


def test_the_kubelets_socket_is_wanted_where_the_device_plugin_frontend_serves(
    shell: Shell,
) -> None:
    shell.environment["HARDPOINT_FRONTENDS"] = "deviceplugin"

    level, found, do = _kubelet(shell)["device plugins"]

    assert (level, found.endswith("kubelet.sock is not there")) == ("fail", True)
    assert "nothing is offered without" in do

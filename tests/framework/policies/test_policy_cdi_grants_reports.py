"""What became of grants, as files for whoever wrote the holds."""

from __future__ import annotations

import json
import os
import stat
from dataclasses import replace
from pathlib import Path

import anyio
import pytest
from hold_files import Ground, device, spec

from hardpoint import Grant, GrantOutcome, Outcome, Release
from hardpoint.policies.cdi_grants.reports import Reports
from hardpoint.testing.durable import DurableRun, Kill, Reboot, heard, told, walk

IN_FORCE = GrantOutcome(Outcome.IN_FORCE)
GRANT = Grant(allocation="a-1", source="policy/cdi_grants")
RELEASE = Release(
    id="r1",
    allocation="a-1",
    source="policy/cdi_grants",
    devices=(device("gpu-0", 0), device("gpu-1", 1)),
    since=1000.0,
)


class Clocks:
    """Wall clock and monotonic clock, each where a test wants it."""

    def __init__(self) -> None:
        self.wall, self.ticks = 5000.0, 0.0

    def reports(self, directory: Path) -> Reports:
        return Reports(directory, clock=lambda: self.wall, monotonic=lambda: self.ticks)


def test_a_grant_in_force_is_said_to_be(tmp_path: Path) -> None:
    reports = Clocks().reports(tmp_path / "grants")

    reports.tell_grant(GRANT, IN_FORCE)

    assert json.loads((tmp_path / "grants/a-1.json").read_text()) == {
        "allocation": "a-1",
        "outcome": "in-force",
        "reason": "",
        "at": 5000.0,
    }


def test_a_refused_grant_is_said_why(tmp_path: Path) -> None:
    reports = Clocks().reports(tmp_path)

    reports.tell_grant(GRANT, GrantOutcome(Outcome.OVERLAP, "gpu-0 is granted to b"))

    told = reports.read("a-1")
    assert (told["outcome"], told["reason"]) == ("overlap", "gpu-0 is granted to b")


def test_a_release_takes_the_place_of_the_grant(tmp_path: Path) -> None:
    reports = Clocks().reports(tmp_path)
    reports.tell_grant(GRANT, IN_FORCE)

    reports.tell_release(GRANT, RELEASE)

    assert reports.read("a-1") == {
        "allocation": "a-1",
        "released": True,
        "since": 1000.0,
        "devices": ["gpu-0", "gpu-1"],
        "at": 5000.0,
    }


def test_what_is_told_twice_is_written_once(tmp_path: Path) -> None:
    clocks = Clocks()
    reports = clocks.reports(tmp_path)
    reports.tell_release(GRANT, RELEASE)
    before = reports.path("a-1").stat()

    clocks.wall += 60
    reports.tell_release(GRANT, RELEASE)

    assert reports.path("a-1").stat() == before


def test_nobody_but_root_reads_reports(tmp_path: Path) -> None:
    reports = Clocks().reports(tmp_path / "state/grants")

    reports.tell_grant(GRANT, IN_FORCE)

    assert stat.S_IMODE((tmp_path / "state/grants").stat().st_mode) == 0o700
    assert stat.S_IMODE(reports.path("a-1").stat().st_mode) == 0o600


@pytest.mark.parametrize("there", [b"", b"{", b"[]", b"[" * 100_000, b"\0"])
def test_what_stands_in_the_place_of_a_report_is_replaced(tmp_path: Path, there: bytes) -> None:
    reports = Clocks().reports(tmp_path)
    reports.path("a-1").write_bytes(there)

    reports.tell_grant(GRANT, IN_FORCE)

    assert reports.read("a-1")["outcome"] == "in-force"


def test_a_link_or_a_pipe_in_the_place_of_a_report_is_replaced(tmp_path: Path) -> None:
    reports, elsewhere = Clocks().reports(tmp_path), tmp_path / "elsewhere"
    elsewhere.write_text("mine")
    reports.path("a-1").symlink_to(elsewhere)
    os.mkfifo(reports.path("b"))

    reports.tell_grant(GRANT, IN_FORCE)
    reports.tell_grant(Grant(allocation="b"), IN_FORCE)

    assert elsewhere.read_text() == "mine"
    assert reports.read("a-1")["outcome"] == reports.read("b")["outcome"] == "in-force"


def test_a_report_that_cannot_be_written_is_told_again(tmp_path: Path) -> None:
    (tmp_path / "grants").write_text("in the way")

    with pytest.raises(OSError, match=r"exists|Not a directory"):
        Clocks().reports(tmp_path / "grants").tell_grant(GRANT, IN_FORCE)


def test_an_allocation_that_is_a_path_writes_nothing_elsewhere(tmp_path: Path) -> None:
    Clocks().reports(tmp_path / "grants").tell_grant(Grant(allocation="../x"), IN_FORCE)

    assert list(tmp_path.iterdir()) == []


def test_the_report_of_a_release_goes_after_its_time(tmp_path: Path) -> None:
    clocks = Clocks()
    reports = clocks.reports(tmp_path)
    reports.tell_release(GRANT, RELEASE)
    reports.sweep((), 7200.0)

    clocks.wall, clocks.ticks = clocks.wall + 7100, 7100.0
    reports.sweep((), 7200.0)
    early = reports.read("a-1")
    clocks.wall, clocks.ticks = clocks.wall + 200, 7300.0
    reports.sweep((), 7200.0)

    assert early
    assert not reports.path("a-1").exists()


def test_a_clock_that_jumps_ahead_removes_no_report_that_nobody_has_read(tmp_path: Path) -> None:
    clocks = Clocks()
    reports = clocks.reports(tmp_path)
    reports.tell_release(GRANT, RELEASE)
    reports.sweep((), 7200.0)

    clocks.wall, clocks.ticks = clocks.wall + 1e9, 60.0
    reports.sweep((), 7200.0)

    assert reports.read("a-1")


def test_what_is_stated_or_being_released_keeps_its_report(tmp_path: Path) -> None:
    clocks = Clocks()
    reports = clocks.reports(tmp_path)
    reports.tell_grant(GRANT, IN_FORCE)
    for clocks.ticks in (0.0, 1e6):
        reports.sweep({"a-1"}, 0.0)

    assert reports.read("a-1")


def test_the_refusal_of_a_hold_that_is_gone_goes_and_files_of_others_stay(tmp_path: Path) -> None:
    clocks = Clocks()
    reports = clocks.reports(tmp_path)
    reports.tell_grant(GRANT, GrantOutcome(Outcome.UNSUPPORTED, "it asks for x"))
    others = (".hidden.json", "notes.txt", "odd.json", "a b.json")
    for name in others:
        (tmp_path / name).write_text("[]")

    for clocks.ticks in (0.0, 4000.0):
        reports.sweep((), 7200.0)

    assert {path.name for path in tmp_path.iterdir()} == set(others)


async def test_the_source_tells_into_the_state_directory_unless_it_is_told_elsewhere(
    tmp_path: Path,
) -> None:
    for where, settings in (("state/grants", {}), ("said", {"reports": tmp_path / "b/said"})):
        root = tmp_path / where[0].replace("s", "a" if not settings else "b")
        root.mkdir()
        ground = Ground(root, **settings)
        ground.hold("a-1", spec("gpu-0"))
        grant = (await ground.grants())["a-1"]

        ground.source.report_grant(grant, IN_FORCE, ground.agent)
        granted = json.loads((root / where / "a-1.json").read_text())
        ground.source.report_release(grant, RELEASE, ground.agent)

        assert granted["outcome"] == "in-force"
        assert json.loads((root / where / "a-1.json").read_text())["released"] is True


async def test_the_source_sweeps_while_it_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hardpoint.policies.cdi_grants._SWEEP", 0.01)
    ground = Ground(tmp_path, keep_reports=0)
    reports = ground.source._reports_of(ground.agent.paths.state)
    for allocation in ("stated", "in-force", "releasing", "over"):
        reports.tell_release(Grant(allocation=allocation), RELEASE)
    ground.hold("stated", spec("gpu-0"))
    releasing = replace(RELEASE, allocation="releasing")
    granted = [Grant(allocation="in-force", source="policy/cdi_grants")]
    ground.agent.set_state(granted=granted, releasing=[releasing])

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ground.source.serve_policy, ground.agent)
        await anyio.sleep(0.05)
        unread = len(list(reports.directory.iterdir()))
        await ground.grants()
        with anyio.fail_after(10):
            while reports.path("over").exists():  # noqa: ASYNC110 - files set no Event
                await anyio.sleep(0.01)
        tasks.cancel_scope.cancel()

    assert unread == 4
    left = {path.stem for path in reports.directory.iterdir()}
    assert left == {"stated", "in-force", "releasing"}


class Tells(DurableRun):
    """A grant is in force and then released, and the agent believes that it has said so."""

    watch = ("",)

    def work(self, root: Path) -> None:
        reports = Reports(root / "grants")
        reports.tell_grant(GRANT, IN_FORCE)
        told(root, "outcome")
        reports.tell_release(GRANT, RELEASE)
        told(root, "released")

    def look(self, root: Path) -> None:
        for (word,) in heard(root)[-1:]:
            assert word in Reports(root / "grants").read("a-1") or word == "outcome"
            assert Reports(root / "grants").read("a-1")


@pytest.mark.parametrize("fault", [Kill(), Reboot()])
def test_a_report_that_was_taken_for_told_is_there_after_a_crash(
    tmp_path: Path, fault: Kill | Reboot
) -> None:
    walked = walk(Tells, tmp_path, fault)

    assert not walked.problems
    assert walked.rounds > 8

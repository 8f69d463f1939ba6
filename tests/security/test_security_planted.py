"""What somebody may have put where the agent is about to write: it is never written through.

Both directories belong to root and are closed to others; this is for the day when they are not, and
for what a restored backup or a careless script leaves behind.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from broker_world import World, claim, prepare

from hardpoint._core.ledger.ledger import Ledger
from hardpoint._core.ledger.locks import ClaimLocks, WriterLock
from hardpoint._core.state import make_private, mark_running, write_status
from hardpoint.cdi_files import CdiDirectory
from hardpoint.errors import BadValue, HoldFailed, LedgerDamaged, LedgerUnwritable
from hardpoint.model import Claim, ClaimKey, Delivery, PreparedDevice
from hardpoint_dra.metadata import MetadataFiles

VENDOR, UID = "hardpoint.dev", "33333333-2222-4333-8444-555555555555"
PRECIOUS = "root:x:0:0\n"
DELIVERY = Delivery(env={"A": "b"})

Plant = Callable[[Path, Path], object]
"""Puts something at a path; the other one is a file that must stay as it is."""

PLANTS: dict[str, Plant] = {
    "link": lambda at, precious: at.symlink_to(precious),
    "link to nothing": lambda at, precious: at.symlink_to(precious.with_name("new")),
    "hard link": lambda at, precious: os.link(precious, at),
    "pipe": lambda at, precious: os.mkfifo(at),
}


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    path = tmp_path / "precious"
    path.write_text(PRECIOUS)
    return path


def untouched(precious: Path) -> None:
    assert precious.read_text() == PRECIOUS
    assert precious.stat().st_mode & 0o777 == 0o644
    assert not precious.with_name("new").exists()


# -- CDI files ------------------------------------------------------------------------------------


@pytest.mark.parametrize("plant", PLANTS.values(), ids=PLANTS)
@pytest.mark.parametrize("where", ["temporary", "final"])
def test_a_claims_file_replaces_what_was_planted(
    tmp_path: Path, precious: Path, plant: Plant, where: str
) -> None:
    files = CdiDirectory(tmp_path / "cdi")
    files.directory.mkdir()
    final = files.file(VENDOR, UID)
    plant(files._temporary(VENDOR, UID) if where == "temporary" else final, precious)

    assert files.write(VENDOR, UID, [(f"{UID}-a", DELIVERY)])

    assert json.loads(final.read_text())["kind"] == f"{VENDOR}/device"
    assert final.is_file()
    assert not final.is_symlink()
    assert final.stat().st_nlink == 1
    assert [path.name for path in files.directory.iterdir()] == [final.name]
    untouched(precious)


@pytest.mark.parametrize("plant", PLANTS.values(), ids=PLANTS)
def test_what_was_planted_is_not_read_as_a_claim(
    tmp_path: Path, precious: Path, plant: Plant
) -> None:
    files = CdiDirectory(tmp_path / "cdi")
    files.write(VENDOR, "good", [("good-a", DELIVERY)])
    plant(files.file(VENDOR, UID), precious)

    good, bad = files.claims([VENDOR])

    assert [file.uid for file in good] == ["good"]
    assert [file.path for file in bad] == [files.file(VENDOR, UID)]


async def test_a_directory_in_place_of_a_file_fails_its_claim_alone(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.card("a", 0)
    world.card("b", 1)
    (world.cdi / "hardpoint.dev-uid-a.json").mkdir()
    async with world.broker() as broker:
        with pytest.raises(HoldFailed) as failed:
            await prepare(broker, claim("uid-a", "a"))
        assert failed.value.reason == "cdi"
        assert await prepare(broker, claim("uid-b", "b"))
        await broker.unprepare(claim("uid-a", "a").key)

        assert [hold.device.name for hold in broker.holds()] == ["b"]


def test_a_name_that_leads_out_of_the_directory_is_no_claims(tmp_path: Path) -> None:
    files = CdiDirectory(tmp_path / "cdi")
    for uid in ("../x", "a/b", "..", "", "a\0b", "x" * 200):
        with pytest.raises(BadValue):
            files.file(VENDOR, uid)


# -- metadata files -------------------------------------------------------------------------------

KEY = ClaimKey(UID, "ns", "claim", VENDOR)
PREPARED = (PreparedDevice(request="r", pool="node-1", device="a", cdi_ids=()),)


def written(tmp_path: Path) -> tuple[MetadataFiles, Path, Path]:
    files = MetadataFiles(VENDOR, tmp_path / "plugin", tmp_path / "cdi")
    host = tmp_path / f"plugin/dra-device-metadata/{UID}/r/metadata.json"
    cdi = tmp_path / f"cdi/{VENDOR}_metadata_{UID}.json"
    host.parent.mkdir(parents=True)
    cdi.parent.mkdir()
    return files, host, cdi


@pytest.mark.parametrize("plant", PLANTS.values(), ids=PLANTS)
def test_metadata_is_never_written_through_what_was_planted(
    tmp_path: Path, precious: Path, plant: Plant
) -> None:
    files, host, _ = written(tmp_path)
    plant(host, precious)

    with pytest.raises(OSError, match=r"metadata\.json"):
        files.write(Claim(key=KEY), PREPARED, lambda name: {"a": 1})

    untouched(precious)


@pytest.mark.parametrize("plant", PLANTS.values(), ids=PLANTS)
@pytest.mark.parametrize("where", ["temporary", "final"])
def test_the_cdi_file_of_metadata_replaces_what_was_planted(
    tmp_path: Path, precious: Path, plant: Plant, where: str
) -> None:
    files, _, cdi = written(tmp_path)
    plant(cdi if where == "final" else cdi.with_name(f".{cdi.name}.tmp"), precious)

    files.write(Claim(key=KEY), PREPARED, lambda name: {"a": 1})

    assert json.loads(cdi.read_text())["kind"] == f"{VENDOR}/metadata"
    assert not cdi.is_symlink()
    untouched(precious)


# -- the state directory --------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ledger.lock", "claims.lock", "writer.lock", "running"])
def test_a_link_in_place_of_a_lock_is_not_followed(
    tmp_path: Path, precious: Path, name: str
) -> None:
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    (state / name).symlink_to(precious.with_name("new"))
    openings: dict[str, Callable[[], object]] = {
        "ledger.lock": lambda: Ledger(state),
        "claims.lock": lambda: ClaimLocks(state / name),
        "writer.lock": lambda: WriterLock(state / name).writing(),
        "running": lambda: mark_running(state),
    }

    with pytest.raises((OSError, LedgerUnwritable)):
        openings[name]()

    untouched(precious)


@pytest.mark.parametrize("plant", PLANTS.values(), ids=PLANTS)
def test_a_ledger_that_is_no_plain_file_is_set_aside(
    tmp_path: Path, precious: Path, plant: Plant
) -> None:
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    plant(state / "ledger.db", precious)

    with closing(Ledger(state)) as ledger:
        assert isinstance(ledger.damage, LedgerDamaged)
        assert (state / "ledger.db").is_file()
        assert not (state / "ledger.db").is_symlink()

    assert precious.read_text() == PRECIOUS
    assert not precious.with_name("new").exists()


def test_the_status_replaces_a_link_that_was_planted(tmp_path: Path, precious: Path) -> None:
    (tmp_path / "status.json").symlink_to(precious)

    write_status(tmp_path, {"a": 1})

    assert json.loads((tmp_path / "status.json").read_text()) == {"a": 1}
    untouched(precious)


def test_a_state_directory_that_others_may_read_is_closed(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    state.chmod(0o777)

    make_private(state)

    assert state.stat().st_mode & 0o777 == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_state_directory_of_another_user_is_refused(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    os.chown(state, 65534, 65534)

    with pytest.raises(LedgerUnwritable, match="belongs to user 65534"):
        make_private(state)

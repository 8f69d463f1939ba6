"""Ledger files with damage: bytes, pages, and rows that say what no release ever wrote.

Three claims are held. A file whose bytes are spoilt is either set aside, and what it held is found
again in the CDI files, or read; one odd row costs its own hold and frees no part of it. Whatever is
shown then, the API server takes it.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from broker_world import World, claim, prepare
from fuzz.choices import ODD_NUMBERS, ODD_TEXTS, Choices
from fuzz.world import DOMAIN, Stage, check_published

from hardpoint._core.claims.broker import Broker
from hardpoint._core.ledger.ledger import read_records
from hardpoint._core.offer.inventory import Facts, Listing, as_offer, build
from hardpoint.errors import HoldError, LedgerError
from hardpoint.model import Offer

COLUMNS = (
    "owner",
    "request",
    "device",
    "share_id",
    "driver",
    "cdi_vendor",
    "cdi_name",
    "state",
    "retired",
    "undo",
    "rebuilt",
    "boot_id",
    "device_json",
    "allotment_json",
    "delivery_json",
    "answer_json",
    "remembered_json",
    "tries",
    "why",
    "created",
    "changed",
    "rev",
)
ODD_VALUES: tuple[Any, ...] = (
    None,
    b"\xff\xfe",
    b"",
    0.5,
    float("inf"),
    "{}",
    "[]",
    "null",
    "[" * 2000,
    '{"name": "x"}',
    '{"name": "../x", "kind": "K"}',
    '{"name": "a", "kind": "card", "nodes": [{"path": "/dev/a", "major": -1}]}',
    '{"request": "r0", "device": "b", "pool": "p", "parameters": [{}]}',
    "held",
    "HELD",
    *ODD_TEXTS[:-2],
    *(number for number in ODD_NUMBERS if -(2**63) <= number < 2**63),
)
OTHERS = {
    "meta": ("key", "value"),
    "claims": ("uid", "dra_driver", "namespace", "name", "pod_claim_name", "created"),
    "parts": ("hold", "owner", "part", "exclusive", "stale"),
    "owners": ("part", "owner", "exclusive"),
    "listings": ("driver", "listing", "at"),
    "audit": ("at", "who", "what", "facts"),
}
"""The other tables: what is odd there makes the file damaged, or costs what the row says."""
HELD = ("a", "b", "c")


class Fuzzed:
    """Opens one damaged copy of a ledger after another."""

    def __init__(self) -> None:
        self.stage = Stage()

    def __enter__(self) -> Callable[[bytes], None]:
        stage = self.stage.__enter__()
        stage.run(self._prepared(self._world("template")))
        template = stage.root / "template"
        with closing(sqlite3.connect(template / "state/ledger.db")) as db:
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self.whole = (template / "state/ledger.db").read_bytes()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stage.__exit__(None, None, None)

    def _world(self, name: str) -> World:
        world = World(self.stage.fresh(name))
        for minor, card in enumerate((*HELD, "free")):
            world.card(card, minor)
        return world

    async def _prepared(self, world: World) -> None:
        async with world.broker() as broker:
            for card in HELD:
                await prepare(broker, claim(f"uid-{card}", card))
            await broker._ledger.keep_listing("cards", [world.devices["a"].device], [])
            await broker._ledger.audit("root", "quarantine clear", {"device": "a"})

    def __call__(self, data: bytes) -> None:
        choices = Choices(data)
        world = self._world("world")
        shutil.copytree(self.stage.root / "template/cdi", world.cdi, dirs_exist_ok=True)
        shutil.copytree(self.stage.root / "template/hw", world.root / "hw", dirs_exist_ok=True)
        world.state.mkdir(exist_ok=True)
        shutil.copy(self.stage.root / "template/state/ledger.db", world.state)
        ledger = world.state / "ledger.db"
        how = choices.below(3)
        if how == 1:
            what = odd_row(ledger, choices)
            self.stage.run(self._one_lost(world, what))
        elif how == 2:
            odd_table(ledger, choices)
            self.stage.run(self._opened(world))
        else:
            ledger.write_bytes(damaged(self.whole, choices))
            self.stage.run(self._opened(world))
        _shown_without_an_agent(world.state)
        shutil.rmtree(world.root)
        self.stage.quiet("\x1b", "\u202e")

    async def _opened(self, world: World) -> None:
        """It opens, or says why in an error of ours; found again, it gives nothing away."""
        try:
            async with world.broker() as broker:
                await broker.restore()
                await broker.attend()
                _check_shown(world, broker)
                aside = list(world.state.glob("*.damaged-*"))
                if aside:
                    found = {(h.device.name, h.claim.uid) for h in broker.holds()}
                    assert found == {(card, f"uid-{card}") for card in HELD}
        except LedgerError as error:
            assert str(error)

    async def _one_lost(self, world: World, what: str) -> None:
        async with world.broker() as broker:
            before = {h.device.name: h for h in broker.holds() if h.device.name in "ac"}
            await broker.restore()
            await broker.attend()
            for card in "ac":
                assert before[card].claim.uid == f"uid-{card}", what
                answer = await prepare(broker, claim(f"uid-{card}", card))
                assert [one.device for one in answer] == [card], what
            _check_shown(world, broker)
            try:
                await prepare(broker, claim("uid-new", "b"))
            except HoldError:
                return
            raise AssertionError(f"the card of an odd row is given to another claim: {what}")


def damaged(whole: bytes, choices: Choices) -> bytes:
    """Return a file with some bytes overwritten, pages swapped, doubled or lost, or cut short."""
    data, page = bytearray(whole), 4096
    for _ in range(1 + choices.below(4)):
        count = max(1, len(data) // page)
        one, other = choices.below(count) * page, choices.below(count) * page
        how = choices.below(5)
        if how == 0:
            first = bytes(data[one : one + page])
            data[one : one + page], data[other : other + page] = data[other : other + page], first
        elif how == 1:
            del data[one : one + page]
        elif how == 2:
            data = data[: one + choices.below(page)]
        elif how == 3:
            data[one : one + 100] = choices.chunk(100)
        else:
            at = one + choices.below(page)
            new = choices.chunk(16) or b"\xff"
            data[at : at + len(new)] = new
    return bytes(data)


def odd_row(ledger: Path, choices: Choices) -> str:
    """Write something odd into the row of card b; return what."""
    column, value = choices.pick(COLUMNS), choices.pick(ODD_VALUES)
    with closing(sqlite3.connect(ledger)) as db:
        try:
            db.execute(f"UPDATE holds SET {column} = ? WHERE device = 'b'", (value,))
            db.commit()
        except sqlite3.IntegrityError:  # the file itself refuses it
            return "nothing"
    return f"{column} = {value!r:.60}"


def odd_table(ledger: Path, choices: Choices) -> None:
    """Write something odd into one row, or all, of another table; or drop a trigger or a table."""
    table = choices.pick(tuple(OTHERS))
    column, value = choices.pick(OTHERS[table]), choices.pick(ODD_VALUES)
    statement = choices.pick(
        (
            f"UPDATE {table} SET {column} = ?1",
            f"UPDATE OR IGNORE {table} SET {column} = ?1 LIMIT 1",
            f"DELETE FROM {table} WHERE ?1 IS ?1",
            f"DROP TABLE {table}",
            "DROP TRIGGER owners_alone",
            "DROP INDEX one_owner",
        )
    )
    with closing(sqlite3.connect(ledger)) as db:
        try:
            db.execute(statement, (value,) if "?1" in statement else ())
            db.commit()
        except sqlite3.Error:  # the file itself refuses it
            return


def _check_shown(world: World, broker: Broker) -> None:
    devices = tuple(offered.device for offered in world.devices.values())
    facts = Facts(
        domain_of=lambda _: DOMAIN, holds=broker.holds(), quarantined=broker.quarantined()
    )
    built = build([Listing("cards").after(devices, 0.0)], facts)
    check_published(as_offer(built, Offer(generation=0), complete=True))


def _shown_without_an_agent(state: Path) -> None:
    try:
        read_records(state)
    except LedgerError as error:
        assert str(error)

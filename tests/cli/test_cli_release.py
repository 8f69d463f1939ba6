"""Releases as an operator sees them, and the levers: with an agent that runs, and without."""

from __future__ import annotations

import json
import os
import pwd
import sqlite3
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from shell import Answer, Shell, agent_of, cluster_of

from hardpoint._core.ledger.grantrows import (
    KnownGrant,
    KnownRelease,
    Meant,
    keep_grant,
    keep_release,
)
from hardpoint._core.ledger.ledger import Ledger, Want
from hardpoint._core.ledger.locks import ClaimLocks
from hardpoint._core.state import mark_running, write_status
from hardpoint.cdi_files import CdiDirectory
from hardpoint.grants import Grant, GrantOutcome, Outcome
from hardpoint.model import Allotment, Claim, ClaimKey, Delivery, Device, DeviceNode

DRIVER = "hardpoint.dev"
KEY = ClaimKey("uid-1", "media", "player", DRIVER)

GRANTOR = '''
"""A stranger's source of grants and of evidence: what files under run/ say."""
import time
from hardpoint import Evidence, Grant, GrantedDevice, hookimpl


class Grantor:
    kinds = ("radio",)

    def __init__(self, node, settings):
        self.node = node

    def lines(self, name):
        return [line.split() for line in self.node.run_text(f"grantor/{name}").splitlines()]

    @hookimpl
    def grant_devices(self):
        return tuple(
            Grant(allocation=allocation, devices=tuple(GrantedDevice(name=d) for d in devices))
            for allocation, *devices in self.lines("grants")
        )

    @hookimpl
    def find_users(self, release):
        began = time.monotonic()
        users = [" ".join(line) for line in self.lines("users")]
        return Evidence.used_by(began, *users) if users else Evidence.none(began)

    @hookimpl
    def report_release(self, grant, release):
        with (self.node.run / "grantor/told").open("a") as file:
            file.write(grant.allocation + "\\n")
'''


class Grantor:
    """What the stranger's policy is told by files, and what it was told."""

    def __init__(self, shell: Shell) -> None:
        packages = shell.root / "packages"
        (info := packages / "grantor-1.0.dist-info").mkdir(parents=True)
        (packages / "grantor.py").write_text(GRANTOR)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: grantor\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text("[hardpoint.policies]\ngrantor = grantor:Grantor\n")
        shell.config.write_text('drivers = ["radios"]\npolicies = ["grantor"]\n')
        self.at: Path = shell.machine.run / "grantor"
        self.at.mkdir(parents=True, exist_ok=True)
        self.says("grants")
        self.says("users")

    def says(self, name: str, *lines: str) -> None:
        (self.at / f".{name}").write_text("".join(f"{line}\n" for line in lines))
        (self.at / f".{name}").replace(self.at / name)

    @property
    def told(self) -> list[str]:
        told = self.at / "told"
        return told.read_text().split() if told.exists() else []


def radio(number: int) -> Device:
    node = DeviceNode(path=f"/dev/radio{number}", major=240, minor=number)
    return Device(name=f"radio{number}", kind="radio", driver="radios", nodes=(node,))


def ended(
    shell: Shell, allocation: str, *devices: int, source: str = "policy/x", over: bool = False
) -> None:
    """Write down the release of an allocation."""
    known = KnownRelease(
        id=f"id-of-{allocation}-{source[-1]}",
        grant=Grant(allocation=allocation, source=source),
        devices=tuple(Meant(DRIVER, radio(one)) for one in devices),
        since=1.0,
        over=over,
    )
    written(shell, lambda ledger: ledger.write(lambda db: keep_release(db, known)))


def granted(shell: Shell, allocation: str) -> None:
    """Write down a grant that was in force when an agent ran last."""
    grant = Grant(allocation=allocation, source="policy/x")
    known = KnownGrant(
        grant=grant, devices=(Meant(DRIVER, radio(0)),), outcome=GrantOutcome(Outcome.IN_FORCE)
    )
    written(shell, lambda ledger: ledger.write(lambda db: keep_grant(db, known)))


def held(shell: Shell, *devices: int, allocation: str = "a-1") -> None:
    """Hold devices for a claim, in the ledger and in its CDI file."""
    wants = [
        Want(
            allotment=Allotment(
                request="r", device=f"radio{one}", pool="node-1", allocation=allocation
            ),
            device=radio(one),
            cdi_vendor=DRIVER,
            cdi_name=f"{KEY.uid}-radio{one}",
            parts=(),
            undo=False,
        )
        for one in devices
    ]

    async def take(ledger: Ledger) -> None:
        await ledger.take(Claim(key=KEY), wants, "boot-1")

    if allocation:
        written(shell, lambda ledger: ledger.write(lambda db: grant(db, allocation, devices)))
    written(shell, take)
    CdiDirectory(shell.cdi).write(
        DRIVER, KEY.uid, [(w.cdi_name, Delivery(nodes=w.device.nodes)) for w in wants]
    )


def grant(db: sqlite3.Connection, allocation: str, devices: tuple[int, ...]) -> None:
    for one in devices:
        row = ("policy/x", allocation, DRIVER, f"radio{one}")
        db.execute("INSERT INTO granted VALUES (?, ?, ?, ?)", row)


def written(shell: Shell, work: Callable[[Ledger], Awaitable[object]]) -> None:
    async def do() -> None:
        ledger = Ledger(shell.state)
        try:
            await ledger.rebuilt()
            await work(ledger)
        finally:
            ledger.close()

    anyio.run(do)


def delivered(shell: Shell) -> list[str]:
    """Names of what the CDI files deliver."""
    documents = [json.loads(file.read_text()) for file in shell.cdi.glob("*.json")]
    return sorted(entry["name"] for one in documents for entry in one["devices"])


@contextmanager
def agent(shell: Shell, *releases: Mapping[str, object]) -> Iterator[None]:
    """An agent that runs, and has said who uses what."""
    running = mark_running(shell.state)
    write_status(shell.state, {"releases": releases})
    try:
        yield
    finally:
        os.close(running)


def trail(shell: Shell) -> list[tuple[str, dict[str, object]]]:
    return [(one["what"], one["facts"]) for one in shell("audit", "--json").json]


# -- the list -------------------------------------------------------------------------------------


def test_without_a_ledger_nothing_is_pending(shell: Shell) -> None:
    assert shell("release") == Answer(0, "No release is pending.\n", "")
    assert shell("release", "--json").json == []
    assert shell("audit") == Answer(0, "No operator has pulled a lever.\n", "")
    assert not shell.state.exists()


def test_with_no_agent_it_is_said_what_is_pending_and_that_nobody_looks(shell: Shell) -> None:
    ended(shell, "a-1", 0, 1)
    ended(shell, "b-1", 2, over=True)

    plain, as_json = shell("release"), shell("release", "--json")

    rows = [line.split() for line in plain.out.splitlines()[1:]]
    assert rows[0][:4] == ["a-1", "policy/x", "radio0", "radio1"]
    assert "pending  not known: no agent runs" in plain.out
    assert "over     nobody; its source has not heard yet" in plain.out
    a, b = as_json.json
    assert (a["allocation"], a["devices"], a["since"]) == ("a-1", ["radio0", "radio1"], 1.0)
    assert (a["state"], a["users"], b["state"], b["users"]) == ("pending", None, "over", [])


def test_with_no_agent_it_is_not_known_whether_what_is_granted_has_ended(shell: Shell) -> None:
    granted(shell, "g-1")

    asked, forced = shell("release"), shell("release", "--force", "g-1", "--yes")
    with agent(shell):
        beside_one = shell("release"), shell("release", "--force", "g-1", "--yes")

    note = f"hardpoint: note: no agent runs with {shell.state}; whether g-1, granted when one ran "
    assert asked == Answer(0, "No release is pending.\n", f"{note}last, has ended is not known\n")
    was = "hardpoint: allocation g-1 was granted when an agent ran last: it ends at its source, "
    assert forced == Answer(1, "", f"{was}`hardpoint revoke`, and the next one notices\n")
    still = (
        "hardpoint: allocation g-1 is granted still: it ends at its source, `hardpoint revoke`, "
        "which is noticed within 15 seconds\n"
    )
    assert beside_one == (Answer(0, "No release is pending.\n", ""), Answer(1, "", still))


def test_who_uses_the_devices_is_what_the_agent_that_runs_found(shell: Shell) -> None:
    ended(shell, "a-1", 0)
    found = {"id": "id-of-a-1-x", "users": ["pod media/player"]}
    orphan = {
        "id": "orphan-1",
        "allocation": "z-9",
        "source": "orphan",
        "devices": ["radio9"],
        "since": 2.0,
        "users": [],
    }
    with agent(shell, found, orphan):
        first, second = shell("release", "--json").json

    assert first["users"] == ["pod media/player"]
    assert (second["source"], second["users"], second["why"]) == ("orphan", None, "not known yet")


def test_a_hold_in_the_ledger_is_a_user_also_with_no_agent(shell: Shell) -> None:
    held(shell, 0)
    ended(shell, "a-1", 0)

    assert shell("release", "--json").json[0]["users"] == ["media/player"]


def test_lost_releases_are_said(shell: Shell) -> None:
    ended(shell, "a-1", 0)
    (shell.state / "releases.unreadable").write_text("{}")

    assert "hardpoint release --clear-lost" in shell("release").out


# -- force ----------------------------------------------------------------------------------------


def test_force_ends_a_release_on_the_operators_word_and_keeps_the_trail(shell: Shell) -> None:
    ended(shell, "a-1", 0)
    found = {"id": "id-of-a-1-x", "users": ["pod media/player"]}
    with agent(shell, found):
        answer = shell("release", "--force", "a-1", "--yes")

    assert (answer.code, answer.err) == (0, "")
    assert "Who may be using them: pod media/player." in answer.out
    assert shell("release", "--json").json[0]["state"] == "over"
    (one,) = shell("audit", "--json").json
    assert (one["what"], one["who"]) == ("release --force", _me())
    assert one["facts"]["devices"] == ["radio0"]
    assert one["facts"]["users"] == ["pod media/player"]
    assert "release --force" in shell("audit").out


def test_force_asks_and_where_nobody_can_be_asked_does_nothing(shell: Shell) -> None:
    ended(shell, "a-1", 0)

    answer = shell("release", "--force", "a-1")

    assert (answer.code, answer.err) == (1, "hardpoint: nobody can be asked here: say --yes\n")
    assert shell("release", "--json").json[0]["state"] == "pending"
    assert trail(shell) == []


def test_one_device_of_a_release_is_free_and_the_rest_stays_pending(shell: Shell) -> None:
    ended(shell, "a-1", 0, 1)

    wrong = shell("release", "--force", "a-1", "--device", "radio7", "--yes")
    right = shell("release", "--force", "a-1", "--device", "radio0", "--yes")

    said = "hardpoint: radio7 is not of the release of a-1, which has radio0, radio1\n"
    assert wrong == Answer(1, "", said)
    assert right.code == 0
    (left,) = shell("release", "--json").json
    assert (left["devices"], left["state"]) == (["radio1"], "pending")
    assert shell("holds", "--device", "radio0").code == 3
    assert shell("holds", "--device", "radio1").code == 0


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("c-9", "no release of c-9 is pending; pending is a-1, d-1"),
        ("b-1", "the release of b-1 is over; policy/x has not heard of it yet"),
        ("d-1", "d-1 is an allocation of 2 sources: say which, id-of-d-1-x (policy/x), "),
        ("z-9", "z-9 is no release of a grant: it is over when the pods that have it are"),
        ("lost", "that is --clear-lost"),
    ],
)
def test_what_is_not_pending_is_refused_saying_what_is(shell: Shell, word: str, said: str) -> None:
    ended(shell, "a-1", 0)
    ended(shell, "b-1", 1, over=True)
    ended(shell, "d-1", 2)
    ended(shell, "d-1", 3, source="policy/y")
    with agent(shell, {"id": "orphan-1", "allocation": "z-9", "users": []}):
        answer = shell("release", "--force", word, "--yes")

    assert (answer.code, answer.out) == (1, "")
    assert answer.err.startswith(f"hardpoint: {said}")
    assert trail(shell) == []


def test_where_nothing_is_pending_that_is_said(shell: Shell) -> None:
    said = "hardpoint: no release of a-1 is pending; none is\n"
    assert shell("release", "--force", "a-1", "--yes") == Answer(1, "", said)


def test_of_two_sources_one_is_named_by_its_id(shell: Shell) -> None:
    ended(shell, "d-1", 2)
    ended(shell, "d-1", 3, source="policy/y")

    assert shell("release", "--force", "id-of-d-1-y", "--yes").code == 0

    states = {one["source"]: one["state"] for one in shell("release", "--json").json}
    assert states == {"policy/x": "pending", "policy/y": "over"}


def test_a_drain_has_no_allocation_and_is_forced_by_its_name(shell: Shell) -> None:
    ended(shell, "", 0, source="drain")

    assert shell("release", "--force", "drain", "--yes").code == 0
    assert shell("release", "--json").json[0]["state"] == "over"


def test_a_device_that_is_held_is_never_free_unless_its_hold_goes_with_it(shell: Shell) -> None:
    held(shell, 0, 1)
    ended(shell, "a-1", 0)

    refused = shell("release", "--force", "a-1", "--yes")
    assert refused.code == 1
    assert "first `hardpoint holds forget radio0`, or --holds" in refused.err
    assert shell("release", "--json").json[0]["state"] == "pending"

    assert shell("release", "--force", "a-1", "--holds", "--yes").code == 0

    assert [one["device"] for one in shell("holds", "--json").json] == ["radio1"]
    assert delivered(shell) == [f"{KEY.uid}-radio1"]
    ((_, facts),) = trail(shell)
    assert [one["claim"] for one in facts["holds"]] == ["media/player"]  # type: ignore[attr-defined]


@pytest.mark.parametrize("what", ["release", "grant"])
def test_what_cannot_be_read_can_be_forgotten(shell: Shell, what: str) -> None:
    word = "id-of-a-1-x" if what == "release" else "a-1"
    ended(shell, "a-1", 0)
    if what == "grant":
        known = KnownGrant(
            grant=Grant(allocation="a-1", source="policy/x"),
            devices=(Meant(DRIVER, radio(3)),),
            outcome=GrantOutcome(Outcome.IN_FORCE),
        )
        written(shell, lambda ledger: ledger.write(lambda db: keep_grant(db, known)))
    spoil = f"UPDATE {what}s SET devices_json = 'no JSON'"
    written(shell, lambda ledger: ledger.write(lambda db: db.execute(spoil)))
    assert f"! {what} {word}" in shell("release").out
    assert shell("holds", "--device", "radio5").code == 0

    assert shell("release", "--force", word, "--yes").code == 0

    left = shell("release", "--json").json
    assert [one["id"] for one in left] == ([] if what == "release" else ["id-of-a-1-x"])
    assert "!" not in shell("release").out
    assert trail(shell) == [("release --force", {"unreadable": word})]
    assert shell("holds", "--device", "radio5").code == 3


def test_levers_never_set_a_damaged_ledger_aside(shell: Shell) -> None:
    """What was pending in it would be lost without a marker: the agent begins anew, and says so."""
    ended(shell, "a-1", 0)
    written(shell, lambda ledger: ledger.write(lambda db: db.execute("DROP INDEX one_owner")))

    answer = shell("release", "--force", "a-1", "--yes")

    assert answer.code == 1
    assert "is damaged" in answer.err
    assert not list(shell.state.glob("ledger.db.damaged*"))


# -- lost -----------------------------------------------------------------------------------------


def test_the_marker_is_cleared_on_the_operators_word(shell: Shell) -> None:
    assert "there is no marker" in shell("release", "--clear-lost", "--yes").err
    ended(shell, "a-1", 0)
    (shell.state / "releases.unreadable").write_text("{}")
    assert shell("holds", "--device", "radio7").code == 0
    doubt = {
        "id": "lost",
        "allocation": "",
        "source": "lost",
        "since": 1.0,
        "devices": ["radio7"],
        "users": ["pod media/player"],
    }
    with agent(shell, doubt):
        answer = shell("release", "--clear-lost", "--yes")

    assert (answer.code, answer.err) == (0, "")
    assert not (shell.state / "releases.unreadable").exists()
    facts = {"devices": ["radio7"], "users": ["pod media/player"]}
    assert trail(shell) == [("release --clear-lost", facts)]
    assert shell("holds", "--device", "radio7").code == 3


# -- holds ----------------------------------------------------------------------------------------


def test_a_device_of_a_pending_release_is_held_to_whoever_asks(shell: Shell) -> None:
    ended(shell, "a-1", 0)

    plain, as_json = (
        shell("holds", "--device", "radio0"),
        shell("holds", "--device", "radio0", "--json"),
    )

    assert plain.code == 0
    assert plain.out.startswith("radio0 is not free: it is being released from allocation a-1")
    (one,) = as_json.json
    assert (one["device"], one["claim"], one["state"]) == ("radio0", None, "releasing")
    assert shell("holds", "--device", "radio1").code == 3


def test_while_holds_are_being_found_again_nothing_is_free(shell: Shell) -> None:
    Ledger(shell.state).close()

    answer = shell("holds", "--device", "radio0")

    assert answer.code == 0
    assert answer.out.startswith("radio0 may be held: a ledger was begun anew")


@pytest.mark.parametrize("what", ["radio0", KEY.uid])
def test_a_hold_is_forgotten_with_what_its_cdi_file_says(shell: Shell, what: str) -> None:
    held(shell, 0, 1)

    answer = shell("holds", "forget", what, "--yes")

    assert (answer.code, answer.err) == (0, "")
    assert "Who has it is not known: " in answer.out
    left = [] if what == KEY.uid else ["radio1"]
    assert [one["device"] for one in shell("holds", "--json").json] == left
    assert delivered(shell) == [f"{KEY.uid}-{name}" for name in left]
    ((name, facts),) = trail(shell)
    assert (name, facts["what"]) == ("holds forget", what)


def test_a_hold_is_not_forgotten_while_a_call_for_its_claim_is_under_way(shell: Shell) -> None:
    held(shell, 0)

    async def asked() -> Answer:
        locks = ClaimLocks(shell.state / "claims.lock")
        try:
            async with locks.turn(KEY.uid, "media/player"):
                return await anyio.to_thread.run_sync(
                    lambda: shell("holds", "forget", "radio0", "--yes")
                )
        finally:
            locks.close()

    answer = anyio.run(asked)

    assert answer.code == 1
    assert "a call for media/player is under way" in answer.err
    assert delivered(shell) == [f"{KEY.uid}-radio0"]
    assert shell("holds", "--device", "radio0").code == 0
    assert trail(shell) == []


def test_what_nobody_holds_cannot_be_forgotten(shell: Shell) -> None:
    held(shell, 0)

    answer = shell("holds", "forget", "radio7", "--yes")

    assert answer == Answer(1, "", "hardpoint: no claim holds radio7\n")


# -- beside an agent that runs --------------------------------------------------------------------


async def until(true: Callable[[Answer], bool], shell: Shell, *words: str) -> Answer:
    """Ask again and again: an agent re-reads what others wrote every few seconds."""
    with anyio.fail_after(25):
        while True:
            answer = await anyio.to_thread.run_sync(lambda: shell(*words))
            if true(answer):
                return answer


@pytest.mark.timeout(90)
async def test_the_agent_takes_up_what_an_operator_ended_and_tells_the_source(
    shell: Shell,
) -> None:
    shell.install_radios("radio0", "radio1")
    grantor = Grantor(shell)
    grantor.says("grants", "a-1 radio0", "b-1 radio1")
    async with cluster_of(shell) as cluster, agent_of(shell):
        await cluster.server.until(lambda: len(cluster.published) == 2, 15)
        grantor.says("users", "pod media/player")
        grantor.says("grants", "b-1 radio1")
        found = await until(lambda a: "pod media/player" in a.out, shell, "release")
        assert found.out.splitlines()[1].split()[:3] == ["a-1", "policy/grantor", "radio0"]
        status = await until(lambda a: "pod media/player" in a.out, shell, "status")
        rows = [line.split() for line in status.out.splitlines()]
        assert rows.index(["releases"]) > rows.index(["grants"])
        (row,) = [row for row in rows if row[:1] == ["b-1"]]
        assert [*row[:3], row[4]] == ["b-1", "policy/grantor", "radio1", "in-force"]
        assert grantor.told == []

        answer = await until(lambda a: a.code == 0, shell, "release", "--force", "a-1", "--yes")

        assert "The agent takes it up within seconds." in answer.out
        await until(lambda a: a.out == "No release is pending.\n", shell, "release")
        assert grantor.told == ["a-1"]


@pytest.mark.timeout(60)
async def test_a_hold_that_the_kubelet_says_a_pod_has_is_not_forgotten(shell: Shell) -> None:
    shell.install_radios("radio0")
    async with cluster_of(shell) as cluster, agent_of(shell):
        await cluster.server.until(lambda: cluster.published == ["radio0"], 15)
        await cluster.kubelet.until_registered(DRIVER)
        pod = cluster.allocate("radio0")
        await cluster.kubelet.pods.start()
        await cluster.kubelet.prepare(pod)

        answer = await anyio.to_thread.run_sync(lambda: shell("holds", "forget", "radio0", "--yes"))

        assert answer.code == 1
        assert "radio0 by pod default/pod-of-claim" in answer.err


def _me() -> str:
    return pwd.getpwuid(os.getuid()).pw_name

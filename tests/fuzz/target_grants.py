"""Files in the directory of holds, beside one that is good, and what devices have meanwhile.

Whatever stands in a file: the good one's grant stands too, what the bad one granted is not ended by
it, and a corrected copy is one that runtimes read, with nothing in it that the host does not have.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable
from typing import Any

from fuzz.choices import Choices, mutated
from fuzz.world import Stage
from hold_files import MAJOR, Ground, device, node_entry, spec

from hardpoint import Grant, GrantOutcome, Outcome
from hardpoint.cdi_rules import check
from hardpoint.policies.cdi_grants.documents import ALLOCATION, nodes_of
from hardpoint.policies.cdi_grants.holds import Unreadable

WRITTEN = spec(
    {
        "name": "gpu-0",
        "annotations": {"bcd.dev/uuid": "GPU-gpu-0"},
        "containerEdits": {
            "deviceNodes": [node_entry(0), node_entry(7, path="/dev/fabric", major=240)],
            "mounts": [{"hostPath": "/opt/x", "containerPath": "/opt/x", "options": ["ro"]}],
            "hooks": [{"hookName": "createContainer", "path": "/bin/true", "args": ["true"]}],
            "env": ["A=b"],
        },
    },
    "gpu-1",
    containerEdits={"deviceNodes": [node_entry(255, path="/dev/nvidiactl")]},
)
_IN_FORCE = GrantOutcome(Outcome.IN_FORCE)
SAID = {"allocation": "bad", "outcome": "in-force", "reason": "", "at": 5.0}


class Fuzzed:
    """Reads the directory with another file each time, before and after that was good."""

    def __init__(self) -> None:
        self.stage = Stage()

    def __enter__(self) -> Callable[[bytes], None]:
        self.stage.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stage.__exit__(None, None, None)

    def __call__(self, data: bytes) -> None:
        choices = Choices(data)
        ground = Ground(self.stage.fresh("ground"))
        for minor in (0, 1, 2):
            ground.host(f"/dev/nvidia{minor}", minor)
        ground.host("/dev/nvidiactl", 255)
        if choices.flag():
            ground.host("/dev/fabric", choices.byte(), major=240)
        self.stage.run(self._read(ground, choices))
        shutil.rmtree(ground.root)
        self.stage.quiet("\x1b", "\u202e")

    async def _read(self, ground: Ground, choices: Choices) -> None:
        ground.hold("good", spec("gpu-2"))
        was_good = choices.flag()
        if was_good:
            ground.hold("bad", WRITTEN)
            before = await ground.grants()
            assert set(before) == {"good", "bad"}
        minors = choices.pick(((0, 1), (1, 0), (3, 1), (0, 3), (1, 1)))
        ground.offer("bad", *(device(f"gpu-{i}", minor) for i, minor in enumerate(minors)))
        report = ground.source._reports_of(ground.agent.paths.state)
        report.directory.mkdir(parents=True)
        report.path("bad").write_bytes(_document(choices, SAID))
        name = choices.pick(("bcd-bad.json", "bcd-bad.yaml", "bcd-.json", "bcd-good.yaml"))
        path = ground.directory / name
        path.unlink(missing_ok=True)
        path.write_bytes(_document(choices, WRITTEN))
        os.utime(path, (1e9, 1e9))
        try:
            after = await ground.grants()
        except Unreadable as error:
            assert not was_good, error
            after = {}
        else:
            assert "good" in after or (not was_good and name == "bcd-good.yaml")
        _sound(after.values())
        _copies(ground)
        json.dumps(ground.agent.faults).encode()
        report.tell_grant(Grant(allocation="bad"), _IN_FORCE)
        assert report.read("bad")["outcome"] == "in-force"


def _sound(grants: Iterable[Grant]) -> None:
    for grant in grants:
        assert ALLOCATION.fullmatch(grant.allocation)
        assert grant.devices
        for one in grant.devices:
            assert one.name
            assert grant.unsupported or one.cdi_id in ("", f"{_kind(one.cdi_id)}={one.name}")
            one.uuid.encode("utf-8", "surrogatepass")
        grant.unsupported.encode()


def _kind(cdi_id: str) -> str:
    return cdi_id.partition("=")[0]


def _copies(ground: Ground) -> None:
    for copy in ground.copies.values():
        check(copy)
        for entry in (copy, *copy["devices"]):
            for node in nodes_of(entry):
                there = ground.node.info(node.source)
                ours = node.major == MAJOR and node.minor in (0, 1, 3)
                assert ours or there, f"{node.path} is not on the host"


def _document(choices: Choices, written: dict[str, Any]) -> bytes:
    how = choices.below(8)
    if how == 0:
        return choices.rest()
    if how == 1:
        return b"[" * (50 * choices.byte())
    whole = json.dumps(written)
    if how == 2:
        return whole.encode()[: choices.below(len(whole))]
    document = json.loads(whole)
    if how == 3:
        return json.dumps(document).encode()
    mutated(document, choices)
    return json.dumps(document).encode("utf-8", "surrogatepass")

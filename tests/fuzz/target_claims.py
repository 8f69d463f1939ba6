"""Claims as an API server might answer them, down to the driver's parameters.

Beside each there is a claim that is held already: it stays as it is. A claim that is refused is
refused with an error of ours and leaves nothing behind; one that is prepared can be unprepared.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

from broker_world import World, prepare
from broker_world import claim as whole
from fuzz.choices import Choices, mutated
from fuzz.world import DOMAIN, Stage

from hardpoint._core.claims.broker import Broker
from hardpoint._kube import decode
from hardpoint.errors import HardpointError
from hardpoint.model import Claim, ClaimKey, PreparedDevice
from hardpoint.parameters import API_VERSION
from hardpoint_dra.claims import to_claim

UID = "11111111-2222-4333-8444-555555555555"
KEY = ClaimKey(UID, "ns", "claim", DOMAIN.dra_driver)
PARAMETERS = {"apiVersion": API_VERSION, "kind": "CardParameters", "image": "fft"}
CLAIM: dict[str, Any] = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaim",
    "metadata": {
        "name": "claim",
        "namespace": "ns",
        "uid": UID,
        "annotations": {"resource.kubernetes.io/pod-claim-name": "gpu"},
    },
    "status": {
        "allocation": {
            "devices": {
                "results": [
                    {"request": "r0", "driver": "hardpoint.dev", "pool": "node-1", "device": "a"},
                    {
                        "request": "r1/sub",
                        "driver": "hardpoint.dev",
                        "pool": "node-1",
                        "device": "b",
                        "shareID": "s1",
                        "consumedCapacity": {"memory": "1Gi"},
                    },
                    {"request": "x", "driver": "other.dev", "pool": "p", "device": "z"},
                ],
                "config": [
                    {
                        "source": "FromClass",
                        "requests": [],
                        "opaque": {"driver": "hardpoint.dev", "parameters": PARAMETERS},
                    },
                    {
                        "source": "FromClaim",
                        "requests": ["r0"],
                        "opaque": {"driver": "hardpoint.dev", "parameters": PARAMETERS},
                    },
                ],
            }
        },
        "reservedFor": [{"resource": "pods", "name": "pod", "uid": "u"}],
    },
}


class Fuzzed:
    """A node with three cards, one of them held, where one claim after another is prepared."""

    def __init__(self) -> None:
        self.stage, self.open = Stage(), AsyncExitStack()

    def __enter__(self) -> Callable[[bytes], None]:
        stage = self.stage.__enter__()
        self.world = World(stage.fresh("world"))
        for minor, name in enumerate(("a", "b", "held")):
            self.world.card(name, minor, shareable=name == "b")
        stage.run(self._start())
        self.before = self._everything()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stage.run(self.open.aclose())
        self.stage.__exit__(None, None, None)

    async def _start(self) -> None:
        self.broker: Broker = await self.open.enter_async_context(self.world.broker())
        await prepare(self.broker, whole("uid-held", "held"))

    def _everything(self) -> dict[str, str]:
        files = (*self.world.cdi.iterdir(), *(self.world.root / "hw").iterdir())
        return {path.name: path.read_text() for path in files}

    def __call__(self, data: bytes) -> None:
        raw = _document(Choices(data))
        self.stage.run(self._claimed(raw))
        now = self._everything()
        assert now == self.before, (now, self.before)
        assert [hold.device.name for hold in self.broker.holds()] == ["held"]
        assert not self.broker.quarantined()
        self.world.events.clear()
        self.stage.quiet("\x1b", "\u202e")

    async def _claimed(self, raw: bytes) -> None:
        async def read() -> Claim:
            return to_claim(KEY, decode(raw), "node-1")

        try:
            prepared = await self.broker.prepare(KEY, read)
            self._check(prepared)
            again = await self.broker.prepare(KEY, read)
            assert again == prepared
        except HardpointError as error:
            assert str(error).strip()
        await self.broker.unprepare(KEY)

    def _check(self, prepared: tuple[PreparedDevice, ...]) -> None:
        for one in prepared:
            assert one.device in ("a", "b")
            assert all(name.startswith("hardpoint.dev/device=") for name in one.cdi_ids)


def _document(choices: Choices) -> bytes:
    how = choices.below(8)
    if how == 0:
        return choices.rest()
    if how == 1:
        depth = 500 * choices.byte()
        return b'{"metadata":' + b'{"a":' * depth + b"1" + b"}" * depth + b"}"
    claim = json.loads(json.dumps(CLAIM))
    return json.dumps(mutated(claim, choices)).encode("utf-8", "surrogatepass")

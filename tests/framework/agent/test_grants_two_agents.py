"""Two agents on one state directory, with grants that come and go and agents that do, too.

Whatever happens in whatever order: one of them writes and reports, no device goes to two, nothing
is reported released while somebody has it, and who is left finishes what is pending.
"""

from __future__ import annotations

import os
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from grant_story import FASTER, Site, claim_of
from grant_truth import MINORS

from hardpoint._core.agent import HardpointAgent
from hardpoint.errors import HardpointError
from hardpoint.testing.durable import told

from .grant_world import Agents, agents

WHOLE = bool(os.environ.get("HARDPOINT_TEST_DURABLE"))
ROUNDS, STEPS = (200, 60) if WHOLE else (5, 25)
PODS, ALLOCATIONS = ("u1", "u2", "u3"), ("a", "b", "c")

pytestmark = pytest.mark.timeout(120)


class Two:
    """What may happen to a node with one agent or two; ``dice`` says what does."""

    def __init__(self, root: Path, both: Agents, dice: random.Random) -> None:
        self.root, self.both, self.dice = root, both, dice
        self.running: list[Site] = []
        self.done: list[str] = []

    async def play(self) -> None:
        await self.start()
        for _ in range(STEPS):
            happen = self.dice.choice(
                (
                    self.start,
                    self.stop,
                    self.state,
                    self.state,
                    self.run,
                    self.run,
                    self.end,
                    self.use,
                )
            )
            self.done.append(happen.__name__)
            await happen()
            await self.look()

    async def start(self) -> None:
        if len(self.running) < 2:
            site = Site(self.root)
            await self.both.start(_living(site))
            self.running.append(site)

    async def stop(self) -> None:
        if len(self.running) == 2:
            site = self.dice.choice(self.running)
            self.running.remove(site)
            await self.both.end(site.agent)

    async def state(self) -> None:
        """State grants of no device in two, and one at least: all gone at once is another story."""
        stated: dict[str, list[str]] = {}
        for device in MINORS:
            allocation = self.dice.choice((*ALLOCATIONS, ""))
            if allocation:
                stated.setdefault(allocation, []).append(device)
        if stated:
            told(self.root, "grants", stated)

    async def run(self) -> None:
        """Start a pod with what one of the agents offers."""
        site = self.dice.choice(self.running)
        free = [pod for pod in PODS if pod not in site.truth().pods]
        if not free or not site.agent.offer.devices:
            return
        one = self.dice.choice(site.agent.offer.devices)
        key, read = claim_of(free[0], one.allocation, one.name)
        try:
            await site.agent.prepare(key, read)
        except HardpointError:
            await site.agent.unprepare(key)  # its kubelet gives up
        else:
            told(self.root, "runs", free[0], one.allocation, one.name)

    async def end(self) -> None:
        pods = sorted(self.running[0].truth().pods)
        if pods:
            pod = self.dice.choice(pods)
            told(self.root, "over", pod)
            await self.dice.choice(self.running).agent.unprepare(claim_of(pod, "", "")[0])

    async def use(self) -> None:
        told(self.root, "users", self.dice.sample(ALLOCATIONS, self.dice.randrange(2)))

    async def look(self) -> None:
        writing = [site.agent.writing() for site in self.running]
        assert writing.count(True) == 1, writing
        for site in self.running:
            await site.agent.policies.granting.settle()
            if site.agent.writing():
                await site.agent.policies.releases.look()
                await site.check_known()
            site.check()


@pytest.mark.parametrize("seed", range(ROUNDS))
async def test_two_agents_never_both_write_and_who_is_left_finishes_what_is_pending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    for module, name, value in FASTER:
        monkeypatch.setattr(module, name, value)
    async with agents() as both:
        two = Two(tmp_path, both, random.Random(seed))
        (tmp_path / "told").touch()
        try:
            await two.play()
        except AssertionError as error:
            raise AssertionError(f"{error} after {two.done}") from error
        await two.stop()
        (left,) = two.running
        await left.finish()


@asynccontextmanager
async def _living(site: Site) -> AsyncIterator[HardpointAgent]:
    async with site.running():
        yield site.agent

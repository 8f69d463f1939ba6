"""Releases on a node whose clock is set by hours in the middle of them."""

from __future__ import annotations

import itertools
import time
from pathlib import Path

import pytest
from grant_runs import Drained, Ends
from grant_story import FASTER, Site

HOUR = 3600.0
JUMPS = {
    "forward": (0.0, 6 * HOUR, 12 * HOUR, 18 * HOUR),
    "back": (0.0, -6 * HOUR, -12 * HOUR, -18 * HOUR),
    "to and fro": (0.0, 9 * HOUR, -9 * HOUR),
    "to 1970 and up": (-1.7e9, 0.0),
}

pytestmark = pytest.mark.timeout(60)


class Clock:
    """The node's wall clock, which somebody sets."""

    def __init__(self) -> None:
        self.right, self.off = time.time, 0.0

    def __call__(self) -> float:
        return self.right() + self.off

    def rule(self, site: Site, patch: pytest.MonkeyPatch) -> None:
        """Be what every part of an agent goes by."""
        agent = site.agent
        policies = agent.policies
        for part in (policies.granting, policies.releases, agent._ledger, agent._broker._upkeep):
            patch.setattr(part, "_clock", self)
        patch.setattr(policies.reaper, "_wall", self)
        patch.setattr(time, "time", self)


@pytest.mark.parametrize("jumps", JUMPS.values(), ids=JUMPS.keys())
@pytest.mark.parametrize("run", [Ends, Drained])
async def test_a_clock_that_is_set_releases_nothing_early_and_keeps_nothing_for_ever(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    run: type[Ends | Drained],
    jumps: tuple[float, ...],
) -> None:
    for module, name, value in FASTER:
        monkeypatch.setattr(module, name, value)
    (tmp_path / "told").touch()
    site, clock = Site(tmp_path), Clock()
    story, offs = (*run.before, *run.story), itertools.cycle(jumps)
    async with site.running():
        clock.rule(site, monkeypatch)
        for number in range(len(story)):
            clock.off = next(offs)
            await site.tell(story[: number + 1])  # which waits for what follows, and checks it
            types = {one.type for one in site.agent.conditions()}
            assert "ReleaseStuck" not in types, story[number]
        await site.finish()

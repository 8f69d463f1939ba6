"""The contract of policies: what runs for the life of the agent."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import anyio.lowlevel
import pytest

from hardpoint.model import Event
from hardpoint.testing._policy_node import PolicyNode
from hardpoint.testing._policy_suite import PolicySuite, needs

_WINDOW = 1.0
_MOST_IDLE, _MOST_FAILING = 10, 30
"""Requests in that window: one that has nothing to do, and one that retries with back-off."""
_TOO_LONG = 5.0
"""Seconds for an end: the agent's own pod has 30."""
_EVENT = Event(name="device-added", message="gpu-0 came", facts={"device": "gpu-0"})


class ServeRules(PolicySuite):
    """What is asked of ``serve_policy``, ``watch_devices`` and ``observe``."""

    @needs("serve_policy")
    async def test_it_does_what_there_is_to_do_and_ends_when_told(self, node: PolicyNode) -> None:
        async with serving(node):
            await self.until_served(node)

        await node.until(lambda: not node.server._connections, _TOO_LONG)

    @needs("serve_policy")
    async def test_ended_at_once_it_leaves_nothing_open(self, node: PolicyNode) -> None:
        for looks in range(3):
            async with serving(node):
                for _ in range(looks):
                    await anyio.lowlevel.checkpoint()

        await node.until(lambda: not node.server._connections, _TOO_LONG)

    @needs("serve_policy")
    async def test_what_is_done_is_not_done_again(self, node: PolicyNode) -> None:
        async with serving(node):
            await self.until_served(node)
            await anyio.sleep(_WINDOW)  # what is still under way is done by then
            before = len(node.server.writes())
            more = await _more_requests(node, _MOST_IDLE)

            assert more <= _MOST_IDLE, f"it asks the API server {more} times a second for nothing"
            assert len(node.server.writes()) == before, "it writes though nothing has changed"

    @needs("serve_policy")
    async def test_an_api_server_that_fails_is_not_hammered(self, node: PolicyNode) -> None:
        node.server.trouble(status=500)
        async with serving(node):
            more = await _more_requests(node, _MOST_FAILING)

        assert more <= _MOST_FAILING, f"it asks a failing API server {more} times a second"

    @needs("serve_policy")
    async def test_an_api_server_that_is_away_is_waited_for(self, node: PolicyNode) -> None:
        if not self.writes_api:
            pytest.skip("it needs no API server")
        node.server.down = True
        async with serving(node):
            await node.until(lambda: node.agent.faults or node.agent.raised)
            node.server.down = False
            await self.until_served(node)

    @needs("serve_policy")
    async def test_of_two_agents_one_writes(self, node: PolicyNode) -> None:
        if not self.writes_api:
            pytest.skip("it writes nothing")
        node.agent.become_idle()
        before = len(node.server.writes())
        async with serving(node):
            await _more_requests(node, _MOST_FAILING)
            assert len(node.server.writes()) == before, "it writes beside the agent that may"
            node.agent.become_writer()
            await self.until_served(node)

    @needs("watch_devices")
    async def test_it_hints_when_what_it_reads_has_changed(self, node: PolicyNode) -> None:
        told, policy = anyio.Event(), node.policy()
        for hook, asked in (("grant_devices", {}), ("veto_devices", {"offer": node.agent.offer})):
            if policy.has(hook):
                await policy.ask(hook, **asked)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: policy.serve("watch_devices", hint=told.set))
            await anyio.wait_all_tasks_blocked()
            await self.change(node)
            with anyio.fail_after(_TOO_LONG):
                await told.wait()
            tasks.cancel_scope.cancel()

    @needs("observe")
    async def test_it_learns_of_events_without_a_word(self, node: PolicyNode) -> None:
        for event in (_EVENT, Event(name="", message="", warning=True)):
            assert await node.policy().ask("observe", event=event) is None


@asynccontextmanager
async def serving(node: PolicyNode) -> AsyncIterator[None]:
    """Run ``serve_policy`` until the block ends, and wait for its end."""
    ended = anyio.Event()

    async def run() -> None:
        try:
            await node.policy().serve()
            pytest.fail("serve_policy ended by itself: it runs for the life of the agent")
        finally:
            ended.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        yield
        tasks.cancel_scope.cancel()
        with anyio.CancelScope(shield=True), anyio.move_on_after(_TOO_LONG):
            await ended.wait()
        assert ended.is_set(), "cancelled, it did not end"


async def _more_requests(node: PolicyNode, most: int) -> int:
    """Return how many requests come in the window, or more than ``most`` as soon as they do."""
    before = len(node.server.requests)
    with anyio.move_on_after(_WINDOW):
        await node.server.until(lambda: len(node.server.requests) - before > most)
    return len(node.server.requests) - before

"""Metrics over real HTTP, on loopback and on a unix socket; and what is no scrape."""

from __future__ import annotations

import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from pydantic import ValidationError

from hardpoint.model import Device, Event
from hardpoint.policies.metrics import NOTE, Metrics, MetricsSettings
from hardpoint.policies.metrics.serving import Address, Page
from hardpoint.testing import PolicyContract
from hardpoint.testing.agent import FakeAgent
from hardpoint.testing.policy_contract import PolicyNode

ANY_PORT = "127.0.0.1:0"


@asynccontextmanager
async def served(agent: FakeAgent, listen: str = ANY_PORT) -> AsyncIterator[tuple[Metrics, str]]:
    """Serve until the block ends; yields the policy and where it is."""
    policy = Metrics(agent.node, MetricsSettings(listen=listen))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(policy.serve_policy, agent)
        await agent.until(lambda: NOTE in agent.notes)
        yield policy, str(agent.notes[NOTE]["served"])
        tasks.cancel_scope.cancel()


@pytest.fixture
def agent(short_path: Path) -> FakeAgent:
    agent = FakeAgent(short_path)
    agent.show(Device(name="gpu-0", kind="gpu", driver="acme"))
    return agent


async def test_a_scrape_finds_what_is_so_at_that_moment(agent: FakeAgent) -> None:
    offered = 'hardpoint_devices_offered{driver="acme",kind="gpu",health="Healthy"}'
    async with served(agent) as (policy, where), httpx2.AsyncClient() as client:
        await policy.observe(Event(name="claim-prepared", message="", facts={"seconds": "0.1"}))
        first = await client.get(f"http://{where}")
        agent.show()
        second = await client.get(f"http://{where}")

    assert first.status_code == 200
    assert first.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert f"{offered} 1\n" in first.text
    assert "hardpoint_prepare_duration_seconds_count 1\n" in first.text
    assert offered not in second.text


async def test_a_unix_socket_is_for_its_owner_and_group_and_goes_with_the_agent(
    agent: FakeAgent, short_path: Path
) -> None:
    path = short_path / "m.sock"
    async with served(agent, str(path)) as (_, where):
        assert where == str(path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        assert b"hardpoint_agent_info" in await spoken(path, b"GET /metrics HTTP/1.1\r\n\r\n")
    assert not path.exists()


async def test_of_two_agents_the_first_leaves_the_socket_to_the_second(
    agent: FakeAgent, short_path: Path
) -> None:
    path, other = short_path / "m.sock", FakeAgent(short_path / "other")
    async with anyio.create_task_group() as tasks:
        async with served(agent, str(path)):
            tasks.start_soon(
                Metrics(other.node, MetricsSettings(listen=str(path))).serve_policy, other
            )
            await other.until(lambda: NOTE in other.notes)
        assert b"200 OK" in await spoken(path, b"GET /metrics HTTP/1.0\n\n")
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /metrics?x=1 HTTP/1.1\r\nHost: x\r\n\r\n", b"200 OK"),
        (b"HEAD /metrics HTTP/1.1\r\n\r\n", b"200 OK"),
        (b"GET / HTTP/1.1\r\n\r\n", b"404 Not Found"),
        (b"GET /../etc/passwd HTTP/1.1\r\n\r\n", b"404 Not Found"),
        (b"POST /metrics HTTP/1.1\r\n\r\n", b"405 Method Not Allowed"),
        (b"GET /metrics\r\n\r\n", b"400 Bad Request"),
        (b"\xff\xfe\x00\r\n\r\n", b"400 Bad Request"),
        (b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\n", b"400 Bad Request"),
    ],
)
async def test_what_is_asked_otherwise_is_answered_in_kind(
    agent: FakeAgent, short_path: Path, request_: bytes, status: bytes
) -> None:
    path = short_path / "m.sock"
    async with served(agent, str(path)):
        answer = await spoken(path, request_)

    assert answer.startswith(b"HTTP/1.1 " + status)
    if request_.startswith(b"HEAD"):
        assert answer.endswith(b"\r\n\r\n")


async def test_a_client_that_says_nothing_costs_no_other(
    agent: FakeAgent, short_path: Path
) -> None:
    path = short_path / "m.sock"
    async with served(agent, str(path)):
        async with await anyio.connect_unix(path) as idle:
            await idle.send(b"GET /metr")
            assert b"200 OK" in await spoken(path, b"GET /metrics HTTP/1.1\r\n\r\n")
        assert b"200 OK" in await spoken(path, b"GET /metrics HTTP/1.1\r\n\r\n")


async def test_more_clients_than_there_is_room_for_are_hung_up_on(
    agent: FakeAgent, short_path: Path
) -> None:
    path = short_path / "m.sock"
    async with served(agent, str(path)):
        idle = [await anyio.connect_unix(path) for _ in range(8)]
        for one in idle:
            await one.send(b"G")
        with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
            async with await anyio.connect_unix(path) as late:
                await late.receive()
        for one in idle:
            await one.aclose()
        assert b"200 OK" in await _until_room(path)


async def test_a_client_that_hangs_up_half_way_is_no_failure(
    agent: FakeAgent, short_path: Path
) -> None:
    path = short_path / "m.sock"
    async with served(agent, str(path)):
        async with await anyio.connect_unix(path) as gone:
            await gone.send(b"GET /metrics HT")
        assert b"200 OK" in await spoken(path, b"GET /metrics HTTP/1.1\r\n\r\n")


async def test_a_page_that_cannot_be_made_costs_that_answer_alone(
    agent: FakeAgent, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> Any:
        raise KeyError("held")

    async with served(agent) as (_, where), httpx2.AsyncClient() as client:
        with monkeypatch.context() as patch:
            patch.setattr(agent, "status", broken)
            failed = await client.get(f"http://{where}")
        after = await client.get(f"http://{where}")

    assert (failed.status_code, failed.text) == (500, "Internal Server Error\n")
    assert after.status_code == 200
    assert "no page was made" in caplog.text


async def test_an_exchange_ends_in_time(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hardpoint.policies.metrics.serving._WITHIN", 0.05)
    path, listening = short_path / "m.sock", anyio.Event()
    page = Page(Address.of(str(path)), lambda: "x 1\n", "text/plain")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(page.run, lambda where: listening.set())
        await listening.wait()
        async with await anyio.connect_unix(path) as slow:
            await slow.send(b"GET")
            with pytest.raises(anyio.EndOfStream):
                await slow.receive()
        tasks.cancel_scope.cancel()


async def test_a_port_that_another_has_is_an_error_in_words(agent: FakeAgent) -> None:
    async with served(agent) as (_, where):
        taken = where.removesuffix("/metrics")
        with pytest.raises(OSError, match=r"(?i)address already in use|while attempting to bind"):
            await Metrics(agent.node, MetricsSettings(listen=taken)).serve_policy(agent)


@pytest.mark.parametrize(
    "listen", ["", "9479", "127.0.0.1", "::1:9479", "a b:1", "x:99999", "x:-1"]
)
def test_an_address_that_is_none_is_refused_with_what_is_one(listen: str) -> None:
    with pytest.raises(ValidationError, match=r"127\.0\.0\.1:9479"):
        MetricsSettings(listen=listen)


@pytest.mark.parametrize("listen", ["0.0.0.0:9479", "[::]:9479", "localhost:1", "/run/m.sock"])
def test_an_address_that_is_one_is_taken(listen: str) -> None:
    assert MetricsSettings(listen=listen).listen == listen


class TestMetrics(PolicyContract):
    plugin = Metrics
    settings = {"listen": ANY_PORT}  # noqa: RUF012 - of the contract's making
    reads = False
    writes_api = False

    async def until_served(self, node: PolicyNode) -> None:
        await node.agent.until(lambda: NOTE in node.agent.notes)


async def spoken(path: Path, request: bytes) -> bytes:
    """Say something over a socket of its own, and return all that comes back."""
    answer = b""
    async with await anyio.connect_unix(path) as stream:
        await stream.send(request)
        while True:
            try:
                answer += await stream.receive()
            except (anyio.EndOfStream, anyio.BrokenResourceError):
                return answer


async def _until_room(path: Path) -> bytes:
    with anyio.fail_after(10):
        while True:
            answer = await spoken(path, b"GET /metrics HTTP/1.1\r\n\r\n")
            if answer:
                return answer

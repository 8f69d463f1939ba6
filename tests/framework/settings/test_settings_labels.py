"""The node's labels, by which sections of the settings are chosen, while the API server is away."""

from __future__ import annotations

import os
import resource
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hardpoint._core import cluster
from hardpoint._core.cluster import labels_of_node
from hardpoint._core.state import kept_labels, mark_running
from hardpoint.errors import BadSettings
from hardpoint.settings import AgentSettings, load
from hardpoint.testing.api_server import FakeApiServer

OLD, NEW = {"radio": "old"}, {"radio": "new"}


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer() as server:
        server.add_node("node-1")
        yield server


@pytest.fixture
def settings(tmp_path: Path, server: FakeApiServer) -> AgentSettings:
    return load(
        environment={
            "HARDPOINT_NODE_NAME": "node-1",
            "HARDPOINT_PATHS__STATE": str(tmp_path / "state"),
            "HARDPOINT_KUBE__URL": server.url,
        }
    )


def _label(server: FakeApiServer, labels: dict[str, str]) -> None:
    server.edit("nodes", "node-1").update(metadata={"labels": labels})


def _away(server: FakeApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server.down = True
    monkeypatch.setattr(cluster, "_PATIENCE", 0.05)


@contextmanager
def _full_disk() -> Iterator[None]:
    """The size limit makes write(2) fail as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.field_case("A01")
async def test_the_labels_it_last_said_serve_while_the_api_server_is_away(
    settings: AgentSettings, server: FakeApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    _label(server, OLD)
    assert await labels_of_node(settings) == OLD
    _away(server, monkeypatch)

    assert await labels_of_node(settings) == OLD


@pytest.mark.field_case("C10", "C11")
async def test_labels_that_cannot_be_kept_are_used_and_leave_the_ones_kept_before(
    settings: AgentSettings, server: FakeApiServer
) -> None:
    _label(server, OLD)
    await labels_of_node(settings)
    _label(server, NEW)
    with _full_disk():
        assert await labels_of_node(settings) == NEW

    assert kept_labels(settings.paths.state) == OLD
    assert [path.name for path in settings.paths.state.iterdir()] == ["node-labels.json"]


@pytest.mark.field_case("C11")
@pytest.mark.parametrize("content", ["", "\0" * 64, "{", '{"a": "b"}}', "[]", "null", '{"a": 1}'])
async def test_kept_labels_that_are_no_labels_are_none(
    settings: AgentSettings,
    server: FakeApiServer,
    monkeypatch: pytest.MonkeyPatch,
    content: str,
) -> None:
    settings.paths.state.mkdir()
    (settings.paths.state / "node-labels.json").write_text(content)
    _away(server, monkeypatch)

    assert kept_labels(settings.paths.state) is None
    with pytest.raises(BadSettings, match="sections are chosen by label"):
        await labels_of_node(settings)


def test_what_a_killed_agent_left_half_written_is_removed_at_the_next_start(tmp_path: Path) -> None:
    left = [tmp_path / ".node-labels.json.x1", tmp_path / ".status.json.4711"]
    young = tmp_path / ".status.json.young"
    for path in (*left, young, tmp_path / "status.json", tmp_path / ".of-somebody-else"):
        path.write_text("{")
        if path is not young:
            os.utime(path, (1, 1))

    os.close(mark_running(tmp_path))

    names = {path.name for path in tmp_path.iterdir()}
    assert names == {".of-somebody-else", ".status.json.young", "running", "status.json"}

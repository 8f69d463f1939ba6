"""The real API server answers what is written down of its release, and our own is held to."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from cluster.world import World
from conformance.answers import Written, comparable, versions
from conformance.api_restart_cases import Restart
from conformance.api_server_cases import CASES
from conformance.exchange import Api
from conformance.servers import RealServer, real_api


@pytest.fixture
async def api(session_world: World) -> AsyncIterator[Api]:
    async with real_api(session_world.cluster.kubeconfig) as api:
        yield api


@pytest.fixture(scope="module")
def written() -> Written:
    return Written()


@pytest.mark.parametrize("name", CASES)
async def test_a_real_server_answers_as_it_did(
    name: str, session_world: World, api: Api, written: Written
) -> None:
    version = f"1.{session_world.version[1]}"
    if version not in versions():
        pytest.skip(f"no answers of {version} are written down")

    expected = written.of(version)[name]

    assert comparable(await CASES[name](api), version) == comparable(expected, version)


class TestRestart(Restart):
    @pytest.fixture
    def server(self, world: World) -> RealServer:
        return RealServer(world)

"""Our API server answers what real ones of each release have answered: ``answers/``."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from conformance.answers import Written, comparable, versions
from conformance.api_restart_cases import Restart
from conformance.api_server_cases import CASES
from conformance.exchange import Api
from conformance.servers import FakeServer, fake_api

from hardpoint.testing.api_server import FakeApiServer


@pytest.fixture(params=versions())
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def api(version: str) -> AsyncIterator[Api]:
    minor = int(version.partition(".")[2])
    async with FakeApiServer(minor=minor) as server, fake_api(server) as api:
        yield api


@pytest.fixture(scope="module")
def written() -> Written:
    return Written()


@pytest.mark.parametrize("name", CASES)
async def test_ours_answers_as_a_real_one_did(
    name: str, version: str, api: Api, written: Written
) -> None:
    expected = written.of(version)[name]

    assert comparable(await CASES[name](api), version) == comparable(expected, version)


def test_every_answer_that_is_written_down_is_asked_for(written: Written) -> None:
    for version in versions():
        assert written.of(version).keys() == CASES.keys()


class TestRestart(Restart):
    @pytest.fixture
    async def server(self) -> AsyncIterator[FakeServer]:
        async with FakeApiServer() as server:
            yield FakeServer(server)

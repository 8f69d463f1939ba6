"""The policy of the how-to page, installed as a third party's package, decides as the page says."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tutorial import Tutorial, block

from hardpoint import Claim, Device, Node, Offer, Offered, Verdict, Veto
from hardpoint._core.plugins.discovery import Plugin, Plugins
from hardpoint._core.plugins.faults import FaultBoard
from hardpoint._core.plugins.relay import Relay
from hardpoint.model import ClaimKey, Domain

PAGE = "howto/write-a-policy.md"
DISPLAY = Offered(
    device=Device(name="card", kind="drm.display"), domain=Domain.named("hardpoint.dev")
)
SOUND = Offered(
    device=Device(name="speaker", kind="sound.card"), domain=Domain.named("hardpoint.dev")
)
OFFER = Offer(generation=1, devices=(DISPLAY, SOUND))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Tutorial:
    return Tutorial(PAGE, "acme_hardpoint_tenancy", tmp_path_factory.mktemp("acme"))


@pytest.fixture
def tenancy(site: Tutorial, tmp_path: Path) -> Plugins:
    at = site.folder / "src/acme_hardpoint_tenancy/__init__.py"
    spec = importlib.util.spec_from_file_location("acme_hardpoint_tenancy", at)
    assert spec is not None
    assert spec.loader is not None
    module: ModuleType = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    record = Plugin("policy", "tenancy", loaded=module.Tenancy)
    plugins = Plugins([record])
    section = tomllib.loads(block(PAGE, "toml", "policies ="))["policy"]["tenancy"]
    plugins.start(record, Node(name="n", run=tmp_path), section)
    assert record.state == "running", record.reason
    return plugins


async def _ask(plugins: Plugins, hook: str, **arguments: Any) -> Any:
    async with Relay(plugins, FaultBoard()) as relay:
        return await relay.plugin(hook, "policy/tenancy", **arguments)


def _claim(namespace: str) -> Claim:
    return Claim(key=ClaimKey("u", namespace, "screen", "hardpoint.dev"))


async def test_a_kind_is_kept_to_its_namespaces(tenancy: Plugins) -> None:
    async def verdict(namespace: str, *devices: Offered) -> Verdict | None:
        claim = _claim(namespace)
        answer: Verdict | None = await _ask(
            tenancy, "admit_claim", claim=claim, devices=devices, holds=()
        )
        return answer

    assert await verdict("kiosk", DISPLAY) is None
    assert await verdict("games", SOUND) is None
    assert await verdict("games", SOUND, DISPLAY) == Verdict.deny(
        "card: drm.display is for namespaces kiosk"
    )


async def test_a_node_in_service_offers_no_such_kind(tenancy: Plugins, tmp_path: Path) -> None:
    assert tuple(await _ask(tenancy, "veto_devices", offer=OFFER)) == ()
    (tmp_path / "acme").mkdir()
    (tmp_path / "acme/in-service").write_text("new cables\n")

    vetoes = tuple(await _ask(tenancy, "veto_devices", offer=OFFER))

    assert vetoes == (Veto(device="card", reason="the node is being serviced: new cables"),)


@pytest.mark.timeout(120)
def test_the_settings_of_the_page_turn_it_on(site: Tutorial, tmp_path: Path) -> None:
    config = tmp_path / "hardpoint.toml"
    config.write_text(block(PAGE, "toml", "policies ="))

    answer = site.run("hardpoint.cli", "plugins", HARDPOINT_CONFIG=str(config))

    assert re.search(r"policy +tenancy +running +acme-hardpoint-tenancy 0.1.0", answer.stdout)

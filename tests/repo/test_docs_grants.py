"""What the page on grants shows is what is read and written."""

from __future__ import annotations

import json
import os
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hold_files import device
from tutorial import ROOT, blocks

from hardpoint import Grant, GrantOutcome, Outcome, Release
from hardpoint._core.grants.lost import CONDITION as LOST
from hardpoint._core.grants.releases import STUCK
from hardpoint.policies.cdi_grants import CdiGrantsSettings
from hardpoint.policies.cdi_grants.documents import judged
from hardpoint.policies.cdi_grants.reports import Reports
from hardpoint.policies.container_facts import ContainerFactsSettings
from hardpoint.policies.drain.draining import RELEASED as RELEASED_NODE
from hardpoint.policies.drain.settings import DrainSettings
from hardpoint.policies.exclusive_source import ExclusiveSourceSettings
from hardpoint.policies.node_status.keeping import DRIFT
from hardpoint.policies.node_status.labels import wanted
from hardpoint.policies.node_status.settings import NodeStatusSettings
from hardpoint.settings import AgentSettings

PAGE = "howto/grants.md"
TEXT = (ROOT / "docs" / PAGE).read_text()
HOLD, GRANTED, RELEASED = (json.loads(text) for text in blocks(PAGE, "json"))
SETTINGS = [tomllib.loads(text) for text in blocks(PAGE, "toml")]


@pytest.mark.parametrize("raw", SETTINGS[:2], ids=("plain", "bcd"))
def test_the_pages_settings_are_settings(raw: dict[str, Any]) -> None:
    settings = AgentSettings.model_validate(raw)

    assert CdiGrantsSettings.model_validate(settings.policy["cdi_grants"])


def test_the_pages_hold_grants_what_it_says() -> None:
    hold = judged(HOLD, "hardpoint-training.json", CdiGrantsSettings())

    assert hold
    assert (hold.allocation, hold.unsupported) == ("training", "")


def test_bcds_names_follow_from_its_vendor() -> None:
    settings = CdiGrantsSettings.model_validate(SETTINGS[1]["policy"]["cdi_grants"])

    assert settings.file_prefix == "bcd-"
    for key in (settings.binding_key, settings.uuid_key):
        assert key in TEXT


def test_the_node_says_it_in_bcds_names() -> None:
    policy = SETTINGS[2]["policy"]
    said = {**policy["node_status"], "node_id": "n", "site": "s"}
    node = NodeStatusSettings.model_validate(said)

    assert ExclusiveSourceSettings.model_validate(policy["exclusive_source"]).condition
    assert DrainSettings.model_validate(policy["drain"]).drain_annotation in TEXT
    assert node.conditions.keys() == {RELEASED_NODE, STUCK, LOST, DRIFT}
    labels, _ = wanted(node, {"gpu.count": "8"}, governed=True)
    assert all(f"`{label}`" in TEXT for label in labels)


def test_containers_are_told_by_bcds_names() -> None:
    names = ContainerFactsSettings.model_validate(SETTINGS[1]["policy"]["container_facts"])

    assert names.variable == "BCD_ALLOCATION_IDS"
    assert names.annotation == "bcd.dev/allocation-ids"
    plain = ContainerFactsSettings()
    assert plain.variable in TEXT
    assert plain.annotation in TEXT


def test_reports_have_the_fields_that_the_page_shows(tmp_path: Path) -> None:
    reports, grant = Reports(tmp_path), Grant(allocation="training")
    reports.tell_grant(grant, GrantOutcome(Outcome.IN_FORCE))
    granted = reports.read("training")
    gpu = device("gpu-7085d672", 0)
    release = Release(
        id="r", allocation="training", source="", devices=(gpu,), since=RELEASED["since"]
    )
    reports.tell_release(grant, release)

    assert {**granted, "at": GRANTED["at"]} == GRANTED
    assert {**reports.read("training"), "at": RELEASED["at"]} == RELEASED
    assert os.listdir(tmp_path) == ["training.json"]


def test_the_page_names_every_outcome() -> None:
    table = re.findall(r"^\| `([a-z-]+)` \|", TEXT, re.MULTILINE)

    assert sorted(table) == sorted(Outcome)

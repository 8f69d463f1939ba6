"""Recorded machines are answered as they were reviewed."""

from __future__ import annotations

import importlib.util
import json
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest

HERE = Path(__file__).parent
MACHINES = sorted((HERE.parent / "data/machines").glob("*.tar.gz"))

_spec = importlib.util.spec_from_file_location("golden_write", HERE / "write.py")
assert _spec is not None
assert _spec.loader is not None
write = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(write)


def _id(machine: Path) -> str:
    return machine.name.removesuffix(".tar.gz")


@pytest.fixture(scope="module", params=MACHINES, ids=_id)
def pair(request: pytest.FixtureRequest) -> tuple[dict[str, Any], dict[str, Any]]:
    machine: Path = request.param
    golden = json.loads((HERE / f"{_id(machine)}.json").read_text("utf-8"))
    return write.answer(machine), golden


@pytest.mark.timeout(120)
def test_a_recorded_machine_offers_what_was_reviewed(
    pair: tuple[dict[str, Any], dict[str, Any]],
) -> None:
    found, golden = pair

    for key in ("devices", "not_offered"):
        name = "name" if key == "devices" else "subject"
        assert [each[name] for each in found[key]] == [each[name] for each in golden[key]]
        for mine, reviewed in zip(found[key], golden[key], strict=True):
            assert mine == reviewed
    assert found["faults"] == golden["faults"] == []


@pytest.mark.timeout(120)
def test_the_answer_is_the_documented_object(pair: tuple[dict[str, Any], dict[str, Any]]) -> None:
    schema = json.loads(
        resources.files("hardpoint.cli").joinpath("devices.schema.json").read_text("utf-8")
    )

    jsonschema.validate(pair[0], schema)

"""What is wrong with a plugin's section is said in TOML's words, with the keys that would do."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import Field

from hardpoint import Node, Settings
from hardpoint._core.plugins.discovery import Plugin, validated
from hardpoint.errors import PluginRefused


class Lamp(Settings):
    name: str
    colours: tuple[str, ...] = ()


class Acme(Settings):
    lamps: tuple[Lamp, ...] = ()
    by_name: Mapping[str, Lamp] = {}
    ids: frozenset[int] = frozenset()
    mode: Literal["fast", "safe"] = "safe"
    patience: float = Field(default=1.0, gt=0)
    count: int = 1
    dry: bool = False
    file: Path = Path("/x")


class Driver:
    Settings = Acme

    def __init__(self, node: Node, settings: Acme) -> None:
        self.settings = settings


def said(section: Mapping[str, Any]) -> str:
    with pytest.raises(PluginRefused) as refused:
        validated(Plugin("driver", "acme", loaded=Driver), section)
    return str(refused.value)


@pytest.mark.parametrize(
    ("section", "words"),
    [
        (
            {"lampz": 1},
            (
                "lampz: unknown key; the keys are by_name, count, dry, file, ids, lamps, mode, "
                "patience"
            ),
        ),
        (
            {"lamps": [{"name": "a", "color": "red"}]},
            "lamps[0].color: unknown key; the keys are colours, name",
        ),
        (
            {"by_name": {"desk": {"name": "a", "x": 1}}},
            "by_name.desk.x: unknown key; the keys are colours, name",
        ),
        ({"lamps": "desk"}, "lamps: want a list"),
        ({"ids": 7}, "ids: want a list"),
        ({"by_name": []}, "by_name: want a table"),
        ({"lamps": ["desk"]}, "lamps[0]: want a table"),
        ({"lamps": [{}]}, "lamps[0].name: it is missing"),
        ({"lamps": [{"name": 7}]}, "lamps[0].name: want text"),
        ({"mode": "slow"}, "mode: want 'fast' or 'safe'"),
        ({"patience": 0}, "patience: want a number greater than 0"),
        ({"patience": "long"}, "patience: want a number"),
        ({"count": 1.5}, "count: want a whole number"),
        ({"count": "many"}, "count: want a whole number"),
        ({"dry": "maybe"}, "dry: want true or false"),
        ({"file": 7}, "file: want a path"),
    ],
)
def test_a_wrong_key_or_value_is_said_with_what_would_do(
    section: Mapping[str, Any], words: str
) -> None:
    assert said(section).endswith(f"its settings: {words}")


def test_what_was_found_is_not_quoted_as_it_may_be_a_secret() -> None:
    assert "hunter2" not in said({"lamps": "hunter2"})
    assert "hunter2" not in said({"mode": "hunter2"})


def test_a_section_that_is_right_is_taken() -> None:
    made = validated(Plugin("driver", "acme", loaded=Driver), {"lamps": [{"name": "desk"}]})

    assert made.lamps[0].name == "desk"

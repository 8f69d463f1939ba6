"""The page on what happens when a grant ends says what the code does."""

from __future__ import annotations

import tomllib

import pytest
from tutorial import ROOT, blocks

from hardpoint.grants import Reaped
from hardpoint.policies.pod_reaper import PodReaperSettings
from hardpoint.settings import AgentSettings

PAGE = "howto/release.md"
TEXT = (ROOT / "docs" / PAGE).read_text()


@pytest.mark.parametrize("text", blocks(PAGE, "toml"))
def test_its_settings_are_settings(text: str) -> None:
    settings = AgentSettings.model_validate(tomllib.loads(text))
    PodReaperSettings.model_validate(settings.policy.get("pod_reaper", {}))


def test_its_numbers_are_the_defaults() -> None:
    found = PodReaperSettings()
    assert (found.first_after_s, found.again_after_s, found.grace_s) == (30, 60, 10)
    for said in (
        "has 30 seconds (`first_after_s`)",
        "with 10 seconds (`grace_s`)",
        "a minute later (`again_after_s`)",
        f"At most {found.pods_per_minute} pods a minute",
    ):
        assert said in TEXT


def test_it_names_every_event_of_the_reaper() -> None:
    from hardpoint._core.pods import reaper

    words = {"pod-overstays", "pod-reaped", *reaper._WORDS.values()}
    assert {Reaped.SPARED, Reaped.WOULD_DELETE, Reaped.LATER} == set(reaper._WORDS)
    for word in words:
        assert f"`{word}`" in TEXT

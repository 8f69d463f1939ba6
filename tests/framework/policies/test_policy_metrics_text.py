"""Metrics as Prometheus reads them: names, escapes, sums; and no word that hardware made up."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest

from hardpoint.allocation import PodUser, allocation_key
from hardpoint.grants import NodeCondition, Release
from hardpoint.model import (
    Condition,
    Device,
    Domain,
    Event,
    Health,
    Offer,
    Offered,
    Taint,
    Withheld,
)
from hardpoint.policies.metrics.counting import BOUNDS, Counts
from hardpoint.policies.metrics.exposition import Family, Histogram, Sample, text
from hardpoint.policies.metrics.families import families
from hardpoint.testing.agent import FakeAgent

DOMAIN = Domain.named("hardpoint.dev")
LINE = re.compile(
    r'[a-z_]+(\{[a-z_]+="(?:[^"\\\n]|\\[\\n"])*"(,[a-z_]+="(?:[^"\\\n]|\\[\\n"])*")*\})? '
    r"-?[0-9][0-9.e+-]*"
)
"""A sample, by the text format's own grammar."""


def gpu(name: str, **facts: Any) -> Offered:
    raw = {"model": 'Evil \n"Vendor" \\ 0xDEAD'}
    device = Device(name=name, kind="gpu", driver="acme", attributes=raw)
    return Offered(device=device, domain=DOMAIN, **facts)


async def page(agent: FakeAgent, now: float = 1000.0) -> dict[str, float]:
    said = text(families(agent.status(), now))
    samples = [line for line in said.splitlines() if not line.startswith("#")]
    assert all(LINE.fullmatch(line) for line in samples), said
    assert len({line.rpartition(" ")[0] for line in samples}) == len(samples)
    assert "Evil" not in said
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in samples)}


@pytest.fixture
def agent(tmp_path: Path) -> FakeAgent:
    return FakeAgent(tmp_path)


async def test_devices_are_counted_by_what_became_of_them(agent: FakeAgent) -> None:
    ill = Health(Condition.UNHEALTHY, "Evil firmware")
    agent.show(gpu("gpu-0"), gpu("gpu-1", held=True, taints=(Taint("in-use"),)))
    agent.offer = Offer(
        generation=9,
        devices=(*agent.offer.devices, gpu("gpu-2", health=ill)),
        withheld=(Withheld("gpu-3", "vetoed", "Evil reason", "acme"),) * 2,
    )

    found = await page(agent)

    healthy = 'hardpoint_devices_offered{driver="acme",kind="gpu",health="Healthy"}'
    assert found[healthy] == 2
    assert found[healthy.replace("Healthy", "Unhealthy")] == 1
    assert found['hardpoint_devices_held{driver="acme",kind="gpu"}'] == 1
    assert found['hardpoint_devices_tainted{driver="acme",kind="gpu",taint="in-use"}'] == 1
    assert found['hardpoint_devices_withheld{driver="acme",rule="vetoed"}'] == 2


async def test_a_hold_says_which_container_has_the_device(agent: FakeAgent) -> None:
    agent.show(gpu("gpu-0"), gpu("gpu-1"))
    wanted = [_assignment(name) for name in ("gpu-0", "gpu-1")]
    await agent.allocate(wanted)
    agent.users[("hardpoint.dev/gpu", "gpu-0")] = (PodUser("ns", "train", "main"),)

    found = await page(agent)

    assert found['hardpoint_holds{state="held"}'] == 2
    had = (
        'hardpoint_hold_info{device="gpu-0",claim="hardpoint.dev/gpu/gpu-0",state="held",'
        'namespace="ns",pod="train",container="main"}'
    )
    assert found[had] == 1
    nobody = [one for one in found if 'device="gpu-1"' in one]
    assert ['pod=""' in one for one in nobody] == [True]


async def test_releases_have_an_age_also_when_the_clock_was_set_back(agent: FakeAgent) -> None:
    facts = {"source": "policy/cdi_grants", "devices": ()}
    agent.set_state(
        releasing=[
            Release(id="r1", allocation="alloc-1", since=900.0, **facts),  # type: ignore[arg-type]
            Release(id="r2", allocation="alloc-2", since=2000.0, **facts),  # type: ignore[arg-type]
        ]
    )

    found = await page(agent, now=1000.0)

    assert found["hardpoint_releases_pending"] == 2
    ages = {k: v for k, v in found.items() if k.startswith("hardpoint_release_age_seconds")}
    assert sorted(ages.values()) == [0, 100]
    assert any('allocation="alloc-1",source="policy/cdi_grants"' in name for name in ages)


async def test_troubles_are_named_by_who_has_them_and_never_quoted(agent: FakeAgent) -> None:
    agent.on_fault("driver/acme gpu-0: attribute model", "Evil string of the hardware")
    agent.on_fault('Evil "source"', "Evil")
    agent.on_fault("ünlucky", "Evil")
    agent.raise_condition(NodeCondition(type="ReleaseStuck", reason="Held", message="Evil"))

    said = text(families(agent.status(), 0.0))

    assert 'hardpoint_faults{source="driver/acme"} 1' in said
    assert 'hardpoint_faults{source="other"} 1' in said
    assert 'hardpoint_node_condition{type="ReleaseStuck",reason="Held"} 1' in said
    assert "string of the hardware" not in said


async def test_an_agent_that_has_said_nothing_yet_is_no_error() -> None:
    assert "hardpoint_releases_pending 0" in text(families({}, 0.0))


def test_events_are_counted_and_prepares_measured() -> None:
    counts = Counts()
    for seconds in ("0.0020", "0.0060", "50"):
        counts.count(_event("claim-prepared", seconds=seconds))
    counts.count(_event("claim-prepared"))
    counts.count(_event("claim-refused", reason="revoked"))
    counts.count(_event("pod-reaped"))
    counts.count(_event("pod-not-reaped-yet"))

    said = text(counts.families())

    assert 'hardpoint_prepare_duration_seconds_bucket{le="0.005"} 1' in said
    assert 'hardpoint_prepare_duration_seconds_bucket{le="0.01"} 2' in said
    assert f'hardpoint_prepare_duration_seconds_bucket{{le="{BOUNDS[-1]:g}"}} 2' in said
    assert 'hardpoint_prepare_duration_seconds_bucket{le="+Inf"} 3' in said
    assert "hardpoint_prepare_duration_seconds_sum 50.008" in said
    assert "hardpoint_prepare_duration_seconds_count 3" in said
    assert 'hardpoint_claims_refused_total{reason="revoked"} 1' in said
    assert 'hardpoint_pods_reaped_total{what="deleted"} 1' in said
    assert 'hardpoint_pods_reaped_total{what="spared"} 0' in said
    assert 'hardpoint_events_total{event="claim-prepared"} 4' in said


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ('a"b', r"a\"b"),
        ("a\\b", r"a\\b"),
        ("a\nb", r"a\nb"),
        ("\udcff", "?"),
        ("x" * 300, "x" * 200),
    ],
)
def test_any_value_of_a_label_stays_one_line(value: str, written: str) -> None:
    said = text([Family("f", "gauge", "Help with\na break.", (Sample(1, {"l": value}),))])

    assert said.splitlines()[0] == r"# HELP f Help with\na break."
    assert said.splitlines()[2] == f'f{{l="{written}"}} 1'


def test_a_bound_counts_what_is_equal_to_it() -> None:
    histogram = Histogram([1.0, 2.0])
    histogram.observe(1.0)

    assert [sample.value for sample in histogram.samples({})] == [1, 1, 1, 1.0, 1]


def _event(name: str, **facts: str) -> Event:
    return Event(name=name, message="", facts=facts)


def _assignment(device: str) -> Any:
    from hardpoint.allocation import Assignment

    made = Assignment(resource="hardpoint.dev/gpu", id=device, device=device, domain=DOMAIN)
    assert made.key == allocation_key("hardpoint.dev/gpu", device, DOMAIN.dra_driver)
    return made


@pytest.mark.parametrize("seconds", ["nan", "inf", "-inf", "-1", "soon", "", None, [1]])
def test_a_duration_that_is_none_spoils_no_page(seconds: Any) -> None:
    """Any plugin may report an event of that name."""
    counts = Counts()
    counts.count(Event(name="claim-prepared", message="", facts={"seconds": seconds}))
    counts.count(Event(name="claim-prepared", message="", facts={"seconds": "0.5"}))

    page = text(counts.families())

    assert "hardpoint_prepare_duration_seconds_sum 0.5\n" in page
    assert "hardpoint_prepare_duration_seconds_count 1\n" in page
    assert 'hardpoint_events_total{event="claim-prepared"} 2\n' in page


def test_very_many_words_are_not_ever_more_time_series() -> None:
    counts = Counts()
    for number in range(1000):
        counts.count(Event(name=f"acme-{number}", message=""))
        counts.count(Event(name="claim-refused", message="", facts={"reason": f"r{number}"}))

    lines = text(counts.families()).splitlines()

    assert len(lines) < 500
    assert 'hardpoint_claims_refused_total{reason="other"} 800' in lines


@pytest.mark.parametrize(
    ("value", "written"), [(math.inf, "+Inf"), (-math.inf, "-Inf"), (math.nan, "NaN")]
)
def test_what_is_no_number_is_written_as_prometheus_reads_it(value: float, written: str) -> None:
    page = text([Family("x", "gauge", "X.", (Sample(value),))])

    assert page.endswith(f"\nx {written}\n")

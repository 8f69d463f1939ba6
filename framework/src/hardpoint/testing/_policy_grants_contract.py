"""The contract of policies: grants, and who still uses what was granted."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest

from hardpoint.grants import Evidence, Grant, GrantOutcome, Outcome, Release
from hardpoint.testing._policy_node import PolicyNode, PolicyObject
from hardpoint.testing._policy_suite import (
    RAISED,
    PolicySuite,
    are_patterns,
    is_sentence,
    needs,
    nobody,
)

_ALLOCATION = re.compile(r"[A-Za-z0-9._-]{1,128}")
_OUTCOMES = (
    GrantOutcome(Outcome.IN_FORCE),
    GrantOutcome(Outcome.OVERLAP, "allocation alloc-9 has gpu-0"),
    GrantOutcome(Outcome.UNKNOWN_DEVICE, "this node has no gpu-9"),
    GrantOutcome(Outcome.UNSUPPORTED, "it asks for mounts"),
)


class GrantRules(PolicySuite):
    """What is asked of a source of grants."""

    @needs("grant_devices")
    async def test_a_grant_source_says_which_kinds_it_governs(self, node: PolicyNode) -> None:
        made = node.policy().record.instance

        assert are_patterns(getattr(made, "kinds", None)), (
            "give it an attribute kinds, a tuple of patterns such as ('gpu', 'gpu.*')"
        )

    @needs("grant_devices")
    async def test_its_grants_can_be_told_apart_and_name_devices(self, node: PolicyNode) -> None:
        grants: tuple[Grant, ...] = await node.policy().ask("grant_devices")

        assert grants, "let `arrange` grant a device: what it answers is looked at"
        names = [grant.allocation for grant in grants]
        assert len(set(names)) == len(names), f"two grants are called the same: {sorted(names)}"
        for grant in grants:
            assert _ALLOCATION.fullmatch(grant.allocation), grant.allocation
            assert all(one.name for one in grant.devices), f"{grant.allocation} names no device"
            assert not any("/" in one.name for one in grant.devices), grant.allocation
            assert not grant.unsupported or is_sentence(grant.unsupported), grant.allocation

    @needs("grant_devices")
    async def test_two_readings_of_unchanged_grants_agree(self, node: PolicyNode) -> None:
        policy = node.policy()
        first = set(await policy.ask("grant_devices"))

        assert set(await policy.ask("grant_devices")) == first
        assert set(await node.policy().ask("grant_devices")) == first, "a new object disagrees"

    @needs("grant_devices")
    async def test_grants_that_cannot_be_read_are_not_fewer_grants(self, node: PolicyNode) -> None:
        self.needs_source()
        policy = node.policy()
        before = set(await policy.ask("grant_devices"))
        await self.make_unreadable(node)
        for asked in (policy, node.policy()):
            await _raises(asked, "grant_devices", "its source cannot be read")
        await self.make_readable(node)

        assert set(await policy.ask("grant_devices")) == before

    @needs("report_grant")
    async def test_what_became_of_a_grant_may_be_told_twice(self, node: PolicyNode) -> None:
        policy = node.policy()
        before = await _grants(policy)
        for outcome in (*_OUTCOMES, _OUTCOMES[0]):
            for grant in before or (Grant(allocation="alloc-1"),):
                for _ in range(2):
                    await policy.ask("report_grant", grant=grant, outcome=outcome)

        assert set(await _grants(policy)) == set(before), "a report changed what is granted"

    @needs("report_release")
    async def test_the_end_of_a_release_may_be_told_twice(self, node: PolicyNode) -> None:
        policy = node.policy()
        before = await _grants(policy)
        ended = Grant(allocation="alloc-that-ended", source="policy/contract")
        for _ in range(2):
            await policy.ask("report_release", grant=ended, release=node.release())

        assert set(await _grants(policy)) == set(before), "a report changed what is granted"

    @needs("report_release")
    async def test_a_report_that_does_not_arrive_is_said(self, node: PolicyNode) -> None:
        policy = node.policy()
        await self.make_unreportable(node)
        ended = Grant(allocation="alloc-that-ended", source="policy/contract")

        asked = {"grant": ended, "release": node.release()}
        await _raises(policy, "report_release", "its source was not told", **asked)


class UserRules(PolicySuite):
    """What is asked of a source of evidence."""

    @needs("find_users")
    async def test_a_source_of_evidence_says_where_it_applies(self, node: PolicyNode) -> None:
        made = node.policy().record.instance
        why, kinds = getattr(made, "not_applicable", ""), getattr(made, "kinds", ("*",))

        assert why == "" or is_sentence(why), "not_applicable is a sentence"
        assert why == "", f"let `arrange` make it applicable: {why}"
        assert are_patterns(kinds), "kinds is a tuple of patterns, or is not there"

    @needs("find_users")
    async def test_what_nobody_uses_is_let_go(self, node: PolicyNode) -> None:
        for device in node.devices:
            evidence = await _look(node.policy(), node.release(device))
            assert nobody(evidence), f"{device.name}: {evidence}"

    @needs("find_users")
    async def test_who_uses_a_device_is_named(self, node: PolicyNode) -> None:
        policy, release = node.policy(), node.release()
        assert nobody(await _look(policy, release))
        await self.use(node, release)
        for asked in (policy, node.policy()):
            evidence = await _look(asked, release)

            assert evidence.users, f"it is used and was let go: {evidence}"
            assert all(is_sentence(user) for user in evidence.users), evidence.users

    @needs("find_users")
    async def test_who_uses_one_device_holds_up_no_other(self, node: PolicyNode) -> None:
        used, *others = node.devices
        await self.use(node, node.release(used))
        for other in others:
            evidence = await _look(node.policy(), node.release(other))

            assert nobody(evidence), f"{used.name} is used, {other.name} is not: {evidence}"

    @needs("find_users")
    async def test_what_cannot_be_found_out_is_in_use(self, node: PolicyNode) -> None:
        self.needs_source()
        policy, release = node.policy(), node.release()
        assert nobody(await _look(policy, release))
        await self.make_unreadable(node)
        for asked in (policy, node.policy()):
            try:
                evidence = await _look(asked, release)
            except RAISED:
                continue
            assert not nobody(evidence), "it could not look, and let the device go"
            assert evidence.users or is_sentence(evidence.why), evidence
        await self.make_readable(node)

        assert nobody(await _look(policy, release)), "it does not recover"

    @needs("find_users")
    async def test_looking_for_users_changes_nothing(self, node: PolicyNode) -> None:
        await self.use(node, node.release())
        before = node.agent.holds()
        await _look(node.policy(), node.release())

        assert node.server.writes() == []
        assert node.agent.holds() == before


async def _grants(policy: PolicyObject) -> tuple[Grant, ...]:
    return await policy.ask("grant_devices") if policy.has("grant_devices") else ()


async def _raises(policy: PolicyObject, hook: str, why: str, **asked: Any) -> None:
    try:
        answer = await policy.ask(hook, **asked)
    except RAISED:
        return
    pytest.fail(f"{hook} answered {answer!r:.200} though {why}: it has to raise")


async def _look(policy: PolicyObject, release: Release) -> Evidence:
    """Ask, and check that the reading is of now: older evidence lets nothing go."""
    before = time.monotonic()
    evidence: Evidence = await policy.ask("find_users", release=release)
    assert evidence.began >= before, "its reading began before it was asked"
    assert evidence.began <= time.monotonic(), "its reading began later than now"
    return evidence

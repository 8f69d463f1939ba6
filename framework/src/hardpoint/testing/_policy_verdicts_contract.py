"""The contract of policies: what is offered, who may have it, and what a container gets of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from hardpoint import cdi
from hardpoint._core.claims.narrowing import widened
from hardpoint.errors import BadValue, HookFault
from hardpoint.model import Addition, Delivery, Device, Mount, Offer, Verdict, Veto
from hardpoint.testing._policy_node import DOMAIN, PolicyNode, PolicyObject
from hardpoint.testing._policy_suite import CAMEL, RAISED, PolicySuite, is_sentence, needs

_DOMAIN = re.compile(r"(?=.{1,253}/)[a-z0-9]([-a-z0-9.]*[a-z0-9])?/")
_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_NOTHING = Offer(generation=9)


class VerdictRules(PolicySuite):
    """What is asked of isolation, of admission, and of what is added to a delivery."""

    # -- what is offered --------------------------------------------------------------------------

    @needs("veto_devices")
    async def test_a_veto_names_a_device_that_is_offered_and_says_why(
        self, node: PolicyNode
    ) -> None:
        offered = {one.name for one in node.agent.offer.devices}
        for veto in await _vetoes(node.policy(), node.agent.offer):
            assert veto.device in offered, f"{veto.device} is not offered"
            assert is_sentence(veto.reason), f"{veto.device}: a reason is a sentence"
            assert veto.condition is None or _is_condition(veto.condition), veto.condition

    @needs("veto_devices")
    async def test_of_an_empty_offer_nothing_is_vetoed(self, node: PolicyNode) -> None:
        assert await _vetoes(node.policy(), _NOTHING) == ()

    @needs("veto_devices")
    async def test_the_same_offer_gets_the_same_vetoes(self, node: PolicyNode) -> None:
        policy = node.policy()
        first = set(await _vetoes(policy, node.agent.offer))

        assert set(await _vetoes(policy, node.agent.offer)) == first

    @needs("veto_devices")
    async def test_what_was_never_found_out_is_no_permission(self, node: PolicyNode) -> None:
        self.needs_source()
        await self.make_unreadable(node)
        try:
            vetoes = await _vetoes(node.policy(), node.agent.offer)
        except RAISED:
            return
        assert vetoes, "it could not look, and vetoed nothing"

    @needs("veto_devices")
    async def test_what_it_vetoes_follows_what_it_reads(self, node: PolicyNode) -> None:
        self.needs_source()
        policy = node.policy()
        before = set(await _vetoes(policy, node.agent.offer))
        await self.make_unreadable(node)
        try:
            failing = set(await _vetoes(policy, node.agent.offer))
        except RAISED:
            failing = before
        assert {one.device for one in before} <= {one.device for one in failing}, (
            "it could not look, and took a veto back"
        )
        await self.make_readable(node)

        assert set(await _vetoes(policy, node.agent.offer)) == before, "it does not recover"

    # -- who may have it --------------------------------------------------------------------------

    @needs("admit_claim")
    async def test_a_claim_is_admitted_or_denied_in_words(self, node: PolicyNode) -> None:
        policy = node.policy()
        for offered in node.agent.offer.devices:
            for admin in (False, True):
                claim = node.claim(offered.device, admin=admin)
                asked = {"claim": claim, "devices": (offered,), "holds": ()}
                verdict: Verdict | None = await policy.ask("admit_claim", **asked)
                assert _in_words(verdict), f"{offered.name}: {verdict}"
                assert await policy.ask("admit_claim", **asked) == verdict

    @needs("admit_reap")
    async def test_a_pod_is_spared_in_words(self, node: PolicyNode) -> None:
        async def still_holds() -> bool:
            return True

        policy, pod = node.policy(), node.holding(node.add_pod(), still_holds)
        verdict: Verdict | None = await policy.ask("admit_reap", pod=pod, release=node.release())

        assert _in_words(verdict), verdict
        assert await policy.ask("admit_reap", pod=pod, release=node.release()) == verdict
        assert node.deletes() == [], "whether a pod may be deleted is asked; nothing is done yet"

    # -- what a container gets --------------------------------------------------------------------

    @needs("isolate_delivery")
    async def test_isolation_only_takes_away(self, node: PolicyNode) -> None:
        policy = node.policy()
        for device in node.devices:
            for given in _deliveries(device):
                asked = {"hold": node.hold(device), "device": device}
                left = await policy.ask("isolate_delivery", delivery=given, **asked)
                more = widened(given, left)
                assert not more, f"{device.name}: it adds {more}"

    @needs("isolate_delivery")
    async def test_isolation_is_pure(self, node: PolicyNode) -> None:
        policy = node.policy()
        for device in node.devices:
            for given in _deliveries(device):
                asked = {"hold": node.hold(device), "device": device}
                left = await policy.ask("isolate_delivery", delivery=given, **asked)
                for again in (given, left):
                    answer = await policy.ask("isolate_delivery", delivery=again, **asked)
                    assert answer == left, f"{device.name}: asked again it answers otherwise"

    @needs("annotate_delivery")
    async def test_what_is_added_to_a_delivery_is_valid(self, node: PolicyNode) -> None:
        policy = node.policy()
        for device in node.devices:
            claim = node.claim(device)
            asked = {"hold": node.hold(device), "device": device, "claim": claim}
            addition: Addition | None = await policy.ask("annotate_delivery", **asked)
            if addition is not None:
                alone = Delivery(env=addition.env, annotations=addition.annotations)
                try:
                    cdi.spec(DOMAIN.cdi_vendor, [("d", alone)])
                except BadValue as error:
                    raise AssertionError(f"a runtime would not take it: {error}") from error
            assert await policy.ask("annotate_delivery", **asked) == addition, "it is not pure"

    # -- the node ---------------------------------------------------------------------------------

    @needs("label_node")
    async def test_the_api_server_takes_its_labels(self, node: PolicyNode) -> None:
        try:
            labels: Mapping[Any, Any] = await node.policy().ask("label_node")
        except HookFault as error:
            raise AssertionError(f"{error}") from error
        for key, value in labels.items():
            assert isinstance(key, str), f"a label's key is {type(key).__name__}"
            assert _NAME.fullmatch(_DOMAIN.sub("", key, 1)), f"no label is called {key!r}"
            assert isinstance(value, str), f"{key} is {type(value).__name__}, want str"
            assert value == "" or _NAME.fullmatch(value), f"{key} cannot be {value!r}"


async def _vetoes(policy: PolicyObject, offer: Offer) -> tuple[Veto, ...]:
    answer: tuple[Veto, ...] = await policy.ask("veto_devices", offer=offer)
    return answer


def _is_condition(condition: tuple[str, str]) -> bool:
    return len(condition) == 2 and all(CAMEL.fullmatch(word) for word in condition)


def _in_words(verdict: Verdict | None) -> bool:
    return verdict is None or verdict.allowed or is_sentence(verdict.reason)


def _deliveries(device: Device) -> tuple[Delivery, ...]:
    """Return what a driver may deliver: next to nothing, and something of everything."""
    full = Delivery(
        nodes=device.nodes,
        mounts=(Mount(host_path="/opt/acme/lib", container_path="/opt/acme/lib"),),
        env={"ACME_GPU": device.name},
        annotations={"acme.example/gpu": device.name},
        gids=(44,),
        cdi_devices=("acme.example/gpu=0",),
    )
    return (Delivery(nodes=device.nodes), full)

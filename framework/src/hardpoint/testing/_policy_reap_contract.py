"""The contract of policies: the reaper, which must never delete the wrong pod."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from hardpoint.errors import HardpointError
from hardpoint.grants import HoldingPod, Reaped, ReapResult
from hardpoint.testing._policy_node import NAMESPACE, PolicyNode, PolicyObject
from hardpoint.testing._policy_suite import RAISED, PolicySuite, is_sentence, needs

_ANOTHER = "0e3e0000-0000-4000-8000-00000000000e"
_MIRROR = {"kubernetes.io/config.mirror": "0123456789abcdef"}
_READS = ("GET",)


class ReapRules(PolicySuite):
    """What is asked of a reaper: it may spare any pod, and has to be sure of one that it deletes.

    Where it answers that it deleted one, the pod is going; where it does not, it is not.
    """

    # -- the pod that is meant --------------------------------------------------------------------

    @needs("reap_pod")
    async def test_what_it_says_it_did_is_what_it_did(self, node: PolicyNode) -> None:
        pod = node.add_pod()
        result = await _reap(node, pod)
        gone = pod["metadata"]["uid"] not in node.pods()

        assert gone == (result is not None and result.what is Reaped.DELETED), result
        if result is not None and result.what is not Reaped.DELETED:
            assert is_sentence(result.reason), f"{result.what}: a reason is a sentence"

    @needs("reap_pod")
    async def test_a_pod_is_deleted_by_its_uid_after_a_last_look(self, node: PolicyNode) -> None:
        pod = node.add_pod()
        before = len(node.server.requests)
        looked: list[int] = []

        async def still_holds() -> bool:
            looked.append(len(node.server.requests))
            return True

        await _reap(node, pod, still_holds)
        asked = node.server.requests
        deleted = [at for at, seen in enumerate(asked) if seen.method == "DELETE"]
        read = [at for at in range(before, len(asked)) if asked[at].method in _READS]
        for at in deleted:
            assert _precondition(asked[at].body) == pod["metadata"]["uid"], (
                "it was deleted by its name: give the UID as a precondition"
            )
            assert looked, "it was deleted without `await pod.still_holds()`"
            assert any(first < looked[-1] <= at for first in read), (
                "its UID was not read before the last look at what it holds"
            )

    @needs("reap_pod")
    async def test_each_attempt_is_answered(self, node: PolicyNode) -> None:
        pod, policy = node.add_pod(), node.policy()
        for attempt in (1, 2, 3):
            holding = node.holding(pod, _yes)
            answer = await _ask(node, policy, holding, attempt=attempt)
            assert answer is None or is_sentence(answer.reason) or answer.what is Reaped.DELETED

    # -- pods that must live ----------------------------------------------------------------------

    @needs("reap_pod")
    async def test_a_pod_that_holds_nothing_any_more_lives(self, node: PolicyNode) -> None:
        async def no() -> bool:
            return False

        await _lives(node, node.add_pod(), no)

    @needs("reap_pod")
    async def test_a_pod_of_which_that_cannot_be_said_lives(self, node: PolicyNode) -> None:
        async def unknown() -> bool:
            raise HardpointError("the kubelet does not answer")

        await _lives(node, node.add_pod(), unknown)

    @needs("reap_pod")
    async def test_a_namesake_that_came_meanwhile_lives(self, node: PolicyNode) -> None:
        first = node.add_pod()
        await _lives(node, first, _replacing(node), who="the namesake")

    @needs("reap_pod")
    async def test_a_namesake_of_the_pod_that_had_the_claim_lives(self, node: PolicyNode) -> None:
        await _lives(node, node.add_pod(), uids=(_ANOTHER,))

    @needs("reap_pod")
    async def test_a_pod_younger_than_the_release_lives(self, node: PolicyNode) -> None:
        await _lives(node, node.add_pod(born=time.time() - 60))

    @needs("reap_pod")
    async def test_a_pod_of_another_node_lives(self, node: PolicyNode) -> None:
        node.server.add_node("node-2")
        await _lives(node, node.add_pod(node="node-2"))

    @needs("reap_pod")
    async def test_a_static_pod_is_spared_in_words(self, node: PolicyNode) -> None:
        pod = node.add_pod(metadata={"annotations": dict(_MIRROR)})
        result = await _lives(node, pod)

        assert result is None or is_sentence(result.reason), result

    @needs("reap_pod")
    async def test_a_pod_that_has_ended_is_left_alone(self, node: PolicyNode) -> None:
        for phase in ("Succeeded", "Failed"):
            pod = node.add_pod(phase.lower(), status={"phase": phase})
            await _lives(node, pod, who=f"one that has {phase.lower()}")

    # -- an API server that fails -----------------------------------------------------------------

    @needs("reap_pod")
    async def test_a_pod_that_is_not_there_is_no_error(self, node: PolicyNode) -> None:
        pod = node.add_pod()
        node.server.remove("pods", pod["metadata"]["name"], NAMESPACE)
        result = await _reap(node, pod)

        assert result is None or result.what is not Reaped.DELETED, result

    @needs("reap_pod")
    async def test_an_api_server_that_is_away_deletes_nothing_and_says_so(
        self, node: PolicyNode
    ) -> None:
        pod, policy = node.add_pod(), node.policy()
        await _tried(node, policy, node.holding(pod, _no_answer))
        node.server.down = True
        result = await _tried(node, policy, node.holding(pod, _yes))
        node.server.down = False
        await node.server.until_settled()

        assert result is None or result.what is not Reaped.DELETED, result
        await self._same_as_a_new_one(node, policy)

    @needs("reap_pod")
    async def test_who_may_not_delete_pods_deletes_none(self, node: PolicyNode) -> None:
        policy = node.policy()
        node.server.deny("delete", "pods")
        result = await _tried(node, policy, node.holding(node.add_pod(), _yes))
        node.server.allow("delete", "pods")

        assert result is None or result.what is not Reaped.DELETED, result

    async def _same_as_a_new_one(self, node: PolicyNode, policy: PolicyObject) -> None:
        """Check that a failure left nothing behind."""
        answers = []
        for name, asked in (("after", policy), ("anew", node.policy())):
            found = await _ask(node, asked, node.holding(node.add_pod(name), _yes))
            answers.append(None if found is None else found.what)
        assert answers[0] == answers[1], "after a failure it answers otherwise than a new one"


async def _yes() -> bool:
    return True


async def _no_answer() -> bool:
    raise HardpointError("the kubelet does not answer")


def _replacing(node: PolicyNode) -> Callable[[], Awaitable[bool]]:
    """Return a last look during which another pod takes the name of the one that is meant."""

    async def still_holds() -> bool:
        node.server.remove("pods", "train", NAMESPACE)
        node.add_pod("train")
        return True

    return still_holds


async def _reap(
    node: PolicyNode,
    pod: Mapping[str, Any],
    still_holds: Callable[[], Awaitable[bool]] = _yes,
    *,
    uids: tuple[str, ...] = (),
) -> ReapResult | None:
    return await _ask(node, node.policy(), node.holding(pod, still_holds, uids=uids))


async def _ask(
    node: PolicyNode, policy: PolicyObject, pod: HoldingPod, *, attempt: int = 1
) -> ReapResult | None:
    answer: ReapResult | None = await policy.ask(
        "reap_pod", pod=pod, release=node.release(), attempt=attempt
    )
    return answer


async def _tried(
    node: PolicyNode, policy: PolicyObject, pod: HoldingPod, *, attempt: int = 1
) -> ReapResult | None:
    """Ask; None where it raises, which is how it may say that it did nothing."""
    try:
        return await _ask(node, policy, pod, attempt=attempt)
    except RAISED:
        return None


async def _lives(
    node: PolicyNode,
    pod: Mapping[str, Any],
    still_holds: Callable[[], Awaitable[bool]] = _yes,
    *,
    uids: tuple[str, ...] = (),
    who: str = "the pod",
) -> ReapResult | None:
    """Let it be reaped, however often, and check that the one of its name is there after it."""
    result = None
    for attempt in (1, 2):
        holding = node.holding(pod, still_holds, uids=uids)
        result = await _tried(node, node.policy(), holding, attempt=attempt)
        names = [one["metadata"]["name"] for one in node.pods().values()]
        assert pod["metadata"]["name"] in names, f"{who} was deleted: {result}"
        assert result is None or result.what is not Reaped.DELETED, result
    return result


def _precondition(body: Any) -> str:
    found = body.get("preconditions") if isinstance(body, Mapping) else None
    return str(found.get("uid", "")) if isinstance(found, Mapping) else ""

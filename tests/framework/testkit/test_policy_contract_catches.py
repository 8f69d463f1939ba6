"""The contract suite fails for policies that break the contract, one promise each."""

from __future__ import annotations

import importlib
import logging
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from framework.testkit.good_policies import Files, FilesSettings, Labels, Reaper
from framework.testkit.test_policy_contract_keeps import OfFiles, OfLabels

from hardpoint import (
    Addition,
    Delivery,
    DeviceNode,
    Evidence,
    Grant,
    GrantedDevice,
    Hold,
    HoldingPod,
    Node,
    Offer,
    Reaped,
    ReapResult,
    Release,
    Verdict,
    Veto,
    hookimpl,
)
from hardpoint.agent import Agent
from hardpoint.errors import HardpointError, HookFault, KubeNotFound
from hardpoint.kube import NODES, PODS, Kube
from hardpoint.testing import PolicyContract
from hardpoint.testing._policy_node import PolicyNode, policy_node

WRONG = (AssertionError, pytest.fail.Exception)
_PATIENCE = 15
Suites = type[PolicyContract]


async def _fails(suite: Suites, made: type, test: str, match: str) -> None:
    """Check that a policy fails one test of a suite, and says why."""
    bad = _of(suite, made)
    async with _node(bad) as node:
        error = await _error(getattr(bad, test), node)
    assert isinstance(error, WRONG), f"{test} passed, or raised {error!r}"
    assert re.search(match, str(error)), str(error)


async def _error(test: Any, *given: Any) -> BaseException | None:
    """Return what a test raises; of a group, the first that is none."""
    try:
        with anyio.fail_after(_PATIENCE):
            await test(*given)
    except BaseExceptionGroup as group:
        found: BaseException = group
        while isinstance(found, BaseExceptionGroup):
            found = found.exceptions[0]
        return found
    except (Exception, *WRONG) as error:  # noqa: BLE001 - what it raised is looked at
        return error
    return None


def _of(suite: Suites, made: type) -> PolicyContract:
    name = f"Suite{made.__name__}"
    found: PolicyContract = type(name, (suite,), {"plugin": made})()
    return found


@asynccontextmanager
async def _node(suite: PolicyContract) -> AsyncIterator[PolicyNode]:
    async with policy_node(suite.plugin, suite.configure) as node:
        await suite.arrange(node)
        yield node


def _bad(base: type, **hooks: Callable[..., Any]) -> type:
    """Return a policy that differs from a good one in some hooks."""
    return type("Bad", (base,), {name: hookimpl(hook) for name, hook in hooks.items()})


# -- loading --------------------------------------------------------------------------------------


def test_a_policy_that_asks_for_what_a_hook_does_not_have_fails(tmp_path: Path) -> None:
    def admit_claim(self: Any, pod: Any) -> None: ...

    bad = _of(OfFiles, _bad(Files, admit_claim=admit_claim))

    with pytest.raises(AssertionError, match="admit_claim has no argument pod"):
        bad.test_it_loads_and_implements_only_hooks_that_exist(tmp_path)


def test_a_policy_without_a_hook_fails(tmp_path: Path) -> None:
    class Idle:
        def __init__(self, node: Node, settings: None) -> None: ...

    with pytest.raises(AssertionError, match="it has no hook"):
        _of(PolicyContract, Idle).test_it_loads_and_implements_only_hooks_that_exist(tmp_path)


def test_a_policy_that_begins_when_it_is_made_fails(tmp_path: Path) -> None:
    class Eager(Files):
        def __init__(self, node: Node, settings: FilesSettings) -> None:
            super().__init__(node, settings)
            self.at.mkdir(parents=True)

    with pytest.raises(AssertionError):
        _of(OfFiles, Eager).test_making_it_touches_nothing(tmp_path)


def test_a_policy_that_takes_any_setting_fails(tmp_path: Path) -> None:
    class AnySettings(FilesSettings, extra="ignore"):
        pass

    class Lax(Files):
        Settings = AnySettings

    with pytest.raises(AssertionError):
        _of(OfFiles, Lax).test_a_wrong_setting_refuses_it_with_a_sentence(tmp_path)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("open('left-behind', 'w')", "open left-behind"),
        (
            "import threading, time; threading.Thread(target=time.sleep, args=(1,)).start()",
            "thread",
        ),
        ("import socket; socket.socket().bind(('127.0.0.1', 0))", "socket.bind"),
    ],
)
def test_a_module_that_does_something_when_it_is_imported_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "acme_eager.py").write_text(f"{line}\nclass Acme: ...\n")
    bad = _of(PolicyContract, type("Acme", (), {"__module__": "acme_eager"}))

    with pytest.raises(AssertionError, match=f"importing acme_eager did: (.|\n)*{said}"):
        bad.test_importing_it_does_nothing()


def test_objects_that_share_a_cache_fail(tmp_path: Path) -> None:
    class OfClass(Files):
        seen: dict[str, int] = {}  # noqa: RUF012 - that is the fault

    common: list[str] = []

    class OfModule(Files):
        def __init__(self, node: Node, settings: FilesSettings) -> None:
            super().__init__(node, settings)
            self.seen = common

    for made in (OfClass, OfModule):
        with pytest.raises(AssertionError, match="one seen"):
            _of(OfFiles, made).test_its_objects_share_nothing_that_changes(tmp_path)


async def test_an_object_that_answers_what_another_has_read_fails() -> None:
    common: list[Addition] = []

    def annotate_delivery(self: Files) -> Addition:
        found = Addition(env={"AT": str(self.at)})
        common[:] = common if len(common) == 2 else [*common, found]
        return common[-1]

    bad = _bad(Files, annotate_delivery=annotate_delivery)
    await _fails(OfFiles, bad, "test_two_objects_do_not_know_of_each_other", "")


# -- grants ---------------------------------------------------------------------------------------


def _grants(*names: str, allocation: str = "alloc-1", unsupported: str = "") -> type:
    def grant_devices(self: Files) -> list[Grant]:
        devices = tuple(GrantedDevice(name=name) for name in names)
        return [Grant(allocation=allocation, devices=devices, unsupported=unsupported)]

    return _bad(Files, grant_devices=grant_devices)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (_grants("gpu/0"), "alloc-1"),
        (_grants(""), "alloc-1 names no device"),
        (_grants("gpu-0", allocation="a/b"), "a/b"),
        (_grants("gpu-0", allocation="a" * 129), "aaaa"),
        (_grants("gpu-0", unsupported="mounts"), "alloc-1"),
        (_bad(Files, grant_devices=lambda self: []), "let `arrange` grant a device"),
        (_bad(Files, grant_devices=lambda self: [Grant(allocation="a")] * 2), "called the same"),
    ],
    ids=["slash", "no name", "no id", "long id", "no sentence", "none", "twice"],
)
async def test_grants_that_cannot_be_told_apart_fail(made: type, said: str) -> None:
    await _fails(OfFiles, made, "test_its_grants_can_be_told_apart_and_name_devices", said)


@pytest.mark.parametrize("kinds", [(), "gpu", ("GPU nodes",), None])
async def test_a_grant_source_that_does_not_say_what_it_governs_fails(kinds: object) -> None:
    made = type("Bad", (Files,), {"kinds": kinds})

    await _fails(OfFiles, made, "test_a_grant_source_says_which_kinds_it_governs", "kinds")


async def test_grants_that_are_other_ones_each_time_fail() -> None:
    def grant_devices(self: Files) -> Iterator[Grant]:
        yield Grant(allocation=f"at-{time.monotonic_ns()}")

    bad = _bad(Files, grant_devices=grant_devices)
    await _fails(OfFiles, bad, "test_two_readings_of_unchanged_grants_agree", "")


async def test_a_source_that_answers_fewer_grants_when_it_cannot_be_read_fails() -> None:
    def grant_devices(self: Files) -> list[Grant]:
        if not self.at.exists():
            return []
        return list(Files.grant_devices(self))

    bad = _bad(Files, grant_devices=grant_devices)
    test = "test_grants_that_cannot_be_read_are_not_fewer_grants"
    await _fails(OfFiles, bad, test, "it has to raise")


async def test_a_source_that_fails_for_good_after_it_failed_once_fails() -> None:
    class Sulking(Files):
        broken = False

        @hookimpl
        def grant_devices(self) -> Iterator[Grant]:
            self.broken = self.broken or not self.at.exists()
            assert not self.broken
            yield from super().grant_devices()

    test = "test_grants_that_cannot_be_read_are_not_fewer_grants"
    async with _node(_of(OfFiles, Sulking)) as node:
        error = await _error(getattr(_of(OfFiles, Sulking), test), node)
    assert isinstance(error, HookFault)


async def test_a_report_that_changes_what_is_granted_fails() -> None:
    def forgets(self: Files, grant: Grant) -> None:
        for file in (self.at / "grants").iterdir():
            file.unlink()

    made = _bad(Files, report_grant=forgets, report_release=forgets)
    for what in ("what_became_of_a_grant", "the_end_of_a_release"):
        test = f"test_{what}_may_be_told_twice"
        await _fails(OfFiles, made, test, "a report changed what is granted")


async def test_a_report_that_is_lost_fails() -> None:
    made = _bad(Files, report_release=lambda self: None)

    test = "test_a_report_that_does_not_arrive_is_said"
    await _fails(OfFiles, made, test, "its source was not told")


# -- who uses what --------------------------------------------------------------------------------


def _users(answer: Callable[[Files, Release], Evidence]) -> type:
    def find_users(self: Files, release: Release) -> Evidence:
        return answer(self, release)

    return _bad(Files, find_users=find_users)


NEVER = _users(lambda self, release: Evidence.none(time.monotonic()))
OLD = _users(lambda self, release: Evidence.none(time.monotonic() - 1))
AHEAD = _users(lambda self, release: Evidence.none(time.monotonic() + 60))
ALWAYS = _users(lambda self, release: Evidence.used_by(time.monotonic(), "job 7"))


@pytest.mark.parametrize(
    ("made", "test", "said"),
    [
        (NEVER, "test_who_uses_a_device_is_named", "was let go"),
        (NEVER, "test_what_cannot_be_found_out_is_in_use", "could not look"),
        (OLD, "test_what_nobody_uses_is_let_go", "began before it was asked"),
        (AHEAD, "test_what_nobody_uses_is_let_go", "later than now"),
        (ALWAYS, "test_what_nobody_uses_is_let_go", "job 7"),
    ],
)
async def test_evidence_that_lets_go_or_never_does_fails(made: type, test: str, said: str) -> None:
    await _fails(OfFiles, made, test, said)


async def test_evidence_that_is_not_of_the_release_fails() -> None:
    def any_user(self: Files, release: Release) -> Evidence:
        used = [f"job {file.name}" for file in (self.at / "users").iterdir()]
        return Evidence.used_by(time.monotonic(), *used)

    test = "test_who_uses_one_device_holds_up_no_other"
    await _fails(OfFiles, _users(any_user), test, "is used, .* is not")


async def test_a_user_without_words_fails() -> None:
    def numbered(self: Files, release: Release) -> Evidence:
        users = Files.find_users(self, release).users
        return Evidence.used_by(time.monotonic(), *("7" for _ in users))

    await _fails(OfFiles, _users(numbered), "test_who_uses_a_device_is_named", "7")


@pytest.mark.parametrize("said", ["here", 7])
async def test_a_source_that_does_not_apply_for_no_reason_fails(said: object) -> None:
    made = type("Bad", (Files,), {"not_applicable": said})

    await _fails(OfFiles, made, "test_a_source_of_evidence_says_where_it_applies", "a sentence")


async def test_looking_that_changes_the_cluster_fails() -> None:
    async def find_users(self: Files, agent: Agent) -> Evidence:
        began = time.monotonic()
        async with agent.connect() as kube:
            pod = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "looked"}}
            await kube.create(replace(PODS, plural="namespaces"), pod)
        return Evidence.none(began)

    bad = _bad(Files, find_users=find_users)
    await _fails(OfFiles, bad, "test_looking_for_users_changes_nothing", "")


# -- verdicts -------------------------------------------------------------------------------------


def _vetoes(*vetoes: Veto) -> type:
    return _bad(Files, veto_devices=lambda self: vetoes)


@pytest.mark.parametrize(
    ("made", "test", "said"),
    [
        (
            _vetoes(Veto(device="nothing", reason="remove the rival")),
            "test_a_veto_names_a_device_that_is_offered_and_says_why",
            "nothing is not offered",
        ),
        (
            _vetoes(Veto(device="nothing", reason="remove the rival")),
            "test_of_an_empty_offer_nothing_is_vetoed",
            "",
        ),
        (_vetoes(), "test_what_was_never_found_out_is_no_permission", "vetoed nothing"),
    ],
)
async def test_vetoes_of_nothing_and_nothing_vetoed_fail(made: type, test: str, said: str) -> None:
    await _fails(OfFiles, made, test, said)


@pytest.mark.parametrize("veto", [{"reason": "no"}, {"condition": ("two words", "Rival")}])
async def test_a_veto_that_nobody_can_act_on_fails(veto: dict[str, Any]) -> None:
    def veto_devices(self: Files, offer: Offer) -> Iterator[Veto]:
        for offered in offer.devices:
            yield Veto(device=offered.name, **({"reason": "remove the rival"} | veto))

    bad = _bad(Files, veto_devices=veto_devices)
    await _fails(OfFiles, bad, "test_a_veto_names_a_device_that_is_offered_and_says_why", "")


class Fickle(Files):
    """Vetoes while it can look, and nothing more once it cannot."""

    known = False

    @hookimpl
    def veto_devices(self, offer: Offer) -> Iterator[Veto]:
        for offered in offer.devices if self.at.exists() else ():
            yield Veto(device=offered.name, reason="remove the rival")


async def test_a_veto_that_is_taken_back_for_want_of_a_look_fails() -> None:
    test = "test_what_it_vetoes_follows_what_it_reads"
    await _fails(OfFiles, Fickle, test, "took a veto back")


async def test_vetoes_that_are_other_ones_each_time_fail() -> None:
    def veto_devices(self: Files, offer: Offer) -> Iterator[Veto]:
        yield Veto(device=offer.devices[0].name, reason=f"at {time.monotonic_ns()}")

    bad = _bad(Files, veto_devices=veto_devices)
    await _fails(OfFiles, bad, "test_the_same_offer_gets_the_same_vetoes", "")


async def test_a_denial_without_words_fails() -> None:
    deny = Verdict.deny("no")
    made = _bad(Files, admit_claim=lambda self: deny, admit_reap=lambda self: deny)

    for test in ("test_a_claim_is_admitted_or_denied_in_words", "test_a_pod_is_spared_in_words"):
        await _fails(OfFiles, made, test, "no")


# -- deliveries and labels ------------------------------------------------------------------------


async def test_isolation_that_adds_fails() -> None:
    def isolate_delivery(self: Files, delivery: Delivery) -> Delivery:
        return replace(delivery, nodes=(*delivery.nodes, DeviceNode(path="/dev/kmsg")))

    bad = _bad(Files, isolate_delivery=isolate_delivery)
    await _fails(OfFiles, bad, "test_isolation_only_takes_away", "it adds node /dev/kmsg")


async def test_isolation_that_takes_more_each_time_fails() -> None:
    def isolate_delivery(self: Files, delivery: Delivery) -> Delivery:
        if delivery.mounts:
            return replace(delivery, mounts=())
        return replace(delivery, env={})

    bad = _bad(Files, isolate_delivery=isolate_delivery)
    await _fails(OfFiles, bad, "test_isolation_is_pure", "answers otherwise")


@pytest.mark.parametrize(
    ("addition", "said"),
    [
        (Addition(env={"A=B": "c"}), "a runtime would not take it"),
        (Addition(annotations={"two words": "c"}), "a runtime would not take it"),
    ],
)
async def test_an_addition_that_no_runtime_takes_fails(addition: Addition, said: str) -> None:
    made = _bad(Files, annotate_delivery=lambda self: addition)

    await _fails(OfFiles, made, "test_what_is_added_to_a_delivery_is_valid", said)


async def test_an_addition_that_is_another_each_time_fails() -> None:
    def annotate_delivery(self: Files, hold: Hold) -> Addition:
        return Addition(env={"NOW": str(time.monotonic_ns())})

    bad = _bad(Files, annotate_delivery=annotate_delivery)
    await _fails(OfFiles, bad, "test_what_is_added_to_a_delivery_is_valid", "not pure")


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        ({"gpu count": "8"}, "no label is called"),
        ({"acme.dev/": "8"}, "no label is called"),
        ({"gpu.count": 8}, "want str"),
        ({"gpu.product": "Acme G100 (80GB)"}, "cannot be"),
        ([("gpu.count", "8")], "answered list"),
    ],
)
async def test_labels_that_no_node_can_have_fail(labels: Mapping[str, Any], said: str) -> None:
    made = _bad(Files, label_node=lambda self: labels)

    await _fails(OfFiles, made, "test_the_api_server_takes_its_labels", said)


# -- the reaper -----------------------------------------------------------------------------------


class Careless(Reaper):
    """A reaper without one of a good one's cares: ``lacks`` says which."""

    lacks = ""

    @hookimpl
    async def reap_pod(
        self, pod: HoldingPod, release: Release, attempt: int, agent: Agent
    ) -> ReapResult | None:
        async with agent.connect() as kube:
            try:
                return await self._reap(kube, pod, release)
            except KubeNotFound:
                return ReapResult(Reaped.GONE, "there is no such pod")
            except HardpointError as error:
                hopes = self.lacks == "doubt"
                return ReapResult(Reaped.DELETED if hopes else Reaped.LATER, str(error))

    async def _reap(self, kube: Kube, pod: HoldingPod, release: Release) -> ReapResult:
        if self.lacks == "last look":
            await pod.still_holds()
        found = await kube.get(PODS, pod.name, namespace=pod.namespace)
        why = self.spares(found, pod, release)
        if why and why != self.lacks:
            return ReapResult(Reaped.SPARED, why)
        if not await self.sure(pod):
            return ReapResult(Reaped.GONE, "it holds nothing any more")
        uid = "" if self.lacks == "uid" else found["metadata"]["uid"]
        await kube.delete(PODS, pod.name, namespace=pod.namespace, uid=uid, grace=0)
        if self.lacks == "truth":
            return ReapResult(Reaped.SPARED, "it is a good pod")
        return ReapResult(Reaped.DELETED)

    async def sure(self, pod: HoldingPod) -> bool:
        if self.lacks in ("look", "last look"):
            return True
        try:
            return await pod.still_holds()
        except HardpointError:
            return self.lacks == "certainty"


def _without(lacks: str) -> type:
    return type("Bad", (Careless,), {"lacks": lacks})


LEAVES = {
    "test_a_pod_of_another_node_lives": "it is another node's",
    "test_a_pod_that_has_ended_is_left_alone": "it has ended",
    "test_a_static_pod_is_spared_in_words": "it is static",
    "test_a_pod_younger_than_the_release_lives": "it is younger than the release",
    "test_a_namesake_of_the_pod_that_had_the_claim_lives": "it is another pod",
}
"""Each care that a reaper may lack, by the test of it."""


@pytest.mark.parametrize("test", LEAVES)
async def test_a_reaper_that_does_not_look_who_it_is_fails(test: str) -> None:
    await _fails(PolicyContract, _without(LEAVES[test]), test, "was deleted")


_LOOK = "test_a_pod_is_deleted_by_its_uid_after_a_last_look"


@pytest.mark.parametrize(
    ("lacks", "test", "said"),
    [
        ("uid", _LOOK, "by its name"),
        ("uid", "test_a_namesake_that_came_meanwhile_lives", "the namesake was deleted"),
        ("look", _LOOK, "without `await pod.still_holds"),
        ("last look", _LOOK, "not read before the last look"),
        ("look", "test_a_pod_that_holds_nothing_any_more_lives", "was deleted"),
        ("certainty", "test_a_pod_of_which_that_cannot_be_said_lives", "was deleted"),
        ("truth", "test_what_it_says_it_did_is_what_it_did", "spared"),
        ("doubt", "test_who_may_not_delete_pods_deletes_none", "deleted"),
        ("doubt", "test_an_api_server_that_is_away_deletes_nothing_and_says_so", "deleted"),
    ],
)
async def test_a_reaper_that_guesses_fails(lacks: str, test: str, said: str) -> None:
    await _fails(PolicyContract, _without(lacks), test, said)


@pytest.mark.parametrize("reason", ["", "busy"])
async def test_a_pod_that_is_spared_for_no_reason_fails(reason: str) -> None:
    async def reap_pod(self: Reaper) -> ReapResult:
        return ReapResult(Reaped.SPARED, reason)

    bad = _bad(Reaper, reap_pod=reap_pod)
    await _fails(PolicyContract, bad, "test_what_it_says_it_did_is_what_it_did", "a sentence")
    await _fails(PolicyContract, bad, "test_each_attempt_is_answered", "")


async def test_a_reaper_that_a_failure_changes_fails() -> None:
    class Sulking(Careless):
        async def sure(self, pod: HoldingPod) -> bool:
            try:
                return self.__dict__.get("sulks") is None and await pod.still_holds()
            except HardpointError:
                self.__dict__["sulks"] = True
                return False

    test = "test_an_api_server_that_is_away_deletes_nothing_and_says_so"
    await _fails(PolicyContract, Sulking, test, "after a failure it answers otherwise")


# -- what serves ----------------------------------------------------------------------------------


def _serving(serve: Callable[[Any, Agent], Any]) -> type:
    async def serve_policy(self: Labels, agent: Agent) -> None:
        await serve(self, agent)

    return _bad(Labels, serve_policy=serve_policy)


async def _beats(self: Labels, agent: Agent, every: float = 0.01) -> None:
    async with agent.connect() as kube:
        while True:
            await self._apply(kube)
            await anyio.sleep(every)


async def _hammers(self: Labels, agent: Agent) -> None:
    async with agent.connect() as kube:
        while True:
            try:
                await self._apply(kube)
            except HardpointError:
                await anyio.sleep(0.01)


LEFT_OPEN: list[Kube] = []


async def _leaks(self: Labels, agent: Agent) -> None:
    kube = agent.connect()
    LEFT_OPEN.append(kube)
    await kube.get(NODES, self.node.name)
    await _beside(self, agent)


async def _once(self: Labels, agent: Agent) -> None:
    async with agent.connect() as kube:
        await self._apply(kube)


async def _beside(self: Labels, agent: Agent) -> None:
    await _once(self, agent)
    await anyio.sleep_forever()


@pytest.mark.parametrize(
    ("serve", "test", "said"),
    [
        (_beats, "test_what_is_done_is_not_done_again", "times a second for nothing"),
        (_hammers, "test_an_api_server_that_fails_is_not_hammered", "failing API server"),
        (_beside, "test_of_two_agents_one_writes", "writes beside the agent"),
    ],
)
async def test_a_policy_that_writes_too_much_fails(serve: Any, test: str, said: str) -> None:
    bad = _of(OfLabels, _serving(serve))
    async with _node(bad) as node:
        error = await _error(getattr(bad, test), node)
    assert isinstance(error, WRONG)
    assert said in str(error)


@pytest.mark.parametrize(
    ("serve", "test", "raised"),
    [
        (_once, "test_it_does_what_there_is_to_do_and_ends_when_told", pytest.fail.Exception),
        (_once, "test_an_api_server_that_is_away_is_waited_for", HardpointError),
    ],
)
async def test_a_policy_that_does_not_last_fails(
    serve: Any, test: str, raised: type[BaseException]
) -> None:
    bad = _of(OfLabels, _serving(serve))
    async with _node(bad) as node:
        assert isinstance(await _error(getattr(bad, test), node), raised)


async def test_a_policy_that_leaves_a_connection_open_fails() -> None:
    bad = _of(OfLabels, _serving(_leaks))
    test = bad.test_it_does_what_there_is_to_do_and_ends_when_told
    async with _node(bad) as node:
        assert isinstance(await _error(test, node), TimeoutError)
        for kube in LEFT_OPEN:
            await kube.aclose()


async def test_a_policy_that_does_not_hint_fails() -> None:
    async def watch_devices(self: Files) -> None:
        await anyio.sleep_forever()

    bad = _of(OfFiles, _bad(Files, watch_devices=watch_devices))
    async with _node(bad) as node:
        error = await _error(bad.test_it_hints_when_what_it_reads_has_changed, node)
    assert isinstance(error, TimeoutError)


WAITS = """
import time
from hardpoint import hookimpl

class Acme:
    def __init__(self, node, settings): ...

    @hookimpl
    async def label_node(self):
        time.sleep(0.001)
        return {}
"""


async def test_a_policy_that_waits_on_the_loop_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "acme_that_waits.py").write_text(WAITS)
    made = importlib.import_module("acme_that_waits").Acme

    test = "test_nothing_it_does_blocks_the_event_loop"
    await _fails(PolicyContract, made, test, "time.sleep")


async def test_a_policy_that_tells_a_secret_fails(caplog: pytest.LogCaptureFixture) -> None:
    def observe(self: Files) -> None:
        logging.getLogger("acme").info("token=%s", (self.at.parent / "token").read_text())

    bad = _of(OfFiles, _bad(Files, observe=observe))
    async with _node(bad) as node:
        error = await _error(bad.test_no_secret_reaches_the_log, node, caplog)
    assert isinstance(error, AssertionError)


# -- the suite itself -----------------------------------------------------------------------------


def test_a_suite_has_the_tests_of_its_policys_hooks_and_no_others() -> None:
    suite = _of(PolicyContract, Reaper)

    tests = {name for name in dir(suite) if getattr(suite, name, None) is not None}
    assert "test_a_pod_of_another_node_lives" in tests
    assert "test_the_api_server_takes_its_labels" not in tests


@pytest.mark.parametrize("name", ["make_unreadable", "make_readable", "until_served"])
async def test_what_a_suite_has_to_be_told_it_says(name: str) -> None:
    suite = _of(PolicyContract, Files)

    async with _node(suite) as node:
        error = await _error(getattr(suite, name), node)
    assert isinstance(error, pytest.fail.Exception)
    assert f"give your PolicyContract `{name}`" in str(error)

"""Grants, pods and failures in every order, against a table of who has which device.

At no step is a device reported free while somebody has it, no pod is deleted whose grant is in
force, no two allocations have one device, and every release ends once its holders are gone.
"""

from __future__ import annotations

import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from anyio.from_thread import BlockingPortal, start_blocking_portal
from grant_model import ALLOCATIONS, DEVICES, GrantNode, Pod
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule
from profiles import Model, limit, stateful

from hardpoint.testing.api_server import FakeApiServer

pytestmark = limit(240)

allocations = st.sampled_from(ALLOCATIONS)
devices = st.sampled_from(DEVICES)
some = st.sets(devices, min_size=1, max_size=2).map(frozenset)
numbers = st.integers(0, 11)
names = st.sampled_from(("p", "q", "r"))
who = st.sampled_from(("source", "kubelet", "evidence", "evidence", "api"))


class Grants(Model):
    """The agent under grants."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        root = Path(tempfile.mkdtemp(prefix="hp-"))
        self.stack.callback(shutil.rmtree, root)
        self.portal: BlockingPortal = self.stack.enter_context(start_blocking_portal())
        server = self.stack.enter_context(self.portal.wrap_async_context_manager(FakeApiServer()))
        self.node = GrantNode(root, server)
        self.truth = self.node.truth
        self.context: Any = None
        self._open()

    def _open(self) -> None:
        self.context = self.portal.wrap_async_context_manager(self.node.running())
        self.context.__enter__()

    released = reaped = 0
    """Over all examples: what the model has seen of what it is about."""

    @classmethod
    def said(cls) -> str:
        return f"{super().said()}, {cls.released} releases, {cls.reaped} pods reaped"

    def teardown(self) -> None:
        try:
            self._all_ends()
        finally:
            type(self).released += len(self.truth.released)
            type(self).reaped += self.truth.reaped
            self.context.__exit__(None, None, None)
            self.stack.close()
            super().teardown()

    def _all_ends(self) -> None:
        """Every release ends once all can be read and nobody has anything any more."""
        self._mend()
        self.truth.grants.clear()
        for pod in list(self.truth.pods.values()):
            self._end(pod)
        for _ in range(3):
            self.portal.call(self.node.pass_time, 11.0)
        assert not self.node.agent.releases(), self.node.agent.policies.releases.users
        assert not self.truth.wrong, self.truth.wrong

    # -- grants -----------------------------------------------------------------------------------

    @initialize(wanted=st.permutations(DEVICES))
    def begin(self, wanted: list[str]) -> None:
        """Grant a device each to two allocations, and let a pod run with each."""
        for allocation, device in zip(ALLOCATIONS[:2], wanted, strict=False):
            self.truth.grants[allocation] = frozenset({device})
        self.portal.call(self.node.settle)
        for name, device in zip("pq", wanted, strict=False):
            assert self.portal.call(self.node.start_pod, name, device)

    @rule(allocation=allocations, wanted=some)
    def state(self, allocation: str, wanted: frozenset[str]) -> None:
        self.truth.grants[allocation] = wanted
        self.portal.call(self.node.settle)

    @rule(number=numbers)
    def end_grant(self, number: int) -> None:
        stated = sorted(self.truth.grants)
        if stated:
            del self.truth.grants[stated[number % len(stated)]]
            self.portal.call(self.node.settle)

    # -- pods -------------------------------------------------------------------------------------

    @rule(name=names, device=devices)
    def start_pod(self, name: str, device: str) -> None:
        self.portal.call(self.node.start_pod, name, device)

    @rule(number=numbers, seconds=st.sampled_from((1.0, 31.0)))
    def end_grant_of_a_pod(self, number: int, seconds: float) -> None:
        """What the seed's page is about; time passes, too."""
        pod = self._chosen(number)
        if pod:
            self.truth.grants.pop(pod.allocation, None)
            self.portal.call(self.node.settle)
            self.portal.call(self.node.pass_time, seconds)

    @rule(number=numbers)
    def end_pod(self, number: int) -> None:
        pod = self._chosen(number)
        if pod:
            self._end(pod)

    @rule(number=numbers)
    def delete_by_force(self, number: int) -> None:
        """The API server and the kubelet forget a pod whose process runs on."""
        pod = self._chosen(number)
        if pod and pod.listed:
            self.portal.call(lambda: self.node.end_pod(pod, process_stays=True))

    def _chosen(self, number: int) -> Pod | None:
        """Return a pod, if there is one.

        Hypothesis must not see how many there are: what a busy machine has come to in a second is
        not the same each time.
        """
        pods = sorted(self.truth.pods.values(), key=lambda pod: int(pod.key.name[6:]))
        return pods[number % len(pods)] if pods else None

    def _end(self, pod: Pod) -> None:
        if pod.listed:
            self.portal.call(self.node.end_pod, pod)
        else:
            del self.truth.pods[pod.uid]

    # -- time and trouble -------------------------------------------------------------------------

    @rule(seconds=st.sampled_from((1.0, 11.0, 31.0, 61.0)))
    def pass_time(self, seconds: float) -> None:
        self.portal.call(self.node.pass_time, seconds)

    @rule(what=who)
    def fail(self, what: str) -> None:
        setattr(self.truth, f"{what}_fails", True)
        self.portal.call(self.node.settle)

    @rule()
    def work_again(self) -> None:
        self._mend()
        self.portal.call(self.node.settle)

    def _mend(self) -> None:
        for cannot in ("source", "kubelet", "evidence", "api"):
            setattr(self.truth, f"{cannot}_fails", False)
        self.node.pods.is_new = False

    @rule()
    def restart(self) -> None:
        self.context.__exit__(None, None, None)
        self._open()

    @rule()
    def restart_kubelet(self) -> None:
        """It lists nobody until the API server has told it of its pods; they run on meanwhile."""
        self.node.pods.start_anew()
        self.portal.call(self.node.settle)

    @rule()
    def kubelet_knows_its_pods(self) -> None:
        if self.node.pods.is_new:
            self.node.pods.is_new = False
            self.portal.call(self.node.settle)

    # -- what must always be ----------------------------------------------------------------------

    @invariant()
    def nothing_is_wrong(self) -> None:
        assert not self.truth.wrong, self.truth.wrong

    @invariant()
    def no_two_allocations_have_one_device(self) -> None:
        for device in DEVICES:
            found = {
                p.allocation for p in self.truth.pods.values() if p.alive and p.device == device
            }
            assert len(found) < 2, f"{device} is had under {found}"


TestGrants = Grants.TestCase
TestGrants.settings = stateful(examples=30, steps=30)

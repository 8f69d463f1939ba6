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
from hypothesis.stateful import invariant, precondition, rule
from profiles import Model, limit, stateful

from hardpoint.testing.api_server import FakeApiServer

pytestmark = limit(240)

allocations = st.sampled_from(ALLOCATIONS)
devices = st.sampled_from(DEVICES)
some = st.sets(devices, min_size=1, max_size=2).map(frozenset)
names = st.sampled_from(("p", "q", "r"))
who = st.sampled_from(("source", "kubelet", "evidence", "api"))


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

    def teardown(self) -> None:
        try:
            self._all_ends()
        finally:
            self.context.__exit__(None, None, None)
            self.stack.close()
            super().teardown()

    def _all_ends(self) -> None:
        """Every release ends once all can be read and nobody has anything any more."""
        for cannot in ("source", "kubelet", "evidence", "api"):
            setattr(self.truth, f"{cannot}_fails", False)
        self.truth.grants.clear()
        for pod in list(self.truth.pods.values()):
            self._end(pod)
        for _ in range(3):
            self.portal.call(self.node.pass_time, 11.0)
        assert not self.node.agent.releases(), self.node.agent.policies.releases.users
        assert not self.truth.wrong, self.truth.wrong

    # -- grants -----------------------------------------------------------------------------------

    @rule(allocation=allocations, wanted=some)
    def state(self, allocation: str, wanted: frozenset[str]) -> None:
        self.truth.grants[allocation] = wanted
        self.portal.call(self.node.settle)

    @precondition(lambda self: self.truth.grants)
    @rule(data=st.data())
    def end_grant(self, data: st.DataObject) -> None:
        del self.truth.grants[data.draw(st.sampled_from(sorted(self.truth.grants)))]
        self.portal.call(self.node.settle)

    # -- pods -------------------------------------------------------------------------------------

    @rule(name=names, device=devices)
    def start_pod(self, name: str, device: str) -> None:
        self.portal.call(self.node.start_pod, name, device)

    @precondition(lambda self: self.truth.pods)
    @rule(data=st.data())
    def end_pod(self, data: st.DataObject) -> None:
        self._end(self._draw(data))

    @precondition(lambda self: any(pod.listed for pod in self.truth.pods.values()))
    @rule(data=st.data())
    def delete_by_force(self, data: st.DataObject) -> None:
        """The API server and the kubelet forget a pod whose process runs on."""
        pod = self._draw(data)
        if pod.listed:
            self.portal.call(lambda: self.node.end_pod(pod, process_stays=True))

    def _draw(self, data: st.DataObject) -> Pod:
        return self.truth.pods[data.draw(st.sampled_from(sorted(self.truth.pods)))]

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
    def fail_or_work(self, what: str) -> None:
        field = f"{what}_fails"
        setattr(self.truth, field, not getattr(self.truth, field))
        self.portal.call(self.node.settle)

    @rule()
    def restart(self) -> None:
        self.context.__exit__(None, None, None)
        self._open()

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
TestGrants.settings = stateful(examples=8, steps=25)

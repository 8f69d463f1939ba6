"""Policies that keep the contract, each in as few words as it can be kept in."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import anyio
import anyio.to_thread

from hardpoint import (
    Addition,
    Claim,
    Delivery,
    Event,
    Evidence,
    Grant,
    GrantedDevice,
    GrantOutcome,
    Hold,
    HoldingPod,
    Node,
    Offer,
    Reaped,
    ReapResult,
    Release,
    Settings,
    Verdict,
    Veto,
    hookimpl,
)
from hardpoint.agent import Agent
from hardpoint.errors import HardpointError, KubeNotFound
from hardpoint.kube import NODES, PODS, Backoff, Kube


class FilesSettings(Settings):
    directory: str = ""


class Files:
    """Everything that a policy can answer, from files: one directory each."""

    Settings = FilesSettings
    kinds = ("gpu", "gpu.*")

    def __init__(self, node: Node, settings: FilesSettings) -> None:
        self.node, self.at = node, Path(settings.directory)

    @hookimpl
    def grant_devices(self) -> Iterator[Grant]:
        for file in sorted((self.at / "grants").iterdir()):
            yield Grant(allocation=file.name, devices=(GrantedDevice(name=file.read_text()),))

    @hookimpl
    def report_grant(self, grant: Grant, outcome: GrantOutcome) -> None:
        (self.at / "reports" / grant.allocation).write_text(outcome.outcome.value)

    @hookimpl
    def report_release(self, grant: Grant) -> None:
        (self.at / "reports" / grant.allocation).write_text("over")

    @hookimpl
    def find_users(self, release: Release) -> Evidence:
        began = time.monotonic()
        lines = [file.read_text().split() for file in (self.at / "users").iterdir()]
        return Evidence.used_by(began, *(f"job {j}" for d, j in lines if d in release.names))

    @hookimpl
    def veto_devices(self, offer: Offer) -> Iterator[Veto]:
        rivals = [file.read_text() for file in (self.at / "rivals").iterdir()]
        for offered in offer.devices:
            if offered.device.kind in rivals:
                yield Veto(device=offered.name, reason="remove the rival", condition=("Ri", "Va"))

    @hookimpl
    async def watch_devices(self, hint: Callable[[], None]) -> None:
        before = await anyio.to_thread.run_sync(self._changed)
        while True:
            await anyio.sleep(0.02)
            now = await anyio.to_thread.run_sync(self._changed)
            if now != before:
                before = now
                hint()

    def _changed(self) -> int:
        return (self.at / "grants").stat().st_mtime_ns

    @hookimpl
    def admit_claim(self, claim: Claim) -> Verdict | None:
        admin = any(one.admin_access for one in claim.allotments)
        return Verdict.deny("not here: no admins") if admin else None

    @hookimpl
    def admit_reap(self, pod: HoldingPod) -> Verdict | None:
        return Verdict.deny("it is ours") if pod.namespace == "contract" else None

    @hookimpl
    def isolate_delivery(self, delivery: Delivery) -> Delivery:
        return replace(delivery, mounts=())

    @hookimpl
    def annotate_delivery(self, hold: Hold) -> Addition:
        return Addition(env={"JOB": hold.allocation}, annotations={"acme.dev/job": hold.allocation})

    @hookimpl
    def label_node(self) -> Mapping[str, str]:
        return {"gpu.count": "3", "acme.dev/gpu.product": "G100"}

    @hookimpl
    def observe(self, event: Event) -> None:
        """It is not interested."""


class Reaper:
    """Deletes the pod that is meant."""

    def __init__(self, node: Node, settings: None) -> None:
        self.node = node

    @hookimpl
    async def reap_pod(
        self, pod: HoldingPod, release: Release, attempt: int, agent: Agent
    ) -> ReapResult | None:
        async with agent.connect() as kube:
            try:
                found = await kube.get(PODS, pod.name, namespace=pod.namespace)
            except KubeNotFound:
                return ReapResult(Reaped.GONE, "there is no such pod")
            if why := self.spares(found, pod, release):
                return ReapResult(Reaped.SPARED, why)
            if not await pod.still_holds():
                return ReapResult(Reaped.GONE, "it holds nothing any more")
            uid, grace = found["metadata"]["uid"], 0 if attempt > 1 else 10
            await kube.delete(PODS, pod.name, namespace=pod.namespace, uid=uid, grace=grace)
        return ReapResult(Reaped.DELETED)

    def spares(self, found: dict[str, object], pod: HoldingPod, release: Release) -> str:
        metadata, status = found["metadata"], found["status"]
        spec = found["spec"]
        assert isinstance(metadata, dict)
        assert isinstance(status, dict)
        assert isinstance(spec, dict)
        born = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(release.since))
        reasons = {
            "it is another node's": spec.get("nodeName") != self.node.name,
            "it has ended": status["phase"] in ("Succeeded", "Failed"),
            "it is static": "kubernetes.io/config.mirror" in metadata.get("annotations", {}),
            "it is younger than the release": metadata["creationTimestamp"] > born,
            "it is another pod": bool(pod.uids) and metadata["uid"] not in pod.uids,
        }
        return next((why for why, so in reasons.items() if so), "")


class Labels:
    """Keeps one label on the Node."""

    def __init__(self, node: Node, settings: None) -> None:
        self.node = node

    @hookimpl
    async def serve_policy(self, agent: Agent) -> None:
        await agent.until_writing()
        backoff = Backoff(first=0.05, most=1.0)
        async with agent.connect() as kube:
            while True:
                try:
                    await self._apply(kube)
                except HardpointError as error:
                    agent.on_fault("policy/labels", str(error))
                    await anyio.sleep(backoff.next())
                else:
                    agent.clear_fault("policy/labels")
                    await anyio.sleep_forever()

    async def _apply(self, kube: Kube) -> None:
        metadata = {"name": self.node.name, "labels": {"acme.dev/here": "yes"}}
        body = {"apiVersion": "v1", "kind": "Node", "metadata": metadata}
        await kube.apply(NODES, body, manager="acme")

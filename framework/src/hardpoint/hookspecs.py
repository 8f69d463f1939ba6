"""The contract: every hook that a driver, a policy or a frontend may implement.

A plugin is a class named by an entry point (``hardpoint.drivers``, ``hardpoint.policies``,
``hardpoint.frontends``). The framework makes one object of it with ``(node, settings)`` and calls
the methods marked ``@hookimpl``. A method names only the arguments it wants. ``async def`` runs as
a task, plain ``def`` in a worker thread; for one plugin, hook and subject (device, claim) there is
never more than one call under way. A budget ends the waiting, not the work.

A plugin raises ``TryAgain(why)`` or ``Refuse(why, reason=)``; anything else is a fault, caught and
shown by ``hardpoint doctor``. ``Fault.SKIP`` goes on without the answer, ``Fault.REFUSE`` fails the
operation.

A driver may carry two pydantic models: ``Settings`` (its section of the settings file) and
``Parameters`` (``hardpoint.Parameters``: what a claim may ask). Both are validated before the
plugin sees them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from hardpoint.agent import Agent
from hardpoint.allocation import RankRequest
from hardpoint.contract import Dispatch, Fault, hookspec
from hardpoint.grants import Evidence, Grant, GrantOutcome, HoldingPod, ReapResult, Release
from hardpoint.model import (
    Addition,
    AttributeInfo,
    Claim,
    Delivery,
    Device,
    Event,
    Health,
    Hold,
    Offer,
    Offered,
    Unread,
    Verdict,
    Veto,
    Withheld,
)

# -- drivers --------------------------------------------------------------------------------------


@hookspec(dispatch=Dispatch.GATHER, on_fault=Fault.SKIP, budget=10.0)
def publish_devices() -> Iterable[Device | Withheld | Unread]:
    """Report every device this driver can see on its node, right now.

    Return or yield the whole list each time: a device left out has gone away. Yield ``Withheld``
    for hardware that is seen and not offered. Raise if the bus cannot be read: the last good list
    then stands, marked stale. Walk sysfs with ``node.each()``, so that one bad entry costs one
    entry. Must not change the hardware, and must not need to open a device.
    """
    raise AssertionError


@hookspec(dispatch=Dispatch.SUPERVISED, on_fault=Fault.SKIP, budget=None)
async def watch_devices(hint: Callable[[], None]) -> None:
    """Call ``hint()`` when ``publish_devices`` or ``check_device`` might answer differently.

    Of a policy: ``grant_devices``, ``veto_devices`` or ``find_users``.

    Runs for the life of the agent and is started again when it ends. Only for sources the
    framework does not watch: kernel uevents wake every driver anyway. ``hint`` may be called from
    any thread, carries no data, and calls in a burst count as one.
    """
    raise AssertionError


@hookspec(dispatch=Dispatch.OWNER, on_fault=Fault.SKIP, budget=5.0)
def check_device(device: Device) -> Health:
    """Say whether a device of this driver works. Late or raising means unknown, never unhealthy.

    Asked after every ``publish_devices`` and once a minute.
    """
    raise AssertionError


@hookspec(dispatch=Dispatch.GATHER, on_fault=Fault.SKIP, budget=2.0)
def describe_attributes() -> Iterable[AttributeInfo]:
    """List every attribute this driver may publish: the reference, and what validation expects."""
    raise AssertionError


@hookspec(dispatch=Dispatch.OWNER, on_fault=Fault.REFUSE, budget=5.0)
def deliver_device(device: Device, parameters: Any) -> Delivery:
    """Say what a holder of this device receives. Without it: the device's nodes.

    Pure: the same device and parameters give the same delivery. It is asked at prepare, again when
    nodes are renumbered and after a reboot, and offline. Raise ``TryAgain`` while a node that the
    holder needs is not there yet.
    """
    raise AssertionError


@hookspec(dispatch=Dispatch.OWNER, on_fault=Fault.REFUSE, budget=40.0)
def prepare_device(device: Device, claim: Claim, parameters: Any, hold: Hold) -> None:
    """Change the hardware for a claim: create a partition, load an image.

    Called after the hold is on disk, and again whenever the kubelet repeats a call that did not
    end: do nothing then that is done already. What ``unprepare_device`` will need is kept with
    ``hold.remember(...)`` *before* anything is changed. Neither this nor its undoing is called for
    admin access, which looks at what another claim may have.
    """
    raise AssertionError


@hookspec(dispatch=Dispatch.OWNER, on_fault=Fault.REFUSE, budget=40.0)
def unprepare_device(device: Device | None, hold: Hold) -> None:
    """Undo ``prepare_device``; also half done, also twice, also for a device that is gone.

    ``device`` is None when it is not on the node any more; ``hold.device`` is what it was. Three
    failures in a row quarantine the device, so that its pod can end.
    """
    raise AssertionError


@hookspec(dispatch=Dispatch.OWNER, on_fault=Fault.SKIP, budget=300.0)
def release_device(device: Device, hold: Hold) -> None:
    """Scrub or reset a device after its claim has ended and the kubelet has its answer.

    Until it succeeds the device is withheld; a failure is retried with back-off.
    """
    raise AssertionError


@hookspec(dispatch=Dispatch.OWNER, on_fault=Fault.SKIP, budget=1.0)
def rank_devices(request: RankRequest, offer: Offer) -> Iterable[str]:
    """Say which devices of this driver a container had best get together: names, best first.

    The first ``request.count`` that may be chosen are, those in ``request.required`` before all
    others; where there are fewer, the frontend adds what is near them. Pure, and quick: every pod
    that asks for several devices waits for it, and the kubelet may choose otherwise.
    """
    raise AssertionError


@hookspec(dispatch=Dispatch.GATHER, on_fault=Fault.SKIP, budget=2.0)
def label_node() -> Mapping[str, str]:
    """Return labels that the node earns by this plugin's hardware: ``{"gpu.count": "8"}``.

    A key without a domain is put below the settings' prefix. Asked after each change of the offer;
    a label that is left out is removed from the node. While it fails, its last answer stands.
    """
    raise AssertionError


# -- policies -------------------------------------------------------------------------------------


@hookspec(dispatch=Dispatch.GATHER, on_fault=Fault.REFUSE, budget=10.0)
def grant_devices(agent: Agent) -> Iterable[Grant]:
    """Return every grant that is in force now, for the kinds this source governs.

    The source says which by an attribute ``kinds``, patterns such as ``gpu`` or ``gpu.*``: devices
    of those are offered under its grants alone; one that names none does not run. Raise where it
    cannot be read: the last that is known stands, and none of it is reported released, nor is
    anybody reaped, meanwhile. Where a part of it alone cannot be read, return what is known, and
    say so in a sentence by an attribute ``unread``: nobody is reaped while it is not empty. Asked
    every 5 seconds, at each ``hint`` of ``watch_devices``, and before a claim on a granted device
    is answered.
    """
    raise AssertionError


@hookspec(dispatch=Dispatch.GATHER, on_fault=Fault.REFUSE, budget=10.0)
def report_grant(grant: Grant, outcome: GrantOutcome, agent: Agent) -> None:
    """Learn what became of a grant of this source: in force, or refused and why.

    Told again until it does not raise, also after a restart; and again when the outcome changes.
    """
    raise AssertionError


@hookspec(dispatch=Dispatch.GATHER, on_fault=Fault.REFUSE, budget=10.0)
def report_release(grant: Grant, release: Release, agent: Agent) -> None:
    """Learn that nobody can be using the devices of a grant any more. Told until it does not raise.

    It may be told twice of one release; never of a grant that is in force again.
    """
    raise AssertionError


@hookspec(dispatch=Dispatch.GATHER, on_fault=Fault.REFUSE, budget=20.0)
def find_users(release: Release, holds: tuple[Hold, ...], agent: Agent) -> Evidence:
    """Say who may still be using the devices of a release: ``Evidence``.

    Asked until nobody does. That nobody does counts only if the reading began after
    ``release.left``; late, raising and unknown are in use. A source that cannot be asked on this
    node at all says so by an attribute ``not_applicable``, a sentence set when it is made; one for
    some kinds alone names them in ``kinds``; a device of a kind that no source that runs is about
    is never released.
    ``holds`` are what the agent itself holds for claims.
    """
    raise AssertionError


@hookspec(dispatch=Dispatch.GATHER, on_fault=Fault.REFUSE, budget=10.0)
def admit_reap(pod: HoldingPod, release: Release, agent: Agent) -> Verdict | None:
    """Say whether a pod may be deleted that still has a device it must not have. Any denial wins.

    A fault is a denial: what cannot be read spares the pod, until it can.
    """
    raise AssertionError


@hookspec(dispatch=Dispatch.FIRST, on_fault=Fault.SKIP, budget=40.0)
def reap_pod(pod: HoldingPod, release: Release, attempt: int, agent: Agent) -> ReapResult | None:
    """Delete a pod, if it is the one that is meant and still has the device. None: not my affair.

    ``attempt`` counts from 1; each comes a minute after the one before. The pod's UID is read
    first, then ``await pod.still_holds()``, then it is deleted with that UID as a precondition: a
    namesake must not die for it.
    """
    raise AssertionError


@hookspec(dispatch=Dispatch.SUPERVISED, on_fault=Fault.SKIP, budget=None)
async def serve_policy(agent: Agent) -> None:
    """Keep something in step with the node, for the life of the agent: labels, a drain.

    When it ends or raises it is started again with back-off.
    """
    raise AssertionError


@hookspec(dispatch=Dispatch.GATHER, on_fault=Fault.REFUSE, budget=10.0)
def veto_devices(offer: Offer, agent: Agent) -> Iterable[Veto]:
    """Name devices that must not be offered now, and why.

    Asked whenever the offer may change. While it fails, its last answer stands; a policy that never
    answered vetoes everything it was asked about.
    """
    raise AssertionError


@hookspec(dispatch=Dispatch.GATHER, on_fault=Fault.REFUSE, budget=10.0)
def admit_claim(
    claim: Claim, devices: tuple[Offered, ...], holds: tuple[Hold, ...]
) -> Verdict | None:
    """Admit or deny a claim before any hold is written. Any denial wins; None is no opinion.

    A claim with admin access is denied unless a policy admits it.
    """
    raise AssertionError


@hookspec(dispatch=Dispatch.FOLD, on_fault=Fault.REFUSE, budget=5.0)
def isolate_delivery(hold: Hold, device: Device, delivery: Delivery) -> Delivery:
    """Return a narrower delivery. One with anything added is rejected, and the prepare fails."""
    raise AssertionError


@hookspec(dispatch=Dispatch.GATHER, on_fault=Fault.SKIP, budget=5.0)
def annotate_delivery(hold: Hold, device: Device, claim: Claim) -> Addition | None:
    """Add environment variables and annotations to what a holder receives, nothing else.

    What the driver sets itself is not overwritten. A container that has several devices of a
    ``claim`` gets the variables of the last one where they differ.
    """
    raise AssertionError


# -- frontends and everybody ----------------------------------------------------------------------


@hookspec(dispatch=Dispatch.SUPERVISED, on_fault=Fault.SKIP, budget=None)
async def serve_frontend(agent: Agent, ready: Callable[[], None]) -> None:
    """Offer devices to Kubernetes for the life of the agent; call ``ready()`` once serving.

    When it ends or raises it is started again with back-off; other frontends are not affected. On
    cancellation it removes its own sockets and leaves what it published. A frontend whose devices
    reach containers without CDI says so by an attribute ``needs_cdi`` that is false.
    """
    raise AssertionError


@hookspec(dispatch=Dispatch.GATHER, on_fault=Fault.SKIP, budget=5.0)
def preview_offer(offer: Offer, version: str) -> Iterable[Mapping[str, Any]]:
    """Return the Kubernetes objects that a frontend would write for an offer, without writing.

    Pure: ``hardpoint slice`` shows them, with no cluster. ``version`` is the API version asked for
    (``v1``); a frontend that writes no objects has no such method.
    """
    raise AssertionError


@hookspec(dispatch=Dispatch.GATHER, on_fault=Fault.SKIP, budget=5.0)
def preview_resources(offer: Offer) -> Mapping[str, Iterable[str]]:
    """Return the extended resources that a frontend would offer devices as: device names by each.

    Pure: ``hardpoint devices`` shows them, with no agent. One that offers none has no such method.
    """
    raise AssertionError


@hookspec(dispatch=Dispatch.GATHER, on_fault=Fault.SKIP, budget=5.0)
def observe(event: Event) -> None:
    """Learn of something that changed, for logs, metrics and Kubernetes Events."""
    raise AssertionError


__all__ = [
    "admit_claim",
    "admit_reap",
    "annotate_delivery",
    "check_device",
    "deliver_device",
    "describe_attributes",
    "find_users",
    "grant_devices",
    "isolate_delivery",
    "label_node",
    "observe",
    "prepare_device",
    "preview_offer",
    "preview_resources",
    "publish_devices",
    "rank_devices",
    "reap_pod",
    "release_device",
    "report_grant",
    "report_release",
    "serve_frontend",
    "serve_policy",
    "unprepare_device",
    "veto_devices",
    "watch_devices",
]

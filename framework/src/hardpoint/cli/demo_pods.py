"""``hardpoint demo --frontend deviceplugin``: one pod's allocation, without DRA, told in words."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import anyio

from hardpoint._core.agent import HardpointAgent
from hardpoint.cli.output import fail, table
from hardpoint.cli.telling import choose, indented, say, stuck

if TYPE_CHECKING:
    from hardpoint.testing.cdi import Injected
    from hardpoint.testing.kubelet import Allocated, FakeKubelet, Pod


async def walk(agent: HardpointAgent, kubelet: FakeKubelet, what: str) -> int:
    """Let a pod ask for a device, and show what becomes of it."""
    from hardpoint.testing.kubelet import Container, Pod

    say(f"1. The agent reads {what} and lists what it found to the kubelet, by resource")
    try:
        with anyio.fail_after(30):
            await agent.started.wait()
            await kubelet.until(lambda: agent.ready and _listed(kubelet) > 0)
            with anyio.move_on_after(3):  # settings may make a resource that nothing here is of
                await kubelet.until(lambda: all(map(kubelet.listed, _resources(kubelet))))
    except TimeoutError:
        return stuck(agent, "list a device: which resources do the settings make?")
    _show_listed(kubelet)

    resource = _chosen(agent, kubelet)
    say(f"2. A pod asks for one {resource}")
    main = Container(name="main", resources={resource: 1})
    pod, beside = Pod(name="demo-pod", containers=(main,)), Pod(name="another")
    print(indented(f"resources:\n  limits:\n    {resource}: 1"))
    print("\nThe scheduler counts; which of them it is, the kubelet says, on the node.")

    say("3. The kubelet admits the pod and asks the agent to allocate")
    await kubelet.admit(beside)
    (given,) = await kubelet.admit(pod)
    _show_given(agent, given, await kubelet.run(pod))

    say("4. The kubelet restarts")
    await _restart(kubelet, given)
    return await _end(agent, kubelet, pod)


def _resources(kubelet: FakeKubelet) -> Sequence[str]:
    return sorted(kubelet.plugins.resources)


def _listed(kubelet: FakeKubelet) -> int:
    return sum(len(kubelet.listed(name)) for name in _resources(kubelet))


def _chosen(agent: HardpointAgent, kubelet: FakeKubelet) -> str:
    """Return the resource of the device to show: settings may make none of some devices."""
    listed = {
        offered.name: name
        for name in _resources(kubelet)
        for offered in agent.offer.devices
        if any(_is_of(offered.name, id_) for id_ in kubelet.listed(name))
    }
    return listed[choose([one for one in agent.offer.devices if one.name in listed]).name]


def _is_of(device: str, id_: str) -> bool:
    """Say whether an id is a device's, or one of its replicas'."""
    return id_ == device or id_.startswith((f"{device}:", f"{device}@"))


def _show_listed(kubelet: FakeKubelet) -> None:
    rows = [
        (name, str(kubelet.capacity(name)), str(kubelet.allocatable(name)), _some(kubelet, name))
        for name in _resources(kubelet)
    ]
    table(("resource", "capacity", "allocatable", "ids"), rows)


def _some(kubelet: FakeKubelet, resource: str) -> str:
    ids = sorted(kubelet.listed(resource))
    return " ".join(ids[:2]) + (f" +{len(ids) - 2}" if len(ids) > 2 else "")


def _show_given(agent: HardpointAgent, given: Allocated, seen: Injected) -> None:
    print(f"It chose {', '.join(given.ids)}. The agent held it, and answered by CDI name:\n")
    print(indented("\n".join(given.cdi_ids)))
    (file,) = agent.paths.cdi.glob("*.json")
    print(f"\nIt wrote {file.name}, from which the container runtime reads:\n")
    print(indented(json.dumps(json.loads(file.read_text()), indent=2)))
    print(f"\nThe container finds {', '.join(seen.paths) or 'no node'}, and nothing else.")
    print(f"Until it ends, it is held: {', '.join(str(hold) for hold in agent.holds())}.")


async def _restart(kubelet: FakeKubelet, given: Allocated) -> None:
    """Restart it, and say how long the resource was away."""
    begun = time.monotonic()
    await kubelet.restart()
    with anyio.fail_after(30):
        await kubelet.until(lambda: given.ids[0] in kubelet.listed(given.resource))
    away = time.monotonic() - begun
    print(
        f"It removed the agent's sockets. The agent saw that and registered {given.resource} "
        f"again, {away:.1f} s later.\nThe pod goes on with what it has; nothing is allocated anew."
    )


async def _end(agent: HardpointAgent, kubelet: FakeKubelet, pod: Pod) -> int:
    """End the pod, and wait until its device is free."""
    say("5. The pod ends")
    kubelet.end(pod)
    with anyio.move_on_after(30):
        while agent.allocations():  # noqa: ASYNC110 - the ledger sets no Event
            await anyio.sleep(0.05)
    left = list(agent.paths.cdi.glob("*.json"))
    print(
        "The kubelet tells no plugin of that. The agent reads who has what (pod-resources), and "
        "after two reads\nwithout the pod the device is free: here at once, on a node within half "
        f"a minute.\nCDI files left: {len(left)}. Holds left: {len(agent.holds())}."
    )
    say(
        "That was the whole road. Look further:\n"
        "   docs/howto/device-plugin.md   resources of your own, by CEL selector\n"
        "   hardpoint status              what each resource offers, and who is registered\n"
        "   hardpoint holds               which pod has which device"
    )
    return 0 if not left else fail("something was left behind")

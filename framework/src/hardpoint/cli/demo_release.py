"""``hardpoint demo --scenario release``: a grant ends under a running pod, told with its times.

The agent, its policies and the frontend are the real ones; kubelet, API server, control plane and
GPUs are the test kit's. The pod is deleted by the reaper, and its end is the kubelet's.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio

from hardpoint import Event, hookimpl
from hardpoint._core.agent import HardpointAgent
from hardpoint._core.offline import start_plugins
from hardpoint._core.plugins.discovery import Plugin
from hardpoint._core.pods.absence import Pace
from hardpoint.cli.output import fail
from hardpoint.cli.telling import NODE, embedded, say
from hardpoint.settings import AgentSettings

if TYPE_CHECKING:
    from hardpoint.testing.api_server import FakeApiServer
    from hardpoint.testing.gpus import FakeGpus
    from hardpoint.testing.kubelet import FakeKubelet

_POLICIES = (
    "cdi_grants",
    "container_facts",
    "kubepods_processes",
    "pod_reaper",
    "pod_resources",
    "prepared_claims",
)
_FIRST_AFTER = 3.0
_PACE = Pace(every=0.5, apart=0.2, margin=0.5, settle=0.5)
_RESOURCE = "bcd.dev/gpu"
_SHOWN = {
    "grant-in-force",
    "grant-refused",
    "allocation-released",
    "pod-overstays",
    "pod-reaped",
    "pod-spared",
    "device-released",
}


class Story:
    """Tells what happened, with the seconds since it began."""

    def __init__(self) -> None:
        self._begun = time.monotonic()
        self._heard: set[str] = set()
        self._news = anyio.Event()

    def tell(self, who: str, what: str) -> None:
        """Print a line."""
        print(f"  {time.monotonic() - self._begun:5.1f} s  {who:13s}  {what}", flush=True)

    def hear(self, event: Event) -> None:
        """Tell of what the agent says."""
        self._heard.add(event.name)
        if event.name in _SHOWN:
            self.tell("agent", event.message)
        news, self._news = self._news, anyio.Event()
        news.set()

    async def until(self, event: str, within: float = 60.0) -> None:
        """Wait for an event of the agent's. Raises ``TimeoutError``."""
        with anyio.fail_after(within):
            while event not in self._heard:
                await self._news.wait()


def _observer(story: Story) -> type:
    class Observer:
        """Hands the story what the agent says."""

        def __init__(self, node: object, settings: object) -> None: ...

        @hookimpl
        async def observe(self, event: Event) -> None:
            story.hear(event)

    return Observer


def run(settings: AgentSettings) -> int:
    """Tell the story; 0 if it came out as it should."""
    return anyio.run(_run, settings)


async def _run(settings: AgentSettings) -> int:
    from hardpoint.testing.api_server import FakeApiServer
    from hardpoint.testing.gpus import FakeGpus
    from hardpoint.testing.kubelet import FakeKubelet
    from hardpoint.testing.sysfs import FakeMachine

    with tempfile.TemporaryDirectory(prefix="hp-") as scratch:
        root = Path(scratch)
        (root / "etc-cdi").mkdir()
        gpus = FakeGpus(FakeMachine(root / "machine"))
        for _ in range(2):
            gpus.add()
        async with (
            FakeApiServer() as server,
            FakeKubelet(
                root / "kubelet",
                cdi=(root / "etc-cdi", root / "cdi"),
                device_plugins=root / "kubelet/device-plugins",
            ) as kubelet,
        ):
            server.add_node(NODE)
            return await _with(settings, root, gpus, server, kubelet)


async def _with(
    settings: AgentSettings, root: Path, gpus: FakeGpus, server: FakeApiServer, kubelet: FakeKubelet
) -> int:
    from hardpoint.testing.gpus import GpuStandIn

    story = Story()
    node = gpus.machine.node(writable=True)
    node.name = NODE
    own = _lending(settings, root, server.url)
    plugins = start_plugins(own, node)
    for role, name, loaded in (
        ("driver", "acme_gpu", GpuStandIn),
        ("policy", "story", _observer(story)),
    ):
        plugin = Plugin(role, name, loaded=loaded)
        plugins.all.append(plugin)
        plugins.start(plugin, node, {})
    refused = [f"{p.id}: {p.reason}" for p in plugins.all if p.state in ("refused", "missing")]
    if refused:
        return fail("; ".join(refused))
    agent = HardpointAgent(own, node, events=False, pace=_PACE, plugins=plugins)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(agent.run)
        try:
            status = await _tell(story, root, gpus, agent, server, kubelet)
        except TimeoutError:
            status = fail("it did not go on: " + _why(agent))
        tasks.cancel_scope.cancel()
    return status


def _lending(settings: AgentSettings, root: Path, url: str) -> AgentSettings:
    return embedded(
        settings,
        root,
        url,
        domain="bcd.dev",
        dra_driver="gpu.bcd.dev",
        drivers=(),
        frontends=("deviceplugin",),
        policies=_POLICIES,
        policy={
            "cdi_grants": {"directory": str(root / "etc-cdi"), "vendor": "bcd.dev"},
            "pod_reaper": {"first_after_s": _FIRST_AFTER, "again_after_s": 5},
            "container_facts": {
                "variable": "BCD_ALLOCATION_IDS",
                "annotation": "bcd.dev/allocation-ids",
            },
        },
    )


def _why(agent: HardpointAgent) -> str:
    faults = [f"{one.source}: {one.message}" for one in agent.board.entries]
    users = [user for found in agent.policies.releases.users.values() for user in found]
    return "; ".join([*faults, *users]) or "nobody says why"


# -- the story ------------------------------------------------------------------------------------


async def _tell(
    story: Story,
    root: Path,
    gpus: FakeGpus,
    agent: HardpointAgent,
    server: FakeApiServer,
    kubelet: FakeKubelet,
) -> int:
    first, second = (gpu.name for gpu in gpus.all)
    say(
        f"The node has two GPUs, {first} and {second}. A control plane grants them to\nKubernetes "
        "by hold files in /etc/cdi; without one nothing is offered. Times are short here:\na pod "
        f"that must go has {_FIRST_AFTER:.0f} s instead of 30."
    )
    with anyio.fail_after(30):
        await agent.started.wait()
    _grant(root, "train-7", first)
    _grant(root, "batch-2", second)
    story.tell("control plane", f"grants {first} as train-7, and {second} as batch-2")
    await kubelet.until(lambda: kubelet.allocatable(_RESOURCE) == 2, within=30)
    story.tell("kubelet", f"sees 2 of {_RESOURCE}: {', '.join(sorted(kubelet.listed(_RESOURCE)))}")
    return await _story(story, root, agent, server, kubelet)


async def _story(
    story: Story, root: Path, agent: HardpointAgent, server: FakeApiServer, kubelet: FakeKubelet
) -> int:
    pod, device, allocation = await _pod(story, server, kubelet)
    (root / f"etc-cdi/bcd-{allocation}.json").unlink()
    story.tell("control plane", f"ends {allocation}: its hold file is gone, and the pod runs on")
    await kubelet.until(lambda: kubelet.allocatable(_RESOURCE) == 1, within=30)
    story.tell("kubelet", f"sees 1 of {_RESOURCE}, and gives {device} to nobody any more")
    await _try_again(story, kubelet, pod)

    await story.until("pod-reaped")
    [deleted] = [one for one in server.items("pods") if one["metadata"]["name"] == "trainer"]
    grace = deleted["metadata"].get("deletionGracePeriodSeconds")
    story.tell("API server", f"pod trainer is to end, with {grace} s of grace")
    if _report(root, allocation).get("released"):
        return fail("it was reported free while the pod still had it")
    await anyio.sleep(1)
    story.tell("kubelet", "the containers of trainer have ended")
    kubelet.end(pod)
    server.remove("pods", "trainer", "default")
    await story.until("allocation-released")

    return await _end(story, root, agent, allocation)


async def _pod(story: Story, server: FakeApiServer, kubelet: FakeKubelet) -> tuple[Any, str, str]:
    """Run a pod; return it, and the device and the allocation that the kubelet chose for it."""
    from hardpoint.testing.kubelet import Container, Pod

    wants = Container(name="main", resources={_RESOURCE: 1})
    made = server.add(_body("trainer"))
    pod = Pod(name="trainer", uid=str(made["metadata"]["uid"]), containers=(wants,))
    (given,) = await kubelet.admit(pod)
    injected = await kubelet.run(pod)
    story.tell("kubelet", f"pod trainer runs with {given.ids[0]}")
    facts = [one for one in injected.env if one.startswith("BCD_ALLOCATION_IDS=")]
    story.tell("pod trainer", f"finds {', '.join((*injected.paths, *facts))}")
    device, _, allocation = given.ids[0].partition("@")
    return pod, device, allocation


def _body(name: str) -> dict[str, Any]:
    at = datetime.fromtimestamp(time.time() - 60, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"nodeName": NODE, "containers": [{"name": "main", "image": "trainer"}]},
        "status": {"phase": "Running", "startTime": at},
    }


async def _try_again(story: Story, kubelet: FakeKubelet, pod: Any) -> None:
    """Let the pod's container crash: the runtime must not give it the GPU once more."""
    from hardpoint.testing.cdi import CdiError

    try:
        await kubelet.run(pod)
    except (CdiError, Exception) as error:  # noqa: BLE001 - whatever the runtime says is told
        story.tell("runtime", f"does not start its container again: {str(error)[:90]}")


async def _end(story: Story, root: Path, agent: HardpointAgent, allocation: str) -> int:
    with anyio.fail_after(10):
        while not _report(root, allocation).get("released"):  # noqa: ASYNC110 - a file sets no Event
            await anyio.sleep(0.05)
    story.tell("control plane", f"reads grants/{allocation}.json: {_report(root, allocation)}")
    left = [f"{one.name} as {one.allocation}" for one in agent.offer.devices]
    story.tell("agent", f"offers {', '.join(left)}, and nothing else")
    say(
        "Nothing was reported free before nobody could be using it. Look further:\n"
        "   docs/howto/grants.md    hold files, and what comes back\n"
        "   docs/howto/release.md   who is reaped, when, and the operator's levers\n"
        "   hardpoint release       what is pending, and who still has it"
    )
    return 0 if len(left) == 1 and allocation not in left[0] else fail("something else is offered")


def _report(root: Path, allocation: str) -> dict[str, Any]:
    file = root / f"state/grants/{allocation}.json"
    found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    return found


def _grant(root: Path, allocation: str, device: str) -> None:
    """Write a hold file, as the control plane's part on the node does."""
    document = {
        "cdiVersion": "0.6.0",
        "kind": "bcd.dev/gpu",
        "annotations": {"bcd.dev/binding": "kubernetes"},
        "devices": [{"name": device, "containerEdits": {"env": [f"BCD_DEVICE={device}"]}}],
    }
    with _replaced(root / "etc-cdi" / f"bcd-{allocation}.json") as new:
        new.write_text(json.dumps(document))


@contextmanager
def _replaced(path: Path) -> Iterator[Path]:
    new = path.with_name(f".{path.name}")
    yield new
    new.rename(path)

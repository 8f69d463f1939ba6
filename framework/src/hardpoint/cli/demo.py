"""``hardpoint demo``: the real agent against an embedded kubelet and API server, one pod's devices.

Everything is in a temporary directory and on loopback; the machine is only read.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio

from hardpoint._core.agent import HardpointAgent
from hardpoint._core.offline import look
from hardpoint._core.pods.absence import Pace
from hardpoint.cli.common import add_settings, settings_of, this_machine
from hardpoint.cli.output import fail, table
from hardpoint.cli.telling import NODE, choose, embedded, indented, say, stuck
from hardpoint.model import Offered
from hardpoint.node import Node
from hardpoint.recorded import open_machine
from hardpoint.settings import AgentSettings

if TYPE_CHECKING:
    from hardpoint.testing.api_server import FakeApiServer
    from hardpoint.testing.cdi import Injected
    from hardpoint.testing.kubelet import FakeKubelet

CLASS = "demo-device"
CLAIM = "demo-claim"
_PACE = Pace(every=0.1, apart=0.1, margin=0.1, settle=0.1)
"""How often pods are looked at here; an agent on a node takes its time."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_settings(parser)
    parser.add_argument(
        "--frontend",
        choices=("dra", "deviceplugin"),
        help="how the devices are offered (default: dra; the scenario release: deviceplugin)",
    )
    parser.add_argument(
        "--scenario",
        choices=("claim", "release"),
        default="claim",
        help="claim: one pod's devices; release: a grant ends under a running pod",
    )
    parser.add_argument("--sysfs", type=Path, metavar="TREE", help="publish a recorded machine")
    parser.add_argument(
        "--fallback",
        type=Path,
        metavar="TREE",
        help="recorded machine to publish where this one has nothing to offer",
    )


def run(arguments: argparse.Namespace) -> int:
    """Choose the machine and walk a claim through."""
    if arguments.scenario == "release":
        return _release(arguments)
    frontend = arguments.frontend or "dra"
    settings = settings_of(arguments).model_copy(update={"frontends": (frontend,)})
    if arguments.sysfs is not None:
        return _on_recorded(arguments.sysfs, settings, f"the recorded machine {arguments.sysfs}")
    node = this_machine(settings)
    if _offers(node, settings):
        return anyio.run(_demo, node, settings, "this machine")
    if arguments.fallback is None:
        return fail("this machine has nothing to offer (hardpoint devices --why); try --sysfs TREE")
    say(
        f"This machine has nothing to offer (hardpoint devices --why tells the reasons), "
        f"so a recorded one stands in: {arguments.fallback}"
    )
    return _on_recorded(arguments.fallback, settings, "the recorded machine")


def _release(arguments: argparse.Namespace) -> int:
    """Tell the story of a release, whose machine and frontend are its own."""
    if arguments.sysfs is not None:
        return fail("the scenario release has GPUs of its own, and shows no other machine")
    if arguments.frontend == "dra":
        return fail("the scenario release is told of the frontend deviceplugin alone")
    from hardpoint.cli import demo_release

    return demo_release.run(settings_of(arguments))


def _on_recorded(tree: Path, settings: AgentSettings, what: str) -> int:
    with open_machine(tree) as node:
        if not _offers(node, settings):
            return fail(f"{what} has nothing to offer (hardpoint devices --why --sysfs TREE)")
        return anyio.run(_demo, node, settings, what)


def _offers(node: Node, settings: AgentSettings) -> bool:
    return bool(anyio.run(look, node, settings).offer.devices)


async def _demo(node: Node, settings: AgentSettings, what: str) -> int:
    from hardpoint.cli import demo_pods
    from hardpoint.testing.api_server import FakeApiServer
    from hardpoint.testing.kubelet import FakeKubelet

    with tempfile.TemporaryDirectory(prefix="hp-") as scratch:
        root = Path(scratch)
        node.name = NODE
        async with (
            FakeApiServer() as server,
            FakeKubelet(
                root / "kubelet",
                cdi=(root / "cdi",),
                get_claim=_reader(server),
                device_plugins=root / "kubelet/device-plugins",
            ) as kubelet,
        ):
            server.add_node(NODE)
            own = embedded(settings, root, server.url)
            agent = HardpointAgent(own, node, events=False, pace=_PACE)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(agent.run)
                if settings.frontends == ("dra",):
                    status = await _walk(agent, server, kubelet, what)
                else:
                    status = await demo_pods.walk(agent, kubelet, what)
                tasks.cancel_scope.cancel()
    return status


def _reader(server: FakeApiServer) -> Any:
    async def read(namespace: str, name: str) -> dict[str, Any]:
        return server.get("resourceclaims", name, namespace)

    return read


# -- the walk -------------------------------------------------------------------------------------


async def _walk(
    agent: HardpointAgent, server: FakeApiServer, kubelet: FakeKubelet, what: str
) -> int:
    say(f"1. The agent reads {what} and publishes what it found")
    try:
        with anyio.fail_after(30):
            await agent.started.wait()
            domain = agent.domains[0].dra_driver
            await kubelet.until_registered(domain)
            await server.until(lambda: _published(server) == len(agent.offer.devices))
    except TimeoutError:
        return stuck(agent, "publish")
    _show_published(agent, server)

    chosen = choose(agent.offer.devices)
    say(f"2. A pod asks for {chosen.name}")
    _allocate(server, chosen)
    _show_claim(chosen)

    return await _hold(agent, kubelet, chosen)


async def _hold(agent: HardpointAgent, kubelet: FakeKubelet, chosen: Offered) -> int:
    """Prepare the claim, show what its container gets, and give it back."""
    from hardpoint.testing.kubelet import Pod

    say("3. The kubelet asks the agent to prepare the claim")
    pod = Pod(name="demo-pod", claims=(CLAIM,), uid="demo-pod-uid")
    await kubelet.prepare(pod)
    (file,) = agent.paths.cdi.glob("*.json")
    print(f"The agent wrote {file.name}, from which the container runtime will read:\n")
    print(indented(json.dumps(json.loads(file.read_text()), indent=2)))
    _show_received(kubelet.inject(pod), chosen)
    print(f"Until it ends, {chosen.name} is held: {', '.join(str(h) for h in agent.holds())}.")

    say("4. The pod ends, and the kubelet gives the claim back")
    await kubelet.unprepare(pod)
    left = list(agent.paths.cdi.glob("*.json"))
    print(f"CDI files left: {len(left)}. Holds left: {len(agent.holds())}.")
    say(
        "That was the whole road. Look further:\n"
        "   hardpoint devices          what this machine offers (--why: what it does not)\n"
        "   hardpoint slice            the ResourceSlice it would write\n"
        "   hardpoint attributes       what a DeviceClass may ask for"
    )
    return 0 if not left else 1


def _published(server: FakeApiServer) -> int:
    return sum(len(each["spec"].get("devices", ())) for each in server.items("resourceslices"))


def _show_published(agent: HardpointAgent, server: FakeApiServer) -> None:
    for each in server.items("resourceslices"):
        devices = len(each["spec"].get("devices", ()))
        print(f"ResourceSlice {each['metadata']['name']}: {devices} devices")
    rows = [
        (o.name, o.device.kind, "yes" if o.device.shareable else "", _nodes(o))
        for o in agent.offer.devices[:20]
    ]
    print()
    table(("device", "kind", "shared", "gives a container"), rows)
    more = len(agent.offer.devices) - len(rows)
    if more > 0:
        print(f"… and {more} more")


def _nodes(offered: Offered) -> str:
    paths = [node.path for node in offered.device.nodes]
    return " ".join(paths[:2]) + (f" +{len(paths) - 2}" if len(paths) > 2 else "")


def _allocate(server: FakeApiServer, chosen: Offered) -> None:
    """Create the class and the claim, and do the scheduler's part."""
    expression = f'device.driver == "{chosen.domain.dra_driver}"'
    api = "resource.k8s.io/v1"
    server.add(
        {
            "apiVersion": api,
            "kind": "DeviceClass",
            "metadata": {"name": CLASS},
            "spec": {"selectors": [{"cel": {"expression": expression}}]},
        }
    )
    request = {"name": "device", "exactly": {"deviceClassName": CLASS}}
    server.add(
        {
            "apiVersion": api,
            "kind": "ResourceClaim",
            "metadata": {"name": CLAIM, "namespace": "default"},
            "spec": {"devices": {"requests": [request]}},
        }
    )
    result = {
        "request": "device",
        "driver": chosen.domain.dra_driver,
        "pool": NODE,
        "device": chosen.name,
    }
    pod = {"resource": "pods", "name": "demo-pod", "uid": "demo-pod-uid"}
    server.allocate("default", CLAIM, [result], reserved_for=[pod])


def _show_claim(chosen: Offered) -> None:
    attributes = chosen.device.attributes
    selected = next((n for n in ("renderNode", "serial", "product", "kind") if n in attributes), "")
    domain = chosen.domain.dra_driver
    own = f'device.attributes["{domain}"].{selected}'
    test = f"has({own})"
    if attributes.get(selected) is not True:
        test += f' &&\n        {own} == "{attributes.get(selected, "")}"'
    print("Its claim names a DeviceClass such as:\n")
    print(
        indented(
            "apiVersion: resource.k8s.io/v1\nkind: DeviceClass\nmetadata:\n"
            f"  name: {CLASS}\nspec:\n  selectors:\n  - cel:\n      expression: >-\n"
            f'        device.driver == "{domain}" &&\n        {test}'
        )
    )
    print("\nThe scheduler's part is played here: it allocates the device to the claim.")


def _show_received(injected: Injected, chosen: Offered) -> None:
    nodes = ", ".join(injected.paths) or "no node"
    mounts = "" if injected.mounts else ", no host mount"
    what = chosen.device.attributes.get("name", chosen.name)
    print(f"\nA container of the pod finds {nodes}, and nothing else of {what}.")
    print(f"No privilege{mounts}.")

"""The frontend: one extended resource towards the kubelet for each kind, and for each selector.

Each resource has its socket, its registration and its own failures: what goes wrong with one is
said on the fault board, tried again, and costs no other.
"""

from __future__ import annotations

from collections.abc import Callable

from hardpoint.agent import Agent
from hardpoint.contract import hookimpl
from hardpoint.model import Offer
from hardpoint.node import Node
from hardpoint_deviceplugin.settings import DevicePluginSettings


class DevicePlugin:
    """Offers devices through the kubelet's device plugin API, for clusters without DRA."""

    Settings = DevicePluginSettings

    def __init__(self, node: Node, settings: DevicePluginSettings) -> None:
        self.node, self.settings = node, settings
        self.needs_cdi = settings.devices == "cdi"

    @hookimpl
    async def serve_frontend(self, agent: Agent, ready: Callable[[], None]) -> None:
        """Serve every resource; ready once the kubelet listens to all of them.

        Of two agents the one that does not write is ready at once, and waits for its turn.
        """
        from hardpoint_deviceplugin.serving import Serving

        await Serving(agent, self.settings, ready).run()

    @hookimpl
    def preview_resources(self, offer: Offer) -> dict[str, list[str]]:
        """Return the devices of each resource, were they offered now and held by nobody."""
        from hardpoint_deviceplugin.resources import Arranger

        arranged = Arranger(self.settings).arrange(offer, ())
        return {
            name: list(dict.fromkeys(entry.offered.name for entry in resource.entries))
            for name, resource in arranged.resources.items()
        }

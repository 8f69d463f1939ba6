"""Metrics for Prometheus: what is offered, who has what, what fails, what is not released yet.

Nothing is asked of anybody for a scrape: it is what the agent knows. No library is loaded for it.
"""

from __future__ import annotations

import logging
import time

from pydantic import field_validator

from hardpoint.agent import Agent
from hardpoint.contract import hookimpl
from hardpoint.errors import BadValue
from hardpoint.model import Event
from hardpoint.node import Node
from hardpoint.parameters import Settings
from hardpoint.policies.metrics.counting import Counts
from hardpoint.policies.metrics.exposition import CONTENT_TYPE, text
from hardpoint.policies.metrics.families import families
from hardpoint.policies.metrics.serving import PATH, Address, Page

_log = logging.getLogger("hardpoint.metrics")

NOTE = "metrics"


class MetricsSettings(Settings):
    """The section ``[policy.metrics]``."""

    listen: str = "127.0.0.1:9479"
    """Where `/metrics` is served: an address and a port, `0.0.0.0:9479` or `[::]:9479` for every
    interface, or the path of a unix socket, which its owner and group may use. Nobody is asked who
    they are: what is served names devices, pods and claims."""

    @field_validator("listen")
    @classmethod
    def _is_address(cls, listen: str) -> str:
        try:
            Address.of(listen)
        except BadValue as error:
            raise ValueError(str(error)) from error
        return listen


class Metrics:
    """Serves metrics over HTTP. It decides nothing."""

    Settings = MetricsSettings

    def __init__(self, node: Node, settings: MetricsSettings) -> None:
        self.node, self.settings = node, settings
        self._counts = Counts()

    @hookimpl
    async def observe(self, event: Event) -> None:
        """Count what happens."""
        self._counts.count(event)

    @hookimpl
    async def serve_policy(self, agent: Agent) -> None:
        """Answer scrapes for the life of the agent."""

        def listening(where: str) -> None:
            _log.info("metrics served at=%s path=%s", where, PATH)
            agent.note(NOTE, {"served": f"{where}{PATH}" if ":" in where else where})

        page = Page(Address.of(self.settings.listen), lambda: self._page(agent), CONTENT_TYPE)
        await page.run(listening)

    def _page(self, agent: Agent) -> str:
        known = families(agent.status(), time.time())
        return text((*known, *self._counts.families()))

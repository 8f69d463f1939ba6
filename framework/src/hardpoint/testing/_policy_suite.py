"""What the parts of the contract for policies share: what a subclass says, and the fixtures."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import pytest

from hardpoint.errors import HookFault, Refuse, TryAgain
from hardpoint.grants import Evidence, Release
from hardpoint.testing._policy_node import PolicyNode, policy_node

_F = TypeVar("_F", bound=Callable[..., Any])

RAISED = (HookFault, Refuse, TryAgain)
"""How the agent sees that a policy raised."""
_LONGEST = 1024
_PATTERN = re.compile(r"[a-z0-9*?\[\]!.-]+")
CAMEL = re.compile(r"[A-Z][A-Za-z0-9]*")


def needs(hook: str) -> Callable[[_F], _F]:
    """Mark a test that is about one hook: a policy without it has no such test."""

    def mark(test: _F) -> _F:
        test.__dict__["needs"] = hook
        return test

    return mark


class PolicySuite:
    """What a subclass of ``PolicyContract`` may say of its policy."""

    pytestmark = pytest.mark.anyio

    plugin: ClassVar[type]
    settings: ClassVar[Mapping[str, Any]] = {}
    reads: ClassVar[bool] = True
    """False for a policy that decides by what it is asked alone, without files, sockets or the API
    server."""
    writes_api: ClassVar[bool] = True
    """False for a ``serve_policy`` that writes nothing to the API server."""

    def __init_subclass__(cls, **how: Any) -> None:
        """Leave out the tests of hooks that the policy does not have: pytest collects no None."""
        super().__init_subclass__(**how)
        if not hasattr(cls, "plugin"):
            return
        tests = {n: f for base in reversed(cls.__mro__) for n, f in vars(base).items() if f}
        for name, test in tests.items():
            hook = getattr(test, "needs", "")
            if hook and name not in vars(cls):
                setattr(cls, name, test if callable(getattr(cls.plugin, hook, None)) else None)

    def configure(self, root: Path) -> Mapping[str, Any]:
        """Return its settings, where they name files: below ``root``, which is empty."""
        return self.settings

    async def arrange(self, node: PolicyNode) -> None:
        """Let what it reads be there and say something: a grant, a label to set.

        Nobody uses any device then, and nothing is vetoed that a test has to see offered.
        """

    async def make_unreadable(self, node: PolicyNode) -> None:
        """Let what it reads be there and not be readable, for root too: a directory, a dead socket.

        Nothing that it said before may be true any more of its own accord.
        """
        pytest.fail("give your PolicyContract `make_unreadable`, or say that it `reads` nothing")

    async def make_readable(self, node: PolicyNode) -> None:
        """Undo ``make_unreadable``: all is as it was arranged."""
        pytest.fail("give your PolicyContract `make_readable`, or say that it `reads` nothing")

    async def make_unreportable(self, node: PolicyNode) -> None:
        """Let the place be unusable where ``report_grant`` and ``report_release`` say something."""
        pytest.skip("nothing makes its reports fail")

    async def use(self, node: PolicyNode, release: Release) -> None:
        """Let somebody use the devices of a release, as this source of evidence would see it."""
        pytest.fail("give your PolicyContract `use`: who uses a device must be found")

    async def until_served(self, node: PolicyNode) -> None:
        """Wait until ``serve_policy`` has done what was arranged. Raises ``TimeoutError``."""
        pytest.fail("give your PolicyContract `until_served`")

    async def change(self, node: PolicyNode) -> None:
        """Let what it reads say something else than arranged."""
        pytest.skip("nothing makes it hint")

    # -- fixtures ---------------------------------------------------------------------------------

    @pytest.fixture
    def anyio_backend(self) -> str:
        """Serve the kubelet with grpc.aio, which runs on asyncio alone."""
        return "asyncio"

    @pytest.fixture
    async def node(self, anyio_backend: str) -> AsyncIterator[PolicyNode]:
        """A node with a kubelet, an API server and GPUs, as ``arrange`` makes it."""
        async with policy_node(self.plugin, self.configure) as node:
            await self.arrange(node)
            yield node

    # -- small things -----------------------------------------------------------------------------

    def needs_source(self) -> None:
        """Skip a test of what it reads, where it reads nothing."""
        if not self.reads:
            pytest.skip("it reads nothing")


def is_sentence(text: object) -> bool:
    """Say whether something is words for people: one line, not too long, more than one of them."""
    if not isinstance(text, str) or len(text) > _LONGEST:
        return False
    return " " in text.strip() and text.isprintable()


def are_patterns(kinds: object) -> bool:
    """Say whether something is a tuple of patterns of kinds, one at least."""
    if not isinstance(kinds, tuple) or not kinds:
        return False
    return all(isinstance(one, str) and _PATTERN.fullmatch(one) for one in kinds)


def nobody(evidence: Evidence) -> bool:
    """Say whether evidence lets a device go."""
    return not evidence.users and not evidence.why

"""The relay: every call into a plugin, under its hook's dispatch, fault rule and time budget.

Plain functions run in worker threads, ``async def`` as tasks. For one plugin, hook and subject
there is at most one call under way: a budget ends the waiting, not the work, and whoever asks again
joins the call that still runs. So a hung ioctl cannot pile up threads.
"""

from __future__ import annotations

import inspect
import logging
import random
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup
from pluggy import HookImpl

from hardpoint import hookspecs
from hardpoint._core.plugins.calling import (
    Escaped,
    checked,
    contained,
    contained_async,
    drained,
    drained_async,
    refusal,
    said,
)
from hardpoint._core.plugins.discovery import Plugin, Plugins
from hardpoint._core.plugins.faults import FaultBoard
from hardpoint._core.plugins.listing import listing, listing_async
from hardpoint.contract import Dispatch, Fault, Spec, spec_of
from hardpoint.errors import HardpointError, HookFault, HookLate, Refuse, TryAgain

_log = logging.getLogger("hardpoint.relay")

THREADS_PER_PLUGIN = 64
"""Claims of one driver that are prepared at once; a hung plugin takes threads from no other."""


@dataclass(slots=True)
class _Call:
    done: anyio.Event
    answer: Any = None
    error: Exception | None = None


class Relay:
    """Calls hooks of the plugins that run. Enter it as an async context manager.

    Leaving it cancels what still runs as a task and abandons what hangs in a thread.
    """

    def __init__(self, plugins: Plugins, board: FaultBoard) -> None:
        self.plugins, self.board = plugins, board
        self._running: dict[tuple[str, str, str], _Call] = {}
        self._limiters: dict[str, anyio.CapacityLimiter] = {}
        self._tasks: TaskGroup

    async def __aenter__(self) -> Relay:
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        return self

    async def __aexit__(self, *exc: Any) -> bool | None:
        self._tasks.cancel_scope.cancel()
        return await self._tasks.__aexit__(*exc)

    # -- who is asked -----------------------------------------------------------------------------

    def implementations(self, hook: str) -> dict[str, HookImpl]:
        """Return the implementations of a hook by plugin id, in order of role and name."""
        caller = getattr(self.plugins.manager.hook, hook)
        found = {impl.plugin_name: impl for impl in caller.get_hookimpls()}
        return {p.id: found[p.id] for p in self.plugins.all if p.id in found}

    def implements(self, driver: str, hook: str) -> bool:
        """Say whether a driver, by its short name, implements a hook."""
        return f"driver/{driver}" in self.implementations(hook)

    def parameters_model(self, driver: str) -> Any:
        """Return the claim parameters' model of a driver, or None."""
        plugin = self.plugins.find("driver", driver)
        return plugin.parameters_model if plugin else None

    def known_kinds(self) -> tuple[str, ...]:
        """Return the kinds of claim parameters that some running driver takes."""
        models = [p.parameters_model for p in self.plugins.running("driver")]
        return tuple(sorted(model.kind for model in models if model is not None))

    def running(self, driver: str, hook: str, subject: str) -> bool:
        """Say whether a call to a driver has not ended yet, late ones included."""
        return (f"driver/{driver}", hook, subject) in self._running

    def is_asked(self, hook: str, plugin: str, subject: str = "") -> bool:
        """Say whether a call to a plugin, by id, has not ended yet."""
        return (plugin, hook, subject) in self._running

    def soon(self, act: Callable[[], Awaitable[Any]]) -> None:
        """Do something beside what runs, within the agent's life; what it raises is its own."""

        async def run() -> None:
            try:
                await act()
            except HardpointError as error:
                _log.debug("not done: %s", error)

        self._tasks.start_soon(run)

    def later(self, seconds: float, act: Callable[[], None]) -> None:
        """Do something once, in a while, unless the agent ends first."""

        async def wait() -> None:
            await anyio.sleep(seconds)
            act()

        self._tasks.start_soon(wait)

    # -- dispatch ---------------------------------------------------------------------------------

    async def gather(self, hook: str, subject: str = "", **arguments: Any) -> dict[str, Any]:
        """Ask all at once; return the answers by plugin id.

        For a hook whose faults refuse, raises the first fault by name after all have answered.
        """
        spec, answers = _spec(hook, Dispatch.GATHER), {}
        faults: dict[str, HookFault | Refuse | TryAgain] = {}

        async def ask(plugin: str, implementation: HookImpl) -> None:
            try:
                answers[plugin] = await self._ask(implementation, hook, subject, spec, arguments)
            except (HookFault, Refuse, TryAgain) as fault:
                faults[plugin] = fault

        implementations = self.implementations(hook)
        async with anyio.create_task_group() as tasks:
            for plugin, implementation in implementations.items():
                tasks.start_soon(ask, plugin, implementation)
        if faults and spec.on_fault is Fault.REFUSE:
            raise faults[min(faults)]
        return {plugin: answers[plugin] for plugin in implementations if plugin in answers}

    async def owner(self, hook: str, driver: str, subject: str, **arguments: Any) -> Any:
        """Ask the driver that published the device; None if it does not implement the hook.

        Raises ``HookFault``, ``TryAgain`` or ``Refuse``.
        """
        spec = _spec(hook, Dispatch.OWNER)
        implementation = self.implementations(hook).get(f"driver/{driver}")
        if implementation is None:
            return None
        return await self._ask(implementation, hook, subject, spec, arguments)

    async def plugin(self, hook: str, plugin: str, subject: str = "", **arguments: Any) -> Any:
        """Ask one plugin, by id, what ``gather`` would ask all.

        Raises ``HookFault``, ``TryAgain`` or ``Refuse``; ``LookupError`` without an implementation.
        """
        implementation = self.implementations(hook)[plugin]
        spec = _spec(hook, Dispatch.GATHER)
        return await self._ask(implementation, hook, subject, spec, arguments)

    async def first(self, hook: str, subject: str, **arguments: Any) -> Any:
        """Ask one after the other, until one has an answer; None if none has."""
        spec = _spec(hook, Dispatch.FIRST)
        for implementation in self.implementations(hook).values():
            try:
                answer = await self._ask(implementation, hook, subject, spec, arguments)
            except HookFault:
                if spec.on_fault is Fault.REFUSE:
                    raise
                continue
            if answer is not None:
                return answer
        return None

    async def fold(self, hook: str, subject: str, value_name: str, **arguments: Any) -> Any:
        """Ask one after the other, each given what the one before answered."""
        spec = _spec(hook, Dispatch.FOLD)
        for implementation in self.implementations(hook).values():
            try:
                answer = await self._ask(implementation, hook, subject, spec, arguments)
            except HookFault:
                if spec.on_fault is Fault.REFUSE:
                    raise
                continue
            arguments = {**arguments, value_name: answer}
        return arguments[value_name]

    def supervise(
        self, hook: str, arguments: Callable[[str], dict[str, Any]], role: str = ""
    ) -> None:
        """Run a long-lived hook of every plugin, each started again with back-off when it ends.

        ``arguments`` makes what one plugin is given, from its id; with a ``role``, only plugins of
        that are meant.
        """
        _spec(hook, Dispatch.SUPERVISED)
        for plugin, implementation in self.implementations(hook).items():
            if role and not plugin.startswith(f"{role}/"):
                continue
            self._tasks.start_soon(self._supervise, plugin, hook, implementation, arguments)

    # -- one call ---------------------------------------------------------------------------------

    async def _ask(
        self,
        implementation: HookImpl,
        hook: str,
        subject: str,
        spec: Spec,
        arguments: dict[str, Any],
    ) -> Any:
        plugin = implementation.plugin_name
        source = " ".join(word for word in (plugin, hook, subject) if word)
        key = (plugin, hook, subject)
        call = self._running.get(key)
        if call is None:
            call = self._running[key] = _Call(anyio.Event())
            bound = {name: arguments[name] for name in implementation.argnames if name in arguments}
            self._tasks.start_soon(self._run, key, call, implementation, bound)
        with anyio.move_on_after(spec.budget):
            await call.done.wait()
        if not call.done.is_set():
            fault: HookFault = HookLate(plugin, hook, f"no answer within {spec.budget:g} s")
        elif call.error is None:
            self.board.clear(source)
            return call.answer
        elif isinstance(call.error, Refuse | TryAgain):
            raise call.error
        else:
            fault = HookFault(plugin, hook, said(call.error))
        self.board.record(source, fault.what, cost=_COSTS[spec.on_fault])
        raise fault from call.error

    async def _run(
        self,
        key: tuple[str, str, str],
        call: _Call,
        implementation: HookImpl,
        bound: dict[str, Any],
    ) -> None:
        try:
            call.answer = checked(key[1], await self._invoke(key, implementation, bound))
        except (Refuse, TryAgain) as error:
            call.error = refusal(error)
        except Exception as error:  # noqa: BLE001 - a stranger's code
            call.error = error
            _log.debug("plugin raised plugin=%s hook=%s", key[0], key[1], exc_info=error)
        except BaseException:
            call.error = Escaped("the agent is ending")  # who joined it must not take it for done
            raise
        finally:
            del self._running[key]
            call.done.set()

    async def _invoke(
        self, key: tuple[str, str, str], implementation: HookImpl, bound: dict[str, Any]
    ) -> Any:
        plugin, hook, _ = key
        function: Callable[[], Any] = partial(implementation.function, **bound)
        publishes = hook == hookspecs.publish_devices.__name__
        if _is_async(implementation.function):
            answer = partial(listing_async if publishes else drained_async, function)
            return await contained_async(answer)
        work = partial(listing if publishes else drained, function)
        limiter = self._limiters.get(plugin)
        if limiter is None:
            limiter = self._limiters[plugin] = anyio.CapacityLimiter(THREADS_PER_PLUGIN)
        inside = partial(contained, work)
        return await anyio.to_thread.run_sync(inside, limiter=limiter, abandon_on_cancel=True)

    async def _supervise(
        self,
        plugin: str,
        hook: str,
        implementation: HookImpl,
        arguments: Callable[[str], dict[str, Any]],
    ) -> None:
        source, delays = f"{plugin} {hook}", backoff()
        while True:
            given = arguments(plugin)
            bound = {name: given[name] for name in implementation.argnames if name in given}
            started = anyio.current_time()
            try:
                await self._invoke((plugin, hook, ""), implementation, bound)
                what = "it ended; it should run for the life of the agent"
            except Exception as error:  # noqa: BLE001 - a stranger's code
                _log.debug("plugin raised plugin=%s hook=%s", plugin, hook, exc_info=error)
                what = said(error)
            if anyio.current_time() - started > 60:
                delays = backoff()
            self.board.record(source, what, cost="it is started again with back-off")
            await anyio.sleep(next(delays))


_COSTS = {Fault.SKIP: "its answer is left out", Fault.REFUSE: "the operation was refused"}


def backoff(first: float = 0.5, last: float = 60.0) -> Iterator[float]:
    """Yield delays in seconds that double up to ``last``, each shortened by up to half."""
    delay = first
    while True:
        yield delay * random.uniform(0.5, 1.0)  # noqa: S311 - spreads load, guards nothing
        delay = min(delay * 2, last)


def _spec(hook: str, dispatch: Dispatch) -> Spec:
    spec = spec_of(getattr(hookspecs, hook))
    if spec.dispatch is not dispatch:
        raise AssertionError(f"{hook} is dispatched by {spec.dispatch.value}")
    return spec


def _is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)


__all__ = ["Plugin", "Relay", "backoff"]

"""One call of a stranger's function: what comes out of it is an answer, or an ``Exception``.

A plugin may raise what would end the program or cancel the task it runs in, answer without end, or
put anything into the values of the model. Here all of that becomes the plugin's own fault.
"""

from __future__ import annotations

import inspect
import math
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, TypeVar, get_origin

import anyio

from hardpoint import reading
from hardpoint._core.plugins.wellformed import flaw
from hardpoint.errors import Refuse, TryAgain
from hardpoint.grants import Evidence, Grant, ReapResult
from hardpoint.model import Addition, AttributeInfo, Delivery, Health, Verdict, Veto
from hardpoint.reading import printable

_T = TypeVar("_T")

MOST_ITEMS = 1 << 14
"""Items of one answer: a node has hundreds of devices, and a generator may have no end."""

_ANSWERS: dict[str, Any] = {
    "admit_claim": Verdict | None,
    "annotate_delivery": Addition | None,
    "check_device": Health,
    "deliver_device": Delivery,
    "find_users": Evidence,
    "grant_devices": tuple[Grant, ...],
    "reap_pod": ReapResult | None,
    "admit_reap": Verdict | None,
    "describe_attributes": tuple[AttributeInfo, ...],
    "isolate_delivery": Delivery,
    "rank_devices": tuple[str, ...],
    "veto_devices": tuple[Veto, ...],
}
"""What a hook may answer; what ``publish_devices`` lists is checked item by item."""

MOST_LABELS = 256
"""Labels that one plugin says a node has earned: with very many the API takes none of them, nor
what else is said of the node with them."""
_LONGEST_REFUSAL = 1000


class Escaped(Exception):
    """What a plugin raised that is no ``Exception``: it ends the call, and not the agent."""


class TooMany(Exception):
    """An answer without an end."""


# -- calling --------------------------------------------------------------------------------------


def contained(function: Callable[[], _T]) -> _T:
    """Call, in a worker thread. Raises ``Escaped`` for what is no ``Exception``."""
    try:
        return function()
    except Exception:
        raise
    except BaseException as error:
        raise Escaped from error


async def contained_async(function: Callable[[], Awaitable[_T]]) -> _T:
    """Do the same for a coroutine, which may be cancelled only by the agent's own end."""
    try:
        return await function()
    except Exception:
        raise
    except BaseException as error:
        if anyio.current_effective_deadline() == -math.inf:
            raise
        raise Escaped from error


def limited(function: Callable[[], _T], seconds: float) -> _T:
    """Call in a thread of its own and wait so long for it; what hangs is left behind.

    Raises what it raises, ``Escaped``, and ``TimeoutError``.
    """
    answers: list[_T] = []
    errors: list[Exception] = []

    def work() -> None:
        try:
            answers.append(contained(function))
        except Exception as error:  # noqa: BLE001 - it is raised where it is waited for
            errors.append(error)

    thread = threading.Thread(target=work, name="hardpoint-start", daemon=True)
    thread.start()
    thread.join(seconds)
    for error in errors:
        raise error
    if not answers:
        raise TimeoutError(f"it has not returned within {seconds:g} s")
    return answers[0]


def drained(function: Callable[..., Any]) -> Any:
    """Call, and run a generator to its end here in the thread rather than on the loop."""
    answer = function()
    return tuple(bounded(answer)) if isinstance(answer, Iterator) else answer


async def drained_async(function: Callable[..., Any]) -> Any:
    """Call what is ``async``; one that yields is run to its end."""
    answer = function()
    if not inspect.isasyncgen(answer):
        return await answer
    items: list[Any] = []
    async for item in answer:
        items.append(item)
        check_bound(len(items))
    return tuple(items)


def bounded(items: Iterable[_T]) -> Iterator[_T]:
    """Yield items. Raises ``TooMany`` where there are too many."""
    for count, item in enumerate(islice(items, MOST_ITEMS + 1), 1):
        check_bound(count)
        yield item


def check_bound(count: int) -> None:
    """Raise ``TooMany`` for more items than an answer may have."""
    if count > MOST_ITEMS:
        raise TooMany(f"answered more than {MOST_ITEMS} items")


# -- what came out --------------------------------------------------------------------------------


def checked(hook: str, answer: Any) -> Any:
    """Return an answer, a list as a tuple. Raises ``TypeError`` where it is not what it must be."""
    if hook == "label_node":
        return _labels(answer)
    wanted = _ANSWERS.get(hook)
    if wanted is None:
        return answer
    if get_origin(wanted) is tuple and isinstance(answer, list | set | frozenset):
        answer = tuple(answer)
    if isinstance(answer, tuple):
        check_bound(len(answer))
    wrong = flaw(answer, wanted)
    if wrong:
        whole = wrong.removeprefix(": found ")
        raise TypeError(f"answered {whole if whole != wrong else wrong}")
    return answer


def _labels(answer: Any) -> dict[Any, Any]:
    """Return labels, taken out of whatever held them. Raises ``TypeError``, and ``TooMany``."""
    if not isinstance(answer, Mapping):
        raise TypeError(f"answered {type(answer).__name__}, want mapping")
    if len(answer) > MOST_LABELS:
        raise TooMany(f"answered {len(answer)} labels, at most {MOST_LABELS} are read")
    return dict(answer.items())


def refusal(error: Refuse | TryAgain) -> Refuse | TryAgain:
    """Return a plugin's refusal with a text that every log, ledger and pod event takes."""
    why = _text(error)[:_LONGEST_REFUSAL] or type(error).__name__
    if isinstance(error, TryAgain):
        return TryAgain(why, error.after)
    return Refuse(why, error.reason if isinstance(error.reason, str) else "refused")


_QUOTING = (ValueError, KeyError, UnicodeDecodeError, UnicodeEncodeError)
"""Raised by Python itself with what it stumbled over, which may be a serial number."""


def said(error: BaseException) -> str:
    """Return what a plugin raised in one line: its type, and the first line of its text.

    Where the text quotes a value, the place instead.
    """
    if isinstance(error, Escaped) and error.__cause__ is not None:
        error = error.__cause__
    if type(error) in _QUOTING:
        return reading.said(error)
    text = _text(error)[:200]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _text(error: BaseException) -> str:
    try:
        lines = str(error).strip().splitlines()
    except Exception:  # noqa: BLE001 - a stranger's __str__
        return ""
    return printable(lines[0].encode("utf-8", "replace").decode()) if lines else ""

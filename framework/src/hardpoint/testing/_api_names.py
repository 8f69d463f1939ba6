"""Rules that several kinds of resource.k8s.io share: driver and pool names, keys, taints, nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hardpoint.testing import _api_text as text
from hardpoint.testing._api_status import Causes, Json

_SELECTORS: Mapping[str, tuple[str, str]] = {
    "In": ("values", "must be specified when `operator` is 'In' or 'NotIn'"),
    "Exists": ("", "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"),
    "Gt": ("value", "must be specified single value when `operator` is 'Lt' or 'Gt'"),
}
_ALIKE: Mapping[str, str] = {"NotIn": "In", "DoesNotExist": "Exists", "Lt": "Gt"}


class Names:
    """Checks of names; ``minor`` is the release, since the paths of complaints have changed."""

    def __init__(self, causes: Causes, minor: int) -> None:
        self._causes, self._minor = causes, minor

    def driver(self, path: str, name: str, *, caseless: bool = False) -> None:
        """Check a driver's name: case does not matter to the server, which says so in claims."""
        if not name and self._minor >= 35:
            self._causes.required(path)
            return
        if not name:
            self._causes.required(path)
        if len(name.encode()) > 63:
            self._causes.too_long(path, 63)
        faults = text.of_caseless if caseless and self._minor >= 36 else text.of_subdomain
        for why in faults(name.lower()):
            self._causes.invalid(path, name, why)

    def pool(self, path: str, name: str) -> None:
        """Check a pool's name: subdomains with slashes between."""
        if not name:
            self._causes.required(path)
            return
        if len(name.encode()) > 253:
            self._causes.too_long(path, 253)
        for part in name.split("/"):
            self._causes.say(path, part, text.of_subdomain)

    def key(self, path: str, key: str) -> str:
        """Return where a bad key of a map is reported: at the map since 1.36."""
        return path if self._minor >= 36 else f"{path}[{key}]"

    def qualified(self, path: str, name: str) -> None:
        """Check the name of an attribute or capacity; with two slashes nobody looks at it."""
        parts = name.split("/")
        if len(parts) > 2:
            return
        for what, part in zip(("domain", "name")[-len(parts) :], parts, strict=True):
            if not part and (len(parts) == 2 or self._minor < 35):
                self._empty(path, f"the {what} must not be empty" if len(parts) == 2 else "")
            elif what == "domain":
                self.driver(path, part)
            else:
                if len(part.encode()) > 32:
                    self._causes.too_long(path, 32)
                self._causes.say(path, part, text.of_identifier)

    def _empty(self, path: str, detail: str) -> None:
        if self._minor < 35:
            self._causes.required(path, detail or "name required")
        else:
            self._causes.invalid(path, "", detail)

    def unique(
        self, path: str, keys: Sequence[str], field: str = "", items: Sequence[object] = ()
    ) -> None:
        """Complain of each item whose key was there before.

        1.34 names the key's field too; later releases show the whole item where it is given.
        """
        for index, key in enumerate(keys):
            if key in keys[:index]:
                old = self._minor < 35
                below = f".{field}" if field and old else ""
                shown = items[index] if items and not old else key
                self._causes.duplicate(f"{path}[{index}]{below}", shown)

    def node_selector(self, path: str, selector: Json) -> None:
        """Check a node selector's terms."""
        path, terms = f"{path}.nodeSelectorTerms", selector.get("nodeSelectorTerms") or []
        if not terms:
            self._causes.required(path, "must have at least one node selector term")
        for index, term in enumerate(terms):
            for number, asked in enumerate(term.get("matchExpressions") or ()):
                self._expression(f"{path}[{index}].matchExpressions[{number}]", asked)

    def _expression(self, path: str, asked: Json) -> None:
        operator, values = asked.get("operator", ""), asked.get("values") or []
        wanted, detail = _SELECTORS.get(_ALIKE.get(operator, operator), ("operator", ""))
        if wanted == "operator":
            detail = "not a valid selector operator"
            self._causes.invalid(f"{path}.operator", operator, detail)
        elif (wanted == "values" and not values) or (wanted == "value" and len(values) != 1):
            self._causes.required(f"{path}.values", detail)
        elif not wanted and values:
            self._causes.forbidden(f"{path}.values", detail)
        self._causes.say(f"{path}.key", asked.get("key", ""), text.of_key)
        for index, value in enumerate(values):
            self._causes.say(f"{path}.values[{index}]", value, text.of_value)


def check_taint(causes: Causes, path: str, taint: Json, minor: int) -> None:
    """Check a device taint."""
    effects = ("NoExecute", "NoSchedule", *(("None",) if minor >= 35 else ()))
    causes.say(f"{path}.key", taint.get("key", ""), text.of_key)
    causes.say(f"{path}.value", taint.get("value", ""), text.of_value)
    if not taint.get("effect"):
        causes.required(f"{path}.effect")
    elif taint["effect"] not in effects:
        causes.unsupported(f"{path}.effect", taint["effect"], effects)

"""What the real API server refuses in Events of core v1."""

from __future__ import annotations

from hardpoint.testing import _api_text as text
from hardpoint.testing._api_status import Causes, Json


def check_event(body: Json) -> Causes:
    """Return what is wrong with an event.

    One with ``eventTime`` is of the newer form, which names its reporter and what was done.
    """
    causes = Causes()
    about, own = body.get("involvedObject") or {}, body["metadata"].get("namespace", "")
    where = about.get("namespace", "")
    if where != own and not (not where and own == "default"):
        detail = "does not match event.namespace"
        causes.invalid("involvedObject.namespace", where, detail)
    if not body.get("eventTime"):
        return causes
    reporter = body.get("reportingComponent", "")
    if not reporter:
        causes.required("reportingComponent")
    causes.say("reportingComponent", reporter, text.of_key)
    for key in ("reportingInstance", "action", "reason", "type"):
        if not body.get(key):
            causes.required(key)
    return causes

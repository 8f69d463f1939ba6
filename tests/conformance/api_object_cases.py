"""One object through its life: create, read, replace, delete, and what is refused on the way."""

from __future__ import annotations

from typing import Any

from conformance.api_slice_cases import named, sliced
from conformance.exchange import GROUP, Answer, Api, Json

SLICES = f"{GROUP}/resourceslices"


def body(api: Api, word: str = "a", devices: Any = None, **metadata: Any) -> Json:
    return sliced(devices, {"name": api.name(word), **metadata})


async def created(api: Api, word: str = "a", devices: Any = None, **metadata: Any) -> Answer:
    return await api.ask("POST", SLICES, body(api, word, devices, **metadata))


def path(api: Api, word: str = "a") -> str:
    return f"{SLICES}/{api.name(word)}"


async def an_object_is_there_until_it_is_deleted(api: Api) -> Any:
    made = await created(api, devices=named(1))
    read = await api.ask("GET", path(api))
    gone = await api.ask("DELETE", path(api))
    return api.look(
        made, read, gone, await api.ask("GET", path(api)), await api.ask("DELETE", path(api))
    )


async def a_name_is_taken_once(api: Api) -> Any:
    await created(api)
    return api.look(await created(api))


async def a_name_is_made_from_a_prefix(api: Api) -> Any:
    looks = []
    for prefix in ("gen-", "x" * 80):
        whole = api.name(prefix)
        made = await api.ask("POST", SLICES, sliced(metadata={"generateName": whole}))
        name = made.body["metadata"]["name"]
        again = await api.ask("POST", SLICES, sliced(metadata={"generateName": whole}))
        looks.append([name[:-5] == whole[:58], len(name) - len(whole[:58]), again.code])
    return looks


async def a_given_name_wins_over_a_prefix(api: Api) -> Any:
    return api.look(await created(api, generateName=api.name("gen-")))


async def an_update_from_an_old_version_is_a_conflict(api: Api) -> Any:
    old = (await created(api)).body
    new = await api.ask("PUT", path(api), old | {"spec": old["spec"] | {"devices": named(1)}})
    return api.look(new, await api.ask("PUT", path(api), old))


async def an_update_need_not_say_of_which_version(api: Api) -> Any:
    await created(api)
    return api.look(await api.ask("PUT", path(api), body(api, devices=named(1))))


async def an_update_that_changes_nothing_makes_no_new_version(api: Api) -> Any:
    made = await created(api, devices=named(1))
    again = await api.ask("PUT", path(api), made.body)
    return [again.code, again.version == made.version]


async def only_the_spec_makes_a_new_generation(api: Api) -> Any:
    made = (await created(api)).body
    labelled = await api.ask(
        "PUT", path(api), made | {"metadata": made["metadata"] | {"labels": {"a": "b"}}}
    )
    filled = labelled.body | {"spec": made["spec"] | {"devices": named(1)}}
    grown = await api.ask("PUT", path(api), filled)
    return [one.body["metadata"]["generation"] for one in (labelled, grown)]


async def an_update_names_the_object_of_its_url(api: Api) -> Any:
    await created(api)
    return api.look(await api.ask("PUT", path(api), body(api, "b")))


async def an_update_creates_nothing(api: Api) -> Any:
    with_version = body(api, "b", resourceVersion="1")
    return api.look(
        await api.ask("PUT", path(api, "b"), body(api, "b")),
        await api.ask("PUT", path(api, "b"), with_version),
    )


async def an_update_of_an_object_that_was_made_anew_is_a_conflict(api: Api) -> Any:
    old = (await created(api)).body
    await api.ask("DELETE", path(api))
    await created(api)
    without_version = old | {"metadata": {k: old["metadata"][k] for k in ("name", "uid")}}
    return api.look(
        await api.ask("PUT", path(api), old), await api.ask("PUT", path(api), without_version)
    )


async def what_a_slice_is_of_does_not_change(api: Api) -> Any:
    made = (await created(api)).body
    changes: list[Json] = [
        {"driver": "other.example.com"},
        {"nodeName": "node-b"},
        {"pool": made["spec"]["pool"] | {"name": "b"}},
        {"nodeName": None, "allNodes": True},
    ]
    return api.look(
        *[await api.ask("PUT", path(api), made | {"spec": made["spec"] | c}) for c in changes]
    )


async def a_taint_is_given_the_time_it_was_added(api: Api) -> Any:
    taint = {"key": "a", "effect": "NoSchedule"}
    made = await created(api, devices=named(1, taints=[taint]))
    (stored,) = made.body["spec"]["devices"][0].get("taints", [{}])
    return [set(stored) == {"key", "effect", "timeAdded"}, stored.get("timeAdded", "")[-1:]]


async def times_are_stored_in_utc_to_the_second(api: Api) -> Any:
    looks = []
    for index, time in enumerate(
        ("2026-01-01T01:00:00+01:00", "2026-01-01T00:00:00.75Z", "2026-01-01 00:00:00Z")
    ):
        taint = {"key": "a", "effect": "NoSchedule", "timeAdded": time}
        looks += api.look(await created(api, str(index), named(1, taints=[taint])))
    return looks


# -- deleting -------------------------------------------------------------------------------------


async def a_delete_is_of_the_object_that_was_meant(api: Api) -> Any:
    made = await created(api)
    wrong_uid = {"preconditions": {"uid": "00000000-0000-0000-0000-000000000000"}}
    wrong_version = {"preconditions": {"uid": made.uid, "resourceVersion": "1"}}
    right = {"preconditions": {"uid": made.uid, "resourceVersion": made.version}}
    return api.look(
        *[await api.ask("DELETE", path(api), o) for o in (wrong_uid, wrong_version, right)]
    )


async def a_delete_may_say_how(api: Api) -> Any:
    looks = []
    for index, options in enumerate(
        (
            {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0},
            {"propagationPolicy": "Background"},
            {"dryRun": ["All"]},
            {"invented": 1},
            {"kind": "Node", "apiVersion": "v1"},
            {"propagationPolicy": "Sideways"},
            [],
        )
    ):
        await created(api, str(index))
        looks += api.look(await api.ask("DELETE", path(api, str(index)), options))
    return looks


async def an_object_with_a_finalizer_waits_for_it(api: Api) -> Any:
    await created(api, finalizers=["example.com/wait"])
    going = await api.ask("DELETE", path(api))
    again = await api.ask("DELETE", path(api))
    held = going.body["metadata"]
    more = held | {"finalizers": ["example.com/wait", "example.com/more"]}
    refused = await api.ask("PUT", path(api), going.body | {"metadata": more})
    free = going.body | {"metadata": {k: v for k, v in held.items() if k != "finalizers"}}
    freed = await api.ask("PUT", path(api), free)
    return api.look(going, again, refused, freed, await api.ask("GET", path(api)))


async def a_collection_is_deleted_by_selection(api: Api) -> Any:
    for word, mark in (("a", "x"), ("b", "x"), ("c", "y")):
        await created(api, word, labels={"mark": api.name(mark)})
    gone = await api.ask("DELETE", SLICES, labelSelector=f"mark={api.name('x')}")
    left = [(await api.ask("GET", path(api, word))).code for word in "abc"]
    names = [item["metadata"]["name"] for item in gone.body.get("items", ())]
    return [gone.code, gone.body["kind"], [api.said(name) for name in names], left]


# -- not for good ---------------------------------------------------------------------------------


async def a_dry_run_changes_nothing(api: Api) -> Any:
    tried = await api.ask("POST", SLICES, body(api), dryRun="All")
    missing = await api.ask("GET", path(api))
    made = await created(api)
    filled = made.body | {"spec": made.body["spec"] | {"devices": named(1)}}
    put = await api.ask("PUT", path(api), filled, dryRun="All")
    gone = await api.ask("DELETE", path(api), dryRun="All")
    kept = await api.ask("GET", path(api))
    odd = await api.ask("POST", SLICES, body(api, "b"), dryRun="Some")
    return [*api.look(tried, missing, put, gone, kept, odd), kept.version == made.version]


async def unknown_fields_are_told_of_as_it_is_asked(api: Api) -> Any:
    looks: list[Any] = []
    for index, how in enumerate(("", "Ignore", "Warn", "Strict", "Sometimes")):
        sent = body(api, str(index), [{"name": "gpu-0", "invented": True}])
        query = {"fieldValidation": how} if how else {}
        found = await api.ask("POST", SLICES, sent | {"more": 1}, query=query)
        warned = [api.said(found.headers["warning"])] if "warning" in found.headers else []
        looks += [*api.look(found), warned]
    return looks


# -- who may --------------------------------------------------------------------------------------


async def a_wrong_token_is_nobodys(api: Api) -> Any:
    return api.look(
        await api.ask("GET", SLICES, headers={"Authorization": "Bearer wrong"}),
        await api.ask("GET", SLICES, headers={"Authorization": "Basic YTpi"}),
    )


async def who_shows_no_token_is_anonymous(api: Api) -> Any:
    return api.look(
        *[
            await api.ask(method, path(api), headers={"Authorization": ""})
            for method in ("GET", "DELETE")
        ]
    )


async def what_a_role_does_not_allow_is_forbidden(api: Api) -> Any:
    claims = f"{GROUP}/namespaces/default/resourceclaims"
    looks = []
    for verb, method, where in (
        ("list", "GET", SLICES),
        ("get", "GET", path(api)),
        ("create", "POST", SLICES),
        ("update", "PUT", path(api)),
        ("patch", "PATCH", path(api)),
        ("delete", "DELETE", path(api)),
        ("deletecollection", "DELETE", SLICES),
        ("patch", "PATCH", f"{claims}/c/status"),
        ("list", "GET", claims),
        ("get", "GET", "/api/v1/nodes/n"),
    ):
        async with api.forbidden(verb, where) as headers:
            sent = body(api) if method in ("POST", "PUT", "PATCH") else None
            looks += api.look(await api.ask(method, where, sent, headers=headers))
    return looks

"""A selector says here what the scheduler would say of the same device."""

from __future__ import annotations

import sys

import pytest

import hardpoint.cel
from hardpoint.cel import Selector
from hardpoint.errors import BadValue
from hardpoint.model import Capacity, Device, Domain, Offered, Version

OWN = 'device.attributes["acme.dev"]'
DEVICE = Device(
    name="stick-0",
    kind="usb",
    attributes={
        "vendor": "10c4",
        "speed": 12,
        "serialUnique": True,
        "firmware": Version("1.10.0-rc.2"),
        "resource.kubernetes.io/pciBusID": "0000:00:14.0",
    },
    capacity={"memory": Capacity(value="16Gi")},
    shareable=True,
)


def selects(expression: str) -> bool:
    offered = Offered(device=DEVICE, domain=Domain.named("acme.dev"))
    return Selector(expression).matches(offered)


@pytest.mark.parametrize(
    "expression",
    [
        'device.driver == "acme.dev"',
        f'{OWN}.vendor == "10c4" && {OWN}.speed > 11 && {OWN}.serialUnique',
        'device.attributes["resource.kubernetes.io"].pciBusID == "0000:00:14.0"',
        f"!has({OWN}.renderNode)",
        '!has(device.attributes["other.example"].renderNode)',
        f'{OWN}.?product.orValue("none") == "none"',
        f'{OWN}[?"vendor"].orValue("") == "10c4"',
        f'cel.bind(own, {OWN}, has(own.vendor) && own.vendor.startsWith("10"))',
        f'{OWN}.vendor in ["10c4", "0403"]',
        f'{OWN}.vendor.matches("^[0-9a-f]{{4}}$")',
        'device.capacity["acme.dev"].memory.compareTo(quantity("16384Mi")) == 0',
        'device.capacity["acme.dev"].memory == quantity("16384Mi")',
        'device.capacity["acme.dev"].memory.isGreaterThan(quantity("1G"))',
        f'{OWN}.firmware.isLessThan(semver("1.10.0"))',
        f'{OWN}.firmware.isGreaterThan(semver("1.9.99"))',
        f'{OWN}.firmware.compareTo(semver("1.10.0-rc.10")) < 0',
        f"{OWN}.firmware.minor() == 10",
        'isQuantity("1Gi") && !isQuantity("much") && isSemver("1.2.3") && !isSemver("1.2")',
        "device.allowMultipleAllocations",
    ],
)
def test_what_a_device_class_may_ask_is_true_here_too(expression: str) -> None:
    assert selects(expression)


def test_another_device_is_not_selected() -> None:
    assert not selects(f'{OWN}.vendor == "0403"')


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        (f"{OWN}.product == 'x'", "product"),
        (f"{OWN}.vendor > 3", "overload"),
        (f"{OWN}.vendor", "it is string"),
        ('quantity("much") == quantity("1")', "much"),
        ('device.capacity["acme.dev"].memory.compareTo(semver("1.0.0")) == 0', "one of each"),
    ],
)
def test_an_expression_that_fails_on_a_device_is_an_error_that_names_both(
    expression: str, said: str
) -> None:
    with pytest.raises(BadValue, match="stick-0") as raised:
        selects(expression)
    assert said in str(raised.value)


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("device.", "Syntax error"),
        ("", "Syntax error"),
        ("device.attribute == 1", "undeclared reference to 'device.attribute'"),
        ("device.driver == 3", "no matching overload"),
        ("device.driver", "is string"),
        ("[" * 3000, "recursion"),
        ("true || " * 2000 + "true", "a longer one"),
        ("\ud800", "selector"),
    ],
)
def test_what_is_no_yes_or_no_is_refused_before_any_device_is_seen(
    expression: str, said: str
) -> None:
    with pytest.raises(BadValue, match=said):
        Selector(expression)


def test_without_the_extra_a_selector_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "cel_expr_python", None)
    hardpoint.cel._environment.cache_clear()

    with pytest.raises(BadValue, match=r"hardpoint\[cel\]"):
        Selector("true")


@pytest.mark.parametrize(
    "expression",
    [
        f"{OWN}.serial",
        f'quantity({OWN}.serial).isGreaterThan(quantity("1"))',
        f"semver({OWN}.serial).major() == 1",
        f'{{"semver": {OWN}.serial}}.major() == 1',
    ],
)
def test_no_error_quotes_what_a_device_says_of_itself(expression: str) -> None:
    device = Device(name="stick-0", kind="usb", attributes={"serial": "FTAAAA01"})
    with pytest.raises(BadValue, match="stick-0") as raised:
        Selector(expression).matches(Offered(device=device, domain=Domain.named("acme.dev")))
    assert "FTAAAA01" not in str(raised.value)


@pytest.mark.parametrize(
    "raw", ["secret1", "it's", 'a "b" c', "back\\slash'", "ünicode", "a\nb", "x"]
)
def test_a_key_made_of_a_devices_text_is_left_out_however_cel_quotes_it(raw: str) -> None:
    device = Device(name="stick-0", kind="usb", attributes={"vendor": raw})
    offered = Offered(device=device, domain=Domain.named("acme.dev"))

    with pytest.raises(BadValue) as failed:
        Selector(f"{OWN}[{OWN}.vendor] == 1").matches(offered)

    assert str(failed.value) == (
        "selector, of device stick-0: Key not found in map : …; "
        "want has(…) before it, or .?name.orValue(…)"
    )


def test_an_attribute_that_a_device_lacks_is_named_with_what_guards_it() -> None:
    with pytest.raises(BadValue) as failed:
        selects(f"{OWN}.renderNode")

    assert 'Key not found in map : "renderNode"; want has(…)' in str(failed.value)


def test_what_is_no_cel_is_said_with_its_place_and_whole() -> None:
    with pytest.raises(BadValue) as failed:
        Selector("device.driver ==\n 'x' &&")

    assert "line 2, column" in str(failed.value)
    assert str(failed.value).endswith("want a CEL expression that is true or false")

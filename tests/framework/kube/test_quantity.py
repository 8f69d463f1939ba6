"""Quantities: the spellings that the API server stores (apimachinery, quantity.go)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hardpoint.errors import BadValue
from hardpoint.quantity import amount, canonical


@pytest.mark.parametrize(
    ("written", "stored"),
    [
        ("1024Mi", "1Gi"),
        ("1.5Gi", "1536Mi"),
        ("1500Mi", "1500Mi"),
        ("0.5Ki", "512"),
        ("1000", "1k"),
        ("1000000", "1M"),
        ("1073741824", "1073741824"),
        ("0.5", "500m"),
        (".5", "500m"),
        ("+3", "3"),
        ("-2000", "-2k"),
        ("0", "0"),
        ("0Ki", "0"),
        ("12e6", "12e6"),
        ("12e7", "120e6"),
        ("1E", "1E"),
        ("1e3", "1e3"),
        ("100m", "100m"),
        ("0.0000000001", "1n"),
        ("10.", "10"),
        ("9223372036854775808", "9223372036854775808"),
        ("100000E", "100000E"),
        ("16Ei", "9223372036854775807"),
        ("1.25", "1250m"),
        ("2048Ki", "2Mi"),
        ("1023.5Ki", "1048064"),
    ],
)
def test_a_quantity_has_one_stored_spelling(written: str, stored: str) -> None:
    assert canonical(written) == stored


@pytest.mark.parametrize(
    "text", ["", "Gi", "1gi", "1 Gi", "abc", "1p", "1f", "--1", "1e", "١", "."]
)
def test_what_is_not_a_quantity_is_refused(text: str) -> None:
    with pytest.raises(BadValue):
        canonical(text)


@given(
    st.from_regex(
        r"[+-]?[0-9]{1,20}(\.[0-9]{1,12})?(Ki|Mi|Gi|Ti|[numkMGT]|e[0-9])?", fullmatch=True
    )
)
def test_the_stored_spelling_is_final_and_means_the_same(text: str) -> None:
    once = canonical(text)

    assert canonical(once) == once
    assert amount(once) == amount(text)

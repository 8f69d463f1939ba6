"""The forms of names in the API, and what the real server says of a text that has not the form.

Each function returns the complaints about one text, none if it is well formed. Words and limits:
k8s.io/apimachinery, pkg/util/validation and pkg/api/validate/content.
"""

from __future__ import annotations

import re

_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = rf"{_LABEL}(\.{_LABEL})*"
_IDENTIFIER = "[A-Za-z_][A-Za-z0-9_]*"
_KEY = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_VALUE = f"({_KEY})?"
_ENDS = "and must start and end with an alphanumeric character"


def _wrong(words: str, form: str, *examples: str) -> str:
    listed = " or ".join(f"'{example}', " for example in examples)
    return f"{words} (e.g. {listed}regex used for validation is '{form}')"


_NO_LABEL = _wrong(
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', "
    f"{_ENDS}",
    _LABEL,
    "my-name",
    "123-abc",
)
_NO_SUBDOMAIN = _wrong(
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, "
    f"'-' or '.', {_ENDS}",
    _SUBDOMAIN,
    "example.com",
)
_NO_CASELESS = _wrong(
    f"an RFC 1123 subdomain must consist of alphanumeric characters, '-' or '.', {_ENDS}",
    _SUBDOMAIN,
    "Example.com",
)
_NO_IDENTIFIER = _wrong(
    "a valid C identifier must start with alphabetic character or '_', followed by a string of "
    "alphanumeric characters or '_'",
    _IDENTIFIER,
    *("my_name", "MY_NAME", "MyName"),
)
_CHARACTERS = f"must consist of alphanumeric characters, '-', '_' or '.', {_ENDS}"
_NO_KEY = _wrong(_CHARACTERS, _KEY, "MyName", "my.name", "123-abc")
_NO_PREFIX = (
    f"a valid label key {_NO_KEY} with an optional DNS subdomain prefix and '/' "
    "(e.g. 'example.com/MyName')"
)
_NO_VALUE = _wrong(
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or "
    f"'.', {_ENDS}",
    _VALUE,
    *("MyValue", "my_value", "12345"),
)


def of_label(text: str) -> list[str]:
    """Return what is wrong with a DNS label of at most 63 bytes."""
    said = ["must be no more than 63 characters"] if len(text.encode()) > 63 else []
    if not re.fullmatch(_LABEL, text):
        said.append("must not contain dots" if re.fullmatch(_SUBDOMAIN, text) else _NO_LABEL)
    return said


def of_subdomain(text: str) -> list[str]:
    """Return what is wrong with a DNS subdomain of at most 253 bytes; its labels have no limit."""
    said = ["must be no more than 253 characters"] if len(text.encode()) > 253 else []
    return said if re.fullmatch(_SUBDOMAIN, text) else [*said, _NO_SUBDOMAIN]


def of_caseless(text: str) -> list[str]:
    """Return what is wrong with a DNS subdomain, in the words for one of any case."""
    return [_NO_CASELESS if why is _NO_SUBDOMAIN else why for why in of_subdomain(text)]


def of_identifier(text: str) -> list[str]:
    """Return what is wrong with a C identifier."""
    return [] if re.fullmatch(_IDENTIFIER, text) else [_NO_IDENTIFIER]


def of_key(text: str) -> list[str]:
    """Return what is wrong with a label's key: a name, perhaps after a domain and a slash."""
    domain, slash, name = text.rpartition("/")
    if "/" in domain:
        return [_NO_PREFIX]
    said: list[str] = []
    if slash and not domain:
        said.append("prefix part must be non-empty")
    elif slash:
        said += [f"prefix part {why}" for why in of_subdomain(domain)]
    if not name:
        said.append("name part must be non-empty")
    elif len(name.encode()) > 63:
        said.append("name part must be no more than 63 bytes")
    if not re.fullmatch(_KEY, name):
        said.append(f"name part {_NO_KEY}")
    return said


def of_value(text: str) -> list[str]:
    """Return what is wrong with a label's value."""
    said = ["must be no more than 63 bytes"] if len(text.encode()) > 63 else []
    return said if re.fullmatch(_VALUE, text) else [*said, _NO_VALUE]

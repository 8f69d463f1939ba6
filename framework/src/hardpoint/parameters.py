"""What a claim may ask of a device: opaque parameters, typed, with unknown keys refused.

A driver names a model; a claim (or DeviceClass) carries a block of it::

    opaque:
      driver: hardpoint.dev
      parameters:
        apiVersion: hardpoint.dev/v1
        kind: AcmeFpgaParameters
        image: fft
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from hardpoint._wording import in_words
from hardpoint.errors import HoldDenied

API_VERSION = "hardpoint.dev/v1"

_P = TypeVar("_P", bound="Parameters")


class Parameters(BaseModel):
    """Base of a driver's claim parameters: ``class FpgaParameters(Parameters)`` with typed fields.

    The driver's class names it as ``Parameters = FpgaParameters``. Unknown keys are refused, with
    the known ones named; so are wrong types, without conversion. A field with a default may be left
    out, and a claim without any block gives the model with all its defaults.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True
    )

    api_version: ClassVar[str] = API_VERSION
    """What a block's ``apiVersion`` has to be."""
    kind: ClassVar[str] = ""
    """What a block's ``kind`` has to be, so that blocks for several drivers are told apart. The
    class's own name, unless it is given: ``class P(Parameters, kind="AcmeFpgaParameters")``."""

    def __init_subclass__(
        cls, kind: str = "", api_version: str = API_VERSION, **kwargs: Any
    ) -> None:
        super().__init_subclass__(**kwargs)
        cls.kind, cls.api_version = kind or cls.__name__, api_version


class Settings(BaseModel):
    """Base of a plugin's section of the settings file; unknown keys are refused.

    The plugin's class names it as ``Settings = FpgaSettings`` and is given an object of it; a
    plugin without one is given None.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


def decode(
    model: type[_P] | None,
    blocks: Iterable[Mapping[str, Any]],
    *,
    where: str,
    named: bool = False,
    known_kinds: Iterable[str] = (),
) -> _P | None:
    """Merge parameter blocks, weakest first, into a driver's model.

    A block of another driver's kind is skipped, unless it names this very request (``named``).
    Returns None for a driver without parameters. Raises ``HoldDenied``, saying which key is wrong
    and which would do.
    """
    merged: dict[str, Any] = {}
    for block in blocks:
        if _is_for(model, block, where, named, tuple(known_kinds)):
            merged |= {k: v for k, v in block.items() if k not in ("apiVersion", "kind")}
    if model is None:
        return None
    try:
        return model.model_validate(merged)
    except ValidationError as error:
        raise HoldDenied(f"{where}: {_said(model, error)}", reason="bad-parameters") from error


def _is_for(
    model: type[Parameters] | None,
    block: Mapping[str, Any],
    where: str,
    named: bool,
    known_kinds: tuple[str, ...],
) -> bool:
    kind, version = block.get("kind"), block.get("apiVersion")
    if model is not None and kind == model.kind:
        if version == model.api_version:
            return True
        raise HoldDenied(
            f"{where}: parameters of kind {kind} have apiVersion {version!s:.80}, "
            f"want {model.api_version}",
            reason="bad-parameters",
        )
    if not named and kind in known_kinds:
        return False
    wanted = f"kind {model.kind}" if model else "no parameters: its driver takes none"
    if not named and model is None and isinstance(kind, str) and kind:
        return False
    raise HoldDenied(
        f"{where}: parameters of kind {kind!s:.80}, want {wanted}", reason="bad-parameters"
    )


def _said(model: type[Parameters], error: ValidationError) -> str:
    problems = []
    for problem in error.errors(include_url=False, include_input=False, include_context=False):
        path = ".".join(str(step) for step in problem["loc"])
        if problem["type"] == "extra_forbidden":
            keys = ", ".join(sorted(model.model_fields)) or "none"
            problems.append(f"unknown key {path:.80}; the keys are {keys}")
        else:
            problems.append(f"{path:.80}: {in_words(problem)}")
    return "; ".join(problems)

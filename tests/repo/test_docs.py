"""The documentation says what the code does."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted(
        p
        for word in ("framework", "drivers", "frontends")
        for p in ROOT.glob(f"{word}/**/README.md")
    ),
]


@pytest.fixture(scope="module")
def build() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_build", ROOT / "docs/build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", ["hooks.md", "types.md", "attributes.md", "settings.md"])
def test_a_reference_page_is_what_the_code_says(build: ModuleType, page: str) -> None:
    written = (ROOT / "docs/reference" / page).read_text()

    assert written == build.pages()[page], "run `make docs`"


def test_every_hook_has_a_heading_with_its_exact_signature(build: ModuleType) -> None:
    from hardpoint import hookspecs

    text = (ROOT / "docs/reference/hooks.md").read_text()
    for hook in hookspecs.__all__:
        assert f"### {hook}\n\n```python\n{build.signature(hook)}\n```" in text


def test_every_type_of_a_hooks_signature_has_a_heading(build: ModuleType) -> None:
    from hardpoint import hookspecs

    types = (ROOT / "docs/reference/types.md").read_text()
    common = {"Any", "Callable", "Iterable", "Mapping", "None"}
    named = {
        name
        for hook in hookspecs.__all__
        for name in re.findall(r"\b[A-Z]\w+", build.signature(hook))
    }

    assert {"Agent", "Delivery", "Device", "Hold", "Offer"} <= named
    for name in named - common:
        assert f"\n### {name}\n" in types, name


def test_every_name_that_plugins_import_has_a_heading() -> None:
    import hardpoint

    types = (ROOT / "docs/reference/types.md").read_text()
    for name in {*hardpoint.__all__} - {"hookimpl"}:
        assert f"\n### {name}\n" in types, name


def test_types_show_what_the_source_says_of_them() -> None:
    """Fields with type, default and meaning; members of enumerations; methods; constructors."""
    types = (ROOT / "docs/reference/types.md").read_text()

    for line in (
        "| `major` | `int \\| None` | `None` | As sysfs states it (attribute `dev`);",
        "| `name` | `str` | required | At most 63",
        "- `Effect.NO_EXECUTE`, 'NoExecute'",
        "- `whole() -> tuple[Part, ...]`: Take it alone,",
        "- `recorded`: True for a tree",
        "`TryAgain(why: str, after: float | None=None)`",
    ):
        assert f"\n{line}" in types, line


def test_every_module_that_a_page_names_exists() -> None:
    page = (ROOT / "docs/explanation/life-of-a-claim.md").read_text().split("## Which module")[1]
    named = re.findall(r"`(\w[\w/]*\.py)`", page)

    assert len(named) > 10
    for name in named:
        assert (ROOT / "framework/src/hardpoint" / name).is_file(), name


@pytest.mark.timeout(120)
def test_the_readme_shows_what_make_run_prints() -> None:
    """Of the desktop: how many devices, the rows of the table, and the last sentences."""
    machine = "tests/data/machines/desktop.tar.gz"
    readme = (ROOT / "README.md").read_text()
    (shown,) = re.findall(r"^```\n(ResourceSlice.*?)^```$", readme, re.DOTALL | re.MULTILINE)
    words = ["-m", "hardpoint.cli", "demo", "--sysfs", machine]
    answer = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True)

    assert answer.returncode == 0, answer.stderr
    assert f"MACHINE={machine}" in readme
    printed = [line.split() for line in answer.stdout.splitlines()]
    for line in shown.splitlines():
        if re.match(r"ResourceSlice|DEVICE|pci-|usb-|3\. |A container|No priv", line):
            assert line.split() in printed, line


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), target

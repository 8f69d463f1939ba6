"""Every field case is shown by a test or says why not, and its page is what the tests say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from cases_page import ROOT, Case, groups, marks, page

CASES = [case for group in groups() for case in group.cases]
MARKS = marks()


def test_the_page_is_what_the_tables_and_marks_say() -> None:
    written = (ROOT / "docs/explanation/field-cases.md").read_text()

    assert written == page(), "run `make docs`"


def test_every_marked_case_exists() -> None:
    known = {case.id for case in CASES}

    assert [mark for mark in MARKS if mark.case not in known] == []


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_a_case_is_shown_by_a_test_or_says_why_not(case: Case) -> None:
    shown = [mark.test for mark in MARKS if mark.case == case.id]
    why_not = dict(case.untested)

    assert shown or why_not
    assert not (shown and "not_ours" in why_not), "what does not apply cannot be shown"
    assert case.wrong.endswith(".")
    assert case.right.endswith(".")
    for report in case.reports:
        assert re.fullmatch(r"[\w.-]+/[\w.-]+(#\d+)?", report), report


def test_a_mark_on_what_pytest_does_not_run_is_refused(tmp_path: Path) -> None:
    helper = tmp_path / "tests/helper.py"
    helper.parent.mkdir()
    helper.write_text('@pytest.mark.field_case("B01")\ndef test_it(): ...\n')

    with pytest.raises(ValueError, match=r"tests/helper\.py:2"):
        marks(helper.parent)


def test_a_mark_on_a_whole_class_or_module_is_refused(tmp_path: Path) -> None:
    """Such a mark would claim every test of it, also those that show nothing of the case."""
    module = tmp_path / "tests/test_it.py"
    module.parent.mkdir()
    module.write_text('pytestmark = pytest.mark.field_case("B01")\ndef test_it(): ...\n')

    with pytest.raises(ValueError, match="begins test_"):
        marks(module.parent)


def test_a_key_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    (tmp_path / "B.toml").write_text('title = "t"\n[B01]\nreports = []\nwhy = "x"\n')

    with pytest.raises(ValueError, match="B01"):
        groups(tmp_path)

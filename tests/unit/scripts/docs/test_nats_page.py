"""docs/nats.md is what the code says: every subject, every schema, and outputs of each."""

from pathlib import Path

import pytest

from scripts.docs import nats_page
from scripts.docs.entries import Entry
from scripts.docs.shorten import shorten
from scripts.docs.subject_list import ENTRIES
from tests.support.all_subjects import all_subjects

PAGE = (Path(__file__).parents[4] / "docs" / "nats.md").read_text()
AGAIN = "make it anew with `python -P -m scripts.docs`"


def test_every_subject_is_in_the_page_and_the_page_has_no_other() -> None:
    exist = {subject for _, subject in all_subjects()}
    assert nats_page.subjects_in(PAGE) == exist


def test_the_page_says_what_the_code_does() -> None:
    """All but the outputs: who sends and hears, schemas, texts."""
    pairs = zip(
        nats_page.render(nats_page.outputs_of(PAGE)).splitlines(), PAGE.splitlines(), strict=False
    )
    assert next((pair for pair in pairs if pair[0] != pair[1]), None) is None, AGAIN
    assert PAGE.endswith(nats_page.render({}).splitlines()[-1] + "\n"), AGAIN


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.subjects[0])
def test_every_subject_shows_a_real_output(entry: Entry) -> None:
    output = nats_page.outputs_of(PAGE)[entry.subjects[0]]
    first, _, rest = output.partition("\n")
    if entry.ask is None:
        assert first.startswith("$ nats sub ")
        assert (entry.reply is not None) == ("its answer:" in rest)
    else:
        assert first.startswith(f"$ nats req {nats_page.example_subject(entry)} '{{")
    assert "{" in rest
    assert "no such message" not in rest


def test_what_is_missing_is_seen() -> None:
    """The checks above can fail."""
    less = PAGE.replace("### `moonpool.index.match`", "### `moonpool.index.mtch`")
    assert nats_page.subjects_in(less) != {subject for _, subject in all_subjects()}
    again = nats_page.render(nats_page.outputs_of(less))
    assert again.splitlines() != less.splitlines()


def test_long_values_are_cut_and_say_so() -> None:
    assert shorten({"a": "x" * 100, "b": [{"c": 1}] * 5, "d": list(range(20))}) == {
        "a": "x" * 24 + "…",
        "b": [{"c": 1}, {"c": 1}, "… 3 more"],
        "d": [0, 1, 2, 3, 4, 5, 6, 7, "… 12 more"],
    }

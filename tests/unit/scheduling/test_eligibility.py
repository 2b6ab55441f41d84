"""Who can take a request, what is remembered of that, and how the others are counted."""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest

from shared.scheduling.cluster_view import ClusterView
from shared.scheduling.instance_table import among, least
from shared.scheduling.vocabulary import ExpectedPrefix, InstanceView
from tests.support.placing import BLOCK_TOKENS, Driven, instance, request


def view_of(*instances: InstanceView) -> ClusterView:
    view = ClusterView(lease_s=3.0)
    for one in instances:
        view.report(one, 0.0)
    return view


def ids(view: ClusterView, rows: Iterable[int]) -> list[str]:
    return [view.tables["prefill"].view(row).id for row in rows]


def prefills(count: int, **changes: object) -> list[InstanceView]:
    return [instance("prefill", f"p{n}", f"n{n}", **changes) for n in range(count)]


def test_as_long_as_nobody_changes_the_candidates_are_the_very_same_array() -> None:
    cluster = prefills(3)
    view = view_of(*cluster)
    first, _ = view.eligible("prefill", request(), 0.0)
    view.report(replace(cluster[1], expected_start_s=5.0, queued_requests=2), 0.1)
    again, _ = view.eligible("prefill", request(500), 0.1)
    assert again is first
    assert view.tables["prefill"].facts(again) is view.tables["prefill"].facts(first)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"state": "draining"}, "draining"),
        ({"state": "starting"}, "starting"),
        ({"model": "another"}, "other_model"),
        ({"context_tokens": 100}, "context"),
    ],
)
def test_a_change_of_what_an_instance_is_shows_at_once(
    changes: dict[str, object], reason: str
) -> None:
    cluster = prefills(3)
    view = view_of(*cluster)
    assert ids(view, view.eligible("prefill", request(), 0.0)[0]) == ["p0", "p1", "p2"]
    view.report(replace(cluster[1], **changes), 0.1)  # type: ignore[arg-type]
    rows, counts = view.eligible("prefill", request(), 0.1)
    assert (ids(view, rows), counts) == (["p0", "p2"], {reason: 1})
    view.report(cluster[1], 0.2)
    assert ids(view, view.eligible("prefill", request(), 0.2)[0]) == ["p0", "p1", "p2"]


def test_what_did_not_answer_or_is_silent_is_out_until_it_reports() -> None:
    cluster = prefills(3)
    view = view_of(*cluster)
    view.suspect("prefill", cluster[0].key)
    view.report(cluster[2], 2.0)
    rows, counts = view.eligible("prefill", request(), 3.5)
    assert (ids(view, rows), counts) == (["p2"], {"no_answer": 1, "silent": 1})
    for one in cluster:
        view.report(one, 4.0)
    assert len(view.eligible("prefill", request(), 4.0)[0]) == 3


def test_a_row_that_another_instance_got_is_that_instance() -> None:
    cluster = prefills(3)
    view = view_of(*cluster)
    view.eligible("prefill", request(), 0.0)
    view.lose("prefill", cluster[0].key)
    assert ids(view, view.eligible("prefill", request(), 0.0)[0]) == ["p1", "p2"]
    view.report(instance("prefill", "q", "n7", grid_tokens=4 * BLOCK_TOKENS), 0.0)
    rows, _ = view.eligible("prefill", request(), 0.0)
    assert sorted(ids(view, rows)) == ["p1", "p2", "q"]
    facts = view.tables["prefill"].facts(rows)
    assert isinstance(facts.grid_tokens, np.ndarray)
    assert facts.block_tokens == BLOCK_TOKENS


def test_an_answer_fits_by_what_is_admitted_not_by_all_it_may_be() -> None:
    whole = instance("decode", "d0", "n0", free_tokens=1_050)
    a_part = instance("decode", "d1", "n1", free_tokens=1_050, admit_tokens=40)
    view = view_of(whole, a_part)
    rows, counts = view.eligible("decode", request(1_000, max_tokens=100), 0.0)
    assert [view.tables["decode"].view(row).id for row in rows] == ["d1"]
    assert counts == {"full": 1}


def test_instances_of_one_incarnation_are_kept_apart() -> None:
    """As all of a simulated cluster are."""
    cluster = [replace(one, incarnation="1") for one in prefills(3)]
    decode = [
        instance("decode", f"d{n}", f"m{n}", incarnation="1", running=10 * n) for n in range(3)
    ]
    driven = Driven([*cluster, *decode])
    assert len(driven.core.view.eligible("prefill", request(), 0.0)[0]) == 3
    answer = driven.core.explain(request(), (), 0.0)
    cost = driven.core.learnt("m").cost
    assert answer.decode.id == "d0"  # type: ignore[union-attr]
    assert answer.predicted.tbt_s == cost.decode_step_s(1, 1_000)  # type: ignore[union-attr]
    expected = (ExpectedPrefix(("p1", "1"), 60, 0.0),)
    answer = driven.core.explain(request(expected=expected), (), 0.0)
    assert answer.winner.prefill.id == "p1"  # type: ignore[union-attr]


@pytest.mark.parametrize("count", [1, 5, 400])
def test_rows_are_found_among_others_whatever_their_number(count: int) -> None:
    rows = np.arange(count, dtype=np.intp)
    wanted = list(range(0, count + 3, 3))
    assert among(rows, wanted).tolist() == np.isin(rows, wanted).tolist()
    assert among(rows, []).tolist() == [False] * count
    assert least(rows[::-1]) == 0.0

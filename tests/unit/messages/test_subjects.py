"""Subjects are unique and every id takes exactly one token."""

import inspect

from shared.messages import subjects


def test_subject_constants_are_unique_and_under_the_prefix() -> None:
    values = [
        v
        for k, v in vars(subjects).items()
        if k.isupper()
        and k not in ("QUEUE_GROUP", "MICRO_PING", "MICRO_INFO", "MICRO_STATS", "MICRO_ALL")
    ]
    assert len(values) == len(set(values))
    assert all(value == "moonpool" or value.startswith("moonpool.") for value in values)


def test_every_subject_function_builds_a_subject_without_wildcards_or_spaces() -> None:
    for name, function in inspect.getmembers(subjects, inspect.isfunction):
        if name == "inbox":  # NATS' own
            continue
        subject = function(*["x1"] * len(inspect.signature(function).parameters))
        assert subject.startswith("moonpool."), name
        assert " " not in subject
        if not name.endswith("_all"):
            assert "*" not in subject
            assert ">" not in subject

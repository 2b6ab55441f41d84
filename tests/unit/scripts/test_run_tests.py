"""Which tests CI runs once more, alone."""

from pathlib import Path

from scripts.run_tests import counts_of, failed_in

REPORT = """<testsuites><testsuite tests="4" failures="1" errors="1" skipped="1">
<testcase classname="tests.a" name="fine"/>
<testcase classname="tests.a" name="wrong"><failure message="no"/></testcase>
<testcase classname="tests.b" name="unprepared"><error message="no"/></testcase>
<testcase classname="tests.b" name="left_out"><skipped/></testcase>
</testsuite></testsuites>"""


def test_failures_and_errors_are_named(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(REPORT)
    assert failed_in(report) == ("tests.a::wrong", "tests.b::unprepared")
    assert counts_of(report) == "1 passed, 2 failed, 1 skipped"


def test_without_a_report_nothing_is_named(tmp_path: Path) -> None:
    assert failed_in(tmp_path / "none.xml") == ()

"""The cluster that is broken again and again, and the table of faults: its rows come from the
tests, wherever they ran; shown at the end."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster import HostedCluster, dummy_options
from tests.support.fault_table import table_of

OPTION = "--fault-json"


@pytest.fixture(scope="session")
def fault_cluster() -> Iterator[HostedCluster]:
    """Broken by test after test: each leaves it as it found it, which the next one proves."""
    # A machine that others use takes more than two seconds to start a gateway's successor.
    options = dummy_options(conductors=2, cache_indexes=2, drain_timeout_s=10.0)
    with HostedCluster(options) as cluster:
        yield cluster


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(OPTION, type=Path, default=None, help="write the table of faults there")


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    rows = [
        value
        for reports in terminalreporter.stats.values()
        for report in reports
        for name, value in getattr(report, "user_properties", ())
        if name == "fault" and getattr(report, "when", "") == "call"
    ]
    if not rows:
        return
    terminalreporter.section("faults")
    terminalreporter.write_line(table_of(rows))
    path = config.getoption(OPTION)
    if path is not None:
        path.write_text(json.dumps({"rows": rows}, indent=1))

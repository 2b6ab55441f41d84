"""The table of faults: rows come from the tests, wherever they ran; shown at the end."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.fault_table import table_of

OPTION = "--fault-json"


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

"""The demo's tables in a small terminal."""

import io

from rich.console import Console

from scripts.demo.client import Answer, Served
from scripts.demo.plan import Step
from scripts.demo.run import Row
from scripts.demo.table import bills_of, table_of

TIMES = {"queue_s": 0.5, "load_s": 1.25, "compute_s": 123.4, "ttft_s": 125.15}


def row(*, cold_token: int) -> Row:
    served = Served(
        prefill="prefill-2",
        decode="decode-1",
        cached_from="remote",
        bytes_moved=118_000_000,
        transfer_s=0.2,
        ttft_s=125.15,
        bill={"predicted": TIMES, "real": TIMES},
    )
    hit = Answer("x", [1], 2581, 2560, served)
    return Row(Step("hit", "?"), hit, Answer("x", [cold_token], 2581, 0, served))


def rendered(*rows: Row) -> list[str]:
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(table_of(rows))
    console.print(bills_of({str(at): one.answer.served.bill for at, one in enumerate(rows, 1)}))
    return console.export_text().splitlines()


def test_a_request_is_one_line_of_each_table_in_80_columns() -> None:
    lines = [line for line in rendered(row(cold_token=1)) if line.startswith(" 1 ")]
    where, bill = (line.split() for line in lines)
    assert where[1:] == [
        *("prefill-2", "→", "decode-1", "2560/2581", "remote", "118.0"),
        *("125.15", "s", "125.15", "s", "yes"),
    ]
    assert bill[-3:] == ["125.15", "→", "125.15"]


def test_other_tokens_than_those_of_the_cold_run_show() -> None:
    assert any(line.split()[-1:] == ["no"] for line in rendered(row(cold_token=2)))

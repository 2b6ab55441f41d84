import asyncio
from pathlib import Path

import pytest

from scripts.assess.analysis import assess, break_even_bytes_per_s, hits_by_grouping
from scripts.assess.machine import measure_link, serve
from scripts.assess.report import as_json, write_page
from scripts.assess.requests import ideal_hit
from shared.simulator.trace import BLOCK_TOKENS, TraceRequest
from tests.support.simulating import paper_hardware


def requests(
    num_documents: int, num_blocks: int = 40, count: int = 60, every_s: float = 2.0
) -> list[TraceRequest]:
    made = []
    for number in range(count):
        first = number % num_documents * 1_000
        ids = (*range(first, first + num_blocks), 100_000 + number)
        made.append(TraceRequest(every_s * number, len(ids) * BLOCK_TOKENS, 10, ids))
    return made


def test_repeated_documents_are_worth_sharing() -> None:
    found = assess(requests(12, 120, 120, 0.7), paper_hardware(), 6, 200_000, 1e9)
    assert found.verdict == "share"
    assert found.ideal_hit > 0.6
    none, local, shared = found.ways
    assert shared.mean_ttft_s < local.mean_ttft_s < none.mean_ttft_s


def test_prompts_without_a_common_part_are_not() -> None:
    found = assess(requests(60), paper_hardware(), 4, 200_000, 1e9)
    assert found.verdict == "don't"
    assert found.ideal_hit == 0


def test_a_slow_link_leaves_local_caches() -> None:
    hardware = paper_hardware(link_bytes_per_s=1e7)
    found = assess(requests(1, num_blocks=4), hardware, 2, 200_000, 1e9)
    assert found.verdict == "share only locally"
    assert found.break_even_tokens is None


def test_break_even_is_what_the_paper_computes() -> None:
    """Its 6 GB/s at 8,192 tokens take the peak of the hardware; the fit has 41 % of it."""
    assert break_even_bytes_per_s(paper_hardware(), 8_192) == pytest.approx(2.7e9, rel=0.05)


def test_larger_blocks_never_hit_more() -> None:
    hits = list(hits_by_grouping(requests(20)).values())
    assert hits == sorted(hits, reverse=True)
    prompts = [[1, 2, 3, 4, 5], [1, 2, 3, 9, 9], [1, 2, 3, 4, 5]]
    assert ideal_hit(prompts, 1) == pytest.approx(8 / 15)
    assert ideal_hit(prompts, 2) == pytest.approx(6 / 15)


async def test_a_link_is_measured_against_a_peer() -> None:
    port = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(serve("127.0.0.1", 0, port.set_result))
    assert await measure_link(f"127.0.0.1:{await port}") > 1e6
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_the_report_is_one_page_without_scripts(tmp_path: Path) -> None:
    found = assess(requests(20, count=20), paper_hardware(), 2, 200_000, 1e9)
    write_page(tmp_path / "report.html", "Does it pay?", found, None)
    page = (tmp_path / "report.html").read_text()
    assert "<svg" in page
    assert "<script" not in page
    assert "http" not in page.replace("http://www.w3.org", "")
    assert as_json(found, None)["verdict"] == found.verdict

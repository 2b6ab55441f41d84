import json

import pytest
from typer.testing import CliRunner

from scripts.cli.main import make_app
from scripts.cli.output import CommandError

LINES = [
    {
        "timestamp": 500 * n,
        "input_length": 512 * (4 + n),
        "output_length": 3,
        "hash_ids": list(range(4 + n)),
    }
    for n in range(20)
]


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "small.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in LINES))
    return str(path)


def run(*arguments):
    result = CliRunner().invoke(make_app(), ["simulate", *arguments], catch_exceptions=True)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_policies_are_compared_as_one_json_object(trace):
    result = run("--trace", trace, "--nodes", "2", "--policy", "moonpool,random", "--json")
    shown = json.loads(result.stdout)
    assert shown["ok"] is True
    assert [one["policy"] for one in shown["runs"]] == ["moonpool", "random"]
    assert all(one["requests"] == 20 and one["mean_ttft_s"] > 0 for one in shown["runs"])


def test_hit_rates_are_shown_by_size(trace):
    shown = json.loads(run("--trace", trace, "--hit-rate", "--sizes", "1M", "--json").stdout)
    rates = {row["policy"]: row["hit"] for row in shown["rows"]}
    assert rates["lru"] == rates["belady"] == pytest.approx(1 - 23 / sum(range(4, 24)))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--trace", "nowhere"), "there is no trace 'nowhere'"),
        (("--policy", "best"), "--policy: 'best' is not known"),
        (("--hit-rate", "--sizes", "3X"), "--sizes: '3X' is no size"),
        (("--pool", "100"), "--pool: '100' holds no block"),
        (("--hardware", "abacus"), "there is no profile 'abacus'"),
    ],
)
def test_bad_options_are_named(arguments, words):
    with pytest.raises(CommandError) as caught:
        run(*arguments)
    assert words in caught.value.message


def test_the_prefill_time_of_one_prompt_is_the_papers_within_five_percent():
    shown = json.loads(run("--experiment", "fig14", "--json").stdout)
    cold = [row for row in shown["rows"] if "0 % cached" in row["run"] and "95" not in row["run"]]
    assert len(cold) == 5
    for row in cold:
        assert row["ratio"] == pytest.approx(1.0, abs=0.05), row["run"]


def test_the_table_of_policies_fits_a_narrow_terminal(trace, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    shown = run("--trace", trace, "--nodes", "2", "--policy", "global_cache_aware").stdout
    assert "global_cache_aware" in shown
    assert "…" not in shown
    assert "max/mean" in shown
    assert "load: the busiest prefill instance" in " ".join(shown.split())


def test_figures_of_unpublished_baselines_are_refused_with_what_there_is():
    with pytest.raises(CommandError, match="fig6 comes later"):
        run("--experiment", "fig6")


def test_charts_are_written_as_html_and_other_names_are_refused(trace, tmp_path):
    plot = tmp_path / "out.html"
    run("--trace", trace, "--policy", "random", "--plot", str(plot), "--json")
    assert plot.read_text().count("<svg") == 2
    with pytest.raises(CommandError, match=r"out.gif is neither .png nor .html"):
        run("--trace", trace, "--plot", str(tmp_path / "out.gif"))


def test_an_experiment_shows_the_papers_value_and_the_reason():
    shown = json.loads(run("--experiment", "fig14", "--json").stdout)
    whole = [row for row in shown["rows"] if "0 % cached" in row["run"] and "95" not in row["run"]]
    assert len(whole) == 5
    assert all(0.95 <= row["ratio"] <= 1.05 and row["why"] for row in whole)

"""Finding UCX, its options, and what is said when there is none or no device."""

from pathlib import Path

import pytest

from shared.transport import ucx_library, ucx_report
from shared.transport.rdma_options import RdmaOptions, parse_options
from shared.transport.ucx_context import UcxContext, UcxError
from shared.transport.ucx_library import UcxUnavailable, load_ucx
from tests.support.rdma_lanes import skip_without


def test_options_are_names_and_values() -> None:
    assert parse_options(" TLS=rc,ud UCX_NET_DEVICES=mlx5_0:1 ") == {
        "TLS": "rc,ud",
        "NET_DEVICES": "mlx5_0:1",
    }
    assert parse_options("") == {}
    for bad in ("TLS", "=rc", "TLS=rc oops"):
        with pytest.raises(ValueError, match="is not NAME=value"):
            parse_options(bad)


def test_a_named_library_that_cannot_be_loaded_is_an_error_with_its_path(tmp_path: Path) -> None:
    pytest.importorskip("cffi")
    with pytest.raises(UcxUnavailable, match=r"MOONPOOL_UCX_LIBRARY=/nowhere/libucp\.so"):
        load_ucx("/nowhere/libucp.so")
    text = tmp_path / "libucp.so"
    text.write_text("no library")
    with pytest.raises(UcxUnavailable, match=f"MOONPOOL_UCX_LIBRARY={text}"):
        load_ucx(str(text))


def test_without_any_library_it_is_said_what_was_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cffi")
    monkeypatch.setattr(ucx_library, "WHEEL", "no_such_wheel")
    monkeypatch.setattr(ucx_library, "SYSTEM_LIBRARY", "libnosuchucp.so.0")
    load = ucx_library.load_ucx.__wrapped__
    with pytest.raises(UcxUnavailable, match="no-such-wheel is not installed") as caught:
        load("")
    assert "pip install --no-deps nixl-cu12" in str(caught.value)


def test_an_old_library_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    skip_without("cma")
    monkeypatch.setattr(ucx_library, "MIN_VERSION", (9, 9))
    with pytest.raises(UcxUnavailable, match=r"9\.9 or newer is needed"):
        ucx_library.load_ucx.__wrapped__("")


def test_an_option_that_ucx_does_not_know_is_named() -> None:
    skip_without("cma")
    with pytest.raises(UcxError, match="UCX does not take NO_SUCH_THING=1"):
        UcxContext.open(load_ucx(), {"NO_SUCH_THING": "1"})


def test_rdma_needs_a_device_unless_transports_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("UCX_TLS", raising=False)
    monkeypatch.setattr(ucx_library, "DEVICES", tmp_path / "none")
    with pytest.raises(UcxUnavailable, match="there is no RDMA device"):
        ucx_report.check_device(RdmaOptions())
    ucx_report.check_device(RdmaOptions(ucx_options={"TLS": "tcp"}))
    (tmp_path / "none" / "mlx5_0").mkdir(parents=True)
    ucx_report.check_device(RdmaOptions())


def test_the_report_names_version_and_ways() -> None:
    skip_without("cma")
    report = ucx_report.ucx_report(RdmaOptions(ucx_options={"TLS": "tcp,cma"}))
    assert report.problem == ""
    assert report.version == load_ucx().version_text
    assert {each.transport for each in report.resources} == {"tcp", "cma"}
    assert report.line.startswith(f"{report.version} of ")
    assert "cma/memory" in report.line


def test_the_report_says_why_there_is_no_rdma(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    skip_without("cma")
    monkeypatch.setattr(ucx_library, "DEVICES", tmp_path / "none")
    monkeypatch.setattr(UcxContext, "resources", lambda _: [])
    report = ucx_report.ucx_report(RdmaOptions())
    assert "there is no RDMA device" in report.problem
    missing = ucx_report.ucx_report(RdmaOptions(library="/nowhere/libucp.so"))
    assert "/nowhere/libucp.so" in missing.problem
    assert missing.line == missing.problem

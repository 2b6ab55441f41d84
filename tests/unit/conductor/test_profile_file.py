"""The calibration file: what is taken from it, and what is refused with its field."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from services.conductor.service import core_settings_of
from services.conductor.settings import ConductorSettings
from shared.decisions.profile_file import load_profile
from shared.scheduling.cost_model import CostProfile, PrefillCoefficients
from shared.scheduling.slo import Slo


def test_what_the_file_leaves_out_keeps_its_default(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_text(
        '{"prefill": {"base_s": 0, "linear_s": 0.1, "quadratic_s": 0.001},'
        ' "transfer_bytes_per_s": 8.7e10}'
    )
    assert load_profile(path) == CostProfile(
        prefill=PrefillCoefficients(0.0, 0.1, 0.001), transfer_bytes_per_s=8.7e10
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "Invalid JSON"),
        ('{"prefill": {"base_s": 0, "linear_s": -1, "quadratic_s": 0}}', "prefill.linear_s"),
        ('{"decode_step_s": 0}', "decode_step_s"),
        ('{"speed": 3}', "speed: Extra inputs"),
    ],
)
def test_a_wrong_file_is_refused_with_its_name_and_the_field(
    tmp_path: Path, text: str, message: str
) -> None:
    path = tmp_path / "profile.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=message) as raised:
        load_profile(path)
    assert str(path) in str(raised.value)
    with pytest.raises(ValidationError, match="profile"):
        ConductorSettings(profile=path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot read"):
        load_profile(tmp_path / "none.json")


def test_targets_and_rule_reach_the_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOONPOOL_TTFT_SLO_MS", "30000")
    monkeypatch.setenv("MOONPOOL_ADMISSION", "early_rejection")
    monkeypatch.setenv("MOONPOOL_MODEL_SLOS", '{"small": {"tbt_ms": 100}}')
    core = core_settings_of(ConductorSettings())
    assert core.slo == Slo(ttft_s=30.0)
    assert core.model_slos == {"small": Slo(tbt_s=0.1)}
    assert core.admission == "early_rejection"
    monkeypatch.setenv("MOONPOOL_ADMISSION", "none")
    with pytest.raises(ValidationError, match="admission"):
        ConductorSettings()

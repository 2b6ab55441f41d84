"""The containers get the credentials of their own service, and no others."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from shared.messages.access import SERVICES

FILE = Path(__file__).parents[3] / "compose.yaml"


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    return dict(yaml.safe_load(FILE.read_text())["services"])


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_sees_its_own_folder_of_the_set_read_only(
    services: dict[str, Any], name: str
) -> None:
    service = services[name]
    mounted = [one for one in service["volumes"] if one.startswith("credentials")]
    assert mounted == [f"credentials-{name}:/run/credentials:ro"]
    assert service["environment"]["MOONPOOL_SECRETS_DIR"] == "/run/credentials"
    assert service["environment"]["MOONPOOL_NATS_CA"] == "/run/credentials/ca.pem"
    ready = service["depends_on"]["credentials"]["condition"]
    assert ready == "service_completed_successfully"


def test_the_set_is_made_into_a_volume_for_each(services: dict[str, Any]) -> None:
    made = services["credentials"]["volumes"]
    for name in (*SERVICES, "admin", "nats", "redis"):
        assert f"credentials-{name}:/credentials/{name}" in made

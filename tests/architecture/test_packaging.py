"""Our generic package names are ours alone, and come from this checkout."""

import importlib
import importlib.metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("services", "shared", "scripts")


@pytest.mark.parametrize("name", PACKAGES)
def test_package_is_imported_from_this_checkout(name: str) -> None:
    file = importlib.import_module(name).__file__
    assert file is not None
    assert Path(file).is_relative_to(ROOT)


@pytest.mark.parametrize("name", PACKAGES)
def test_no_other_distribution_brings_a_package_of_that_name(name: str) -> None:
    owners = importlib.metadata.packages_distributions().get(name, [])
    assert set(owners) <= {"moonpool"}


@pytest.mark.parametrize("name", PACKAGES)
def test_package_is_typed(name: str) -> None:
    assert (ROOT / name / "py.typed").exists()

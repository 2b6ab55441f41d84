"""What `moonpool up` makes of its options."""

import pytest

from scripts.cli.output import CommandError
from scripts.cli.up import parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [("512M", 512 << 20), ("4G", 4 << 30), ("1.5GiB", 3 << 29), ("2gb", 2 << 30), ("4096", 4096)],
)
def test_sizes_are_read_as_people_write_them(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "much", "-1G", "0", "1X", "nan", "inf"])
def test_what_is_no_size_is_refused_by_name(text: str) -> None:
    with pytest.raises(CommandError, match="--pool-size"):
        parse_size(text)

"""What an operator's command shows of the answers of nodes."""

import pytest
import typer

from scripts.cli import drop, flush, pin
from scripts.cli.on_nodes import NodeAnswer, show
from shared.messages.transfer import DropReply, FlushReply, PinReply


@pytest.mark.parametrize(
    ("columns", "reply"),
    [
        (pin.COLUMNS, PinReply(pin_id="p7", num_blocks=3, pinned_blocks=5, max_pinned_blocks=9)),
        (drop.COLUMNS, DropReply(num_dram_blocks=3, num_disk_blocks=5)),
        (
            flush.COLUMNS,
            FlushReply(
                num_dram_blocks=3, num_disk_blocks=5, kept_dram_blocks=9, kept_disk_blocks=1
            ),
        ),
    ],
)
def test_headings_are_words_and_every_field_is_shown(
    columns: dict[str, str],
    reply: PinReply | DropReply | FlushReply,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(typer.Exit) as ended:
        show(
            [NodeAnswer("node-1", reply), NodeAnswer("node-2", None, "is gone")],
            columns,
            as_json=False,
        )
    assert ended.value.exit_code == 1
    said = capsys.readouterr()
    assert "num" not in said.out
    for name, value in reply.model_dump(exclude={"v"}).items():
        assert name in columns.values()
        assert str(value) in said.out
    assert "node-2: is gone" in said.err

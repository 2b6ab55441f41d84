"""Stops requests of a cluster at a stage, or makes one process crawl or lose its links or disk.

`extra_env` of a cluster gets `seams.environment`; seam_site/sitecustomize.py does the rest.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from tests.support.deadline import until

SITE = Path(__file__).parent / "seam_site"
SERVICES = ("transfer", "prefill", "decode")
REACH_TIMEOUT_S = 30.0
Stage = Literal["queued", "fetching", "computing", "streaming", "decoding", "between tokens"]
STAGES: tuple[Stage, ...] = get_args(Stage)


@dataclass(frozen=True, slots=True)
class Held:
    """A request that waits at a stage until `release`, and who has to do with it."""

    stage: Stage
    handle: str
    prefill: str
    decode: str
    node: str
    """Where it is held; the node that its KV comes from is the other of two."""

    @property
    def other_node(self) -> str:
        return "node-2" if self.node == "node-1" else "node-1"


class Seams:
    """Owns the folder that the processes look into."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def environment(self) -> dict[str, dict[str, str]]:
        paths = [str(SITE), *filter(None, [os.environ.get("PYTHONPATH")])]
        own = {"PYTHONPATH": os.pathsep.join(paths), "TEST_SEAMS": str(self._folder)}
        return dict.fromkeys(SERVICES, own)

    async def hold(self, stage: Stage) -> Held:
        """The next request that comes to this stage; it stays there until `release`."""
        self.release()
        (self._folder / "hold.new").write_text(stage)
        (self._folder / "hold.new").rename(self._folder / "hold")
        reached = self._folder / "reached"
        await until(reached.exists, timeout_s=REACH_TIMEOUT_S, what=f"a request is {stage}")
        said = json.loads(reached.read_text())
        number = said["instance"].rpartition("-")[2]
        return Held(
            stage=stage,
            handle=said["handle"],
            prefill=said.get("prefill", f"prefill-{number}"),
            decode=said.get("decode", f"decode-{number}"),
            node=f"node-{number}",
        )

    def release(self) -> None:
        for name in ("hold", "taken", "reached"):
            (self._folder / name).unlink(missing_ok=True)

    def set_flag(self, name: str, process: str, text: str = "") -> None:
        (self._folder / f"{name}.{process}").write_text(text)

    def clear_flag(self, name: str, process: str) -> None:
        (self._folder / f"{name}.{process}").unlink(missing_ok=True)

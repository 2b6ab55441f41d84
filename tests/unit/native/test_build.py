"""What is built in the cache directory is whole, whoever died while building it."""

import subprocess
import sys
import textwrap
from pathlib import Path

from shared.native.build import built
from tests.support.deadline import wait_until

COMPILER = textwrap.dedent(
    """
    #!/bin/sh
    # -o <library> <source>, in a folder that says how it behaves
    [ "$1" = -dumpfullversion ] && exit 0
    cd "$(dirname "$0")"
    if [ ! -e begun ]; then
        touch begun
        while [ ! -e go-on ]; do sleep 0.02; done
        echo late > "$2"
        touch ended
    else
        echo whole > "$2"
        touch go-on
        while [ ! -e ended ]; do sleep 0.02; done
    fi
    """
).lstrip()
BUILDER = textwrap.dedent(
    """
    import sys
    from pathlib import Path
    from shared.native.build import built
    compiler, folder = Path(sys.argv[1]), Path(sys.argv[2])
    built("some", [str(compiler)], [compiler], folder, instead="nothing is used")
    """
)


def test_a_compiler_that_outlives_its_process_does_not_spoil_what_the_next_one_builds(
    tmp_path: Path,
) -> None:
    compiler, folder = tmp_path / "compiler", tmp_path / "cache"
    compiler.write_text(COMPILER)
    compiler.chmod(0o755)
    command = [sys.executable, "-c", BUILDER, str(compiler), str(folder)]
    with subprocess.Popen(command) as killed:
        wait_until((tmp_path / "begun").exists)
        killed.kill()
    library = built("some", [str(compiler)], [compiler], folder, instead="nothing is used")
    assert library is not None
    assert library.read_text() == "whole\n"


def test_what_was_begun_and_abandoned_is_removed(tmp_path: Path) -> None:
    compiler, folder = tmp_path / "compiler", tmp_path / "cache"
    compiler.write_text('#!/bin/sh\necho whole > "$2"\n')
    compiler.chmod(0o755)
    command, sources = [str(compiler)], [compiler]
    library = built("some", command, sources, folder, instead="nothing is used")
    assert library is not None
    library.rename(library.with_suffix(".123.unfinished"))
    assert built("some", command, sources, folder, instead="nothing is used") == library
    assert {one.suffix for one in folder.iterdir()} == {".so", ".lock"}

"""What the tree must look like: sizes, one home for subjects, no re-exports, import contracts."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PRODUCT_LINES = 400
TEST_LINES = 500
SUBJECTS = ROOT / "shared" / "messages" / "subjects.py"
PRODUCT = sorted(
    path for name in ("services", "shared", "scripts") for path in (ROOT / name).rglob("*.py")
)
TESTS = sorted((ROOT / "tests").rglob("*.py"))


def relative(paths: list[Path]) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in paths]


def test_files_are_short_enough_to_be_read() -> None:
    limits = [(path, PRODUCT_LINES) for path in PRODUCT] + [(path, TEST_LINES) for path in TESTS]
    long = [path for path, limit in limits if len(path.read_text().splitlines()) > limit]
    assert relative(long) == []


def test_every_module_says_what_it_owns() -> None:
    silent = [path for path in PRODUCT if ast.get_docstring(ast.parse(path.read_text())) is None]
    assert relative(silent) == []


def test_subject_strings_stand_in_one_file_only() -> None:
    found = []
    for path in PRODUCT:
        if path == SUBJECTS:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                text = node.value
                is_docstring = "\n" in text or " " in text
                if text.startswith(("moonpool.", "$SRV.")) and not is_docstring:
                    found.append(f"{path.relative_to(ROOT)}:{node.lineno}: {text}")
    loggers = [line for line in found if is_logger_name(line)]
    assert [line for line in found if line not in loggers] == []


def is_logger_name(found: str) -> bool:
    """`moonpool.<part>` passed to getLogger is no subject."""
    where, text = found.split(": ", 1)
    file, line = where.rsplit(":", 1)
    source = (ROOT / file).read_text().splitlines()[int(line) - 1]
    return "getLogger(" in source and text in source


def test_init_files_export_nothing() -> None:
    full = [
        path
        for path in PRODUCT
        if path.name == "__init__.py"
        and any(not isinstance(node, ast.Expr) for node in ast.parse(path.read_text()).body)
    ]
    assert relative(full) == []


def test_import_contracts_hold() -> None:
    tool = Path(sys.executable).parent / "lint-imports"
    done = subprocess.run([tool], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", ["moonpool", "test", "check", "fix", "bootstrap"])
def test_script_can_be_run(name: str) -> None:
    path = ROOT / "scripts" / name
    assert path.stat().st_mode & 0o111
    assert path.read_text().startswith("#!/bin/sh\n")
    subprocess.run(["sh", "-n", path], check=True)

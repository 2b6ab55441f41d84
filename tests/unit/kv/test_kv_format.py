import os
import subprocess
import sys
from dataclasses import fields, replace
from typing import Any

import pytest

from shared.kv.kv_format import ROOT_BYTES, KvFormat

FORMAT = KvFormat(
    weights="aa",
    architecture="llama",
    tokenizer="bb",
    mode="exact",
    dtype="float32",
    linear_mode="onednn-prepacked",
    grid_tokens=256,
    block_tokens=256,
    layout_version=1,
    engine_revision=1,
    torch_version="2.13.0+cpu",
    device="x86_64 AVX512 fma",
)
OTHER: dict[str, Any] = {
    "weights": "ab",
    "architecture": "qwen2",
    "tokenizer": "bc",
    "mode": "fast",
    "dtype": "bfloat16",
    "linear_mode": "plain",
    "grid_tokens": 512,
    "block_tokens": 128,
    "layout_version": 2,
    "engine_revision": 2,
    "torch_version": "2.13.1+cpu",
    "device": "x86_64 AVX2 fma",
    "threads": 2,
}
GOLDEN_ROOT = "89a0a4452cd676558759ffa338e9d6ed"
GOLDEN_SALTED_ROOT = "f2b008f6fdf98d665d4cb95d2908b7bc"


def test_the_root_of_a_format_never_changes() -> None:
    assert FORMAT.root().hex() == GOLDEN_ROOT
    assert FORMAT.root("tenant-a").hex() == GOLDEN_SALTED_ROOT
    assert len(FORMAT.root()) == ROOT_BYTES


@pytest.mark.parametrize("hash_seed", ["0", "1", "4242"])
def test_the_root_is_equal_in_every_process(hash_seed: str) -> None:
    code = (
        "from shared.kv.kv_format import KvFormat; "
        f"print(KvFormat.from_dict({FORMAT.to_dict()!r}).root('tenant-a').hex())"
    )
    printed = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    assert printed.stdout.strip() == GOLDEN_SALTED_ROOT


def test_every_field_and_the_salt_change_the_root() -> None:
    assert OTHER.keys() == {field.name for field in fields(KvFormat)}
    roots = {replace(FORMAT, **{name: value}).root() for name, value in OTHER.items()}
    roots |= {FORMAT.root(), FORMAT.root("tenant-a"), FORMAT.root("tenant-ä")}
    assert len(roots) == len(OTHER) + 3


def test_differences_name_the_field_and_both_values() -> None:
    other = replace(FORMAT, dtype="bfloat16", threads=2)
    assert FORMAT.differences(other) == [
        "dtype: 'float32' != 'bfloat16'",
        "threads: None != 2",
    ]
    assert FORMAT.differences(FORMAT) == []


def test_a_record_survives_its_dict() -> None:
    other = KvFormat(**OTHER)
    assert KvFormat.from_dict(other.to_dict()) == other
    assert KvFormat.from_dict(dict(reversed(other.to_dict().items()))).root() == other.root()


def test_a_record_with_missing_or_unknown_fields_is_refused_by_name() -> None:
    values = FORMAT.to_dict() | {"lora": "x"}
    del values["dtype"]
    with pytest.raises(ValueError, match=r"missing \['dtype'\], unknown \['lora'\]"):
        KvFormat.from_dict(values)

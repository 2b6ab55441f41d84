"""Block keys: golden values, equality over processes, refusals."""

import hashlib
import os
import subprocess
import sys

import numpy as np
import pytest

from shared.kv.block_keys import chain_keys, key_at, num_keys, seed_of, split, take

ROOT = bytes(range(16))
GOLDEN = ["0cef5d913acf48712336e10d12246a55", "e137700b8b14ce90a7aaebd3c69d53af"]


def test_keys_have_their_golden_values() -> None:
    chain = chain_keys(ROOT, np.arange(10, dtype=np.int32), 4)
    assert [key.hex() for key in split(chain)] == GOLDEN


def test_a_key_is_the_hash_of_its_parent_and_its_tokens() -> None:
    first = hashlib.blake2b(ROOT + np.arange(4, dtype="<i4").tobytes(), digest_size=16).digest()
    second = hashlib.blake2b(first + np.arange(4, 8, dtype="<i4").tobytes(), digest_size=16)
    assert chain_keys(ROOT, np.arange(8, dtype=np.int32), 4) == first + second.digest()


def test_a_namespace_makes_other_keys_and_none_leaves_the_root() -> None:
    assert seed_of(ROOT, b"") == ROOT
    seeds = {seed_of(root, name) for root in (ROOT, bytes(16)) for name in (b"a", b"b", bytes(16))}
    assert len(seeds) == 6
    tokens = np.arange(8, dtype=np.int32)
    plain, kept_apart = chain_keys(ROOT, tokens, 4), chain_keys(seed_of(ROOT, b"a"), tokens, 4)
    assert not set(split(plain)) & set(split(kept_apart))


def test_packed_tokens_and_arrays_of_any_width_give_equal_keys() -> None:
    tokens = np.array([1, 70_000, 2**31 - 1, 0, 5, 6], dtype=np.int32)
    expected = chain_keys(ROOT, tokens.astype("<i4").tobytes(), 3)
    assert chain_keys(ROOT, tokens, 3) == expected
    assert chain_keys(ROOT, tokens.astype(np.int64), 3) == expected  # type: ignore[arg-type]
    assert chain_keys(ROOT, tokens.astype(">i4"), 3) == expected


@pytest.mark.parametrize("hash_seed", ["0", "1", "random"])
def test_another_process_with_another_hash_seed_makes_equal_keys(hash_seed: str) -> None:
    program = (
        "import numpy as np\n"
        "from shared.kv.block_keys import chain_keys\n"
        "print(chain_keys(bytes(range(16)), np.arange(10, dtype=np.int32), 4).hex())\n"
    )
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    assert done.stdout.strip() == "".join(GOLDEN)


def test_a_block_that_is_not_full_has_no_key() -> None:
    assert chain_keys(ROOT, np.arange(3, dtype=np.int32), 4) == b""
    assert num_keys(chain_keys(ROOT, np.arange(11, dtype=np.int32), 4)) == 2
    assert chain_keys(ROOT, b"", 4) == b""


def test_another_root_or_an_earlier_token_changes_every_later_key() -> None:
    tokens = np.arange(12, dtype=np.int32)
    chain = split(chain_keys(ROOT, tokens, 4))
    other_root = split(chain_keys(bytes(16), tokens, 4))
    changed = tokens.copy()
    changed[0] += 1
    other_tokens = split(chain_keys(ROOT, changed, 4))
    for mine, by_root, by_token in zip(chain, other_root, other_tokens, strict=True):
        assert len({mine, by_root, by_token}) == 3


def test_parts_of_a_chain_are_found_by_index() -> None:
    chain = chain_keys(ROOT, np.arange(12, dtype=np.int32), 4)
    assert key_at(chain, 2) == chain[32:48] == split(chain)[2]
    assert take(chain, 2) == chain[:32]
    assert take(chain, 9) == chain
    assert take(chain, -1) == b""
    with pytest.raises(IndexError, match="no key 3 among 3"):
        key_at(chain, 3)


def test_bad_input_is_refused_with_the_name_of_the_argument() -> None:
    with pytest.raises(ValueError, match=r"^block_tokens:"):
        chain_keys(ROOT, b"", 0)
    with pytest.raises(ValueError, match=r"^tokens: 5 bytes"):
        chain_keys(ROOT, b"12345", 1)
    with pytest.raises(ValueError, match=r"^tokens: a value does not fit"):
        chain_keys(ROOT, np.array([2**31], dtype=np.int64), 1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^tokens: must be whole numbers"):
        chain_keys(ROOT, np.array([0.5], dtype=np.float32), 1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^chain:"):
        num_keys(b"short")

"""The byte-level alphabet of GPT-2: each byte stands as one printable character in a token."""


def _alphabet() -> dict[int, str]:
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {byte: chr(byte) for byte in printable}
    shifted = [byte for byte in range(256) if byte not in table]
    return table | {byte: chr(0x100 + offset) for offset, byte in enumerate(shifted)}


BYTE_TO_CHAR: dict[int, str] = _alphabet()
CHAR_TO_BYTE: dict[str, int] = {char: byte for byte, char in BYTE_TO_CHAR.items()}


def token_bytes(token: str) -> bytes:
    """The bytes a token stands for; a token with any other character stands for itself."""
    try:
        return bytes(CHAR_TO_BYTE[char] for char in token)
    except KeyError:
        return token.encode("utf-8")

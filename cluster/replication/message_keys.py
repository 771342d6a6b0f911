"""The keys by which a message can be found: UNIQ_KEY, and the words of KEYS. Works on raw properties."""

from __future__ import annotations

UNIQUE_MARK = b"UNIQ_KEY\x01"
KEYS_MARK = b"KEYS\x01"


def property_of(properties: bytes, mark: bytes) -> bytes:
    """The value of a property in `name 0x01 value 0x02 ...`, `mark` being its name with the 0x01; b"" if absent."""
    at = properties.find(mark)
    while at > 0 and properties[at - 1] != 2:
        at = properties.find(mark, at + 1)
    if at < 0:
        return b""
    start = at + len(mark)
    end = properties.find(b"\x02", start)
    return properties[start:] if end < 0 else properties[start:end]


def key_words(properties: bytes) -> list[bytes]:
    """The keys in KEYS, which RocketMQ separates by single spaces; each once, in their order."""
    return [word for word in dict.fromkeys(property_of(properties, KEYS_MARK).split(b" ")) if word]

"""The properties of a message: `name 0x01 value 0x02`, repeated; the last 0x02 may be missing.

Modules that need a property call this one. Only the native kernel and `raftmq.arrow.properties` have parsers of their
own, which a test compares with this one (`tests/cluster/broker/test_one_parser.py`).

An entry counts if its name and its value are not empty; a value may contain 0x01. If several entries that count have
the same name, the last one gives the value. Source: RocketMQ's MessageDecoder.string2messageProperties, which puts the
entries into a map one after the other.
"""

from __future__ import annotations


def parse_properties(data: bytes | str) -> dict[str, str]:
    """Parses properties into name -> value.

    Bytes that are not UTF-8 become U+FFFD, as in Java. To forward properties, use the raw bytes, not this result.
    """
    text = data.decode(errors="replace") if isinstance(data, bytes) else data
    properties: dict[str, str] = {}
    for entry in text.split("\x02"):
        name, _, value = entry.partition("\x01")
        if name and value:
            properties[name] = value
    return properties


def property_of(properties: bytes, mark: bytes) -> bytes:
    """Returns the value of one property; b"" if no entry gives it a value. `mark`: the property's name and 0x01."""
    end = len(properties)
    while (at := properties.rfind(mark, 0, end)) >= 0:
        if at == 0 or properties[at - 1] == 2:
            start = at + len(mark)
            stop = properties.find(b"\x02", start)
            value = properties[start:] if stop < 0 else properties[start:stop]
            if value:
                return value
        end = at
    return b""


def values_of(properties: bytes, mark: bytes) -> list[bytes]:
    """Returns the values of all entries of one name whose value is not empty, in their order. `mark`: the name and
    0x01."""
    size = len(mark)
    return [part[size:] for part in properties.split(b"\x02") if part.startswith(mark) and len(part) > size]


def without(properties: bytes, *names: bytes) -> bytes:
    """Returns the properties without the named ones; each of `names` ends in 0x01."""
    return b"".join([part + b"\x02" for part in properties.split(b"\x02") if part and not part.startswith(names)])

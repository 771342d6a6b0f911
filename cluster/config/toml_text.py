"""Values as TOML text. The standard library reads TOML and does not write it."""

from __future__ import annotations

from typing import Any

import msgspec


def toml_value(value: Any) -> str:
    """A value as it stands right of `=`: bool, int, str, tables inline, lists."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(str(name))} = {toml_value(each)}" for name, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(toml_value(each) for each in value) + "]"
    return str(value)


def _key(key: str) -> str:
    is_bare = key.isascii() and key.replace("-", "_").isidentifier()
    return key if is_bare else _text(key)


def _text(text: str) -> str:
    """A basic string. JSON escapes are TOML escapes; DEL is the one character that only TOML forbids.

    Surrogates (bytes that were no text, in a value that is about to be refused) become question marks.
    """
    return msgspec.json.encode(text.encode(errors="replace").decode()).decode().replace("\x7f", "\\u007f")

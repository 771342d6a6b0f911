"""Reads configuration values from their sources: a TOML file, the environment, and flags. Errors name the place where a
value was written."""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

KeyPath = tuple[str | int, ...]
"""The path to one value: ("peers", 0, "port") is the port of the first [[peers]] table."""

ENV_PREFIX: Final = "RAFTMQ_"
_TABLE = re.compile(r"^\s*(\[\[?)\s*([^\[\]]+?)\s*\]")
_KEY = re.compile(r"^\s*([A-Za-z0-9_.\"'-]+?)\s*=")
_SYNTAX_LINE = re.compile(r"\(at line (\d+)")


class ConfigError(ValueError):
    """Raised if the configuration cannot be used. The text has three lines: what happened, why, and what to type."""

    def __init__(self, what: str, why: str, fix: str) -> None:
        super().__init__(f"{what}\n{why}\n{fix}")
        self.what = what
        self.why = why
        self.fix = fix


class TooSmallError(ConfigError):
    """Raised if a key is smaller than another key requires."""

    def __init__(self, what: str, why: str, key: str, least: int, lower: str) -> None:
        """Makes the error. `least` is the smallest value that `key` may have now. `lower` is the other key, which may
        be lowered instead."""
        super().__init__(what, why, f"set {key} to {least} or more, or lower {lower}")
        self.key = key
        self.least = least


WORD_MAX = 256
"""The most characters of a word that are compared with known words."""
SIMILAR = 0.55
"""The least similarity, from 0 to 1, of an unknown word to a known one that is suggested for it."""


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Returns the known word that is most similar to `word`; None if none is similar enough."""
    matches = difflib.get_close_matches(word[:WORD_MAX].lower(), list(known), n=1, cutoff=SIMILAR)
    return matches[0] if matches else None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Returns the last line of an error: "did you mean X?", or a list of the known words."""
    names = list(known)
    match = nearest(word, names)
    return f"did you mean {match}?" if match else f"use one of: {', '.join(names)}"


def dotted(path: KeyPath) -> str:
    """Returns a path in the form that flags take: ("peers", 0, "port") -> "peers.0.port"."""
    return ".".join(str(part) for part in path)


def _let_read(path: Path) -> str:
    """Returns the command with which the file's owner or root lets this process's group read the file. Other users get
    no rights, because the folder may contain secrets."""
    try:
        path.stat()
        what = str(path)
    except OSError:  # the folder cannot be entered
        what = f"{path.parent} {path}"
    return f"chgrp {os.getegid()} {what} && chmod g+rX {what}    (as root, on the machine that the file is on)"


class Source:
    """All configuration values in one tree, in which later sources override earlier ones, and the place where each was
    written."""

    def __init__(self) -> None:
        self.tree: dict[str, Any] = {}
        self.file = ""
        """The path of the file that was read; "" if none was."""
        self._text = ""
        self._textual: dict[KeyPath, str] = {}
        """Path of each value that came as a text, from the environment or a flag -> its place in words. Such a text may
        stand for a number."""

    def read_file(self, path: Path) -> None:
        """Adds the values of a TOML file. Raises ConfigError if it cannot be read or is no TOML."""
        self.file = str(path)
        try:
            self._text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            raise ConfigError(
                f"{path}: no such configuration file",
                "the node reads its id, its data directory and its peers from this file",
                "correct the path, or make a file: raftmq config init HOST --to DIR",
            ) from None
        except PermissionError:
            raise ConfigError(
                f"{path}: this user may not read the file",
                f"the process runs as uid {os.getuid()} and gid {os.getgid()}; in a container those are the image's",
                _let_read(path),
            ) from None
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"{path}: cannot be read as a configuration file", str(error), "give the path of a UTF-8 TOML file"
            ) from error
        try:
            self.tree = tomllib.loads(self._text)
        except tomllib.TOMLDecodeError as error:
            at = _SYNTAX_LINE.search(str(error))
            line = f":{at[1]}" if at else ""
            raise ConfigError(
                f"{path}{line}: not valid TOML",
                str(error),
                'correct that line; it should read like: key = "text" or key = 5',
            ) from error

    def read_env(self, env: Mapping[str, str]) -> None:
        """Adds the values of RAFTMQ_SECTION__KEY variables; names without a double underscore are not configuration."""
        for name in sorted(env):
            if name.startswith(ENV_PREFIX) and "__" in name:
                parts = name.removeprefix(ENV_PREFIX).lower().split("__")
                self._put(parts, env[name], f"environment variable {name}")

    def read_overrides(self, overrides: Mapping[str, Any]) -> None:
        """Adds values by dotted keys: {"raft.tick_ms": 20, "peers.0.port": "7001"}."""
        for key, value in overrides.items():
            self._put(key.split("."), value, f"flag {key}")

    def is_textual(self, path: KeyPath) -> bool:
        """Returns True if the value was given as a text in the environment or a flag, so that "20" may mean the number
        20."""
        return path in self._textual

    def is_from_file(self, path: KeyPath) -> bool:
        """Returns True if a file was read and no other source overrides the value. The value may still be missing in
        the file."""
        return bool(self.file) and not any(inner[: len(path)] == path for inner in self._textual)

    def where(self, path: KeyPath) -> str:
        """Names the place of a value for an error: "raftmq.toml:12", "environment variable X" or "flag x.y"."""
        for length in range(len(path), 0, -1):
            if path[:length] in self._textual:
                return self._textual[path[:length]]
        line, is_exact = line_of(self._text, path)
        if not is_exact:
            for inner, origin in self._textual.items():
                if inner[: len(path)] == path:
                    return origin
        if not self.file:
            return "configuration"
        return f"{self.file}:{line}" if line else self.file

    def _put(self, parts: list[str], value: Any, origin: str) -> None:
        if _is_broken_text(origin) or (isinstance(value, str) and _is_broken_text(value)):
            raise ConfigError(
                f"{origin.encode(errors='replace').decode()}: not valid UTF-8",
                "names and values are UTF-8 text",
                "check the locale and encoding of the program that sets it",
            )
        here: Any = self.tree
        path: KeyPath = ()
        for part, following in zip(parts, [*parts[1:], None], strict=True):
            step: str | int = part
            if isinstance(here, list):
                step = _list_position(part, here, path, origin)
            elif not isinstance(here, dict):
                raise ConfigError(
                    f"{origin}: {dotted(path)} is a single value and has no {part}",
                    f"{dotted(path)} is neither a section nor a list",
                    f"set {dotted(path)} itself",
                )
            path = (*path, step)
            if following is None:
                here[step] = value
                self._textual[path] = origin
                return
            fresh: Any = [] if _is_number(following) else {}
            here = here.setdefault(step, fresh) if isinstance(here, dict) else here[int(step)]


def _is_number(part: str) -> bool:
    return part.isascii() and part.isdecimal()


def _is_broken_text(text: str) -> bool:
    """Returns True if the text contains surrogates, which stand for bytes from the operating system that are no
    UTF-8."""
    return any("\ud800" <= character <= "\udfff" for character in text)


def _list_position(part: str, items: list[Any], path: KeyPath, origin: str) -> int:
    """Returns the index of an existing table of the list, or the next index, which adds a table. Raises ConfigError for
    any other."""
    if not _is_number(part) or int(part) > len(items):
        raise ConfigError(
            f"{origin}: {dotted(path)} has no item {part}",
            f"{dotted(path)} is a list with {len(items)} item(s), counted from 0",
            f"use {dotted(path)}.{len(items)} to add one" + (f", or 0 to {len(items) - 1}" if items else ""),
        )
    if int(part) == len(items):
        items.append({})
    return int(part)


def line_of(text: str, path: KeyPath) -> tuple[int | None, bool]:
    """Returns (line, True) of a key in a TOML text. If the key has no line, returns (line of the nearest table around
    it, False); the line is None if that has none either."""
    table: KeyPath = ()
    counts: dict[KeyPath, int] = {}
    best_length = 0
    best_line: int | None = None
    for number, line in enumerate(text.splitlines(), 1):
        if header := _TABLE.match(line):
            table = _table_path(header[2], header[1] == "[[", counts)
            found = table
        elif key := _KEY.match(line):
            found = (*table, *_split_key(key[1]))
        else:
            continue
        if len(found) > best_length and found == path[: len(found)]:
            best_length, best_line = len(found), number
    return best_line, best_length == len(path)


def _table_path(name: str, is_item: bool, counts: dict[KeyPath, int]) -> KeyPath:
    """Returns the path of the table that a header begins. `is_item` is True for [[name]]. `counts` has the number of
    [[name]] headers of each list so far."""
    path: KeyPath = ()
    parts = _split_key(name)
    for part in parts[:-1]:
        path = (*path, part)
        if path in counts:
            path = (*path, counts[path] - 1)
    path = (*path, parts[-1])
    if is_item:
        counts[path] = counts.get(path, 0) + 1
        return (*path, counts[path] - 1)
    return path


def _split_key(key: str) -> list[str]:
    return [part.strip().strip("\"'") for part in key.split(".")]


# Values as TOML text. The standard library reads TOML and does not write it.


def toml_value(value: Any) -> str:
    """Returns a value (bool, number, str, dict or list) in TOML, as it is written after `=`. A dict becomes an inline
    table."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(str(name))} = {toml_value(each)}" for name, each in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(toml_value(each) for each in value) + "]"
    return str(value)


def _key(key: str) -> str:
    is_bare = key.isascii() and key.replace("-", "_").isidentifier()
    return key if is_bare else _text(key)


def _text(text: str) -> str:
    """Returns a text as a basic string of TOML. TOML has the escapes of JSON, and must also escape DEL. Surrogates,
    which stand for bytes that are no UTF-8, become question marks; such a value is about to be refused anyway."""
    return msgspec.json.encode(text.encode(errors="replace").decode()).decode().replace("\x7f", "\\u007f")

"""Removes keys and sections that this version does not know from a raftmq.toml, so that a node can go back to this
version (docs/upgrade.md)."""

from __future__ import annotations

import shutil
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from cluster.config.loading import unknown_keys
from cluster.config.local_layout import replace_file
from cluster.config.source import KeyPath, dotted, line_of
from raftmq_wire.errors import ExitCode, LocalError


class Downgraded(NamedTuple):
    """The result for one file: what was removed from it."""

    file: str
    dropped: list[str]
    """The removed keys and sections, as "section.name" or "section"."""
    copy: str | None
    """The path of the copy of the file as it was before; None if nothing was written."""


def downgrade(path: Path, *, dry_run: bool = False) -> Downgraded:
    """Drops unknown keys and sections from the file and keeps a copy beside it. Everything else stays, including
    comments.

    Raises ConfigError for a file that is no TOML, LocalError if a key cannot be removed line by line: then nothing is
    written.
    """
    unknown = unknown_keys(path)
    text = path.read_text(encoding="utf-8")
    for key in reversed(unknown):  # from the end, so that the earlier tables of a list keep their numbers
        text = _without(text, key, path)
    names = [dotted(key) for key in unknown]
    if dry_run or not unknown:
        return Downgraded(str(path), names, None)
    copy = _keep(path)
    replace_file(path, text.encode())
    return Downgraded(str(path), names, str(copy))


def _keep(path: Path) -> Path:
    """Copies the file to FILE.newer-1, or to the first free name FILE.newer-2 and so on; returns the copy's path."""
    number = 1
    while (copy := path.with_name(f"{path.name}.newer-{number}")).exists():
        number += 1
    shutil.copy2(path, copy)
    return copy


def _without(text: str, key: KeyPath, path: Path) -> str:
    """Returns the text without the lines of the key: the fewest lines, from the key's first line on, whose removal
    keeps all other values."""
    wanted = _tree_without(tomllib.loads(text), key)
    lines = text.splitlines(keepends=True)
    first, is_exact = line_of(text, key)
    ends = range(first, len(lines) + 1) if first is not None and is_exact else range(0)
    for end in ends:
        assert first is not None
        shorter = "".join([*lines[: first - 1], *lines[end:]])
        try:
            if tomllib.loads(shorter) == wanted:
                return shorter
        except tomllib.TOMLDecodeError:
            continue
    raise LocalError(
        f"{path}: {dotted(key)} cannot be taken out",
        "it does not stand on lines of its own",
        f"take it out in an editor; it is near line {first or 1}",
        ExitCode.REFUSED,
    )


def _tree_without(tree: Any, key: Sequence[str | int]) -> Any:
    step, rest = key[0], key[1:]
    if isinstance(tree, list):
        return [_tree_without(each, rest) if number == step else each for number, each in enumerate(tree)]
    if not rest:
        return {name: each for name, each in tree.items() if name != step}
    return {name: _tree_without(each, rest) if name == step else each for name, each in tree.items()}

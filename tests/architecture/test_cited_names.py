"""Names of files, modules and classes in docstrings and comments exist, as those in docs do (test_docs.py)."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from cluster.config.config import Config
from tests.architecture.test_docs import NO_MODULES, PACKAGES, is_defined
from tests.support.rows import each_row
from tests.support.tree import ROOT
from tests.support.words import comments, product_files, words_of

DOTTED = re.compile(rf"(?<![\w./-])((?:{'|'.join(PACKAGES)})(?:\.\w+)+)")
PATH = re.compile(r"(?<![\w./<>{}*-])((?:[\w-]+/)+[\w-]+\.(?:pyx?|md|c))\b")
SHORT = re.compile(r"`([a-z_]\w*(?:\.\w+)+)(?:\([^`]*\))?`")
ENDINGS = {"json", "md", "py", "toml"}
"""Ends of the names of files that look like modules."""


@cache
def homes() -> dict[str, list[str]]:
    """Last part of a module's name -> the packages that it stands in."""
    found = defaultdict(list)
    for path in product_files():
        *above, name = path.relative_to(ROOT).with_suffix("").parts
        if name == "__init__":
            *above, name = above
        found[name].append(".".join(above))
    return found


@cache
def rooms() -> frozenset[str]:
    return frozenset(path.parent.name for path in product_files() if path.name == "__init__.py")


def is_short_name(name: str) -> bool:
    """Returns True if the name is one of ours that leaves out its first parts: `request.Request`, `broker.sends`. Keys
    of the configuration (`log.slow_append_ms`) look the same as names in a room, and are left out."""
    first, second, *_ = name.split(".")
    if first in PACKAGES or name.rpartition(".")[2] in ENDINGS:
        return False
    if second[0].isupper():
        return first in homes()
    return first in rooms() and first not in Config.__struct_fields__


def wrong_names(text: str, path: Path) -> Iterator[str]:
    """Yields the names that `text`, a docstring or comment of the file, cites and that do not exist."""
    for name in DOTTED.findall(text):
        if name not in NO_MODULES and name.rpartition(".")[2] not in ENDINGS and not exists(name):
            yield name
    for name in PATH.findall(text):
        if not any((folder / name).exists() for folder in path.parents if folder.is_relative_to(ROOT)):
            yield name
    for name in SHORT.findall(text):
        if is_short_name(name) and not any(exists(f"{home}.{name}") for home in homes()[name.partition(".")[0]]):
            yield name


@cache
def exists(name: str) -> bool:
    return is_defined(name)


def test_names_in_docstrings_and_comments_exist() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line} {name}"
        for path in product_files()
        for texts in words_of(path)
        for line, text in texts
        for name in wrong_names(text, path)
    ]
    assert not found, "\n".join(["", *found])


@each_row(
    "text",
    [
        "Made by cluster.broker.sends.no_such_module.",
        "Made by `cluster.config.config.Config.no_such_field`.",
        "Drawn in docs/no-such-page.md.",
        "Judged by `sim/no_such_file.py`.",
        "Implements `request.NoSuchClass`.",
        "Kept by `remoting.no_such_module`.",
    ],
)
def test_a_name_of_nothing_is_found(text: str) -> None:
    here = ROOT / "cluster" / "broker" / "name_rules.py"
    assert list(wrong_names(text, here))
    good = (
        "`cluster.broker.name_rules`, `request.Request.reply`, `remoting.request`, docs/style.md, broker/name_rules.py"
    )
    assert list(wrong_names(f"{good}, `log.no_such_key`, cluster.json", here)) == []


def test_comments_are_read() -> None:
    assert comments("x = 1  # of a.b\n#: c\n# d\ny = '#e'") == [(1, "of a.b"), (3, "d")]

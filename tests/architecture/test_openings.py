"""No docstring opens with a noun clause or a bare preposition, and none only says where to look."""

from __future__ import annotations

import ast
import re

import pytest

from tests.support.rows import each_row
from tests.support.tree import ROOT
from tests.support.words import docstrings, product_files, words_of

OPENINGS = "What|Who|Whoever|Whose|Whether|Where|How|Of|As|From|In|By|For|Until|Taken|That"
OPENING = re.compile(rf"\W*({OPENINGS})\b")
SEE_ALONE = re.compile(r"See\s(?:(?!\.\s)[^:;,(])*")
"""A docstring that sends the reader elsewhere without a word."""


def fault_of(text: str) -> str | None:
    """Returns the fault of a docstring's beginning, or None."""
    words = text.strip()
    if first := OPENING.match(words):
        return f"begins with {first[1]!r}: {words.splitlines()[0]}"
    if SEE_ALONE.fullmatch(words):
        return f"only says where to look: {words}"
    return None


def test_docstrings_begin_with_an_actor_or_a_verb() -> None:
    """docs/style.md, Prose. There is no list of exceptions: a good sentence that begins so is turned round."""
    found = [
        f"{path.relative_to(ROOT)}:{line} {fault}"
        for path in product_files()
        for line, text in words_of(path)[0]
        if (fault := fault_of(text))
    ]
    assert not found, "\n".join(["", *found])


BAD = [
    '"""What is kept."""',
    'class A:\n    """Of one node."""',
    'def f() -> None:\n    """\n    Whether it is there.\n    """',
    'LIMIT = 3\n"""How many there may be."""',
    'class A:\n    limit: int = 3\n    """`As` it is kept."""',
    'class A:\n    def __init__(self) -> None:\n        self.x = 1\n        """(Where it lies, how long it is)."""',
    'def f() -> None:\n    """See X."""',
    'class A:\n    """See the module."""',
    'x = 1\n"""See\n    `cluster.broker.services.Client`."""',
]


@each_row("source", BAD)
def test_a_bad_opening_is_found(source: str) -> None:
    assert [fault for _, text in docstrings(ast.parse(source)) if (fault := fault_of(text))]


@each_row("word", OPENINGS.split("|"))
def test_each_word_is_refused_as_the_first_alone(word: str) -> None:
    assert fault_of(f"{word} it is.")
    assert fault_of(f"It is {word.lower()} it is.") is None
    assert fault_of(f"{word}ever it is.") is None or word == "Who"


@pytest.mark.parametrize("text", ["Forms of a header.", "See File: nothing is to be done.", "Returns what is kept."])
def test_good_openings_pass(text: str) -> None:
    assert fault_of(text) is None

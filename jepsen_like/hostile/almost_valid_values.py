"""Almost valid values: numbers at and beyond every limit, texts that are not valid, shapes that do not fit.

A JSON document is mutated as a tree, one place at a time, and written by hand where `json` would not write it (depth,
the same name twice). Everything comes from one seeded `random.Random`.
"""

from __future__ import annotations

import copy
import json
import random
from typing import Any

INTS = (
    0,
    1,
    -1,
    2,
    127,
    128,
    255,
    32767,
    32768,
    65536,
    (1 << 31) - 1,
    1 << 31,
    -(1 << 31) - 1,
    1 << 32,
    (1 << 53) + 1,
    (1 << 63) - 2,
    (1 << 63) - 1,
    1 << 63,
    -(1 << 63),
    -(1 << 63) - 1,
    1 << 64,
    10**23,
    -(10**40),
    1 << 500,
)
FLOATS = (0.5, -0.0, 1e15, 1e308, 5e-324, float("inf"), float("-inf"), float("nan"))
TEXTS = (
    "", " ", "\x00", "\x01\x02", "\ud800", "\udfff\ud800", "\U0001f600", "a" * 200, "b" * 40_000, "%RETRY%", "%DLQ%x",
    "../../etc/passwd", "1_000", "+5", " 7 ", "0x10", "1e5", "\uff11\uff15", "\u0661", "true", "null", "NaN", "-", "*",
    "a || b", "a" + " || b" * 500, "%s%n", "\r\nX: y", "\u202e", "9" * 5000, "[", "{}", "TBW102", "a\tb",
)  # fmt: skip
SHAPES: tuple[Any, ...] = (None, True, False, [], {}, [[]], {"a": {}}, [None], {"": ""}, [1, "x", {"y": [2]}])
DEEP = 3000
_HOLE = "\u0001deep\u0001"
_PIECES = tuple(json.dumps(text) for text in (_HOLE,))


def number(rng: random.Random) -> int:
    """Draws a number at or near a limit, or any number of up to 70 bits."""
    if rng.random() < 0.8:
        return rng.choice(INTS) + rng.choice((0, 0, 0, -1, 1))
    return rng.getrandbits(rng.randrange(1, 71)) * rng.choice((1, -1))


def text(rng: random.Random) -> str:
    """Draws a text to be used where a number or a name is expected."""
    kind = rng.random()
    if kind < 0.4:
        return str(number(rng))
    if kind < 0.5:
        return str(rng.choice(FLOATS))
    if kind < 0.9:
        return rng.choice(TEXTS)
    return "".join(map(chr, rng.choices(range(1, 0x2FF), k=rng.randrange(1, 30))))


def value(rng: random.Random) -> Any:
    """Draws any JSON value."""
    kind = rng.random()
    if kind < 0.4:
        return number(rng)
    if kind < 0.55:
        return rng.choice(FLOATS)
    if kind < 0.8:
        return text(rng)
    return copy.deepcopy(rng.choice(SHAPES)) if kind < 0.98 else _HOLE


def flat(rng: random.Random, fields: dict[str, Any], times: int) -> dict[str, Any]:
    """Changes, removes or adds some ext fields, or changes their types; returns the same dict."""
    for _ in range(times):
        kind = rng.random()
        name = rng.choice(list(fields)) if fields else "x"
        if kind < 0.7:
            fields[name] = text(rng)
        elif kind < 0.85:
            fields.pop(name, None)
        elif kind < 0.95:
            fields[name] = value(rng)
        else:
            fields[text(rng)] = text(rng)
    return fields


def is_json(fields: dict[str, Any]) -> bool:
    """Returns True if every JSON reader accepts the fields: no half of a surrogate pair, no NaN. A header that is not
    JSON ends the connection with everything in flight."""
    written = json.dumps(fields)
    return not any(word in written for word in ("NaN", "Infinity", "\\ud", "\\udf"))


def tree(rng: random.Random, root: Any, times: int) -> Any:
    """Changes some places of a JSON document and returns it; may change `root` itself."""
    for _ in range(times):
        places = list(_places(root))
        if not places:
            return value(rng)
        parent, key = rng.choice(places)
        kind = rng.random()
        if kind < 0.75:
            parent[key] = value(rng)
        elif kind < 0.85:
            del parent[key]
        elif isinstance(parent, dict):
            parent[text(rng)] = value(rng)
        else:
            parent.extend([parent[key]] * rng.choice((1, 3, 200)))
    return root


def _places(root: Any) -> list[tuple[Any, Any]]:
    found: list[tuple[Any, Any]] = []
    open_nodes = [root]
    while open_nodes:
        node = open_nodes.pop()
        keys = list(node) if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ()
        for key in keys:
            found.append((node, key))
            open_nodes.append(node[key])
    return found


def encode(rng: random.Random, document: Any) -> bytes:
    """Encodes the document as JSON, seldom with the same names twice, or cut off. The placeholder that `value` may draw
    becomes an array nested DEEP levels deep.
    """
    written = json.dumps(document)
    if _PIECES[0] in written:
        written = written.replace(_PIECES[0], "[" * DEEP + "]" * DEEP)
    if rng.random() < 0.03 and written.startswith('{"'):
        written = written[:-1] + "," + written[1:]
    data = written.encode()
    return data[: rng.randrange(len(data) + 1)] if rng.random() < 0.02 else data


def noise(rng: random.Random, most: int = 64) -> bytes:
    """Draws fewer than `most` random bytes."""
    return rng.randbytes(rng.randrange(most))

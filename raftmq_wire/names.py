"""The rule for names of topics and groups, the same as RocketMQ's. The server limits the length of names; this module
does not."""

from __future__ import annotations

import re

NAME = re.compile(r"[%|a-zA-Z0-9_-]+")
"""The pattern of a name: one or more of the allowed characters."""
SIGNS = "letters, digits and the signs % | _ -"
"""The characters of NAME in words, for error texts."""
_OTHER = re.compile(r"[^%|a-zA-Z0-9_-]+")


def check_name(kind: str, name: str) -> None:
    """Raises ValueError unless `name` has only characters of NAME and at least one. `kind`: the word for the error's
    text, such as "topic"."""
    if not NAME.fullmatch(name):
        raise ValueError(f"{name[:80]!r} is no name of a {kind}: it may hold only {SIGNS}")


def nearest_name(name: str) -> str:
    """Returns an allowed name that is similar to `name`, to suggest it to a person; "" if there is none."""
    return _OTHER.sub("-", name).strip("-")

"""The rule of names of topics and groups, as RocketMQ has it. How long a name may be is the server's own limit."""

from __future__ import annotations

import re

NAME = re.compile(r"[%|a-zA-Z0-9_-]+")
"""The characters that a name may hold."""
SIGNS = "letters, digits and the signs % | _ -"
"""The same in words."""
_OTHER = re.compile(r"[^%|a-zA-Z0-9_-]+")


def check_name(kind: str, name: str) -> None:
    """Raises ValueError unless the name can be one of a topic or a group; `kind` says of which."""
    if not NAME.fullmatch(name):
        raise ValueError(f"{name[:80]!r} is no name of a {kind}: it may hold only {SIGNS}")


def nearest_name(name: str) -> str:
    """Returns a name that is allowed and looks like this one; "" if there is none."""
    return _OTHER.sub("-", name).strip("-")

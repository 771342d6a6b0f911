"""The command with which a Super gives the right that a denial names (`statemachine.access.access_decision`)."""

from __future__ import annotations

import re
import shlex
from typing import Final

_NO_RIGHT: Final = re.compile(r"user (\S+) has no right to (\w+(?: or \w+)*) on ((?:Topic|Group|Cluster):.*) from \S+")


def how_to_allow(denial: str, wanted: str = "") -> str:
    """Returns the command that gives the missing right, and says who may type it; "" if another reason is told.
    `wanted`: the action that the caller is about to need, if it knows; of several that would do, it is advised."""
    found = _NO_RIGHT.search(denial)
    if found is None:
        return ""
    user, actions, resource = found[1], found[2].split(" or "), found[3]
    if wanted in actions:
        actions = [wanted]
    others = f"; instead of {actions[0]}, {' or '.join(actions[1:])} would do" if len(actions) > 1 else ""
    return f"raftmq acl set {user} {shlex.quote(resource)} {actions[0]} --add    (as a Super{others})"

"""Remarks of refusals with NO_PERMISSION, as nodes write and clients read them: the right that is missing
(`statemachine.access.access_decision`), with the command by which a Super gives it, or what an operator has switched
off."""

from __future__ import annotations

import re
import shlex
from typing import Final

NOT_SIGNED: Final = "the request is not signed: give the client an access key and a secret"
WRONG_SIGNATURE: Final = "the signature is wrong, or there is no such user"

_NO_RIGHT: Final = re.compile(r"user (\S+) has no right to (\w+(?: or \w+)*) on ((?:Topic|Group|Cluster):.*) from \S+")

_SWITCHED_OFF: Final = re.compile(
    r"topic \S+ may not be read \(perm \d+\)|consumer group \S+ may not consume \(consumeEnable=false\)"
)


def unreadable_topic(name: str, perm: int) -> str:
    """Returns the remark about a topic without read permission."""
    return f"topic {name} may not be read (perm {perm})"


def disabled_group(name: str) -> str:
    """Returns the remark about a group that may not consume."""
    return f"consumer group {name} may not consume (consumeEnable=false)"


def is_switched_off(remark: str) -> bool:
    """Returns True for one of these two remarks: no right is missing."""
    return _SWITCHED_OFF.fullmatch(remark) is not None


def how_to_allow(denial: str, wanted: str = "") -> str:
    """Returns the command that gives the missing right, and who may type it; "" if the denial has another reason.
    `wanted`: the action that the caller is about to need, if it knows; of several that would do, it is advised."""
    found = _NO_RIGHT.search(denial)
    if found is None:
        return ""
    user, actions, resource = found[1], found[2].split(" or "), found[3]
    if wanted in actions:
        actions = [wanted]
    others = f"; instead of {actions[0]}, {' or '.join(actions[1:])} would do" if len(actions) > 1 else ""
    return f"raftmq acl set {user} {shlex.quote(resource)} {actions[0]} --add    (as a Super{others})"

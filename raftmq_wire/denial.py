"""The remarks of answers with the code NO_PERMISSION, which nodes write and clients parse. A remark says which right is
missing (`statemachine.access.access_decision`) or what an operator has switched off. For a missing right, clients
derive the command with which a Super grants it."""

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
    """Returns True if `unreadable_topic` or `disabled_group` made the remark: then no right is missing."""
    return _SWITCHED_OFF.fullmatch(remark) is not None


def how_to_allow(denial: str, wanted: str = "") -> str:
    """Returns a text with the command that grants the missing right, and who may run it; "" if the denial has another
    reason. `wanted`: the action that the caller needs, if known. If several actions would suffice, the command grants
    that one."""
    found = _NO_RIGHT.search(denial)
    if found is None:
        return ""
    user, actions, resource = found[1], found[2].split(" or "), found[3]
    if wanted in actions:
        actions = [wanted]
    others = f"; instead of {actions[0]}, {' or '.join(actions[1:])} would do" if len(actions) > 1 else ""
    return f"raftmq acl set {user} {shlex.quote(resource)} {actions[0]} --add    (as a Super{others})"

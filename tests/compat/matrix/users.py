"""The users of a secured run: each feature has a sender and a reader of its own, with what docs/security.md says they
need and nothing else; and what the nodes denied them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import raftmq

REPLIES = "Topic:DefaultCluster_REPLY_TOPIC"
"""The topic that replies are sent to."""
_DENIED = re.compile(r"request (.+) denied: ['\"](.*)['\"]$")


def user_of(prefix: str, feature: str, role: str) -> str:
    """Returns the name of the user as which the `role` ("sender" or "reader") of a feature signs."""
    return f"{prefix}-{feature}-{role}"


def make_users(mq: raftmq.Client, prefix: str, features: Sequence[str], secret: str) -> None:
    """Makes a sender and a reader for each feature, all with the same secret."""
    for feature in features:
        topic = f"Topic:{prefix}-{feature}"
        sender, reader = user_of(prefix, feature, "sender"), user_of(prefix, feature, "reader")
        for user in (sender, reader):
            mq.admin.create_user(user, secret)
        mq.admin.set_rule(sender, topic, ["Pub"])
        mq.admin.set_rule(reader, topic, ["Sub"])
        mq.admin.set_rule(reader, f"Group:{prefix}-{feature}-readers", ["Sub"])
        if feature == "request":
            mq.admin.set_rule(reader, REPLIES, ["Pub"])


def denials(data: Path) -> dict[str, Counter[str]]:
    """Returns what the nodes of the cluster in that directory denied: user or "" -> request and reason -> lines of the
    logs, of which each reason has at most one in 10 s."""
    found: dict[str, Counter[str]] = {}
    for log in sorted(data.glob("n*/node.log")):
        for line in log.read_text(errors="replace").splitlines():
            if match := _DENIED.search(line):
                user = re.search(r"\buser (\S+)", match[2])
                found.setdefault(user[1] if user else "", Counter())[f"{match[1]}: {match[2]}"] += 1
    return found

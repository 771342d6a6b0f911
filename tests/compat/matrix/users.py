"""The users of a secured run: each feature has a sender and a reader of its own, with what docs/security.md says they
need and nothing else; and what the nodes denied them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import raftmq
from raftmq.local.cluster import LocalCluster
from raftmq.local.http.admin_http import AdminApi
from raftmq.local.http.credentials import address_of

REPLIES = "Topic:DefaultCluster_REPLY_TOPIC"
"""The topic that replies are sent to."""
_USER = re.compile(r"\buser (\S+)")
_DENIED = re.compile(r"client \S+: (?:request )?(.+) denied: (['\"])(.*)\2(?: \(the last of \d+\))?$")


def user_of(prefix: str, feature: str, role: str) -> str:
    """Returns the name of the user as which the `role` ("sender" or "reader") of a feature signs."""
    return f"{prefix}-{feature}-{role}"


def make_users(live: LocalCluster, mq: raftmq.Client, prefix: str, features: Sequence[str], secret: str) -> None:
    """Makes a sender and a reader for each feature, all with the same secret, and waits until every node knows them."""
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
    wait_for_users(live)


def wait_for_users(live: LocalCluster) -> None:
    """Has each node read what is committed; until then it may deny a new user."""
    for node in live.nodes:
        assert list(AdminApi([address_of(node)], "raftmq user list").pages("/v1/users"))


def denials(data: Path) -> dict[str, list[str]]:
    """Returns what the nodes of the cluster in that directory denied: user, or "" for none -> requests and reasons.
    A node logs what it denies to a user once in 10 s."""
    found: dict[str, set[str]] = {}
    for log in data.glob("**/n*/node.log*"):
        for line in log.read_text(errors="replace").splitlines():
            if match := _DENIED.search(line):
                user = _USER.search(match[3])
                found.setdefault(user[1] if user else "", set()).add(f"{match[1]}: {match[3]}")
    return {user: sorted(reasons) for user, reasons in found.items()}

"""A consumer's subscription to a topic: all messages, messages with certain tags, or those that an SQL92 filter
selects."""

from __future__ import annotations

from typing import NamedTuple

from raftmq.client.arguments import check_text


class Subscription(NamedTuple):
    """A subscription in the form that requests carry. All members of a group must send the same subscription."""

    kind: str = "TAG"
    """RocketMQ's expressionType."""
    text: str = "*"

    @property
    def tags(self) -> frozenset[str] | None:
        """The wanted tags, which the server compares only by hash. None for all tags, and for an SQL92 filter, which
        the server applies exactly."""
        return split_tags(self.text) if self.kind == "TAG" else None


ALL = Subscription()


def subscription(tags: str | None, filter: str | None) -> Subscription:
    """Returns the subscription of "a || b", or of an SQL92 expression such as "price > 10 AND region = 'eu'". Raises
    ValueError if both are given."""
    check_text("tags", tags)
    check_text("filter", filter)
    if filter is None:
        return Subscription("TAG", normal_tags(tags))
    if split_tags(tags) is not None:
        raise ValueError("either tags or a filter, not both; a filter can compare TAGS")
    return Subscription("SQL92", filter)


def split_tags(tags: str | None) -> frozenset[str] | None:
    """Returns the tags of "a || b"; None for all tags ("*", "" or None)."""
    if tags is None or tags.strip() in ("", "*"):
        return None
    return frozenset(tag.strip() for tag in tags.split("||") if tag.strip())


def normal_tags(tags: str | None) -> str:
    """Returns the subscription string in a normal form (sorted), so that all members of a group send the same."""
    wanted = split_tags(tags)
    return "*" if wanted is None else " || ".join(sorted(wanted))

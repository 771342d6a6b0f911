"""The header of a send over a plain connection."""

from __future__ import annotations


def plain_send(group: str, topic: str, queue: int, message_id: str) -> dict[str, str]:
    """Returns the fields of SEND_MESSAGE_V2, with the id as UNIQ_KEY."""
    return {
        "a": group,
        "b": topic,
        "c": "TBW102",
        "d": "4",
        "e": str(queue),
        "f": "0",
        "g": "0",
        "h": "0",
        "i": f"UNIQ_KEY\x01{message_id}\x02",
        "j": "0",
        "m": "false",
    }

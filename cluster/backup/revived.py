"""The users, rules and tokens that a restore brings back, read from the state in the backup."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from statemachine.access.users import Access
from statemachine.commands import REMOVE_TOKEN, Command
from statemachine.rocks_reader import CheckpointReader

if TYPE_CHECKING:
    from statemachine.rows.kv import KV

TOKENS_PER_ENTRY: Final = 500
ASKER: Final = "raftmq restore"
"""The name in the audit for the tokens that a restore takes away."""


class Revived(NamedTuple):
    """Users as a restore brings them back: an earlier state of them, perhaps one from before a right was taken away."""

    users: tuple[tuple[str, bool, bool, int], ...] = ()
    """(name, is a Super, is enabled, number of rules) of each user, by name."""
    mode: str = "off"
    """The mode in which requests are judged (`auth.mode`)."""
    keys: tuple[str, ...] = ()
    """The ids of the keys that encrypt the users' secrets."""
    tokens: tuple[bytes, ...] = ()
    """The SHA-256 of each token; the restore takes all of them away."""

    def revoking(self, now_ms: int) -> list[list[Command]]:
        """Returns the commands that take all tokens away, one list for each entry of the log."""
        commands: list[Command] = [[REMOVE_TOKEN, [now_ms, ASKER, ""], digest] for digest in self.tokens]
        return [commands[at : at + TOKENS_PER_ENTRY] for at in range(0, len(commands), TOKENS_PER_ENTRY)]


def revived_in(state: Path) -> Revived:
    """Reads the users of the state in that folder and changes nothing there. Raises KVError."""
    with CheckpointReader(state) as reader:
        access = Access(cast("KV", reader))  # `get` and `scan` are all that it asks for to load
        users = tuple((each.name, each.is_super, each.enabled, len(each.rules)) for each in access.users.values())
        return Revived(users, access.mode.value, tuple(sorted(access.keys_in_use)), tuple(sorted(access.tokens)))

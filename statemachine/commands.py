"""Commands: the content of a COMMAND entry (one msgpack array) and of the effects of a MESSAGES entry.

A CHANGE entry (from level 12 on) holds `[author, [command, ...]]`: commands that a person asked for. The author is a
text for people, of at most 200 characters.

A command is `[name, argument...]`, names and arguments below. The leader decides when it proposes, and apply answers
with a result. Only a command that a client sent may be answered with an error; none depends on a clock.

    create_topic    config: map, if_absent: bool        id is given by apply; updates the config unless if_absent
    delete_topic    name
    put_group       config: map, if_absent: bool        from level 13 on consume_broadcast_enable counts
    delete_group    name, clean_offsets: bool
    subscribe       group, [[topic, expression_type, sub_string, sub_version], ...]   replaces the group's subscriptions
    commit_offsets  [[group, topic_id, queue_id, offset], ...]     last value wins, also backwards (RocketMQ allows it)
    end_sessions    [producer_id, ...]      forget producers whose connection closed with nothing unanswered
    expire          before_ms      forget producer sessions and unique rows idle since before that log time
    acknowledge     index          an operator acknowledges the MEMBERSHIP at that index: its alarm ends
    finalize        level          the cluster has that level from here on (LEVELS); it never goes down
    lock_queues     group, client_id, now_ms, expires_ms, [[topic_id, queue_id], ...]     log times of the proposal
    unlock_queues   group, client_id, [[topic_id, queue_id], ...] or nil for all that the client holds
    lock_queues_of, unlock_queues_of    user id, then as above: from level 13 on, for the client of a user
    reset_offsets   group, now_ms, [[topic_id, queue_id, offset], ...]     moves committed offsets; the group's commits
                    of the queue are left out until its consumer is told
    end_resets      group, [[topic_id, queue_id, number], ...]     that reset is known to the queue's consumer
    deliver_timers  [[due_ms, position], ...]      rows of scheduled messages; their copies are in the same entry
    drop_timers     [[due_ms, position], ...]      the same, without copies: nobody can have the messages any more
    end_halves      [position, ...]      the transactions of these half messages end; in the entry of the copy, if it
                                         is committed
    check_halves    next_ms, [position, ...]      their producers are asked now and again at that log time
    recall_timer    due_ms, position, message_position      that message of the row [due_ms, position] is not delivered;
                    the position is where it was first stored
    tier_state      base, state, term, span or nil, parts or nil      the segment at that position comes into that state
                    (tier.py); span: [end, first_index, last_index, first_ms, last_ms], with UPLOADING; parts:
                    [[name, size, digest, crc32c], ...], with UPLOADED
    open_attempt    name, write, now_ms      an attempt at that write; value: its number
    commit_write    name, write, now_ms, [[attempt, messages], ...]      these win; the others of the write, and of
                    earlier ones of the name, are discarded
    discard_attempts  [attempt, ...]      those of them that are open
    drop_staged     attempt, rows      removes so many rows of a discarded attempt
    forget_write    name      nothing was committed under the name
    set_config      version, now_ms, author, reason, {key: value, ...}     the cluster's configuration, if it is still
                    of that version (settings.py)
    set_maintenance node, now_ms, author, reason or nil     that node is in maintenance, or not any more
  from level 11 on: users and their rules (access/users.py); an origin is [now_ms, user, address of the client]
    create_user     origin, id, name, super: bool, enabled: bool, encrypted secret, key id      the id is the next one
    change_user     origin, id, {super: bool, enabled: bool, secret: [encrypted, key id]}      any of them; from level
                    13 on a secret ends the user's tokens but those with a label of keep_tokens: [label, ...]
    remove_user     origin, id      with its rules and tokens
    set_rules       origin, user id, [[policy, resource, [action, ...], [source, ...], allow: bool], ...]
    remove_rules    origin, user id, policy or nil, resource or nil
    put_token       origin, user id, SHA-256, ends_ms, label
    remove_token    origin, SHA-256
    set_auth_mode   origin, off | observe | enforce
    set_auth_key    origin, key id      the key that secrets are encrypted with
  from level 13 on: the users whose things are
    own_halves      [[position, user id], ...]      half messages of the same entry

No command removes rows without a bound (removals.py): delete_topic, delete_group and expire begin a removal, which
slices carry out (trim.py), and so does commit_write if many attempts lose. lock_queues leaves locks of the group that
have expired where they are: expire takes them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

import msgpack

from raftlog.format_versions import BASELINE
from raftlog.types import EntryType
from raftlog.work import charge_text

CREATE_TOPIC = "create_topic"
DELETE_TOPIC = "delete_topic"
PUT_GROUP = "put_group"
DELETE_GROUP = "delete_group"
SUBSCRIBE = "subscribe"
COMMIT_OFFSETS = "commit_offsets"
END_SESSIONS = "end_sessions"
EXPIRE = "expire"
ACKNOWLEDGE = "acknowledge"
FINALIZE = "finalize"
LOCK_QUEUES = "lock_queues"
UNLOCK_QUEUES = "unlock_queues"
LOCK_QUEUES_OF = "lock_queues_of"
UNLOCK_QUEUES_OF = "unlock_queues_of"
RESET_OFFSETS = "reset_offsets"
END_RESETS = "end_resets"
DELIVER_TIMERS = "deliver_timers"
DROP_TIMERS = "drop_timers"
END_HALVES = "end_halves"
CHECK_HALVES = "check_halves"
RECALL_TIMER = "recall_timer"
TIER_STATE = "tier_state"
OPEN_ATTEMPT = "open_attempt"
COMMIT_WRITE = "commit_write"
DISCARD_ATTEMPTS = "discard_attempts"
DROP_STAGED = "drop_staged"
FORGET_WRITE = "forget_write"
SET_CONFIG = "set_config"
SET_MAINTENANCE = "set_maintenance"
CREATE_USER = "create_user"
CHANGE_USER = "change_user"
REMOVE_USER = "remove_user"
SET_RULES = "set_rules"
REMOVE_RULES = "remove_rules"
PUT_TOKEN = "put_token"
REMOVE_TOKEN = "remove_token"
SET_AUTH_MODE = "set_auth_mode"
SET_AUTH_KEY = "set_auth_key"
ROTATE_AUTH_KEY = "rotate_auth_key"
RESEAL_USER = "reseal_user"
OWN_HALVES = "own_halves"

ACCESS_LEVEL = BASELINE + 1
"""The level of the commands about users, rules and tokens."""
_ACCESS = (
    CREATE_USER,
    CHANGE_USER,
    REMOVE_USER,
    SET_RULES,
    REMOVE_RULES,
    PUT_TOKEN,
    REMOVE_TOKEN,
    SET_AUTH_MODE,
    SET_AUTH_KEY,
)
LEVELS: dict[str, int] = dict.fromkeys(_ACCESS, ACCESS_LEVEL)
"""The commands that came after the baseline, each with its level. All other commands have level BASELINE."""
CHANGES_LEVEL = BASELINE + 2
"""The level of CHANGE entries, and of topic rows with the time and author of the topic's creation and last change."""
AUTHOR_LENGTH_MAX = 200
ROTATION_LEVEL = CHANGES_LEVEL
"""The level of the commands that replace the key of users' secrets."""
LEVELS |= dict.fromkeys((ROTATE_AUTH_KEY, RESEAL_USER), ROTATION_LEVEL)
OWNERS_LEVEL = BASELINE + 3
"""The level of owners (docs/adr/0098): half messages and queue locks name the user whose they are, and the sessions of
senders are named by kind and user."""
LEVELS[OWN_HALVES] = OWNERS_LEVEL
LEVELS |= dict.fromkeys((LOCK_QUEUES_OF, UNLOCK_QUEUES_OF), OWNERS_LEVEL)
SETTINGS_LEVEL = OWNERS_LEVEL
"""The level from which on `put_group` says if a group's broadcasting consumers are refused."""
NO_OWNER = 0
"""The user in rows that no proven user owns (`statemachine.access.users.NOBODY`)."""
LEVEL = max(OWNERS_LEVEL, *LEVELS.values())
"""The highest level that this version knows. A node that meets a command it does not know stops, so a leader proposes a
command of some level only in a cluster that has reached the level (`finalize`, docs/adr/0094)."""


def is_same(owner: int, user: int) -> bool:
    """Returns True if what belongs to `owner` may be the user's: nobody is proven to be another one."""
    return owner == user or NO_OWNER in (owner, user)


def level_of(commands: Iterable[Command]) -> int:
    """Returns the level that the state must have before these commands may be proposed."""
    return max([LEVELS.get(command[0], BASELINE) for command in commands], default=BASELINE)


NAME = re.compile(r"[%|a-zA-Z0-9_-]+")
"""Pattern of the characters that RocketMQ allows in the name of a topic or a group; lengths are checked separately."""

Command = list[Any]


class CommandResult(NamedTuple):
    """The result of one command, the same on every replica.

    `code` is "" or one of: exists (ok: if_absent was set and one exists, which is `value`), reset (ok: commits of
    queues that were reset are left out), not_found, conflict (set_config, create_user), refused (access/users.py),
    invalid (`value` says why); committed, incomplete, full (staged_writes.py).
    """

    ok: bool
    code: str
    value: Any


class InvalidCommandError(ValueError):
    """The arguments of a command are not valid. The command's result is then `invalid`; the exception never leaves
    apply."""


def done(value: Any = None) -> CommandResult:
    """Returns the result of a command that took effect."""
    return CommandResult(True, "", value)


def not_found(what: str) -> CommandResult:
    """Returns the result of a command about something that does not exist. Nothing changed."""
    return CommandResult(False, "not_found", what)


def checked_int(value: Any, what: str, low: int, high: int) -> int:
    """Returns `value` if it is an int in low..high. Raises InvalidCommandError."""
    if type(value) is not int or not low <= value <= high:
        raise InvalidCommandError(f"{what} must be a whole number in {low}..{high}, not {value!r}")
    return value


def checked_str(value: Any, what: str) -> str:
    """Returns `value` if it is a str. Raises InvalidCommandError."""
    if type(value) is not str:
        raise InvalidCommandError(f"{what} must be a text, not {value!r}")
    return value


def checked_name(value: Any, what: str, length_max: int) -> str:
    """Returns `value` if it is a name of 1 to `length_max` characters. Raises InvalidCommandError."""
    name = checked_str(value, what)
    if not 0 < len(name) <= length_max:
        raise InvalidCommandError(f"a {what} has 1 to {length_max} characters, not {len(name)}")
    if not NAME.fullmatch(name):
        raise InvalidCommandError(f"{what} {name!r} may hold only letters, digits and % | _ -")
    return name


def checked_bool(value: Any, what: str) -> bool:
    """Returns `value` if it is a bool. Raises InvalidCommandError."""
    if type(value) is not bool:
        raise InvalidCommandError(f"{what} must be true or false, not {value!r}")
    return value


def checked_str_map(value: Any, what: str) -> dict[str, str]:
    """Returns `value`, keys sorted, if it maps str to str. Raises InvalidCommandError."""
    if type(value) is not dict or not all(type(k) is str and type(v) is str for k, v in value.items()):
        raise InvalidCommandError(f"{what} must map texts to texts, not {value!r}")
    return dict(sorted(value.items()))


def checked_fields(config: Any, known: frozenset[str]) -> dict[str, Any]:
    """Returns `config` if it is a map with known keys only. Raises InvalidCommandError."""
    if type(config) is not dict:
        raise InvalidCommandError(f"config must be a map, not {config!r}")
    unknown = [key for key in config if key not in known]
    if unknown:
        raise InvalidCommandError(f"config has unknown fields {unknown!r}; known are {', '.join(sorted(known))}")
    return config


def pack(commands: list[Command]) -> bytes:
    """Packs commands as the payload of a COMMAND entry or the effects section of a MESSAGES entry.

    Raises ValueError, OverflowError or TypeError for values that msgpack cannot encode: integers beyond 64 bits, text
    that is not valid Unicode, too many levels.
    """
    packed: bytes = msgpack.packb(commands, use_bin_type=True)
    return packed


def pack_bare(commands: list[Command]) -> bytes:
    """Packs the commands back to back, without their count, as a part for `join`. Raises like `pack`."""
    return pack(commands)[len(_array_header(len(commands))) :]


def join(count: int, parts: Iterable[bytes]) -> bytes:
    """Joins parts made by `pack_bare` into what `pack` would return for all their `count` commands, without packing any
    of them again."""
    return b"".join((_array_header(count), *parts))


def _array_header(count: int) -> bytes:
    header: bytes = msgpack.Packer().pack_array_header(count)
    return header


def pack_change(author: str, packed: bytes) -> bytes:
    """Returns the payload of a CHANGE entry. `packed`: the commands, as `pack` returns them."""
    return b"".join((_array_header(2), msgpack.packb(author[:AUTHOR_LENGTH_MAX]), packed))


def unpack_change(data: bytes) -> tuple[str, list[Command]]:
    """Returns the author and the commands of a CHANGE entry. Raises ValueError."""
    charge_text(len(data))
    try:
        found = msgpack.unpackb(data, raw=False, strict_map_key=False)
    except TypeError as error:
        raise ValueError(str(error)) from error
    if not isinstance(found, list) or len(found) != 2:
        raise ValueError("not an author with commands")
    author, commands = found
    if type(author) is not str or len(author) > AUTHOR_LENGTH_MAX:
        raise ValueError("the author is no text of at most 200 characters")
    return author, _checked(commands)


def in_entry(kind: int, payload: bytes) -> list[Command]:
    """Returns the commands of a COMMAND or CHANGE entry; [] for another kind. Raises ValueError."""
    if kind == EntryType.CHANGE:
        return unpack_change(payload)[1]
    return unpack(payload) if kind == EntryType.COMMAND else []


def _checked(commands: Any) -> list[Command]:
    if not isinstance(commands, list) or not all(isinstance(c, list) and c for c in commands):
        raise ValueError("not an array of commands")
    return commands


def unpack(data: bytes) -> list[Command]:
    """Returns the commands in the bytes of `pack`; [] for no bytes. Raises ValueError unless they are an array of
    arrays."""
    if not data:
        return []
    charge_text(len(data))
    try:
        commands = msgpack.unpackb(data, raw=False, strict_map_key=False)
    except TypeError as error:  # a map whose key is itself an array or a map
        raise ValueError(str(error)) from error
    return _checked(commands)

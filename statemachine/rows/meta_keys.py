"""The row keys of the family meta, drawn. The family has rows that exist once in a state, and kinds of rows of which a
state has few. All integers are big-endian. ::

    key                                                           value
    "applied"                                                     applied row (below)
    "format"                                                      u32, FORMAT
    "sums"                                                        version u8 | index u64 | sums u64..
                                                                  (running_digest.py)
    "next_topic_id"                                               u32, id of the next topic created
    "membership"                                                  u64, index | MEMBERSHIP payload
    "acknowledged"                                                u64, index of a MEMBERSHIP, members.py
    "trim"                                                        trim row (below)
    "kept"                                                        kept row (below), while segments that were
                                                                  evicted are in the tier
    "sweep"                                                       sweep row (below), while one is under way
    "sweep_at"                                                    "cq" or "index" | 00 | key in that family:
                                                                  the rows below it are swept
    "removal" | 00 | number u64                                   msgpack [kind, what, offsets], removals.py
    "removal_at"                                                  step u8 | key: how far the first removal is
    "spared" | 00 | family | 00 | key in that family              number u64 of the newest removal that is to
                                                                  leave this row of a group that was made again
    "level"                                                       u32, level of the cluster (finalize)
    "timer_front"                                                 value of timer's "c" | due_ms u64 |
                                                                  position u64 of its first "d", FF.. for none
    "setting" | 00 | key                                          msgpack [value, version], settings.py
    "setting_change" | 00 | version u64                           msgpack [time_ms, author, reason,
                                                                  {key: [old value or nil, new value]}]
    "maintenance" | 00 | node u32                                 msgpack [since_ms, author, reason]
    "access"                                                      msgpack [mode, key id, next user id,
                                                                  version, next audit number], access/users.py
    "user" | 00 | user id u64                                     msgpack [name, super, enabled, secret,
                                                                  key id, created_ms, version]
    "rule" | 00 | user id u64 | policy u8 | resource, UTF-8       msgpack [policy, resource, actions, sources,
                                                                  allow], access/rules.py
    "token" | 00 | SHA-256 32                                     msgpack [user id, ends_ms, label]
    "audit" | 00 | number u64                                     msgpack [time_ms, user, address, what,
                                                                  about], and from level 13 on its number
                                                                  among those of the user
    "audit_count" | 00 | user, UTF-8                              u64, its rows of "audit" since level 13
    "audit_kept" | 00 | user, UTF-8 | its number of the user u64  number u64 of a row of "audit" that is kept
                                                                  for the user alone
    "broker_group" | 00 | number u32                              msgpack [name, aliases], and of a group that
                                                                  is not active [.., state, since_ms],
                                                                  broker_groups.py
    "closed"                                                      msgpack [last u64, since_ms], and of a log
                                                                  that is closed [.., force], closed_log.py
    "journal"                                                     msgpack [version, forgotten, [kind, name]
                                                                  or nil], truth_journal.py
    "truth" | 00 | version u64                                    msgpack [kind, name, ended]
    "copied"                                                      u64, the version of the truth that this
                                                                  group has copied, truth.py
    "revoked" | 00 | number u64                                   the command that took rights away, packed as
                                                                  in an entry, access/revocations.py
    "next_revocation"                                             u64, number of the next revocation
    "quota" | 00 | subject, UTF-8                                 msgpack [{limit: value}, changed_ms,
                                                                  changed_by], access/quotas.py
    "learnt" | 00 | import u64 | topic, UTF-8                     msgpack [[messages], [bytes]], by hour; of
                                                                  import 0 the head, access/learnt_limits.py

    applied row (36 bytes)
      term u64 | index u64 | end_position u64 | timestamp_ms u64 | header_crc u32      of the last applied entry
    trim row (32 bytes)
      position u64 | first_index u64: where the log begins | index u64 | timestamp_ms u64 of the TRIM that said so
    kept row (16 bytes)
      position u64 | first_index u64: where the log begins in the tier, below the trim row's position
    sweep row (24 bytes, and 16 for each queue that is trimmed further, or else 01 if it evicts)
      position u64 | first_index u64: the cut | index u64 of the TRIM that named it
      topic_id u32 | queue_id u32 | min_offset u64

The rows of all other families are drawn in `statemachine.rows.keys`.
"""

from __future__ import annotations

import struct

from statemachine.rows.keys import U32, U64, within

APPLIED_KEY = b"applied"
FORMAT_KEY = b"format"
SUMS_KEY = b"sums"
NEXT_TOPIC_ID_KEY = b"next_topic_id"
MEMBERSHIP_KEY = b"membership"
ACKNOWLEDGED_KEY = b"acknowledged"
TRIM_KEY = b"trim"
KEPT_KEY = b"kept"
SWEEP_KEY = b"sweep"
SWEEP_AT_KEY = b"sweep_at"
REMOVAL_PREFIX = b"removal\0"
REMOVAL_AT_KEY = b"removal_at"
LEVEL_KEY = b"level"
TIMER_FRONT_KEY = b"timer_front"
SETTING_PREFIX = b"setting\0"
SETTING_CHANGE_PREFIX = b"setting_change\0"
MAINTENANCE_PREFIX = b"maintenance\0"
ACCESS_KEY = b"access"
USER_PREFIX = b"user\0"
RULE_PREFIX = b"rule\0"
TOKEN_PREFIX = b"token\0"
AUDIT_PREFIX = b"audit\0"
USERS = within(USER_PREFIX)
RULES = within(RULE_PREFIX)
TOKENS = within(TOKEN_PREFIX)
AUDIT_COUNT_PREFIX = b"audit_count\0"
AUDIT_KEPT_PREFIX = b"audit_kept\0"
AUDIT = within(AUDIT_PREFIX)
SETTINGS = within(SETTING_PREFIX)
SETTING_CHANGES = within(SETTING_CHANGE_PREFIX)
MAINTENANCES = within(MAINTENANCE_PREFIX)
BROKER_GROUP_PREFIX = b"broker_group\0"
BROKER_GROUPS = within(BROKER_GROUP_PREFIX)
CLOSED_KEY = b"closed"
JOURNAL_KEY = b"journal"
TRUTH_PREFIX = b"truth\0"
COPIED_KEY = b"copied"
REVOCATION_PREFIX = b"revoked\0"
REVOCATIONS = within(REVOCATION_PREFIX)
NEXT_REVOCATION_KEY = b"next_revocation"
QUOTA_PREFIX = b"quota\0"
QUOTAS = within(QUOTA_PREFIX)
LEARNT_PREFIX = b"learnt\0"
LEARNT = within(LEARNT_PREFIX)
REMOVALS = within(REMOVAL_PREFIX)
"""Keys [start, end) of all removals, in the family meta."""

APPLIED = struct.Struct(">QQQQI")
TRIM = struct.Struct(">QQQQ")
KEPT = struct.Struct(">QQ")
SWEEP = struct.Struct(">QQQ")
SWEEP_QUEUE = struct.Struct(">IIQ")
TIMER_FRONT = struct.Struct(">QQ")


def setting_key(key: str) -> bytes:
    """Returns the key of a configuration setting's row."""
    return SETTING_PREFIX + key.encode("ascii")


def setting_change_key(version: int) -> bytes:
    """Returns the key of the change that made this version of the configuration."""
    return SETTING_CHANGE_PREFIX + U64.pack(version)


def setting_version(key: bytes) -> int:
    """Returns the version in the key of a configuration change."""
    version: int = U64.unpack_from(key, len(SETTING_CHANGE_PREFIX))[0]
    return version


def maintenance_key(node: int) -> bytes:
    """Returns the key of a node in maintenance."""
    return MAINTENANCE_PREFIX + U32.pack(node)


def user_key(user_id: int) -> bytes:
    """Returns the key of a user."""
    return USER_PREFIX + U64.pack(user_id)


def user_id(key: bytes) -> int:
    """Returns the user id in the key of a user."""
    found: int = U64.unpack_from(key, len(USER_PREFIX))[0]
    return found


def rule_key(user_id: int, policy: int, resource: str) -> bytes:
    """Returns the key of a user's rule."""
    return b"%b%b%c%b" % (RULE_PREFIX, U64.pack(user_id), policy, resource.encode())


def rule_user(key: bytes) -> int:
    """Returns the user id in the key of a rule."""
    found: int = U64.unpack_from(key, len(RULE_PREFIX))[0]
    return found


def token_key(digest: bytes) -> bytes:
    """Returns the key of a token with this SHA-256."""
    return TOKEN_PREFIX + digest


def token_digest(key: bytes) -> bytes:
    """Returns the SHA-256 in the key of a token."""
    return key[len(TOKEN_PREFIX) :]


def audit_key(number: int) -> bytes:
    """Returns the key of an audit row."""
    return AUDIT_PREFIX + U64.pack(number)


def audit_number(key: bytes) -> int:
    """Returns the number in the key of an audit row."""
    number: int = U64.unpack_from(key, len(AUDIT_PREFIX))[0]
    return number


def audit_count_key(user: str) -> bytes:
    """Returns the key of the number of audit rows that a user ever caused."""
    return AUDIT_COUNT_PREFIX + user.encode()


def audit_kept_key(user: str, number: int) -> bytes:
    """Returns the key that finds an audit row by its number among those of a user."""
    return AUDIT_KEPT_PREFIX + user.encode() + U64.pack(number)


def broker_group_key(number: int) -> bytes:
    """Returns the key of a group of brokers."""
    return BROKER_GROUP_PREFIX + U32.pack(number)


def revocation_key(number: int) -> bytes:
    """Returns the key of the row of a revocation."""
    return REVOCATION_PREFIX + U64.pack(number)


def revocation_number(key: bytes) -> int:
    """Returns the number in a key made by `revocation_key`."""
    number: int = U64.unpack_from(key, len(REVOCATION_PREFIX))[0]
    return number


def quota_key(subject: str) -> bytes:
    """Returns the key of the row of a quota."""
    return QUOTA_PREFIX + subject.encode()


def quota_subject(key: bytes) -> str:
    """Returns the subject in a key made by `quota_key`."""
    return key[len(QUOTA_PREFIX) :].decode()


def learnt_key(number: int, topic: bytes) -> bytes:
    """Returns the key of the learnt limits of a topic, in the import with that number."""
    return LEARNT_PREFIX + U64.pack(number) + topic


def learnt_name(key: bytes) -> tuple[int, bytes]:
    """Returns (number of the import, topic) in a key made by `learnt_key`."""
    number: int = U64.unpack_from(key, len(LEARNT_PREFIX))[0]
    return number, key[len(LEARNT_PREFIX) + U64.size :]


def broker_group_number(key: bytes) -> int:
    """Returns the number in the key of a group of brokers."""
    number: int = U32.unpack_from(key, len(BROKER_GROUP_PREFIX))[0]
    return number


def truth_key(version: int) -> bytes:
    """Returns the key of the change that made this version of the truth."""
    return TRUTH_PREFIX + U64.pack(version)


def truth_version(key: bytes) -> int:
    """Returns the version in the key of a change of the truth."""
    version: int = U64.unpack_from(key, len(TRUTH_PREFIX))[0]
    return version


def removal_key(number: int) -> bytes:
    """Returns the key of a removal."""
    return REMOVAL_PREFIX + U64.pack(number)


def removal_number(key: bytes) -> int:
    """Returns the number in the key of a removal."""
    number: int = U64.unpack_from(key, len(REMOVAL_PREFIX))[0]
    return number


def spared_key(family: str, key: bytes) -> bytes:
    """Returns the key of the meta row which says that a removal must spare the row `key` of the family."""
    return b"spared\0" + family.encode() + b"\0" + key

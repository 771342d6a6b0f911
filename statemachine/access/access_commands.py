"""The commands that change users, rules, tokens, the access mode and the key that encrypts secrets (users.py); from
level 11 of the cluster on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Final, NamedTuple

from msgspec import Meta

from statemachine.access.rules import RULES_OF_USER_MAX, PolicyNumber, RuleRow
from statemachine.commands import U64, Command, NumberFrom1, Text
from statemachine.levels import ACCESS_LEVEL, ROTATION_LEVEL

TOKENS_OF_USER_MAX: Final = 100
SECRET_BYTES_MAX: Final = 512
"""The most bytes of a user's encrypted secret, with its nonce."""
DIGEST_BYTES: Final = 32


class Origin(NamedTuple):
    """The origin of a change: log time of the proposal in milliseconds, the user who asked, and the client's
    address."""

    now_ms: U64
    user: Text
    address: Text


Secret = Annotated[bytes, Meta(min_length=1, max_length=SECRET_BYTES_MAX)]
"""A user's encrypted secret, with its nonce."""
Digest = Annotated[bytes, Meta(min_length=DIGEST_BYTES, max_length=DIGEST_BYTES)]
"""The SHA-256 of a token."""
Labels = Annotated[tuple[Text, ...], Meta(max_length=TOKENS_OF_USER_MAX)]


class AccessCommand(Command, frozen=True):
    """The base of all commands about users, rules and tokens. The field `origin` says who asked for the command, when
    and from where."""

    LEVEL: ClassVar[int] = ACCESS_LEVEL
    OF_TRUTH: ClassVar[bool] = True
    origin: Origin


class CreateUser(AccessCommand, tag="create_user", frozen=True):
    """Creates a user with the next free id."""

    user_id: NumberFrom1
    name: str
    is_super: bool
    enabled: bool
    secret: Secret
    key: str
    """Id of the key with which the secret is encrypted."""


class ChangeUser(AccessCommand, tag="change_user", frozen=True):
    """Changes a user."""

    user_id: NumberFrom1
    changes: Mapping[str, object]
    """Any of `super` and `enabled` (bool), and `secret` ([encrypted, key id]). From level 13 on, a new secret ends the
    user's tokens, except those whose labels `keep_tokens` lists."""


class RemoveUser(AccessCommand, tag="remove_user", frozen=True):
    """Removes a user with its rules and tokens."""

    user_id: NumberFrom1


class SetRules(AccessCommand, tag="set_rules", frozen=True):
    """Adds rules to a user. Each rule replaces the user's earlier rule with the same policy and resource."""

    user_id: NumberFrom1
    rules: Annotated[Sequence[RuleRow], Meta(min_length=1, max_length=RULES_OF_USER_MAX)]


class RemoveRules(AccessCommand, tag="remove_rules", frozen=True):
    """Removes the user's rules with this policy and resource. None as the policy means every policy, None as the
    resource every resource."""

    user_id: NumberFrom1
    policy: PolicyNumber | None
    resource: str | None


class PutToken(AccessCommand, tag="put_token", frozen=True):
    """Adds a token to a user. The token is valid until `ends_ms` of log time."""

    user_id: NumberFrom1
    digest: Digest
    ends_ms: U64
    label: Text


class RemoveToken(AccessCommand, tag="remove_token", frozen=True):
    """Removes the token with this SHA-256."""

    digest: Digest


class SetAuthMode(AccessCommand, tag="set_auth_mode", frozen=True):
    """Sets the mode of access control: off, observe or enforce."""

    mode: str


class SetAuthKey(AccessCommand, tag="set_auth_key", frozen=True):
    """Records the id of the first key with which users' secrets are encrypted."""

    key: Text


class RotateAuthKey(AccessCommand, tag="rotate_auth_key", frozen=True):
    """Records the id of another key. From now on users' secrets are encrypted with that key."""

    LEVEL: ClassVar[int] = ROTATION_LEVEL
    key: Text


class ResealUser(AccessCommand, tag="reseal_user", frozen=True):
    """Replaces a user's encrypted secret `before` by the same secret, encrypted with the present key."""

    LEVEL: ClassVar[int] = ROTATION_LEVEL
    user_id: NumberFrom1
    before: Secret
    secret: Secret
    key: str

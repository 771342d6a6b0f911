"""Encrypts and decrypts the secrets of users, and encrypts them again after their key was replaced. The log holds the
encrypted form; the key is in a file of its own.

The key file is one of `cluster.runtime.key_file`: one key per line, base64, the newest first. The file lies outside the
data directory, and only its owner may read it. The replicated state holds the id of the key that encrypts the secrets.
A node without that key keeps running, but cannot verify signatures; `Secrets.problem` states the reason.

A secret is bound to its cluster, its user's id and the key: copied to another user's row, it cannot be decrypted.
"""

from __future__ import annotations

import logging
import stat
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cluster.broker.refusal import Reason, Refused
from cluster.runtime.findings import Code
from cluster.runtime.key_file import FILE_MAX, KeyFileError, key_id, parse
from raftlog.work import charge
from statemachine.access.access_commands import Origin, ResealUser

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    from cluster.broker.services import Services
    from cluster.replication.outcome import ProposeResult
    from cluster.runtime.alarms import Alarms
    from statemachine.access.user_rows import User
    from statemachine.access.users import Access
    from statemachine.commands import Command

logger = logging.getLogger(__name__)

ALARM = Code("user_key", "critical", "raftmq status")
NONCE_BYTES: Final = 12
LENGTH_MIN: Final = 8
LENGTH_MAX: Final = 256
"""The most bytes of a secret."""
KEPT_MAX: Final = 10_000
LOOK_EVERY_MS: Final = 1_000
_HEAD: Final = b"raftmq user secret 1\0"
_KEY_BYTES: Final = 32
USERS_PER_STEP: Final = 32
RESEAL_UNITS: Final = 16
"""Units of work (`raftlog.work`) for decrypting and encrypting one user's secret."""
ASKER: Final = "auth.key_file"
"""The name that the audit log gives to the entries that encrypt secrets again after the key was replaced."""


class Secrets:
    """Encrypts and decrypts the secrets of the users of one cluster. Event loop only."""

    def __init__(
        self,
        path: str,
        access: Access,
        *,
        clusters: Callable[[], Sequence[str]],
        entropy: Callable[[int], bytes],
        now_ms: Callable[[], int],
        alarms: Alarms,
        read: Callable[[Path], tuple[bytes, ...]] | None = None,
    ) -> None:
        """`path`: the key file, "" if none is configured. `clusters` returns the cluster's uuid, then those of the
        clusters that it continues. `read` reads the file, as `read_keys` does."""
        self._read = read or read_keys
        self._path = path
        self._access = access
        self._clusters = clusters
        self._entropy = entropy
        self._now_ms = now_ms
        self._alarms = alarms
        self._keys: dict[str, bytes] = {}
        self._why = ""
        self._looked_ms = 0
        self._plain: dict[int, tuple[bytes, bytes]] = {}
        """User id -> (encrypted secret, plain secret), a cache."""
        self.look()

    def reload(self, path: str) -> None:
        """Uses another key file from now on."""
        self._path = path
        self.look()

    def look(self) -> None:
        """Reads the key file again, and raises or clears the alarm. If the file cannot be read, the keys that are known
        stay in use."""
        self._read_file()
        self.tell()

    def _read_file(self) -> None:
        self._looked_ms = self._now_ms()
        if not self._path:
            self._why = "auth.key_file names no file"
            return
        try:
            self._keys = {key_id(key).hex(): key[:_KEY_BYTES] for key in self._read(Path(self._path))}
            self._why = ""
        except OSError as error:
            self._why = f"the key file {self._path} cannot be read: {error.strerror or error}"
        except KeyFileError as error:
            self._why = f"{self._path} is no key file: {error}"

    @property
    def problem(self) -> str:
        """The reason why this node cannot encrypt or decrypt secrets; "" if it can. If the key was missing, the file is
        read again, at most once a second."""
        if self._lacks and self._path and self._now_ms() - self._looked_ms >= LOOK_EVERY_MS:
            self.look()
        return self._lack()

    def tell(self) -> None:
        """Raises the alarm if there are secrets that this node cannot decrypt, and clears it otherwise."""
        lack = self._lack() if self._access.key_id else ""
        if lack:
            self._alarms.raise_alarm(ALARM, f"no signature of a user can be verified here: {lack}")
        else:
            self._alarms.clear(ALARM)

    def _lack(self) -> str:
        if not self._lacks:
            return ""
        if self._why:
            return self._why
        lacking = ", ".join(sorted(self._access.keys_in_use - self._keys.keys()))
        return f"{self._path} does not have the key {lacking}, which encrypts secrets of this cluster"

    @property
    def _lacks(self) -> bool:
        """True if this node lacks a key that encrypts some user's secret. While there is no secret, True if the node
        has no key at all."""
        wanted = self._access.keys_in_use
        return not wanted <= self._keys.keys() if wanted else not self._keys

    @property
    def key_ids(self) -> list[str]:
        """The ids of the keys in the file, newest first. Reading the property reads the file again."""
        self.look()
        return list(self._keys)

    def same(self, user: User, earlier: bytes) -> bool:
        """Returns True if the encrypted secret `earlier` contains the user's present secret, even if another key
        encrypted it."""
        if earlier == user.secret:
            return True
        now = self.of(user)
        return now is not None and any(
            self._opened(earlier, user.id, key_id, key) == now for key_id, key in self._keys.items()
        )

    def resealed(self, user: User) -> bytes | None:
        """Returns the user's secret, encrypted with the present key; None if it cannot be decrypted. Raises Refused if
        this node lacks the present key."""
        plain = self.of(user)
        return None if plain is None else self._sealed(user.id, plain, self.key_to_use)

    @property
    def key_to_use(self) -> str:
        """The id of the key that encrypts the next secret. Raises Refused if this node does not have that key."""
        if self.problem:
            raise Refused(Reason.UNAVAILABLE, f"no secret can be stored: {self.problem}")
        return self._access.key_id or next(iter(self._keys))

    def encrypted(self, user_id: int, secret: str) -> bytes:
        """Returns the secret, encrypted for the row of the user with that id. Raises Refused if the secret has a wrong
        length, or if this node lacks the key."""
        plain = secret.encode()
        if not LENGTH_MIN <= len(plain) <= LENGTH_MAX:
            raise Refused(Reason.INVALID, f"a secret has {LENGTH_MIN} to {LENGTH_MAX} bytes, not {len(plain)}")
        return self._sealed(user_id, plain, self.key_to_use)

    def _sealed(self, user_id: int, plain: bytes, key: str) -> bytes:
        nonce = self._entropy(NONCE_BYTES)
        return nonce + _cipher(self._keys[key]).encrypt(nonce, plain, _bound(self._clusters()[0], user_id, key))

    def of(self, user: User) -> bytes | None:
        """Returns the user's secret in plain. None if this node cannot decrypt it: because a key is missing (see
        `problem`), or because the encrypted secret was made for another user."""
        kept = self._plain.get(user.id)
        if kept is not None and kept[0] == user.secret:
            return kept[1]
        key = self._keys.get(user.key_id)
        plain = None if key is None else self._opened(user.secret, user.id, user.key_id, key)
        if plain is not None:
            if len(self._plain) >= KEPT_MAX:
                self._plain.clear()
            self._plain[user.id] = user.secret, plain
        return plain

    def _opened(self, secret: bytes, user_id: int, key_id: str, key: bytes) -> bytes | None:
        """Returns the decrypted secret of a user. None if another key encrypted it, or if it was encrypted for another
        user or another cluster."""
        from cryptography.exceptions import InvalidTag

        nonce, sealed = secret[:NONCE_BYTES], secret[NONCE_BYTES:]
        for cluster in self._clusters():
            try:
                return _cipher(key).decrypt(nonce, sealed, _bound(cluster, user_id, key_id))
            except (InvalidTag, ValueError):
                continue
        return None


def read_keys(path: Path) -> tuple[bytes, ...]:
    """Returns the keys in the file, newest first. Raises OSError if it cannot be read, KeyFileError if it is malformed
    or if its mode gives its group or others any permission."""
    with path.open("rb") as file:
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & 0o077:
            raise KeyFileError(f"its mode is {mode:04o}, so others may read it: chmod 600 {path}")
        return parse(file.read(FILE_MAX + 1))


def _bound(cluster: str, user_id: int, key: str) -> bytes:
    return b"%b%b\0%d\0%b" % (_HEAD, cluster.encode(), user_id, key.encode())


def _cipher(key: bytes) -> AESGCM:
    from cryptography.hazmat.primitives.ciphers import aead  # imported late: nodes of a cluster without users skip it

    return aead.AESGCM(key)


class Resealing:
    """Encrypts the secrets of users again after their key was replaced: on the leader, a few users per step.

    Each step is one bounded proposal. The replicated state says which users are left, so the next leader continues
    where this one stopped. An administrator may remove the old key from the files when no user's secret needs it. Event
    loop only.
    """

    def __init__(self, services: Services, secrets: Secrets) -> None:
        self._services = services
        self._secrets = secrets
        self._access = services.state.access
        self._seen = -1
        """The version of the users (`Access.version`) at which no secret was left to encrypt, or at which this node
        could not continue; -1 at first."""
        self._asked = False

    def tick(self, _: int) -> None:
        """Proposes to encrypt the secrets of the next few users, if this node leads. Called several times a second;
        cheap if no user is left."""
        if self._asked or self._access.version == self._seen or not self._services.writes_open():
            return
        try:
            run = self._step()
        except Refused as refused:
            logger.warning("secrets of users stay encrypted with the key before: %s", refused.remark)
            run = []
        if not run:
            self._seen = self._access.version
            return
        self._asked = True
        self._services.propose(run, self._proposed)

    def _step(self) -> list[Command]:
        """Returns the commands of the next step; an empty list if no secret is left that can be encrypted again. Raises
        Refused if this node lacks the present key."""
        run: list[Command] = []
        origin = Origin(self._services.log_time_ms(), ASKER, "")
        for user in self._access.under_other_keys():
            charge(RESEAL_UNITS)
            sealed = self._secrets.resealed(user)
            if sealed is None:
                logger.error("the secret of user %s cannot be decrypted: give it another one", user.name)
                continue
            run.append(ResealUser(origin, user.id, user.secret, sealed, self._access.key_id))
            if len(run) == USERS_PER_STEP:
                break
        return run

    def _proposed(self, result: ProposeResult) -> None:
        self._asked = False
        if not self._access.keys_in_use - {self._access.key_id}:
            logger.info("every secret of a user is encrypted with the key %s now", self._access.key_id)

"""Secrets of users: encrypted for one user of one cluster, readable with one key, and a key file nobody else reads."""

from __future__ import annotations

import base64
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from cluster.broker.access.secrets import LENGTH_MAX, LENGTH_MIN, Secrets
from cluster.broker.refusal import Reason, Refused
from cluster.runtime.alarms import Alarms
from cluster.runtime.key_file import key_id
from jepsen_like.fakes.memory_kv import MemoryKV
from statemachine.access.user_rows import User
from statemachine.access.users import Access

KEY, OTHER = b"k" * 32, b"o" * 32
SHOP = User(1, "shop", False, True, b"", key_id(KEY).hex(), 0, 1)


class Clock:
    """Milliseconds that a test moves on."""

    now = 0

    def __call__(self) -> int:
        return self.now


def written(path: Path, *keys: bytes, mode: int = 0o600) -> Path:
    path.write_bytes(b"".join(base64.b64encode(key) + b"\n" for key in keys))
    path.chmod(mode)
    return path


def secrets(
    path: Path | str,
    *,
    cluster: str = "c1",
    key: str = "",
    clock: Clock | None = None,
    alarms: Alarms | None = None,
) -> Secrets:
    access, numbers = Access(MemoryKV()), count()
    access.key_id, access.keys_in_use = key, frozenset([key] if key else [])
    return Secrets(
        str(path),
        access,
        clusters=lambda: (cluster, "its parent"),
        entropy=lambda size: next(numbers).to_bytes(size),
        now_ms=clock or Clock(),
        alarms=alarms or Alarms(Clock()),
    )


def test_a_secret_is_read_by_whoever_has_the_key(tmp_path: Path) -> None:
    made = secrets(written(tmp_path / "key", KEY))
    user = replace(SHOP, secret=made.encrypted(1, "correct horse"))
    assert made.of(user) == b"correct horse"
    assert secrets(tmp_path / "key").of(user) == b"correct horse"
    assert b"correct" not in user.secret
    assert made.encrypted(1, "correct horse") != user.secret, "another nonce each time"


def test_it_is_bound_to_the_user_the_cluster_and_the_key(tmp_path: Path) -> None:
    made = secrets(written(tmp_path / "key", KEY))
    user = replace(SHOP, secret=made.encrypted(1, "correct horse"))
    assert made.of(replace(user, id=2)) is None, "copied to another user's row"
    assert secrets(tmp_path / "key", cluster="c2").of(user) is None
    assert secrets(written(tmp_path / "two", OTHER)).of(user) is None
    assert made.of(replace(user, id=3, secret=user.secret[:-1] + b"x")) is None
    assert made.of(replace(user, id=4, secret=b"short")) is None


def test_a_cluster_that_goes_on_from_another_reads_its_secrets(tmp_path: Path) -> None:
    before = secrets(written(tmp_path / "key", KEY), cluster="its parent")
    user = replace(SHOP, secret=before.encrypted(1, "correct horse"))
    assert secrets(tmp_path / "key", cluster="the copy").of(user) == b"correct horse"


def test_a_changed_secret_replaces_the_one_that_was_kept(tmp_path: Path) -> None:
    made = secrets(written(tmp_path / "key", KEY))
    assert made.of(replace(SHOP, secret=made.encrypted(1, "the first one"))) == b"the first one"
    assert made.of(replace(SHOP, secret=made.encrypted(1, "another one"))) == b"another one"


@pytest.mark.parametrize("length", [0, LENGTH_MIN - 1, LENGTH_MAX + 1])
def test_a_secret_has_a_length(tmp_path: Path, length: int) -> None:
    made = secrets(written(tmp_path / "key", KEY))
    with pytest.raises(Refused) as error:
        made.encrypted(1, "s" * length)
    assert error.value.reason is Reason.INVALID
    assert "s" * 9 not in error.value.remark


def test_a_file_that_others_may_read_is_no_key_file(tmp_path: Path) -> None:
    made = secrets(written(tmp_path / "key", KEY, mode=0o644))
    assert "its mode is 0644" in made.problem
    assert f"chmod 600 {tmp_path / 'key'}" in made.problem
    with pytest.raises(Refused, match="no secret can be stored"):
        made.encrypted(1, "correct horse")


def test_without_the_key_the_problem_names_the_file(tmp_path: Path) -> None:
    assert secrets("").problem == "auth.key_file names no file"
    assert str(tmp_path / "gone") in secrets(tmp_path / "gone").problem
    swapped = secrets(written(tmp_path / "key", OTHER), key=key_id(KEY).hex())
    assert key_id(KEY).hex() in swapped.problem
    assert secrets(written(tmp_path / "both", OTHER, KEY), key=key_id(KEY).hex()).problem == ""


def test_the_file_is_looked_at_again_once_a_second_while_it_is_missing(tmp_path: Path) -> None:
    clock = Clock()
    made = secrets(tmp_path / "key", clock=clock)
    written(tmp_path / "key", KEY)
    assert made.problem
    clock.now = 1_000
    assert made.problem == ""


def test_an_alarm_names_the_file_while_secrets_cannot_be_read(tmp_path: Path) -> None:
    alarms = Alarms(Clock())
    made = secrets(tmp_path / "key", key=key_id(KEY).hex(), alarms=alarms)
    (alarm,) = alarms.all()
    assert alarm.key == "user_key"
    assert str(tmp_path / "key") in alarm.text
    written(tmp_path / "key", KEY)
    made.look()
    assert alarms.all() == []
    secrets("", alarms=alarms)
    assert alarms.all() == [], "nobody has users"


def test_the_newest_key_encrypts_until_the_state_names_one(tmp_path: Path) -> None:
    both = written(tmp_path / "key", OTHER, KEY)
    assert secrets(both).key_to_use == key_id(OTHER).hex()
    assert secrets(both, key=key_id(KEY).hex()).key_to_use == key_id(KEY).hex()

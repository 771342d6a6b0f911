"""The secret of a node: its file, the mark, and when it is demanded."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from cluster.config.config import Config
from cluster.config.node_sections import NodeSection, PeerSection
from cluster.config.source import ConfigError
from cluster.peer.keyring import OPEN, Keyring, encode
from cluster.peer.secret import ALARM, MARK, SECRET, SecretKeeper, load, mark_of
from cluster.runtime.alarms import Alarms
from cluster.runtime.key_file import KeyFileError, key_id, parse
from jepsen_like.fakes.memory_fs import MemoryFileSystem
from raftlog.storage.files.fs import FileSystem, write_file
from raftlog.types import NodeId
from tests.support.rows import each_row

OLD, NEW = b"o" * 32, b"n" * 40
DATA = Path("/data")
ONE, TWO, THREE = NodeId(1), NodeId(2), NodeId(3)


class Transport:
    """Notes what it is given; `proven` is what it has seen."""

    def __init__(self) -> None:
        self.keyring = OPEN
        self.proven: set[NodeId] = set()
        self.renewed = 0

    def set_keyring(self, keyring: Keyring) -> None:
        self.keyring = keyring
        self.proven = set()

    def proven_by(self) -> set[NodeId]:
        return self.proven

    def renew(self) -> None:
        self.renewed += 1


class Kit:
    def __init__(self, *keys: bytes, mark: bytes | None = None) -> None:
        self.fs = MemoryFileSystem()
        self.fs.mkdir(DATA)
        self.give(*keys)
        if mark is not None:
            write_file(self.fs, DATA / MARK, mark)
        self.config = Config(node=NodeSection(id=1, data_dir=str(DATA)))
        self.alarms = Alarms(lambda: 1)
        self.transport = Transport()
        self.now_ms = 0

    def give(self, *keys: bytes) -> None:
        if keys:
            write_file(self.fs, DATA / SECRET, encode(keys, "uuid"))

    def start(self) -> SecretKeeper:
        self.transport.keyring = load(self.fs, self.config)
        return SecretKeeper(self.config, self.fs, self.alarms, lambda: [ONE, TWO, THREE], self.transport)

    def tick(self, keeper: SecretKeeper) -> str:
        self.now_ms += 1000
        keeper.tick(self.now_ms)
        return keeper.state

    @property
    def alarm(self) -> str:
        return next((alarm.text for alarm in self.alarms.all() if alarm.key == ALARM), "")


def test_a_file_is_read_as_it_was_written_and_as_openssl_writes_one() -> None:
    assert parse(encode((NEW, OLD), "uuid")) == (NEW, OLD)
    assert parse(base64.b64encode(OLD) + b"\r\n") == (OLD,)
    assert Keyring((NEW, OLD)).pick([key_id(OLD), 5, key_id(NEW)]) == NEW
    assert Keyring((OLD,)).pick([key_id(NEW)]) is None


@each_row(
    ("data", "why"),
    [
        (b"", "0 keys"),
        (b"# nothing\n", "0 keys"),
        (b"secret!\n", "line 1 is no base64"),
        (base64.b64encode(b"short") + b"\n", "has 5 bytes"),
        (encode((OLD, OLD), ""), "same key twice"),
        (encode([bytes([n]) * 32 for n in range(5)], ""), "5 keys"),
        (b"#" * (1 << 20), "no list of keys"),
    ],
)
def test_what_is_no_secret_is_refused_without_showing_it(data: bytes, why: str) -> None:
    with pytest.raises(KeyFileError, match=why) as refused:
        parse(data)
    assert "secret!" not in str(refused.value)


def test_a_key_is_printed_nowhere() -> None:
    ring = Keyring((NEW, OLD), demanded=True)
    assert key_id(NEW).hex() in repr(ring)
    assert NEW.decode() not in f"{ring} {ring!r}"


def test_a_node_without_a_secret_says_so_and_lets_in_whom_it_did() -> None:
    kit = Kit()
    keeper = kit.start()
    assert kit.tick(keeper) == "none"
    assert "raftmq secret create" in kit.alarm
    assert keeper.missing == []


def test_it_is_demanded_when_every_member_has_proven_it_and_stays_so_after_a_restart() -> None:
    kit = Kit(NEW)
    keeper = kit.start()
    assert kit.tick(keeper) == "admitting"
    assert kit.transport.renewed == 1, "who has the secret by now is asked"
    kit.transport.proven = {TWO}
    assert kit.tick(keeper) == "admitting"
    assert "node 3 has not proven" in kit.alarm
    kit.transport.proven = {TWO, THREE}
    assert kit.tick(keeper) == "required"
    assert kit.transport.keyring == Keyring((NEW,), demanded=True)
    kit.transport.proven = {TWO, THREE}
    kit.tick(keeper)
    assert not kit.alarm
    kit.fs.crash(1)
    again = kit.start()
    assert kit.tick(again) == "required", "nobody has proven anything yet, and it is demanded all the same"


def test_a_key_is_changed_by_the_same_steps() -> None:
    kit = Kit(OLD, mark=mark_of(OLD))
    keeper = kit.start()
    assert keeper.state == "required"
    kit.give(NEW, OLD)
    assert keeper.use(keeper.read())
    assert not keeper.use(keeper.read()), "nothing is different"
    assert kit.tick(keeper) == "changing"
    assert "old secret" in kit.alarm
    kit.transport.proven = {TWO, THREE}
    assert kit.tick(keeper) == "required"
    assert kit.transport.keyring == Keyring((NEW,), demanded=True)
    assert load(kit.fs, kit.config) == Keyring((NEW,), demanded=True), "the older one in the file counts no more"


def test_a_secret_that_is_gone_while_it_is_demanded_refuses_the_start() -> None:
    with pytest.raises(ConfigError, match="is gone") as refused:
        Kit(mark=mark_of(OLD)).start()
    assert len(str(refused.value).split("\n")) == 3


def test_a_mark_that_cannot_be_read_demands_whatever_the_file_holds() -> None:
    assert Kit(OLD, mark=b"\0" * 40).start().keyring == Keyring((OLD,), demanded=True)
    assert Kit(OLD, mark=mark_of(NEW)).start().keyring == Keyring((OLD,), demanded=True)


def test_a_file_that_the_configuration_names_must_be_there() -> None:
    kit = Kit()
    kit.config = Config(node=kit.config.node, peer=PeerSection(secret_file="/run/secrets/raftmq"))
    with pytest.raises(ConfigError, match="/run/secrets/raftmq"):
        kit.start()


def test_a_disk_that_takes_no_mark_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    kit = Kit(NEW)
    keeper = kit.start()
    kit.transport.proven = {TWO, THREE}

    def full(fs: FileSystem, path: Path, data: bytes) -> Any:
        raise OSError(28, "no space left")

    with monkeypatch.context() as patch:
        patch.setattr("cluster.peer.secret.write_file", full)
        assert kit.tick(keeper) == "admitting"
    assert kit.tick(keeper) == "required"

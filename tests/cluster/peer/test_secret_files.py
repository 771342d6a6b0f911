"""Secrets as commands write them: who gets which, and who may read it."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from cluster.config.config import Config
from cluster.config.node_sections import NodeSection, PeerSection
from cluster.peer.secret import MARK, SECRET, load, path_of
from cluster.peer.secret_files import (
    add_key,
    complete,
    copy,
    copy_from_any,
    give,
    has,
    keys_of_new,
    read_keys,
    take,
    write_keys,
)
from cluster.runtime.key_file import key_id
from raftlog.storage.files.fs import OsFileSystem
from raftmq_wire.errors import LocalError


def give_new_cluster(configs: list[Config], cluster: str) -> None:
    keys = keys_of_new(configs)
    for config in configs:
        give(config, keys, cluster)


@pytest.fixture
def configs(tmp_path: Path) -> list[Config]:
    made = [Config(node=NodeSection(id=node, data_dir=str(tmp_path / f"n{node}"))) for node in (1, 2, 3)]
    for config in made:
        Path(config.node.data_dir).mkdir()
    return made


def test_a_new_cluster_has_one_secret_that_only_its_owner_reads_and_demands_it(configs: list[Config]) -> None:
    give_new_cluster(configs, "uuid")
    rings = {load(OsFileSystem(), config) for config in configs}
    assert len(rings) == 1
    assert rings.pop().demanded
    for config in configs:
        assert stat.S_IMODE(path_of(config).stat().st_mode) == 0o600
        assert sorted(path.name for path in Path(config.node.data_dir).iterdir()) == [SECRET, MARK]


def test_two_clusters_have_two_secrets(configs: list[Config]) -> None:
    give_new_cluster(configs[:1], "one")
    give_new_cluster(configs[1:2], "other")
    assert read_keys(path_of(configs[0])) != read_keys(path_of(configs[1]))


def test_a_file_that_was_there_before_is_taken(configs: list[Config], tmp_path: Path) -> None:
    file = tmp_path / "given"
    write_keys(file, (b"g" * 32,), "uuid")
    given = Config(node=configs[0].node, peer=PeerSection(secret_file=str(file)))
    give_new_cluster([given, *configs[1:]], "uuid")
    assert read_keys(path_of(configs[2])) == (b"g" * 32,)
    write_keys(path_of(configs[1]), (b"x" * 32,), "uuid")
    with pytest.raises(LocalError, match="different secrets"):
        give_new_cluster([given, *configs[1:]], "uuid")


def test_what_was_interrupted_is_completed_and_old_clusters_stay_without(configs: list[Config]) -> None:
    complete(configs, "uuid")
    assert not path_of(configs[0]).exists()
    give_new_cluster(configs[1:2], "uuid")
    complete(configs, "uuid")
    assert len({load(OsFileSystem(), config) for config in configs}) == 1


def test_a_node_that_joins_gets_what_another_has(configs: list[Config]) -> None:
    first, second, third = configs
    copy(first, second, "uuid")
    assert not path_of(second).exists(), "there is none"
    give_new_cluster([first], "uuid")
    copy(first, second, "uuid")
    assert load(OsFileSystem(), second) == load(OsFileSystem(), first)
    name = key_id(read_keys(path_of(first))[0]).hex()
    assert not has(third, name)
    assert take(path_of(first), third, name, "uuid")
    assert not take(path_of(first), third, name, "uuid"), "it has it"
    with pytest.raises(LocalError, match="not the secret of this cluster"):
        take(path_of(first), third, "00", "uuid")
    with pytest.raises(LocalError, match="there is no file") as error:
        take(path_of(first).with_name("nothing"), third, name, "uuid")
    assert error.value.fix.startswith("scp NODE:DATA/SECRET ")


def test_a_node_that_joins_gets_it_from_any_that_has_it(configs: list[Config]) -> None:
    lost, broken, sound = configs
    new = Config(node=NodeSection(id=4, data_dir=str(Path(lost.node.data_dir).with_name("n4"))))
    Path(new.node.data_dir).mkdir()
    copy_from_any(configs, new, "", "uuid")
    assert not path_of(new).exists(), "the cluster has none"
    give_new_cluster([sound], "uuid")
    name = key_id(read_keys(path_of(sound))[0]).hex()
    path_of(broken).write_text("damaged")
    with pytest.raises(LocalError, match="no node on this machine has the secret"):
        copy_from_any([lost, broken], new, name, "uuid")
    copy_from_any(configs, new, name, "uuid")
    assert load(OsFileSystem(), new) == load(OsFileSystem(), sound)
    copy_from_any([lost, broken], new, name, "uuid")  # it has it


def test_a_change_puts_a_new_key_in_front_and_ends_before_the_next() -> None:
    keys = add_key((b"o" * 32,))
    assert keys[1:] == (b"o" * 32,)
    with pytest.raises(LocalError, match="already"):
        add_key([bytes([n]) * 32 for n in range(4)])

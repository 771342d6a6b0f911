"""The directory of a node that joins: what it knows, where its log may begin, who cannot join."""

from __future__ import annotations

from uuid import UUID

import pytest

from jepsen_like.fakes.memory_fs import MemoryFileSystem
from raftlog.errors import IdentityError
from raftlog.storage.files.genesis import Genesis
from raftlog.storage.files.identity import Ancestor, Identity
from raftlog.storage.node_dir import create_joining_dir
from raftlog.types import NOBODY, HardState, NodeId
from tests.support.install_node import DATA, GROUP, Giver, Node
from tests.support.rows import each_row


def joiner(genesis: Genesis, **change: object) -> Identity:
    return Identity(genesis.cluster_uuid, GROUP, NodeId(4), UUID(int=44), 0)._replace(**change)  # type: ignore[arg-type]


def test_a_joining_node_takes_the_log_from_where_it_begins(giver: Giver) -> None:
    node = Node(giver, MemoryFileSystem())
    create_joining_dir(node.fs, DATA, joiner(giver.genesis), giver.genesis)
    opened = node.open()
    assert opened.hard_state_store.load() == HardState(0, NOBODY, 0)
    assert opened.log.read_entries(0, opened.log.tail.index + 1, 1 << 20) == [giver.first]
    opened.close(clean=True)
    node.check_new(node.install())


def test_a_joining_node_of_a_cluster_that_went_on_from_another(giver: Giver) -> None:
    node = Node(giver, MemoryFileSystem())
    identity = joiner(giver.genesis, cluster_uuid=UUID(int=9), origin=(Ancestor(giver.genesis.cluster_uuid, 30),))
    create_joining_dir(node.fs, DATA, identity, giver.genesis)
    assert node.open().identity == identity


@each_row(
    ("change", "says"),
    [
        ({"cluster_uuid": UUID(int=9)}, "different clusters"),
        ({"origin": (Ancestor(UUID(int=9), 3),)}, "different clusters"),
        ({"group_id": 8}, "different clusters or groups"),
        ({"node_id": NodeId(1)}, "(?s)is a voter of this cluster since it began.*raftmq node replace 1"),
        ({"node_id": NodeId(1), "node_uuid": UUID(int=11)}, "is a voter of this cluster since it began"),
    ],
)
def test_who_cannot_join(giver: Giver, change: dict[str, object], says: str) -> None:
    with pytest.raises(IdentityError, match=says):
        create_joining_dir(MemoryFileSystem(), DATA, joiner(giver.genesis, **change), giver.genesis)


def test_a_directory_that_is_used_is_refused(node: Node) -> None:
    with pytest.raises(IdentityError, match="is not empty"):
        create_joining_dir(node.fs, DATA, joiner(node.giver.genesis), node.giver.genesis)

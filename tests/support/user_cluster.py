"""Three nodes as processes that know users: the first Super exists, and `auth.mode` is still off."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from raftmq.client import connect
from raftmq.client.errors import RaftMQError
from raftmq.client.sync import Client
from raftmq.local.cluster import LocalCluster
from raftmq.local.process import free_base_port
from tests.support.pace import at_most
from tests.support.small_segments import small_segments
from tests.support.wait_until import wait

ROOT = ("root", "the-secret-of-root")


@contextmanager
def cluster_with_users(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalCluster]:
    """Three nodes with a key, and a file with the first Super."""
    for name, variable, data in (
        ("key", "RAFTMQ_AUTH__KEY_FILE", base64.b64encode(os.urandom(32))),
        ("first", "RAFTMQ_AUTH__FIRST_USER_FILE", "\n".join(ROOT).encode()),
    ):
        (folder / name).write_bytes(data + b"\n")
        (folder / name).chmod(0o600)
        monkeypatch.setenv(variable, str(folder / name))
    made = LocalCluster(folder / "data")
    try:
        with small_segments():
            made.up(3, free_base_port(12))
        with as_user(made, ROOT) as root:  # a new cluster gets its level first, and then its first user
            wait(lambda: code_of(partial(root.admin.set_auth_mode, "off")) == 0, "there is no Super")
        yield made
    finally:
        made.down()


def code_of(act: Callable[[], object]) -> int | None:
    """The code with which it is refused; 0 if it is not."""
    try:
        act()
    except RaftMQError as error:
        return error.code
    return 0


def as_user(cluster: LocalCluster, user: tuple[str, str] | None) -> Client:
    """A client that signs as a user, or (None) not at all."""
    return connect(
        cluster.servers, access_key=user[0] if user else "", secret_key=user[1] if user else "", timeout_s=at_most(20)
    )

"""Two users with one client id: containers often share addresses and instance names. Each of two programs with the same
ids has topics, groups and users of its own; neither gets what is the other's, and replies reach who asked."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import raftmq
from raftmq.client.errors import Denied
from raftmq.local.cluster import LocalCluster
from raftmq.local.process import free_base_port
from tests.compat.matrix.programs import Program, is_installed, why_absent
from tests.compat.matrix.run import SETTINGS
from tests.compat.matrix.users import denials, make_users, wait_for_users
from tests.support.compat_judges import JUDGES
from tests.support.tools import lack

pytestmark = [pytest.mark.compat, pytest.mark.timeout(420)]
FEATURES = ("tag", "orderly", "transaction", "request")
QUEUES, RATE, SENDING_S, COME_S = 4, 10, 15.0, 60.0
USERS, STRANGER = ("one", "two"), "stranger"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    made = LocalCluster(tmp_path_factory.mktemp("shared") / "data")
    try:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in SETTINGS.items():
                patch.setenv(name, value)
            made.up(3, free_base_port(12), auth=True)
        yield made
    finally:
        made.down()


@pytest.mark.parametrize("client", ["java-5.5.0", "go-2.1.2", "cpp-0.4.4", "ali-ons-3.12.0"])
def test_two_users_with_one_client_id_do_not_meet(secured: LocalCluster, tmp_path: Path, client: str) -> None:
    if not is_installed(client):
        lack("go" if client.startswith("go") else "mvn", why="make test-compat builds this client with it")
    features = [feature for feature in FEATURES if not why_absent(client, feature, "secured")]
    prefixes = [f"{client.replace('.', '-')}-{user}" for user in USERS]
    with raftmq.connect(secured.servers, **secured.client_options) as root:
        for prefix in prefixes:
            for feature in features:
                root.admin.create_topic(f"{prefix}-{feature}", QUEUES)
            make_users(secured, root, prefix, features, f"the-secret-of-{prefix}")
    programs = [_start(client, tmp_path / prefix, secured, prefix, features) for prefix in prefixes]
    try:
        for program in programs:
            program.wait("ready")
        _send(programs[0])
        assert not programs[1].checks
        assert not any(programs[1].cells[feature].deliveries for feature in features)
        _send(programs[1])
        deadline = time.monotonic() + COME_S
        while (complaints := _complaints(programs, features)) and time.monotonic() < deadline:
            time.sleep(1)
    finally:
        for program in programs:
            program.finish()
    assert complaints == []
    assert [user for user in denials(secured.data) if user != STRANGER] == []


def test_what_is_denied_is_seen(secured: LocalCluster) -> None:
    with raftmq.connect(secured.servers, **secured.client_options) as root:
        root.admin.create_topic("others", 1)
        root.admin.create_user(STRANGER, "the-secret-of-a-stranger")
    wait_for_users(secured)
    with (
        raftmq.connect(secured.servers, access_key=STRANGER, secret_key="the-secret-of-a-stranger", tls=False) as mq,
        pytest.raises(Denied),
    ):
        mq.send("others", b"x")
    assert STRANGER in denials(secured.data)


def _start(client: str, home: Path, cluster: LocalCluster, prefix: str, features: list[str]) -> Program:
    home.mkdir()
    return Program(client, home, "run", cluster.servers, prefix, str(RATE), *features, secret=f"the-secret-of-{prefix}")


def _send(program: Program) -> None:
    program.tell("go")
    program.pause(SENDING_S)
    program.tell("stop")
    program.wait("stopped")


def _complaints(programs: list[Program], features: list[str]) -> list[str]:
    """Returns what the judges of the cells say, and which cells acknowledged nothing."""
    found = []
    for prefix, program in zip(USERS, programs, strict=True):
        for feature in features:
            seen = program.cells[feature]
            found += [f"{prefix} {feature}: {why}" for why in JUDGES[feature](seen)]
            if not seen.acknowledged:
                found.append(f"{prefix} {feature}: nothing was acknowledged")
    return found

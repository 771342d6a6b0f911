"""The pytest plugin: the fixtures `raftmq_cluster`, `raftmq_secured_cluster` and
`raftmq_own_cluster`.

pytest loads this module in every run of an environment that has raftmq, so it imports nothing else until a test asks
for a cluster.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from raftmq.testing.cluster import RaftMQCluster

_READY: pytest.StashKey[list[float]] = pytest.StashKey()


def _started(factory: pytest.TempPathFactory, config: pytest.Config, *, secured: bool = False) -> RaftMQCluster:
    from raftmq.testing.cluster import ClusterError, RaftMQCluster

    try:
        cluster = RaftMQCluster(factory.mktemp("raftmq") / "cluster", secured=secured)
    except ClusterError as error:
        pytest.fail(f"raftmq_cluster: {error}", pytrace=False)
    config.stash.setdefault(_READY, []).append(cluster.ready_s)
    return cluster


@pytest.fixture(scope="session")
def _raftmq_running(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Iterator[RaftMQCluster]:
    """Runs the cluster that the tests of one process share."""
    with _started(tmp_path_factory, pytestconfig) as cluster:
        yield cluster


@pytest.fixture
def raftmq_cluster(_raftmq_running: RaftMQCluster) -> Iterator[RaftMQCluster]:
    """Three real nodes, without topics and groups. After the test they keep running, and are healed and emptied for the
    next one."""
    yield _raftmq_running
    _raftmq_running.reset()


@pytest.fixture(scope="session")
def _raftmq_secured(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Iterator[RaftMQCluster]:
    """Runs the secured cluster that the tests of one process share."""
    with _started(tmp_path_factory, pytestconfig, secured=True) as cluster:
        yield cluster


@pytest.fixture
def raftmq_secured_cluster(_raftmq_secured: RaftMQCluster) -> Iterator[RaftMQCluster]:
    """Three real nodes that take TLS alone and enforce users and rules; otherwise as `raftmq_cluster`.
    `access_key`, `secret_key` and `tls_ca` are its first user, a Super, and its CA."""
    yield _raftmq_secured
    _raftmq_secured.reset()


@pytest.fixture
def raftmq_own_cluster(
    tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> Iterator[RaftMQCluster]:
    """Three real nodes for this test only; they end with it."""
    with _started(tmp_path_factory, pytestconfig) as cluster:
        yield cluster


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Sends the start times of a pytest-xdist worker's clusters to the process that prints them."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["raftmq_ready_s"] = session.config.stash.get(_READY, [])


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: object) -> None:
    """Collects the start times from a worker that has ended."""
    config, output = getattr(node, "config", None), getattr(node, "workeroutput", {})
    if isinstance(config, pytest.Config):
        config.stash.setdefault(_READY, []).extend(output.get("raftmq_ready_s", []))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints how long the starts of clusters took."""
    times = terminalreporter.config.stash.get(_READY, [])
    if times:
        said = ", ".join(f"{seconds:.1f} s" for seconds in sorted(times))
        terminalreporter.write_line(f"raftmq: {len(times)} cluster{'s' * (len(times) > 1)} ready in {said}")

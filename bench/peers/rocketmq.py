"""RocketMQ with DLedger as a system under test: three brokers of one group and a name server, as shipped or with tuned
settings.

The configuration is that of `conf/dledger/broker-n0.conf` in RocketMQ's distribution; its JVM flags are those of
`bin/runbroker.sh`, except for the heap (1 GiB instead of 8, not touched ahead) and the flags that Java 17 no longer
knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from bench.peers import fetch, loads
from bench.peers.system import HERE, HOST, NODES, TOPIC, Generator, Load, Node, NoLeader, Place, Places, Traits
from bench.peers.three_processes import Group
from raftmq.commands import bench_load
from raftmq.local.process import free_base_port

TUNED = {"enableBatchPush": "true", "useReentrantLockWhenPutMessage": "true"}
GROUP = "RaftNode00"
READY_S = 90.0
_PORTS_EACH = 5
"""The number of ports of each broker: clients use +2 (+0 is its VIP port, +3 its replication port), DLedger uses +4."""
_JVM = [
    "-server",
    "-XX:+UseG1GC",
    "-XX:G1HeapRegionSize=16m",
    "-XX:G1ReservePercent=25",
    "-XX:InitiatingHeapOccupancyPercent=30",
    "-XX:SoftRefLRUPolicyMSPerMB=0",
    "-XX:-OmitStackTraceInFastThrow",
    "-XX:-UseLargePages",
    "-XX:MaxDirectMemorySize=1g",
    # Unmapping files, and netty, use these packages; runbroker.sh exports them for Java 9 and newer.
    *(
        f"--add-{how}=java.base/{package}=ALL-UNNAMED"
        for how in ("exports", "opens")
        for package in ("jdk.internal.ref", "sun.nio.ch", "java.nio", "java.lang")
    ),
]
_BROKER_HEAP, _NAMESRV_HEAP = "1g", "256m"
_LOGBACK = '<configuration><root level="OFF"/></configuration>\n'


class DLedger(Group):
    """A `System` of three brokers of one DLedger group and a name server."""

    def __init__(
        self, name: str, settings: Mapping[str, str], places: Places = HERE, *, release: str = fetch.ROCKETMQ
    ) -> None:
        """`settings`: lines of broker.conf in addition to those that a DLedger group needs."""
        super().__init__(places)
        self.traits = Traits(
            name,
            f"RocketMQ {release}",
            "page cache of a majority; flushed every 10 ms, acks do not wait for it",
            warm_s=60.0,
            batches=True,
        )
        self._settings = dict(settings)
        self._jars = fetch.rocketmq(release)
        self._java = fetch.tool("java", "Java")
        self._base = 0

    def start(self, directory: Path) -> None:
        """Starts the brokers and waits until one accepts writes, READY_S at most. Raises NoLeader with the end of a
        broker's log."""
        self._home = directory
        self._base = free_base_port(_PORTS_EACH * NODES + 1)
        (directory / "conf").mkdir(parents=True)
        for name in ("broker", "namesrv", "tools"):
            (directory / "conf" / f"logback_{name}.xml").write_text(_LOGBACK)
        self._start_namesrv()
        self._start_all(lambda number: self._port(number, 2))
        try:
            self._await_leader(READY_S, 0.5)
        except NoLeader:
            raise NoLeader(f"{self.traits.name} did not start: {self._last_words()}") from None

    def leader(self) -> Node:
        """Returns the broker that acknowledges a send; slaves refuse it."""
        alive = set(self.processes.pids)
        for node in self._nodes:
            if node.pid in alive and loads.takes_writes(self, node):
                return node
        raise NoLeader(f"no broker of {self.traits.name} takes writes")

    def generator(self, load: Load) -> Generator:
        """Returns a generator of sends in RocketMQ frames."""
        return bench_load.Load(TOPIC, load.size, load.batch, load.in_flight, load.seconds)

    def _port(self, number: int, what: int) -> int:
        return self._base + 1 + _PORTS_EACH * number + what

    def _start_namesrv(self) -> None:
        conf = self._home / "namesrv.conf"
        kv, stored = self._home / "kv.json", self._home / "namesrv.stored"
        conf.write_text(f"listenPort={self._base}\nkvConfigPath={kv}\nconfigStorePath={stored}\n")
        self._start_java("namesrv", _NAMESRV_HEAP, "org.apache.rocketmq.namesrv.NamesrvStartup", conf, Place(HOST))

    def _start(self, number: int) -> int:
        store, place = self._home / f"n{number}", self.places.nodes[number]
        store.mkdir(exist_ok=True)
        peers = ";".join(f"n{each}-{host}:{self._port(each, 4)}" for each, (host, _) in enumerate(self.places.nodes))
        settings = {
            "brokerClusterName": "RaftCluster",
            "brokerName": GROUP,
            "brokerIP1": place.host,
            "listenPort": self._port(number, 2),
            "namesrvAddr": f"{self.places.hub}:{self._base}",
            "storePathRootDir": store,
            "storePathCommitLog": store / "commitlog",
            "enableDLegerCommitLog": "true",
            "dLegerGroup": GROUP,
            "dLegerPeers": peers,
            "dLegerSelfId": f"n{number}",
            "sendMessageThreadPoolNums": 16,
            **self._settings,
        }
        conf = self._home / f"broker-n{number}.conf"
        conf.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        return self._start_java(
            f"broker-n{number}", _BROKER_HEAP, "org.apache.rocketmq.broker.BrokerStartup", conf, place
        )

    def _start_java(self, name: str, heap: str, main: str, conf: Path, place: Place) -> int:
        home = [f"-Duser.home={self._home}", f"-Drocketmq.home.dir={self._home}"]
        command = [self._java, f"-Xms{heap}", f"-Xmx{heap}", *_JVM, *home, "-cp", f"{self._jars}/*", main, "-c", conf]
        return self.processes.start([*place.enter, *(str(part) for part in command)], self._home / f"{name}.log")

    def _last_words(self) -> str:
        lines = [line for log in sorted(self._home.glob("*.log")) for line in log.read_text().splitlines()[-2:]]
        return "; ".join(lines) or "the logs are empty"

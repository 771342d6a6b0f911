"""docs/mistakes.md has sixty typical mistakes and what is printed for each: what happened, why, what to type.

The mistakes are made one after the other, beside one cluster of three nodes and one node with TLS and a full disk.
`pytest --rewrite` writes the page anew, and fails if an answer took more than two seconds.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from click.testing import CliRunner

import raftmq
from cluster.config.local_layout import NodeRecord
from cluster.config.node_files import plan_nodes, write_configs
from raftmq.cli import cli
from raftmq.local.cluster import LocalCluster
from raftmq.local.init import create_data_dirs
from raftmq.local.process import free_base_port
from raftmq_wire.errors import ExitCode
from tests.support.archives import extract
from tests.support.live_nodes import LiveCluster
from tests.support.small_segments import small_segments
from tests.support.wait_until import wait

pytestmark = pytest.mark.live
ROOT = Path(__file__).parents[2]
USAGE, REFUSED = ExitCode.USAGE, ExitCode.REFUSED
PAGE = ROOT / "docs" / "mistakes.md"
EARLIER = ROOT / "tests" / "data" / "earlier" / "builds.tar.xz"
LEAST = 60
SOON_S = 2.0
HEAD = """# Typical mistakes

What `raftmq` and the Python client print for {count} mistakes. Each text says what happened, why, and what to type;
each appears within two seconds on an idle machine. `tests/raftmq/test_mistakes.py` makes every mistake and compares
this page with what was printed. `/srv/shop` is the working directory, `UUID` stands for a uuid.
"""
FULL = {
    "RAFTMQ_RETENTION__DISK_MAX_USED_PERCENT": "2",
    "RAFTMQ_RETENTION__DISK_FORCE_CLEAN_PERCENT": "2",
    "RAFTMQ_RETENTION__DISK_REFUSE_WRITES_PERCENT": "2",
}
"""Every disk is fuller than that."""


class Mistake(NamedTuple):
    """What was typed, as the page shows it, and what was printed."""

    section: str
    title: str
    typed: str
    printed: str
    seconds: float


class Place:
    """The folder in which the mistakes are made, with a cluster of three nodes in .raftmq and others beside it."""

    def __init__(self, folder: Path, cluster: LiveCluster, secure: LocalCluster) -> None:
        self.folder = folder
        self.cluster = cluster
        self.secure = secure.nodes[0]
        self.ca = str(secure.data / "tls" / "ca.crt")
        self.admin = f"127.0.0.1:{cluster.nodes[0].admin_port}"
        self.made: list[Mistake] = []
        self._section = ""
        self._shown: list[tuple[str, str]] = [(str(folder), "/srv/shop"), (str(cluster.data), "/srv/shop/.raftmq")]
        usual = plan_nodes(Path("/srv/shop/.raftmq"), 3, None)
        self._shown += [
            pair
            for pairs in zip(map(_ports, cluster.nodes), map(_ports, usual), strict=True)
            for pair in zip(*pairs, strict=True)
        ]
        self._shown += zip(_ports(self.secure), ("19876", "19911", "19912", "19644"), strict=True)

    def section(self, title: str) -> None:
        """Begins a section of the page."""
        self._section = title

    def shown_as(self, real: object, shown: str) -> None:
        """Notes what stands on the page for something that differs from run to run."""
        self._shown.append((str(real), shown))

    def cli(self, title: str, *words: str, stdin: str = "", code: ExitCode | None = None, **env: str) -> None:
        """One command line that must fail, with that exit code if one is given."""
        began = time.monotonic()
        result = CliRunner().invoke(cli, list(words), input=stdin, env=env)
        seconds = time.monotonic() - began
        assert result.exit_code not in (0, 130), (words, result.output)
        assert code in (None, result.exit_code), (words, result.output)
        self._note(title, self._line(words, stdin, env), result.stderr, seconds)

    def process(self, title: str, *words: str, stdin: str = "") -> None:
        """The same as a process, which is ended once it has said what to type: it may go on to wait."""
        began = time.monotonic()
        line = [sys.executable, "-m", "raftmq.cli", *words]
        with subprocess.Popen(
            line, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=self.folder
        ) as running:
            assert running.stdin is not None
            assert running.stderr is not None
            running.stdin.write(stdin)
            running.stdin.close()
            printed = []
            for text in running.stderr:
                printed.append(text)
                if text.startswith("type: "):
                    break
            seconds = time.monotonic() - began
            running.send_signal(signal.SIGKILL)
        self._note(title, self._line(words, stdin, {}), "".join(printed), seconds)

    def python(self, title: str, code: str, **names: object) -> None:
        """A program that must fail; of its error the last lines are shown, as a traceback shows them."""
        began = time.monotonic()
        try:
            exec(compile(code, title, "exec"), {"raftmq": raftmq, **names})
        except Exception as error:  # noqa: BLE001
            printed = "".join(traceback.format_exception_only(error))
        else:
            pytest.fail(f"{title}: no error")
        typed = ">>> " + code.strip().replace("\n", "\n... ")
        for name, value in names.items():
            typed = re.sub(rf"\b{name}\b(?!=)", repr(value), typed)
        self._note(title, typed, printed, time.monotonic() - began, labelled=False)

    def _note(self, title: str, typed: str, printed: str, seconds: float, *, labelled: bool = True) -> None:
        if labelled:
            what, why, fix = printed.rstrip("\n").splitlines()[-3:]
            assert why.startswith("because: "), (title, printed)
            assert fix.startswith(("type:    ", "do:      ")), (title, printed)
            assert len({what, why.removeprefix("because: "), fix.removeprefix("type:    "), ""}) == 4, (title, printed)
        assert "Traceback" not in printed
        self.made.append(Mistake(self._section, title, self._same(typed), self._same(printed).rstrip(), seconds))

    @staticmethod
    def _line(words: tuple[str, ...], stdin: str, env: dict[str, str]) -> str:
        given = "".join(f"{name}={value} " for name, value in env.items())
        quoted = " ".join(word if re.fullmatch(r"[\w.,:;/%=@-]+", word) else f"'{word}'" for word in words)
        fed = f"echo '{stdin.rstrip()}' | " if 0 < len(stdin) < 60 else "cat file | " if stdin else ""
        return f"$ {fed}{given}raftmq {quoted}"

    def _same(self, text: str) -> str:
        for real, shown in sorted(self._shown, key=lambda pair: -len(pair[0])):
            text = re.sub(rf"(?<!\d){re.escape(real)}(?!\d)", shown, text)
        text = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "UUID", text)
        text = re.sub(r"(process|pid|end|or kill) \d+", r"\1 4711", text)
        text = re.sub(r"[\d.]+ per cent of \d+ bytes", "91.2 per cent of 107374182400 bytes", text)
        text = re.sub(r"which ends at \d+", "which ends at 3625", text)
        return re.sub(r" in [\d.]+ s\b", " in 0.1 s", text)


def _ports(node: NodeRecord) -> list[str]:
    return [str(port) for port in (node.namesrv_port, node.broker_port, node.peer_port, node.admin_port)]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """The working directory is new, and nothing of the caller's environment counts."""
    for name in [name for name in os.environ if name.startswith("RAFTMQ_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    cluster, secure = LocalCluster(tmp_path / ".raftmq"), LocalCluster(tmp_path / "secure")
    try:
        with small_segments():
            cluster.up(3, free_base_port(12), failpoints=True)
            with pytest.MonkeyPatch.context() as patch:
                for name, value in FULL.items():
                    patch.setenv(name, value)
                secure.up(1, free_base_port(4), tls=True)
        yield Place(tmp_path, LiveCluster(cluster), secure)
    finally:
        for each in (cluster, secure):
            if (each.data / "cluster.json").exists():
                each.down()


@pytest.mark.ci
def test_each_mistake_says_what_why_and_what_to_type(
    place: Place, rewrite: bool, record_property: Callable[[str, object], None]
) -> None:
    for make in (
        addresses,
        secure_ports,
        topics,
        messages,
        groups,
        configuration,
        directories,
        nodes,
        programs,
        users,
        majority,
    ):
        make(place)
    titles = [each.title for each in place.made]
    assert len(set(titles)) == len(titles) >= LEAST
    slow = [f"{each.title}: {each.seconds:.1f} s" for each in place.made if each.seconds > SOON_S]
    slowest = max(each.seconds for each in place.made)
    record_property("count", f"mistakes: {len(titles)}, the slowest answer after {slowest:.1f} s")
    print(slow)  # noqa: T201
    text = page_of(place.made)
    if rewrite:
        PAGE.write_text(text, encoding="utf-8")
        assert slow == []
    assert text == PAGE.read_text(encoding="utf-8"), "read what changed, then run this test with --rewrite"


def page_of(made: list[Mistake]) -> str:
    """Returns the page: a section for each group of mistakes."""
    lines, section = [HEAD.format(count=len(made))], ""
    for each in made:
        if each.section != section:
            section = each.section
            lines.append(f"## {section}\n")
        lines.append(f"**{each.title}**\n\n```text\n{each.typed}\n{each.printed}\n```\n")
    return "\n".join(lines)


# --- the mistakes -----------------------------------------------------------------------------------


def addresses(place: Place) -> None:
    """Ports, hosts and contexts."""
    place.section("The cluster is not found")
    node = place.cluster.nodes[0]
    (place.folder / "empty").mkdir()
    place.cli("No cluster here", "status", "--data", "empty")
    place.cli("Nobody listens on the port", "consume", "orders", "--servers", "127.0.0.1:1")
    place.cli(
        "The port of the HTTP API in place of the clients' port",
        "consume",
        "orders",
        "--servers",
        f"127.0.0.1:{node.admin_port}",
    )
    place.cli(
        "The port of the nodes in place of the clients' port",
        "consume",
        "orders",
        "--servers",
        f"127.0.0.1:{node.peer_port}",
    )
    place.cli(
        "The clients' port in place of the HTTP API's", "topic", "list", "--admin", f"127.0.0.1:{node.namesrv_port}"
    )
    place.cli("Nobody listens on the port of the HTTP API", "topic", "list", "--admin", "127.0.0.1:1")
    place.cli("A host that DNS does not know", "consume", "orders", "--servers", "mq.invalid:9876")
    place.cli("A host that DNS does not know, for the HTTP API", "topic", "list", "--admin", "mq.invalid:9644")
    place.cli("A host without a port", "consume", "orders", "--servers", "127.0.0.1")
    place.cli("A URL", "consume", "orders", "--servers", "http://127.0.0.1:9876")
    place.cli("A port that cannot be", "consume", "orders", "--servers", "127.0.0.1:99999")
    place.cli("A context that was never added", "status", "--admin", "prod")
    place.cli("The folder around the data directory", "status", "--data", ".", code=ExitCode.UNREACHABLE)
    place.cli("The folder of one node", "status", "--data", ".raftmq/n1", code=ExitCode.UNREACHABLE)
    here = f"127.0.0.1:{node.namesrv_port}"
    place.cli("The clients' port for a command of the HTTP API", "topic", "list", "--servers", here, code=USAGE)
    place.cli("The HTTP API for a client's command", "consume", "orders", "--admin", place.admin, code=USAGE)
    place.cli("Alarms of nobody", "alarm", "list", "--admin", "127.0.0.1:1", code=ExitCode.UNREACHABLE)


def secure_ports(place: Place) -> None:
    """TLS where there is none, none where there is, and the wrong CA."""
    place.section("TLS")
    node, plain = place.secure, place.cluster.nodes[0]
    servers, admin = f"127.0.0.1:{node.namesrv_port}", f"127.0.0.1:{node.admin_port}"
    place.cli("Plain text to a port that speaks TLS", "consume", "orders", "--servers", servers)
    place.cli(
        "TLS to a port that speaks plain text",
        "consume",
        "orders",
        "--servers",
        f"127.0.0.1:{plain.namesrv_port}",
        "--tls-ca",
        place.ca,
    )
    CliRunner().invoke(cli, ["cert", "ca", "--out", "other"], catch_exceptions=False)
    place.cli(
        "A CA that did not sign the certificate", "consume", "orders", "--servers", servers, "--tls-ca", "other/ca.crt"
    )
    place.cli("A CA that is not there", "consume", "orders", "--servers", servers, "--tls-ca", "ca.crt")
    place.cli("HTTP to an HTTP API that speaks HTTPS", "topic", "list", "--admin", admin)
    plain_admin = f"127.0.0.1:{plain.admin_port}"
    place.cli("HTTPS to an HTTP API that speaks HTTP", "topic", "list", "--admin", plain_admin, "--tls-ca", place.ca)
    place.cli("The status over HTTP from an API that speaks HTTPS", "status", "--admin", admin)
    place.cli("The status with another CA", "status", "--admin", admin, "--tls-ca", "other/ca.crt")
    place.cli(
        "A node made with the CA of nobody",
        "init",
        "--join",
        admin,
        "--tls",
        "pki",
        "--config",
        "secure/n1/raftmq.toml",
    )
    place.cli("A certificate authority made twice", "cert", "ca", "--out", "other")


def topics(place: Place) -> None:
    """Names and attributes of topics."""
    place.section("Topics")
    done = CliRunner().invoke(cli, ["topic", "create", "orders", "--queues", "2"])
    assert done.exit_code == 0, done.output
    place.cli("A topic that does not exist", "consume", "order")
    place.cli("A topic that exists already", "topic", "create", "orders", code=REFUSED)
    place.cli("A name with a blank", "topic", "create", "my orders", code=USAGE)
    place.cli("A name that is too long", "topic", "create", "orders-" * 50, code=USAGE)
    place.cli("A send to a name with a blank", "produce", "my orders", stdin="tea\n")
    place.cli("Too many queues", "topic", "create", "letters", "--queues", "5000")
    place.cli("A time that is not one", "topic", "create", "letters", "--retention", "7 days")
    place.cli("A deletion in a script", "topic", "delete", "orders")
    place.cli("A mistyped command", "topic", "crate", "letters")
    place.cli("A mistyped group of commands", "topc", "describe", "letters")
    place.cli("A command to explain, mistyped", "help", "tpic")
    place.cli("A mistyped option", "topic", "create", "letters", "--queue", "3")


def messages(place: Place) -> None:
    """What is sent and read."""
    place.section("Messages")
    CliRunner().invoke(cli, ["produce", "orders"], input="one\ntwo\n")
    place.cli("A message that is too large", "produce", "orders", stdin="x" * (5 << 20))
    place.cli("A line that is not JSON", "produce", "orders", "--key-field", "id", stdin="tea\n")
    place.cli("A field that is missing", "produce", "orders", "--key-field", "id", stdin='{"item": "tea"}\n')
    place.cli("A file that is not there", "produce", "orders", "--file", "orders.txt")
    place.cli("A start that is none", "consume", "orders", "--from", "noon")
    place.cli("A queue that does not exist", "messages", "browse", "orders", "--queue", "9")
    place.cli("A filter that is not SQL92", "consume", "orders", "--filter", "price ==")
    place.cli("A format with an unknown field", "consume", "orders", "--format", "{boddy}")
    place.cli("A key that no message has", "messages", "find", "--topic", "orders", "--key", "no-such-key")
    place.cli("A position outside the log", "messages", "find", "--position", "999999999999")
    secure = f"127.0.0.1:{place.secure.namesrv_port}"
    place.process("A disk that is full", "produce", "orders", "--servers", secure, "--tls-ca", place.ca, stdin="tea\n")


def groups(place: Place) -> None:
    """Consumer groups."""
    place.section("Consumer groups")
    done = CliRunner().invoke(cli, ["consume", "orders", "--group", "billing"])
    assert done.exit_code == 0, done.output
    place.cli("A group that does not exist", "group", "describe", "biling")
    place.cli("A name that is none", "consume", "orders", "--group", "my group")
    place.cli("A group to create, with a blank", "group", "create", "my group")
    place.cli(
        "An offset out of range", "group", "reset", "billing", "--topic", "orders", "--to", "999", "--yes", code=USAGE
    )
    reset = ("group", "reset", "biling", "--topic", "orders", "--to", "earliest")
    place.cli("A reset of a group that does not exist", *reset, code=REFUSED)
    place.cli("Events since no time", "events", "--since", "noon")
    place.cli("A reset to no time", "group", "reset", "billing", "--topic", "orders", "--to", "yesterday", "--yes")
    place.cli("Dead letters of a group that never consumed", "dlq", "list", "shipping")
    place.cli("Order without a group", "consume", "orders", "--ordered")


def configuration(place: Place) -> None:
    """raftmq.toml and the keys of the cluster."""
    place.section("Configuration")
    good = place.cluster.nodes[0].config_path.read_text()
    file = place.folder / "raftmq.toml"

    def check(title: str, text: str) -> None:
        file.write_text(text)
        place.cli(title, "config", "check", "raftmq.toml")

    check("A file that is not TOML", '{"node": {"id": 1}}\n')
    check("A section that is mistyped", good.replace("[node]", "[nodes]"))
    check("A key that is mistyped", good.replace("data_dir", "data_dri"))
    check("A value of the wrong type", good.replace("id = 1\n", 'id = "one"\n', 1))
    check("A value out of range", good + "\n[raft]\ntick_ms = 0\n")
    check("A key that is missing", good.replace('data_dir = "data"\n', ""))
    place.cli("A file that does not exist", "config", "check", "raftmq.yaml")
    place.cli("A mistyped key of the cluster", "config", "set", "retention.hour", "48")
    place.cli("A key of a node, set for the cluster", "config", "set", "peer.port", "10912")
    place.cli("A key and its value in one word", "config", "set", "retention.hours=48", code=USAGE)
    place.cli("A negative value", "config", "set", "retention.hours", "-1", code=USAGE)
    place.cli(
        "Two keys that contradict each other", "config", "set", "retention.disk_force_clean_percent", "10", "--yes"
    )


def directories(place: Place) -> None:
    """Data directories."""
    place.section("Data directories")
    place.cli("A folder that is no data directory", "fsck", "config")
    place.cli("A node that runs on it", "fsck", ".raftmq/n1")
    place.cli("A place where nobody may write", "up", "--data", "/sys/raftmq", "--detach")
    ours, theirs = (_made(place, name) for name in ("ours", "theirs"))
    lost = ours[2].home / "data"
    shutil.rmtree(lost)
    shutil.copytree(theirs[2].home / "data", lost)
    three = [word for node in ours for word in ("--config", str(node.config_path.relative_to(place.folder)))]
    place.cli("The directory of another cluster", "init", *three)
    extract(EARLIER, place.folder / "earlier")
    old = next(path.parent for path in sorted((place.folder / "earlier").rglob("IDENTITY")))
    place.shown_as(old.relative_to(place.folder), "old/data")
    place.cli("A directory of an earlier format", "fsck", str(old.relative_to(place.folder)))
    place.cli("A backup outside of backup.roots", "backup", "create", "--to", "/var/backups", code=REFUSED)
    place.cli("A restore into a directory with data", "restore", "--from", "backups/nightly", "--into", ".raftmq")
    place.cli("A backup that is not there", "backup", "verify", "backups/nightly")
    place.cli("A restore from a folder that is not there", "restore", "--from", "/nope", "--into", "new")


def _made(place: Place, name: str) -> list[NodeRecord]:
    """A cluster of three data directories, which nobody runs."""
    planned = plan_nodes(place.folder / name, 3, free_base_port(12))
    write_configs(planned)
    create_data_dirs([node.config_path for node in planned], os.environ)
    return planned


def nodes(place: Place) -> None:
    """Nodes and members."""
    place.section("Nodes")
    for title, *words in (
        ("A node that does not exist", "kill", "9"),
        ("A member that does not exist", "node", "transfer", "9"),
        ("The last start of a node that does not exist", "recovery", "--node", "9"),
        ("A scrub of a node that does not exist", "scrub", "--node", "9", "--status"),
        ("A restart of a node that does not exist", "rolling-restart", "--node", "9"),
        ("A backup by a node that does not exist", "backup", "create", "--to", "backups", "--node", "9"),
    ):
        place.cli(title, *words, code=REFUSED)
    place.cli("Too few members would be left", "node", "remove", "3")
    place.cli("Another number of nodes", "up", "--nodes", "5", "--detach")
    with socket.create_server(("127.0.0.1", free_base_port(12))) as taken:
        port = taken.getsockname()[1]
        place.shown_as(port, "20000")
        place.shown_as(Path(sys.executable).name, "python")
        place.cli("A port that another program has", "up", "--data", "second", "--base-port", str(port))
    place.cli("A tier while the nodes run", "up", "--tier", "s3://bucket", "--detach")
    place.cli("An alarm that nobody can acknowledge", "alarm", "ack", "disk_full")


def programs(place: Place) -> None:
    """The Python client."""
    place.section("The Python client")
    servers = place.cluster.servers
    place.python(
        "A body that is no bytes", 'with raftmq.connect(servers) as mq:\n    mq.send("orders", "tea")', servers=servers
    )
    place.python(
        "An option that does not exist",
        'with raftmq.connect(servers) as mq:\n    mq.send("orders", b"tea", colour="red")',
        servers=servers,
    )
    place.python(
        "A consumer that was not entered",
        'with raftmq.connect(servers) as mq:\n    mq.consumer("billing", "orders").poll(1)',
        servers=servers,
    )
    place.python("A group that can be none", 'raftmq.connect(servers).consumer("my group", "orders")', servers=servers)
    place.python(
        "A topic that a program reads and nobody made",
        'with raftmq.connect(servers) as mq:\n    list(mq.consumer("billing", "no-such-topic", follow=False))',
        servers=servers,
    )
    place.python(
        "A disk that is full, and a program",
        'with raftmq.connect(servers, tls=raftmq.Tls(ca=ca), timeout_s=1) as mq:\n    mq.send("orders", b"tea")',
        servers=f"127.0.0.1:{place.secure.namesrv_port}",
        ca=place.ca,
    )


def users(place: Place) -> None:
    """Users and rules."""
    place.section("Users")
    servers = f"127.0.0.1:{place.cluster.nodes[0].namesrv_port}"
    admin = f"127.0.0.1:{place.cluster.nodes[0].admin_port}"

    def must(*words: str, stdin: str = "") -> None:
        done = CliRunner().invoke(cli, list(words), input=stdin)
        assert done.exit_code == 0, done.output

    place.cli("A secret that is too short", "user", "create", "shop", stdin="short\n")
    place.cli("Enforced without anybody who could change it", "auth", "mode", "enforce", "--yes")
    must("user", "create", "admin", "--super", stdin="a long secret\n")
    must("user", "create", "shop", stdin="another long secret\n")
    must("acl", "set", "shop", "Topic:letters", "Pub")
    place.cli(
        "A user that exists already", "user", "create", "shop", stdin="a secret of today\n", code=ExitCode.REFUSED
    )
    place.cli("A resource without its kind", "acl", "set", "shop", "orders", "Pub", code=USAGE)
    place.cli("A resource that no topic can be", "acl", "set", "shop", "Topic:my orders", "Pub", code=USAGE)
    place.cli("A right that does not exist", "acl", "set", "shop", "Topic:orders", "Publish", code=USAGE)
    place.cli("A token of nobody", "user", "token", "nobody", code=REFUSED)
    place.cli("The last user who may do everything", "user", "delete", "admin")
    must("context", "add", "here", "--admin", admin)
    place.cli("A login with a wrong secret", "login", "shop", "--admin", "here", stdin="a wrong secret\n")
    must("auth", "mode", "enforce", "--yes")
    wait(lambda: _leads_after_transfer(place, 1))  # a node that passes a request on does not send the token
    place.cli("No user where users are asked for", "produce", "orders", "--servers", servers, stdin="tea\n")
    place.cli(
        "A wrong secret",
        "produce",
        "orders",
        "--servers",
        servers,
        stdin="tea\n",
        RAFTMQ_ACCESS_KEY="shop",
        RAFTMQ_SECRET_KEY="wrong",
    )
    place.cli(
        "A user without that right",
        "produce",
        "orders",
        "--servers",
        servers,
        stdin="tea\n",
        RAFTMQ_ACCESS_KEY="shop",
        RAFTMQ_SECRET_KEY="another long secret",
    )
    place.cli(
        "A user without a secret", "produce", "orders", "--servers", servers, stdin="tea\n", RAFTMQ_ACCESS_KEY="shop"
    )
    place.cli("No user for the HTTP API", "topic", "list", "--admin", admin)
    place.cli("A token that has ended", "topic", "list", "--admin", admin, RAFTMQ_TOKEN="0123456789abcdef")
    must("auth", "mode", "off", "--yes")


def majority(place: Place) -> None:
    """Two of three nodes are dead. The last act: nothing is healed."""
    place.section("No majority")
    wait(lambda: _leads_after_transfer(place, 2))
    for node in (3, 2):  # the leader last: nobody is elected in between
        place.cluster.kill(node)
    wait(lambda: CliRunner().invoke(cli, ["topic", "create", "late"]).exit_code == 5)
    place.cli("A change without a majority", "topic", "create", "late")
    place.cli("A node that is not running", "kill", "2")
    place.cluster.local.down()
    place.cli("A send to a cluster that is stopped", "produce", "orders", stdin="tea\n")
    place.cli("A question to a cluster that is stopped", "topic", "list")


def _leads_after_transfer(place: Place, node: int) -> bool:
    if place.cluster.leader() != node:
        CliRunner().invoke(cli, ["node", "transfer", str(node)])
    return place.cluster.leader() == node

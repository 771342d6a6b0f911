"""The command line's manners: three lines, the nearest right word, exit codes, JSON, and a fast start."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result
from rich.console import Console
from rich.table import Table

from cluster.config.local_layout import ClusterFile, write_cluster
from cluster.config.node_files import plan_nodes, write_configs
from raftmq.cli import COMMANDS, cli
from raftmq.client.errors import Failed, NotFound, RaftMQError, Refused, Unknown, Unreachable
from raftmq.commands.shared_options import show_table
from raftmq_wire.codes import ResponseCode
from tests.support.answering_api import MakeApi
from tests.support.rows import each_row


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Commands run where there is no cluster."""
    monkeypatch.chdir(tmp_path)
    for name in ("RAFTMQ_DATA", "RAFTMQ_SERVERS", "RAFTMQ_ADMIN"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def run(*arguments: str, stdin: str = "") -> Result:
    return CliRunner().invoke(cli, list(arguments), input=stdin)


def three_lines(result: Result) -> tuple[str, str, str]:
    """Returns what, why and what to type; there is nothing else on stderr."""
    what, why, fix = result.stderr.splitlines()
    assert why.startswith("because: ")
    label = fix[:9]
    assert label in ("type:    ", "do:      ")
    return what, why.removeprefix("because: "), fix.removeprefix(label)


@each_row(
    ("arguments", "what", "fix"),
    [
        (["uup"], "raftmq has no command uup", "raftmq up"),
        (["sttaus", "--json"], "raftmq has no command sttaus", "raftmq status --json"),
        (["message"], "give one of --key, --id and --position", "raftmq messages find --topic orders --key order-1"),
        (
            ["messages", "find", "--key", "k"],
            "--key needs --topic: keys are indexed by topic",
            "raftmq messages find --topic NAME --key k",
        ),
        (["topic", "crate", "t"], "raftmq topic has no command crate", "raftmq topic create t"),
        (["up", "--node", "3"], "raftmq up has no option --node", "raftmq up --nodes 3"),
        (["consume", "t", "--folow"], "raftmq consume has no option --folow", "raftmq consume t --follow"),
        (
            ["produce", "t", "--keyfield", "a"],
            "raftmq produce has no option --keyfield",
            "raftmq produce t --key-field a",
        ),
        (["consume", "t", "--count", "5"], "raftmq consume has no option --count", "raftmq consume t --max 5"),
        (["events", "--max", "5"], "raftmq events has no option --max", "raftmq events --limit 5"),
        (["up", "--count", "5"], "raftmq up has no option --count", "raftmq up --help"),
        (["consume", "t", "-n", "5"], "raftmq consume has no option -n", "raftmq consume t --max 5"),
        (
            ["topic", "alter", "t", "--retention", "1", "-5"],
            "raftmq topic alter has no option -5",
            "the same command with -- before -5    (a value that begins with - looks like an option)",
        ),
        (
            ["status", "--servers", "h:1"],
            "raftmq status has no option --servers",
            "raftmq status --admin 127.0.0.1:9644    (the port of the HTTP API; this command has no client)",
        ),
        (["topc", "crate", "topc"], "raftmq has no command topc", "raftmq topic crate topc"),
        (["demo", "--sed", "1"], "raftmq demo has no option --sed", "raftmq demo --seed 1"),
        (["up", "--gruops=2"], "raftmq up has no option --gruops", "raftmq up --groups=2"),
        (["up", "--dir", "a b"], "raftmq up has no option --dir", "raftmq up --data 'a b'"),
        (
            ["messages", "browse", "t", "--key", "k1"],
            "raftmq messages browse has no option --key",
            "raftmq messages find --topic TOPIC --key KEY    (the index finds it)",
        ),
        (["group", "zzzz"], "raftmq group has no command zzzz", "raftmq group --help"),
    ],
)
def test_the_nearest_right_word(arguments: list[str], what: str, fix: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    told = three_lines(result)
    assert (told[0], told[2]) == (what, fix)


@each_row(
    ("arguments", "what"),
    [
        (["kill"], "missing argument 'NODE'"),
        (["kill", "one"], "invalid value for 'NODE': 'one' is not a valid integer"),
        (
            ["consume", "t", "--from", "noon"],
            "'noon' is not earliest, latest, an offset (0 or more) or a time: write",
        ),
        (
            ["consume", "t", "--from", "-1"],
            "'-1' is not earliest, latest, an offset (0 or more) or a time: write",
        ),
        (["consume", "t", "--max", "0"], "invalid value for '--max'"),
        (["produce", "t", "--file", "missing.txt"], "file 'missing.txt' does not exist"),
        (["up", "--nodes", "0"], "a local cluster of 0 nodes is not possible"),
        (["up", "--base-port", "70000"], "--base-port 70000 leaves no room for the ports"),
        (["serve"], "missing option '--config'"),
        (["topic", "create", "t", "--queues", "0"], "invalid value for '--queues'"),
        (["topic", "create", "t", "--dedup", "maybe"], "invalid value for '--dedup'"),
        (["status", "--data"], "option '--data' requires an argument"),
        (["consume", "t", "--servers", "no-port"], "is not host:port"),
        (["topic", "list", "--admin", "no-port"], "no-port is not the address of an HTTP API"),
        (["context", "add", "prod"], "a context needs --admin, --servers or both"),
        (["context", "remove", "nobody"], "there is no context nobody"),
        (["demo", "--messages", "10"], "invalid value for '--messages'"),
    ],
)
def test_bad_usage_exits_with_two(arguments: list[str], what: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert what.lower() in three_lines(result)[0].lower()


@pytest.mark.parametrize(
    "arguments", [["status"], ["down"], ["kill", "1"], ["restart", "1"], ["logs"], ["topic", "list"], ["group", "list"]]
)
def test_without_a_cluster_the_exit_code_is_four(arguments: list[str], nowhere: Path) -> None:
    result = run(*arguments)
    assert result.exit_code == 4
    what, _, fix = three_lines(result)
    assert what == f"there is no cluster in {nowhere / '.raftmq'}"
    assert fix.startswith("raftmq up")
    assert not (nowhere / ".raftmq").exists(), "asking made a directory"


def test_errors_as_json() -> None:
    result = run("status", "--json")
    told = json.loads(result.stdout)
    assert told["schema"] == 1
    assert told["error"]["exit_code"] == 4
    assert set(told["error"]) == {"what", "why", "type", "exit_code"}


def test_a_cluster_that_is_down(nowhere: Path) -> None:
    """All commands but `status` say where to look; `status --json` keeps its shape."""
    data = nowhere / ".raftmq"
    nodes = plan_nodes(data, 3, 29000)
    write_configs(nodes)
    write_cluster(data, ClusterFile(nodes))
    result = run("status", "--json")
    assert result.exit_code == 4
    status = json.loads(result.stdout)
    assert (status["schema"], status["leader"], status["term"]) == (1, None, None)
    assert [node["id"] for node in status["nodes"]] == [1, 2, 3]
    assert run("status").exit_code == 4
    assert run("topic", "list").exit_code == 4
    assert run("kill", "2").exit_code == 5
    assert "there is no node 7" in run("kill", "7").stderr
    assert run("kill", "7").exit_code == 5
    down = run("down", "--json")
    assert (down.exit_code, json.loads(down.stdout)["stopped"]) == (0, [])


def test_nobody_listens_at_the_address_given() -> None:
    result = run("topic", "list", "--admin", "127.0.0.1:1")
    assert result.exit_code == 4
    assert "no node answers at 127.0.0.1:1" in three_lines(result)[0]


@pytest.mark.parametrize("name", [*COMMANDS, "demo"])
def test_every_command_has_help_and_json(name: str) -> None:
    result = run(name, "--help")
    assert result.exit_code == 0
    command = cli.get_command(click.Context(cli), name)
    commands = command.commands.values() if isinstance(command, click.Group) else [command]
    for each in commands:
        assert each is not None
        assert each.help
        if (name, each.name) not in {("serve", "serve"), ("registry", "run")}:  # they run until they are stopped
            assert "--json" in [flag for param in each.params for flag in param.opts], each.name


def test_the_list_of_commands_says_what_they_say() -> None:
    for name in COMMANDS:
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        assert command.name == name
        assert (command.help or "").strip()


def test_help_imports_nothing_heavy() -> None:
    """`raftmq --help` and shell completion must not wait for a client, a database or a web server."""
    code = (
        "import sys\nimport raftmq.__main__\nfrom raftmq.cli import run\nrun(['--help'])\n"
        "heavy = {'asyncio', 'aiohttp', 'uvloop', 'rocksdict', 'rich', 'psutil', 'raftmq.client'}\n"
        "print('imported:', sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "imported: []"


def test_defects_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception nobody expected keeps its traceback."""

    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr("raftmq.commands.nodes.status.data_dir", broken)
    result = run("status")
    assert isinstance(result.exception, ZeroDivisionError)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Unknown("timed out"), 3),
        (Unreachable("nobody there"), 4),
        (Refused("no leader", code=ResponseCode.SERVICE_NOT_AVAILABLE), 5),
        (Refused("busy", code=ResponseCode.SYSTEM_BUSY), 5),
        (Refused("too large", code=ResponseCode.MESSAGE_ILLEGAL), 1),
        (NotFound("no such topic"), 5),
        (Failed("damaged"), 1),
    ],
)
def test_what_the_client_knows_decides_the_exit_code(
    error: RaftMQError, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(servers: str | None) -> None:
        raise error

    monkeypatch.setattr("raftmq.commands.messages.consume.connect", fail)
    result = run("consume", "t")
    assert result.exit_code == code
    what, _, fix = three_lines(result)
    assert what == str(error)
    assert fix


@pytest.mark.parametrize("arguments", [[], ["help"]])
def test_a_bare_command_shows_its_help_as_it_is(arguments: list[str]) -> None:
    done = subprocess.run([sys.executable, "-m", "raftmq.cli", *arguments], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert "\n  topic " in done.stdout
    subprocess.run([sys.executable, "-m", "raftmq.cli", "topic"], check=True, stdout=subprocess.DEVNULL)


def test_help_and_version_are_commands_too() -> None:
    assert run("help", "topic", "create").stdout.startswith("Usage: raftmq topic create")
    assert run("version").stdout == run("--version").stdout
    result = run("help", "topc")
    assert (result.exit_code, three_lines(result)[2]) == (2, "raftmq help topic")


@pytest.mark.parametrize("arguments", [["--help"], ["version"], ["help"], ["status", "--json"]])
def test_output_that_cannot_be_written_is_an_error_in_three_lines(arguments: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "raftmq.cli", *arguments]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert "Traceback" not in done.stderr
    assert done.returncode in (1, 4)
    assert done.stderr.splitlines()[-3].startswith(("the output could not be written", "there is no cluster"))


def test_a_terminal_too_narrow_for_a_table_gets_a_block_per_row() -> None:
    table = Table(box=None, header_style="bold")
    table.add_column("name")
    table.add_column("what it is for", justify="right")
    table.add_row("[green]orders[/]", "a topic with a long description")
    table.add_row("users", "-")

    def shown(width: int) -> list[str]:
        out = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None, soft_wrap=True)
        show_table(table, out)
        return out.file.getvalue().splitlines()  # type: ignore[attr-defined]

    wide = shown(80)
    assert len(wide) == 3
    assert shown(40) == [
        "name            orders",
        "what it is for  a topic with a long description",
        "",
        "name            users",
        "what it is for  -",
    ]


def test_commands_that_send_and_read_take_the_data_directory_too(nowhere: Path) -> None:
    for command in (["produce", "t"], ["consume", "t"], ["messages", "find", "--position", "0"]):
        result = run(*command, "--data", str(nowhere / "none"))
        assert result.exit_code == 4
        assert result.stderr.splitlines()[-3] == f"there is no cluster in {nowhere / 'none'}"


def test_status_asks_nodes_elsewhere(make_api: MakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    own = {
        "term": 3,
        "role": "follower",
        "commit_index": 9,
        "applied_index": 9,
        "leader": 2,
        "writes_open": False,
        "peers": [],
        "alarms": [],
        "links": [],
    }
    leads = {"node": 2, "role": "leader", "writes_open": True}
    peers = [{"node": 1, "lag_entries": 4}, {"node": 3, "lag_entries": 99}]
    one = make_api({"GET /v1/status": own | {"node": 1, "drained": True}})
    two = make_api({"GET /v1/status": own | leads | {"peers": peers}})
    admins = {1: one.address, 2: two.address, 3: "127.0.0.1:9"}
    for api in (one, two):  # no node knows more of one that is down
        api.answers["GET /v1/members"] = {"members": [{"id": id, "admin": admin} for id, admin in admins.items()]}
    monkeypatch.setenv("COLUMNS", "160")
    result = run("status", "--admin", one.address)
    assert result.exit_code == 0
    assert "node 2 leads (term 3), writes open" in result.stdout
    rows = [line.split() for line in result.stdout.splitlines()[2:]]
    assert [row[:3] for row in rows] == [["1", "up", "drained"], ["2", "up", "leader"], ["3", "down", "-"]]
    assert [row[-1] for row in rows] == list(admins.values())
    told = json.loads(run("status", "--admin", one.address, "--json").stdout)
    assert [node["admin"] for node in told["nodes"]] == list(admins.values())
    nobody = run("status", "--admin", "127.0.0.1:9")
    assert (nobody.exit_code, three_lines(nobody)[0]) == (4, "no node answers at 127.0.0.1:9")

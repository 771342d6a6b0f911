"""The texts that an operator reads when something is wrong: they are true, and what they say to type works there."""

from __future__ import annotations

import json
import re
import shlex
import sys
import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from cluster.config.local_layout import NodeRecord, locked
from raftmq.cli import cli, client_error
from raftmq.cli import run as run_line
from raftmq.client.errors import Unreachable, error_of
from raftmq.commands import event_list, shared_options
from raftmq.commands.aimed import aimed, group_in, kept, where
from raftmq.commands.messages import produce
from raftmq.commands.nodes import up
from raftmq.commands.nodes.status import finding_lines
from raftmq.local.http.admin_http import AdminApi, ApiRefusal, GivenAddresses, admin_addresses, node_addresses
from raftmq.local.http.contexts import FILE_VARIABLE
from raftmq.local.status import GroupStatus, NodeView
from raftmq.local.support_bundle import ENDPOINTS
from raftmq_wire.errors import ExitCode, LocalError, fix_label
from tests.support.answering_api import MakeApi, answering
from tests.support.codes import CODES
from tests.support.rows import each_row
from tests.support.tree import python_files, text_of

FULL = "the disk is full: 91.2 per cent of 100 bytes used; nothing was stored, sends are taken again below 88"
ADDRESS = "127.0.0.1:9"


NOUNS = "client|copie|entrie|event|file|finding|group|key|member|message|node|object|queue|row|rule|segment|topic|user"
UNCOUNTED = re.compile(r"\{(?![A-Z_]+\})[^{}:]+\} (" + NOUNS + r")s\b")
"""A number and a noun in a text that is wrong for one, "1 queues". A constant (in capitals) is never one, and a figure
with a format (`:,`) is a large one."""


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments)


def view_of(**disk: Any) -> GroupStatus:
    own = {"node": 2, "term": 3, "role": "leader", "leader": 2, "writes_open": True, "peers": [], "disk": disk}
    follower = {"node": 1, "term": 3, "role": "follower", "leader": 2, "writes_open": False, "disk": {"refusing": True}}
    return GroupStatus(
        [NodeView(NodeRecord(id, None, 0, 0, 0, 0, ""), True, each) for id, each in ((1, follower), (2, own))]
    )


def test_the_full_disk_of_the_leader_refuses_sends_and_that_of_a_follower_does_not() -> None:
    assert view_of(refusing=True, used_percent=91.23).refusal == "the disk of node 2 is full (91.2 % used)"
    assert view_of(refusing=True, parked="x").refusal == "the disk of node 2 is full, and its log waits for space"
    assert view_of(refusing=False, parked="").refusal == view_of().refusal == ""


def test_status_does_not_call_writes_open_while_every_send_is_refused(make_api: MakeApi) -> None:
    api = make_api({"GET /v1/status": view_of(refusing=True, used_percent=91.23).nodes[1].status})
    first, *_ = run("status", "--admin", api.address).stdout.splitlines()
    assert first == "node 2 leads (term 3), sends are refused: the disk of node 2 is full (91.2 % used)"


def test_a_number_and_its_noun_agree() -> None:
    """`shared_options.counted` makes "1 queue" and "2 queues"."""
    assert UNCOUNTED.search('f"{name} has {queues} queues"')
    lines = [(page.name, line) for page in python_files("raftmq/commands") for line in text_of(page).split("\n")]
    assert [line for line in lines if UNCOUNTED.search(line[1])] == []


def test_an_election_is_not_advised_against_a_full_disk() -> None:
    full, no_leader = error_of(14, FULL, "send to t"), error_of(14, "no leader", "send to t")
    assert "election" in no_leader.hint
    assert "election" not in full.hint
    assert "Free space on the leader's disk" in full.hint


@pytest.mark.parametrize("command", ["status", "topic list", "members"])
def test_a_wrong_address_does_not_advise_to_start_a_local_cluster(command: str) -> None:
    """`raftmq up` would make another cluster than the one that was asked for."""
    if command == "members":
        with pytest.raises(LocalError) as caught:
            AdminApi(admin_addresses(ADDRESS)).local("/v1/members")
        assert caught.value.fix.startswith("raftmq status --admin 127.0.0.1:9644 ")
        with pytest.raises(LocalError) as caught:
            AdminApi([ADDRESS]).local("/v1/members")
        assert "raftmq up" in caught.value.fix, "the nodes of this machine's own cluster"
        return
    result = run(*command.split(), "--admin", ADDRESS)
    assert result.stderr.splitlines()[-1].startswith("type:    raftmq status --admin 127.0.0.1:9644 ")


def test_up_names_the_program_as_the_shell_finds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "a b" / "raftmq"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", "/nowhere")
    assert shlex.split(up.program(str(program))) == [str(program)]
    monkeypatch.setenv("PATH", str(program.parent))
    assert up.program(str(program)) == "raftmq"
    assert up.program("/x/raftmq/__main__.py") == f"{sys.executable} -m raftmq"


def test_up_names_the_dashboard_and_commands_that_reach_this_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    cluster = SimpleNamespace(
        servers="127.0.0.1:9876", admin_url="http://127.0.0.1:9644", data=Path("/d"), nodes=[], registry=[]
    )
    up._tell(cluster, view_of(), 1.0, " --data /d", detach=True, as_json=False)  # type: ignore[arg-type]
    told = capsys.readouterr().out
    assert "http://127.0.0.1:9644/\n" in told
    assert "v1/status" not in told
    for words in ("produce greetings", "consume greetings", "kill 2", "status", "down"):
        assert f"raftmq {words} --data /d" in told


def test_the_commands_that_are_advised_lead_to_the_same_cluster() -> None:
    for command in ("raftmq node list", "raftmq links", "raftmq repair --node 2"):
        assert aimed(command, cli, {"--admin": "h:9644"}) == f"{command} --admin h:9644"
        assert aimed(command, cli, {}) == command
    for command in (
        "raftmq doctor",
        "raftmq restart 3",
        "df -h",
        "raftmq backup create --help",
        "raftmq status --data /e",
        "raftmq node list shows them",
        "raftmq no such",
        "the same command with --yes",
    ):
        assert aimed(command, cli, {"--admin": "h:9644"}) == command
    both = "raftmq up    (or `raftmq status`; then raftmq restart 2 && raftmq logs 2, for example)"
    assert aimed(both, cli, {"--data": "a b"}) == (
        "raftmq up --data 'a b'    (or `raftmq status --data 'a b'`; "
        "then raftmq restart 2 --data 'a b' && raftmq logs 2 --data 'a b', for example)"
    )
    assert where(["kill", "1", "--data=x", "--servers", "h:1", "--data"]) == {"--servers": "h:1"}
    assert where(["kill", "1", "--data", "x"]) == {"--data": "x"}


def test_advice_of_a_further_group_names_its_nodes() -> None:
    said = "raftmq restart 2    (or raftmq repair --node 3; raftmq node remove 2 --yes; raftmq logs)"
    assert aimed(said, cli, {}, 2) == (
        "raftmq restart 2/2    (or raftmq repair --node 2/3; raftmq node remove 2/2 --yes; raftmq logs)"
    )
    assert aimed(said, cli, {}) == said
    assert aimed("raftmq node add    (then again)", cli, {}, 2) == "raftmq node add --in-group 2    (then again)"
    for command in (
        "raftmq node add --in-group 2",
        "raftmq restart 3/2",
        "raftmq messages browse T --max 2",
        "docker compose restart n2",
    ):
        assert aimed(command, cli, {}, 2) == command
    assert [group_in(words) for words in (["kill", "3/1"], ["reset", "--queue=2/0"], ["kill", "1"])] == [3, 2, 1]


def test_up_is_advised_with_the_options_that_it_has() -> None:
    typed = ["up", "--nodes", "1", "--tier=file:///t t", "--base-port", "9876", "--detach"]
    assert kept("raftmq up --base-port 20000    (other ports; or end that process)", cli, typed) == (
        "raftmq up --base-port 20000 --nodes 1 --tier 'file:///t t' --detach    (other ports; or end that process)"
    )
    assert kept("raftmq down && raftmq up --tier x", cli, ["up", "--detach"]) == (
        "raftmq down && raftmq up --tier x --detach"
    )
    assert kept("raftmq up", cli, ["status"]) == kept("raftmq up", cli, ["up"]) == "raftmq up"
    assert kept("raftmq up", cli, ["up", "--no-such"]) == "raftmq up"


def test_a_sentence_is_nothing_to_type() -> None:
    assert fix_label("raftmq up") == fix_label("RAFTMQ_DEBUG=1 in front of it") == "type:    "
    assert fix_label("Give the client a user.") == "do:      "


def test_a_cluster_whose_lock_cannot_be_opened_is_refused_in_words(tmp_path: Path) -> None:
    """As that of another user; root, too, opens no folder."""
    (tmp_path / "lock").mkdir()
    with pytest.raises(LocalError) as caught, locked(tmp_path):
        pass
    assert caught.value.why == f"{tmp_path / 'lock'}: Is a directory"
    assert "as the user who owns it" in caught.value.fix


def test_a_bundle_of_nodes_elsewhere_says_what_it_lacks(tmp_path: Path) -> None:
    to = tmp_path / "b.tar.gz"
    result = run("support", "bundle", "--admin", ADDRESS, "--to", str(to))
    assert "not in the bundle: the nodes' logs and raftmq.toml files" in result.stdout
    with tarfile.open(to) as archive:
        assert "b/missing.txt" in archive.getnames()
    assert "/v1/config" in ENDPOINTS


def test_a_runbook_is_printed_wherever_the_package_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, empty, text, *_ = run("runbook", "node_down").stdout.splitlines()
    assert (code, empty) == ("node_down", "")
    assert text.startswith("warning. The node does not answer over HTTP")
    assert json.loads(run("runbook", "node_down", "--json").stdout)["text"].startswith(text)
    assert set(run("runbook").stdout.split()) == set(CODES)
    result = run("runbook", "node_dwon")
    assert (result.exit_code, result.stderr.splitlines()[-1]) == (2, "type:    raftmq runbook node_down")


@each_row("code", sorted(CODES))
def test_what_a_finding_names_for_more_is_printed(code: str) -> None:
    finding = {
        "severity": "info",
        "code": code,
        "object": "cluster",
        "since": "2026-01-01T00:00:00Z",
        "says": "so",
        "do_now": "df -h",
        "runbook": "",
    }
    _, _, (_, line) = finding_lines([finding])
    words = line.partition("(more: ")[2].removesuffix(")").split()
    assert run(*words[1:]).exit_code == 0


@each_row(
    "command",
    [
        "inspect-consistency",
        "repair --node 2",
        "recovery --node 2",
        "scrub --node 2 --status",
        "reload --node 2",
        "backup create --to x --node 2 --dry-run",
        "secret status",
        "links",
        "alarm list",
        "retention",
        "config diff",
        "tier status",
        "events",
        "support bundle",
    ],
)
def test_what_is_about_every_node_finds_them_from_one_address(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Findings and the dashboard name commands with the one address at which they were read."""
    monkeypatch.chdir(tmp_path)  # where the bundle goes
    with answering({}) as other, answering({"GET /v1/status": {"node": 1, "term": 1}, "*": None}) as one:
        members = [{"id": node, "admin": api.address} for node, api in ((1, one), (2, other))]
        one.answers["GET /v1/members"] = {"members": members}
        run(*command.split(), "--admin", one.address)
    assert other.asked, "it looks for the others, and asks them"


def test_the_others_are_those_that_the_first_to_answer_names(make_api: MakeApi) -> None:
    members = [{"id": node, "admin": f"n{node}:9644"} for node in (1, 2, 3)]
    api = make_api({"GET /v1/members": {"members": members}, "GET /v1/status": {"node": 1, "term": 1}})
    found = node_addresses(f"{ADDRESS},{api.address}")
    assert found == [ADDRESS, api.address, "n2:9644", "n3:9644"]
    assert isinstance(found, GivenAddresses)


def test_a_change_that_a_key_cannot_have_leads_to_what_it_takes() -> None:
    lines = run("config", "set", "send.deadline_ms", "99999999999", "--admin", ADDRESS).stderr.splitlines()
    assert lines[0] == 'send.deadline_ms cannot be "99999999999"'
    assert lines[2] == "type:    raftmq config explain send.deadline_ms"
    assert run(*lines[2].split()[2:]).exit_code == 0


def test_where_contexts_cannot_be_kept_another_file_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(FILE_VARIABLE, str(tmp_path / "file" / "contexts.json"))
    result = run("context", "add", "x", "--admin", ADDRESS)
    assert result.stderr.splitlines()[-1].startswith("type:    RAFTMQ_CONTEXTS=FILE raftmq context list")


def test_a_data_directory_that_cannot_be_made_is_said_without_an_error_number(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = run("up", "--detach", "--data", str(tmp_path / "file" / "data"))
    assert result.stderr.splitlines()[1] == "because: Not a directory"


def test_where_no_server_is_reached_the_command_says_where_it_looked() -> None:
    error = client_error(Unreachable("no leader could be reached"))
    assert error.fix.startswith("raftmq status    (is it running? Is it at --servers")
    tally = produce.Tally()
    tally.failed, tally.first = 1, (1, Unreachable("no leader could be reached"))
    with pytest.raises(LocalError) as caught:
        tally.raise_first("t")
    assert (caught.value.why, caught.value.fix) == ("1 message was not stored", error.fix)


EVIL = "a\x1b]0;x\x07b\x9b2J\u202ec\r"
SHOWN = r"a\x1b]0;x\x07b\x9b2J\u202ec\r"


@pytest.mark.parametrize("markup", [False, True])
def test_what_others_named_does_not_command_the_terminal(markup: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """A client chooses its id, and `raftmq group describe` prints it."""
    shared_options.show(False, {}, f"members: {EVIL}\n\tnext: \u00e9", markup=markup)
    shared_options.print_table(["member"], [[EVIL]])
    told = capsys.readouterr().out
    assert told.count(SHOWN) == 2
    assert "\n\tnext: \u00e9" in told or markup
    assert not set(told) & set(EVIL) - set("abc2J0;x]")


def test_an_error_does_not_either(make_api: MakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    api = make_api({"GET /v1/topics/t": ApiRefusal("failed", EVIL, EVIL, EVIL, ExitCode.FAILED)})
    assert run_line(["topic", "describe", "t", "--admin", api.address]) == ExitCode.FAILED
    assert capsys.readouterr().err.count(SHOWN) == 3


def test_ids_of_members_are_shown_escaped(make_api: MakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    api = make_api({"GET /v1/groups/g": {"members": [{"client_id": EVIL}], "offsets": [], "lag": 0}})
    assert run_line(["group", "describe", "g", "--admin", api.address]) == 0
    assert f"members: {SHOWN}\n" in capsys.readouterr().out


def test_a_member_of_two_connections_is_listed_for_each(make_api: MakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    members = [{"client_id": name, "address": f"10.0.0.1:{port}"} for name, port in (("c", 1), ("c", 2), ("d", 3))]
    api = make_api({"GET /v1/groups/g": {"members": members, "offsets": [], "lag": 0}})
    assert run_line(["group", "describe", "g", "--admin", api.address]) == 0
    assert "members: c at 10.0.0.1:1, c at 10.0.0.1:2, d\n" in capsys.readouterr().out


FINDING = {
    "severity": "warning",
    "code": "client_id_shared",
    "object": f"client {EVIL} of group g",
    "says": f"heartbeats over two connections name client {EVIL}",
    "since": "2026-11-30T00:00:00Z",
    "do_now": f"raftmq group describe {EVIL}",
}


def test_what_a_client_is_called_does_not_command_the_terminal_of_who_looks_at_the_cluster(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Findings name clients, and events tell of findings: `raftmq status`, `raftmq top`, `raftmq events`."""
    for _, line in finding_lines([FINDING]):
        shared_options.console().print(line, markup=False)
    event = {"at": FINDING["since"], "node": 1, "id": 1, "kind": "finding"}
    event_list._print([{**event, "object": FINDING["object"], "says": FINDING["says"]}], as_json=False)
    told = capsys.readouterr().out
    assert told.count(SHOWN) == 5
    assert not set(told) & set(EVIL) - set("abc2J0;x]")


def test_lists_in_pages_and_problems_do_not_command_the_terminal_either(capsys: pytest.CaptureFixture[str]) -> None:
    shared_options.print_pages(["member"], [[[EVIL]], [[EVIL]]], none="none", left=["member"])
    shared_options.show_problems([EVIL])
    told = capsys.readouterr()
    assert (told.out.count(SHOWN), told.err.count(SHOWN)) == (2, 1)
    assert not set(told.out + told.err) & set(EVIL) - set("abc2J0;x]")


def test_json_on_a_terminal_does_not_command_it_and_says_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    """JSON has to escape only half of what a terminal obeys."""
    shared_options.print_json({"member": EVIL, "name": "\u00e9"})
    told = capsys.readouterr().out
    assert json.loads(told) == {"member": EVIL, "name": "\u00e9"}
    assert shared_options.json_line({"member": EVIL, "name": "\u00e9"}) + "\n" == told
    assert not set(told) & set("\x1b\x07\x9b\u202e\r")
    assert "\u00e9" in told

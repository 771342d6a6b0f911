"""The command line over HTTP: which node is asked, and what its errors become."""

from __future__ import annotations

import ast
import http.server
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from cluster.admin.errors import STATUS
from raftmq.cli import cli, run
from raftmq.local.http import answers
from raftmq.local.http.admin_http import LISTS, AdminApi, admin_addresses, in_commands
from raftmq.local.http.asked_nodes import ask_all, each_node
from raftmq.local.http.credentials import Address, Bearer, node_at
from raftmq.local.status import fetch_health
from raftmq.local.support_bundle import files_of_node
from raftmq_wire.errors import ExitCode, LocalError
from raftmq_wire.user_file import USER_VARIABLES
from tests.support.answering_api import MakeApi
from tests.support.rows import each_row
from tests.support.tree import parsed, python_files, text_of


class Stub:
    """An HTTP server that answers everything with one answer and remembers what it was asked."""

    def __init__(self) -> None:
        self.answer: tuple[int, Any] | None = (200, {"fine": True})
        self.answers: list[tuple[int, Any]] = []
        """If there are any, each is given once."""
        self.asked: list[tuple[str, str, bytes]] = []
        self.headers: list[dict[str, str]] = []
        stub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def handle_any(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                stub.asked.append((self.command, self.path, body))
                stub.headers.append(dict(self.headers))
                if stub.answer is None:
                    self.close_connection = True
                    return
                status, value = stub.answers.pop(0) if stub.answers else stub.answer
                self.send_response(status)
                self.end_headers()
                self.wfile.write(value if isinstance(value, bytes) else json.dumps(value).encode())

            do_GET = do_POST = do_PUT = do_DELETE = handle_any

            def log_message(self, *_: object) -> None:
                """Quiet."""

        self.server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})


@pytest.fixture
def stub() -> Iterator[Stub]:
    made = Stub()
    made.thread.start()
    yield made
    made.server.shutdown()
    made.thread.join()
    made.server.server_close()


def closed_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def test_readings_ask_for_linearizable_ones(stub: Stub) -> None:
    assert AdminApi([stub.address]).get("/v1/topics") == {"fine": True}
    assert stub.asked == [("GET", "/v1/topics?consistency=linearizable", b"")]


def test_a_list_is_asked_for_page_by_page(stub: Stub) -> None:
    pages = [{"topics": ["a", "b"], "next": "b/1 %"}, {"topics": ["c"], "next": 7}, {"topics": [], "next": None}]
    stub.answers = [(200, page) for page in pages]
    api = AdminApi([stub.address])
    assert api.whole("/v1/topics", "topics") == {"topics": ["a", "b", "c"], "next": None}
    path = "/v1/topics?consistency=linearizable"
    assert [asked for _, asked, _ in stub.asked] == [path, f"{path}&after=b%2F1%20%25", f"{path}&after=7"]


def test_a_node_of_an_earlier_release_gives_the_whole_list_at_once(stub: Stub) -> None:
    stub.answer = 200, {"topics": ["a"]}
    assert AdminApi([stub.address]).whole("/v1/topics", "topics") == {"topics": ["a"]}


def test_of_an_answer_without_end_only_so_much_is_read(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "ANSWER_BYTES_MAX", 1000)
    stub.answer = 200, b"[" * 2000
    with pytest.raises(LocalError, match="longer than 1000 bytes"):
        AdminApi([stub.address]).get("/v1/topics")


def test_a_dead_node_is_passed_over(stub: Stub) -> None:
    AdminApi([closed_port(), stub.address]).post("/v1/topics", {"name": "t"})
    assert stub.asked == [("POST", "/v1/topics", b'{"name": "t"}')]


def test_nobody_answers() -> None:
    with pytest.raises(LocalError, match="no node answers at") as caught:
        AdminApi([closed_port(), closed_port()]).get("/v1/topics")
    assert caught.value.exit_code == ExitCode.UNREACHABLE


def test_each_node_that_answers(stub: Stub) -> None:
    stub.answer = (200, {"node": 2})
    addresses = [closed_port(), stub.address]
    assert [view for _, view in each_node(addresses, "/v1/links")] == [{"node": 2}]
    ((api, _),) = each_node(addresses, "/v1/links", 2)
    api.post("/v1/repair", {})
    assert stub.asked[-1] == ("POST", "/v1/repair", b"{}")


@each_row(
    ("node", "says", "code"),
    [
        (None, "no node answers", ExitCode.UNREACHABLE),
        (3, "node 3 does not answer", ExitCode.UNREACHABLE),
        (4, "there is no node 4\nthe members are 2, 3", ExitCode.REFUSED),
    ],
)
@each_row("ask", [ask_all, each_node])
def test_no_such_node_answers(stub: Stub, ask: Any, node: int | None, says: str, code: ExitCode) -> None:
    stub.answer = (200, {"node": 2, "members": [{"id": 2}, {"id": 3}]})
    addresses = [closed_port()] if node is None else [closed_port(), stub.address]
    with pytest.raises(LocalError, match=says) as caught:
        list(ask(addresses, "/v1/links", node))
    assert caught.value.exit_code == code


def test_a_list_that_nobody_told_is_not_an_empty_list() -> None:
    """Each command that lists what nodes know fails where none of them answers."""
    for words in (["alarm", "list"], ["recovery"], ["auth", "show"], ["config", "diff"], ["links"], ["retention"]):
        assert run([*words, "--admin", "127.0.0.1:1"]) == ExitCode.UNREACHABLE, words


def test_a_node_that_refuses_is_not_passed_over(stub: Stub) -> None:
    stub.answer = (STATUS["refused"], {"error": {"code": "refused", "message": "it went wrong", "hint": "do this"}})
    with pytest.raises(LocalError, match="it went wrong"):
        list(each_node([stub.address, closed_port()], "/v1/links"))


def refusal(code: str) -> tuple[int, Any]:
    return STATUS[code], {"error": {"code": code, "message": "not here", "hint": "ask again"}}


@pytest.mark.parametrize(
    ("answers", "nodes", "asked"),
    [
        (["no_leader"], 2, 2),
        (["not_leader"], 2, 2),
        (["not_leader"], 1, 2),
        (["no_leader", "not_leader", "not_leader"], 2, 4),
    ],
)
def test_whoever_knows_no_leader_has_done_nothing_and_another_one_is_asked(
    stub: Stub, answers: list[str], nodes: int, asked: int
) -> None:
    stub.answers = [refusal(code) for code in answers]
    assert AdminApi([stub.address] * nodes).post("/v1/topics", {"name": "t"}) == {"fine": True}
    assert len(stub.asked) == asked


@pytest.mark.parametrize(("code", "asked"), [("no_leader", 2), ("not_leader", 4), ("leader_unreachable", 1)])
def test_what_nobody_takes_is_refused(stub: Stub, code: str, asked: int) -> None:
    stub.answers = [refusal(code)] * 5
    with pytest.raises(LocalError, match="not here") as caught:
        AdminApi([stub.address] * 2).post("/v1/topics", {"name": "t"})
    assert (caught.value.exit_code, len(stub.asked)) == (ExitCode.REFUSED, asked)


@pytest.mark.parametrize(
    ("method", "code"),
    [("get", ExitCode.UNREACHABLE), ("post", ExitCode.UNKNOWN), ("delete", ExitCode.UNKNOWN)],
)
def test_a_broken_connection_leaves_a_change_unknown_and_is_not_repeated(
    stub: Stub, method: str, code: ExitCode
) -> None:
    stub.answer = None
    api = AdminApi([stub.address, stub.address])
    with pytest.raises(LocalError) as caught:
        api.post("/v1/topics", {}) if method == "post" else getattr(api, method)("/v1/topics/t")
    assert caught.value.exit_code == code
    assert len(stub.asked) == 1


@pytest.mark.parametrize(
    ("status", "body", "shown"),
    [
        (200, b"<html>", "it answers: <html>"),
        (
            400,
            b"\n  this is a port\x1b[31m of clients\r\nsecond line",
            "it answers: this is a port\ufffd[31m of clients",
        ),
        (200, b"x" * 500, "it answers: " + "x" * 120 + "…"),
        (200, b"", "it answers nothing"),
        (200, b"\xff\xfe", "it answers: \ufffd\ufffd"),
        (200, b"[" * 100_000, "it answers: " + "[" * 120 + "…"),
        (200, b"[1]", "it answers: [1]"),
        (200, b"7", "it answers: 7"),
        (404, b'{"detail":"Not Found"}', 'it answers: {"detail":"Not Found"}'),
        (500, b'{"error":"no"}', 'it answers: {"error":"no"}'),
        (
            500,
            b'{"error":{"code":1,"message":"m","hint":"h"}}',
            'it answers: {"error":{"code":1,"message":"m","hint":"h"}}',
        ),
    ],
)
def test_an_answer_of_another_program_is_shown(stub: Stub, status: int, body: bytes, shown: str) -> None:
    stub.answer = (status, body)
    with pytest.raises(LocalError) as caught:
        AdminApi([stub.address]).local("/v1/topics")
    assert (caught.value.what, caught.value.why) == (f"{stub.address} is not the HTTP API of a node", shown)
    assert caught.value.exit_code == ExitCode.UNREACHABLE
    with pytest.raises(LocalError) as caught:
        AdminApi([stub.address]).delete("/v1/topics/t")
    assert (caught.value.exit_code, caught.value.why) == (ExitCode.UNKNOWN, f"{shown}; the change may have been made")


@pytest.mark.parametrize("status", [200, 400, 503])
def test_json_without_a_bottom_is_no_answer_of_a_node(stub: Stub, status: int) -> None:
    """Whoever asks an address decodes what answers there: a status, a proof before a change, a support bundle."""
    stub.answer = (status, b'{"next":' + b"[" * 100_000)
    assert fetch_health(stub.address) is None
    assert node_at(stub.address) is None
    assert dict(files_of_node(stub.address))["status.txt"].startswith('{"next":[')
    with pytest.raises(LocalError, match="is not the HTTP API of a node"):
        AdminApi([Address(stub.address, Bearer("token"))]).local("/v1/topics")


@pytest.mark.parametrize("name", sorted(STATUS))
def test_every_error_of_the_api_has_an_exit_code(stub: Stub, name: str) -> None:
    stub.answer = (STATUS[name], {"error": {"code": name, "message": "it went wrong", "hint": "do this"}})
    with pytest.raises(LocalError, match="it went wrong") as caught:
        AdminApi([stub.address]).post("/v1/topics", {})
    expected = {
        "unknown_outcome": 3,
        "exists": 5,
        "not_found": 5,
        "no_leader": 5,
        "not_leader": 5,
        "leader_unreachable": 5,
        "unreachable": 5,
        "refused": 5,
        "over_quota": 5,
        "unconfirmed": 5,
        "unauthenticated": 5,
        "denied": 5,
        "bad_pass": 5,
        "cannot_judge": 5,
        "path_not_allowed": 5,
        "bad_field": 2,
        "bad_query": 2,
        "bad_command": 2,
    }
    assert caught.value.exit_code == expected.get(name, 1)
    assert caught.value.why
    assert caught.value.fix


def test_a_command_that_changes_something_says_that_not_the_named_user_does_it(
    stub: Stub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    refusal = {"code": "denied", "message": "user a has no right to Delete on Topic:x", "hint": "ask a Super"}
    stub.answer = 403, {"error": refusal}

    def told(*words: str) -> list[str]:
        assert run([*words, "--admin", stub.address]) == 5
        return capsys.readouterr().err.splitlines()

    monkeypatch.delenv("RAFTMQ_TOKEN", raising=False)
    assert told("topic", "delete", "x", "--yes") == [
        refusal["message"],
        "because: nothing was changed",
        "type:    ask a Super",
    ]
    name, secret = USER_VARIABLES
    monkeypatch.setenv(name, "shop")
    first, _, why, _ = told("topic", "delete", "x", "--yes")
    assert first == f"{name} does not count for this command, which acts as nobody; a user is named by: raftmq login"
    assert why == "because: nothing was changed", "the cluster knows who asks, and the cause is a missing right"
    nobody = {"code": "unauthenticated", "message": "the request names no user", "hint": "send Authorization"}
    stub.answer = 401, {"error": nobody}
    _, _, why, _ = told("topic", "delete", "x", "--yes")
    assert why == f"because: {name} and {secret} do not count for the HTTP API; nothing was changed"
    stub.answer = 403, {"error": refusal}
    assert told("topic", "list")[0] == refusal["message"], "a command that only reads says it where it is refused"
    monkeypatch.setenv("RAFTMQ_TOKEN", "0123456789abcdef")
    assert "which acts as the user of the token" in told("topic", "delete", "x", "--yes")[0]


@each_row(
    "words",
    [
        ("status",),
        ("status", "--json"),
        ("top", "--count", "1"),
        ("inspect-consistency",),
        ("links",),
        ("support", "bundle", "--to", "/nowhere/b.tar.gz"),
    ],
)
def test_a_denial_is_no_node_that_does_not_answer(
    stub: Stub, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    denial = {
        "code": "denied",
        "message": "user a has no right to Get on Cluster:c",
        "hint": "raftmq acl set a Cluster:c Get",
    }
    stub.answer = 403, {"error": denial}
    assert run([*words, "--admin", stub.address]) == ExitCode.REFUSED
    told = capsys.readouterr()
    fix = f"type:    {denial['hint']} --admin {stub.address}"
    assert told.err.splitlines() == [denial["message"], "because: nothing was changed", fix]
    if "--json" in words:
        assert json.loads(told.out)["error"]["what"] == denial["message"]


@pytest.mark.parametrize(
    ("resource", "policy", "sources", "expected"),
    [
        ("Topic:x", "Custom", [], (["Sub", "get"], ["10.0.0.0/8"])),
        ("topic:x", "Custom", ["10.1.0.0/16"], (["Sub", "get"], ["10.1.0.0/16"])),
        ("Topic:xy", "Custom", [], (["get"], [])),
        ("Topic:x", "Default", [], (["get"], [])),
    ],
)
def test_an_added_action_leaves_those_of_the_rule(
    stub: Stub, resource: str, policy: str, sources: list[str], expected: tuple[list[str], list[str]]
) -> None:
    there = {"resource": "Topic:x", "actions": ["Sub"], "decision": "Allow", "sources": ["10.0.0.0/8"]}
    stub.answers = [(200, {"rules": [{**there, "policy": "Custom"}]})]
    options = ["--default"] if policy == "Default" else []
    options += [word for each in sources for word in ("--source", each)]
    assert run(["acl", "set", "shop", resource, "get", "--add", *options, "--admin", stub.address]) == 0
    (method, path, body) = stub.asked[-1]
    (rule,) = json.loads(body)["rules"]
    assert (method, path, len(stub.asked)) == ("PUT", "/v1/acl/shop", 2)
    assert (rule["actions"], rule["sources"]) == expected


def test_nothing_is_added_to_a_rule_that_denies(stub: Stub, capsys: pytest.CaptureFixture[str]) -> None:
    there = {"resource": "Topic:x", "actions": ["Sub"], "decision": "Deny", "sources": [], "policy": "Custom"}
    stub.answers = [(200, {"rules": [there]})]
    assert run(["acl", "set", "shop", "Topic:x", "Get", "--add", "--admin", stub.address]) == ExitCode.REFUSED
    fix = f"type:    raftmq acl set shop Topic:x Get --admin {stub.address}    (replaces it)"
    assert capsys.readouterr().err.splitlines()[2] == fix
    assert len(stub.asked) == 1


def test_the_segment_that_is_being_written_is_closed(stub: Stub, capsys: pytest.CaptureFixture[str]) -> None:
    stub.answers = [(200, {"node": 1, "term": 2, "index": 9, "position": 4711}), (200, {"group": 1, "groups": []})]
    assert run(["tier", "seal", "--admin", stub.address]) == 0
    assert stub.asked == [("POST", "/v1/tier/seal", b"{}"), ("GET", "/v1/broker-groups", b"")]
    assert "below position 4711 goes to the tier" in capsys.readouterr().out
    stub.answer = 409, {"error": {"code": "refused", "message": "no tier is configured", "hint": "set tier.url"}}
    assert run(["tier", "seal", "--admin", stub.address]) == ExitCode.REFUSED


@pytest.mark.parametrize(("since", "shown"), [([], "56"), (["--since", "2026-11-21T00:00:00Z"], "12")])
def test_so_many_events_of_all_nodes_together(
    make_api: MakeApi, capsys: pytest.CaptureFixture[str], since: list[str], shown: str
) -> None:
    def event(number: int) -> dict[str, Any]:
        at = f"2026-11-21T00:00:0{number}Z"
        return {"at": at, "node": 1, "id": number, "kind": "start", "object": "n", "says": ""}

    pages = [[event(number) for number in numbers] for numbers in ((1, 4, 6), (2, 3, 5))]
    apis = [make_api({"GET /v1/events": {"node": 1, "events": page, "last_id": 6}}) for page in pages]
    addresses = ",".join(api.address for api in apis)
    assert run(["events", "--limit", "2", *since, "--admin", addresses]) == 0
    assert "".join(line[18] for line in capsys.readouterr().out.splitlines()) == shown


def test_where_the_addresses_come_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAFTMQ_DATA", raising=False)
    monkeypatch.setenv("RAFTMQ_ADMIN", "a:1, http://b:2/")
    assert admin_addresses(None) == ["a:1", "b:2"]
    assert admin_addresses("c:3") == ["c:3"]
    with pytest.raises(LocalError, match="there is no cluster in"):
        admin_addresses(None, str(tmp_path / "other"))


@pytest.mark.parametrize(
    ("code", "message", "lack"),
    [
        ("not_found", "there is nothing at /v1/upgrade/finalize", "POST /v1/upgrade/finalize"),
        ("bad_method", "/v1/upgrade/finalize does not take POST", "POST /v1/upgrade/finalize"),
        ("bad_field", "unknown field dry_run", "field dry_run in POST /v1/upgrade/finalize"),
        ("bad_query", "unknown query proof", "query proof in POST /v1/upgrade/finalize"),
    ],
)
def test_an_older_node_lacks_a_verb_another_one_is_asked_and_the_error_names_it(
    stub: Stub, code: str, message: str, lack: str
) -> None:
    lacking = STATUS[code], {"error": {"code": code, "message": message, "hint": "did you mean another one?"}}
    status = 200, {"term": 3, "versions": {"raftmq": "0.0.9"}}
    stub.answers = [lacking, lacking, status]
    with pytest.raises(LocalError) as caught:
        AdminApi([stub.address] * 2).post("/v1/upgrade/finalize", {})
    error = caught.value
    assert error.what == f"the node at {stub.address} does not know {lack}"
    assert "it runs version 0.0.9, this command is of version" in error.why
    assert (error.fix.split("  ")[0], error.exit_code) == ("raftmq upgrade plan", ExitCode.REFUSED)
    assert [path for _, path, _ in stub.asked] == ["/v1/upgrade/finalize"] * 2 + ["/v1/status"]
    stub.answers = [lacking]
    assert AdminApi([stub.address] * 2).post("/v1/upgrade/finalize", {}) == {"fine": True}


def test_a_thing_that_is_not_there_does_not_make_a_node_an_older_one(stub: Stub) -> None:
    stub.answer = (
        STATUS["not_found"],
        {"error": {"code": "not_found", "message": "no topic x", "hint": "GET /v1/topics"}},
    )
    with pytest.raises(LocalError, match="no topic x"):
        AdminApi([stub.address] * 2).get("/v1/topics/x")
    assert len(stub.asked) == 1


def test_a_field_that_an_older_node_does_not_answer_is_named(stub: Stub) -> None:
    stub.answer = 200, {"topics": [{"name": "a"}]}
    (topic,) = AdminApi([stub.address]).get("/v1/topics")["topics"]
    assert topic.get("changed_by") is None
    with pytest.raises(LocalError, match="no field changed_by\nthe node is of an older release"):
        topic["changed_by"]


def test_events_of_a_cluster_that_does_not_answer(capsys: pytest.CaptureFixture[str]) -> None:
    for more in ([], ["--json"]):
        assert run(["events", "--admin", "127.0.0.1:1,127.0.0.1:2", *more]) == ExitCode.UNREACHABLE
        captured = capsys.readouterr()
        what, _, fix = captured.err.splitlines()
        assert what == "no node answers at 127.0.0.1:1, 127.0.0.1:2"
        assert fix == "type:    raftmq status --admin 127.0.0.1:1,127.0.0.1:2"
        assert "events" not in captured.out


@pytest.mark.parametrize(
    ("code", "hint", "typed"),
    [
        ("bad_field", "GET /v1/tokens?user=NAME shows them", "raftmq user tokens NAME"),
        ("bad_field", "GET /v1/members lists them", "raftmq node list"),
        ("not_found", "GET /v1/strange lists them", "raftmq topic list"),
    ],
)
def test_a_hint_that_names_a_request_becomes_a_command(stub: Stub, code: str, hint: str, typed: str) -> None:
    stub.answer = (400, {"error": {"code": code, "message": "the id of a token has 64 hex digits", "hint": hint}})
    with pytest.raises(LocalError) as refused:
        AdminApi([stub.address]).delete("/v1/tokens/X")
    assert refused.value.fix == typed


NO_COMMAND = ("/v1/clients", "/v1/messages/{position}")
"""Addresses that no command asks, and whose errors no command shows."""


def test_a_request_that_advice_names_has_a_command() -> None:
    hints = [
        node.value
        for path in python_files("cluster/admin")
        for call in ast.walk(parsed(text_of(path)))
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "ApiError"
        for node in ast.walk(call)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "GET /v1/" in node.value
    ]
    assert len(hints) > 10
    assert [hint for hint in hints if not in_commands(hint) and not any(each in hint for each in NO_COMMAND)] == []
    assert in_commands("drain another group: GET /v1/broker-groups lists all") == (
        "raftmq broker-group list    (drain another group)"
    )


def test_a_command_that_advice_names_exists() -> None:
    context = click.Context(cli)
    for typed in map(in_commands, [f"GET {path}" for path in LISTS]):
        command: click.Command | None = cli
        for word in typed.split()[1:]:
            if not isinstance(command, click.Group):
                break
            command = command.get_command(context, word)
        assert command is not None, typed

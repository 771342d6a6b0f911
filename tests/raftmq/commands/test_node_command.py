"""`raftmq node` as it is typed wrongly, and what it prints of a cluster that answers."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from raftmq.cli import run
from raftmq.client import Tls
from raftmq_wire.errors import ExitCode
from tests.support.rows import each_row


def member(node: int, **changes: Any) -> dict[str, Any]:
    sound = {
        "id": node,
        "uuid": "u",
        "role": "voter",
        "manual": False,
        "leader": False,
        "host": "h",
        "port": 10900 + node,
        "admin": f"h:{9600 + node}",
        "listeners": {},
        "connected": True,
        "match_index": 9,
        "lag_entries": 0,
        "state": "REPLICATE",
        "live": True,
        "fit": True,
        "caught_up": None,
    }
    return sound | changes


VIEW = {
    "node": 1,
    "term": 4,
    "leader": 1,
    "index": 31,
    "committed": False,
    "reason": "add",
    "detail": "node 5 joins",
    "quorum": 3,
    "removed": [{"id": 4, "uuid": "u"}],
    "removed_since": None,
    "cluster_id": "c",
    "drained": False,
    "members": [
        member(1, leader=True, match_index=None, lag_entries=None, state=None, live=None, fit=None, sync_ms=2.04),
        member(2, live=False, lag_entries=70, lag_bytes=70 << 20, lag_ms=4_440, sync_ms=812.3),
        member(3, fit=False),
        member(5, role="learner", caught_up=False, lag_entries=12),
        member(6, role="learner", state="SNAPSHOT"),
        member(7, role="learner", manual=True, caught_up=True, host=""),
    ],
}


@pytest.fixture
def api() -> Iterator[str]:
    """An HTTP API that answers with VIEW, or refuses."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/v1/members/5/can-stop":
                told = {"allowed": False, "passes": False, "reasons": ["node 5 has the only copy"], "do_now": "wait"}
                self.answer(200, told)
            elif self.path.endswith("/can-stop"):
                self.answer(200, {"allowed": True})
            else:
                self.answer(200, VIEW)

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if not body["force"]:
                lines = "node 1: h:1: Connection refused;\nnode 2: h:1: Connection refused"
                told = {"code": "refused", "message": f"none found it: nothing was changed.\n{lines}", "hint": "move"}
                self.answer(409, {"error": told})
                return
            seen = f"{body['host']} {body['port']} {body['admin']} {body['listeners']}"
            found = {"found_by": [1, 3], "not_found_by": ["node 2: h:1: Connection refused"], "warning": seen}
            self.answer(200, {"id": 3, "role": "voter", "term": 4, "index": 32, "voters": [1, 2, 3], **found})

        def do_DELETE(self) -> None:
            if self.path == "/v1/members/3":
                told = {
                    "code": "unconfirmed",
                    "message": "without node 3 no failure would be survived: now: three",
                    "hint": "raftmq node remove 3 --yes",
                }
                self.answer(409, {"error": told})
                return
            if self.path == "/v1/members/3?below_three=true":
                self.answer(200, {"id": 3, "role": "removed", "term": 4, "index": 32, "voters": [1, 2]})
                return
            told = {
                "code": "refused",
                "message": "without node 2 there would be no majority: of the voters 1, 3 that are left only 1 answers",
                "hint": "raftmq restart 3",
            }
            self.answer(409, {"error": told})

        def answer(self, status: int, body: object) -> None:
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *arguments: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_list_tells_how_each_node_is(api: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["node", "list", "--admin", api]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == (
        "node 1 leads (term 4); 3 voters, 3 are a majority; a change is in progress: node 5 joins (entry 31)"
    )
    rows = {line.split()[0]: " ".join(line.split()) for line in lines[2:8]}
    assert rows["1"] == "1 leader ok - - - 2.0 ms - h:10901 h:9601"
    assert rows["2"].startswith("2 voter silent 70 70.0 MiB 4.4 s 812.3 ms 9")
    assert rows["3"].startswith("3 voter not fit to lead 0")
    assert rows["5"].startswith("5 learner catches up 12")
    assert rows["6"].startswith("6 learner fetches a snapshot 0")
    assert rows["7"].startswith("7 learner (stays) ok 0 - - - 9 unknown")
    assert lines[8] == "removed: 4"


def test_a_refusal_is_three_lines(api: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["node", "remove", "2", "--admin", api]) == ExitCode.REFUSED
    assert capsys.readouterr().err.splitlines()[2:] == [
        "without node 2 there would be no majority",
        "because: of the voters 1, 3 that are left only 1 answers",
        "type:    raftmq restart 3",
    ]


@each_row(
    ("arguments", "code", "says", "fix"),
    [
        (["add", "--config", "n4.toml"], 2, "belong together", "--config n4.toml --via http://10.0.0.1:9644"),
        (["add", "--via", "http://h:1"], 2, "belong together", "--config n4.toml --via http://10.0.0.1:9644"),
        (
            ["add", "--config", "n4.toml", "--via", "http://127.0.0.1:1"],
            4,
            "no node answers at 127.0.0.1:1",
            "raftmq node add --config n4.toml --via http://HOST:PORT",
        ),
        (["add", "--config", "n4.toml", "--via", "nonsense"], 2, "nonsense is not the address", "--admin HOST:9644"),
        (["move", "3", "h:1", "--admin", "127.0.0.1:1"], 4, "no node answers at 127.0.0.1:1", "raftmq status"),
        (["promote", "three"], 2, "invalid value", "raftmq node promote --help"),
        (["remove", "0"], 2, "invalid value", "raftmq node remove --help"),
        (["replce", "3"], 2, "has no command replce", "raftmq node replace"),
        (["replace", "3", "--data", "nowhere"], 4, "there is no cluster in", "raftmq up"),
    ],
)
def test_what_cannot_be_done_says_what_to_type(
    arguments: list[str],
    code: int,
    says: str,
    fix: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["node", *arguments]) == code
    what, _, fixing = capsys.readouterr().err.splitlines()[-3:]
    assert says in what
    assert fix in fixing


@each_row(
    ("arguments", "code", "says"),
    [
        (["3", "nonsense"], ExitCode.USAGE, '"nonsense" is not host:port'),
        (["3", "h:1", "--http", "nonsense"], ExitCode.USAGE, '"nonsense" is not host:port'),
        (["3", "h:1", "--listener", "h:2"], ExitCode.USAGE, '"h:2" is not NAME=HOST:PORT'),
        (["3", "h:1", "--listener", "broker=h"], ExitCode.USAGE, '"h" is not host:port'),
        (["9", "h:1"], ExitCode.REFUSED, "the members are 1, 2, 3, 5, 6, 7"),
        (["3", "h:1"], ExitCode.REFUSED, "node 1: h:1: Connection refused; node 2: h:1: Connection refused"),
    ],
)
def test_a_move_that_cannot_be_asked_for_or_is_refused(
    api: str, arguments: list[str], code: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["node", "move", *arguments, "--admin", api]) == code
    assert says in capsys.readouterr().err


def test_a_move_says_who_found_the_node(api: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A value that is not named stays as the cluster knows it."""
    assert run(["node", "move", "3", "h:1", "--listener", "broker=h:2", "--force", "--admin", api]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "node 3 is at h:1: found by 1, 3",
        "not found by node 2: h:1: Connection refused",
        "warning h 1 h:9603 {'broker': 'h:2'}",
    ]


def test_fewer_than_three_voters_are_asked_about(
    api: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["node", "remove", "3", "--admin", api]
    assert run(command) == ExitCode.REFUSED, "there is no terminal: nobody can be asked"
    assert capsys.readouterr().err.splitlines() == [
        "now    voters 1, 2, 3 (2 away); 2 of 3 are a majority; no failure is survived",
        "after  voters 1, 2 (2 away); 2 of 2 are a majority; no majority: no writes",
        "without node 3 no failure would be survived",
        "because: now: three",
        f"type:    raftmq node remove 3 --yes --admin {api}",
    ]
    assert run([*command, "--yes"]) == ExitCode.OK
    assert "node 3 is removed: voters 1, 2" in capsys.readouterr().out
    for typed, code in (("n\n", ExitCode.FAILED), ("y\n", ExitCode.OK)):
        answers = io.StringIO(typed)
        answers.isatty = lambda: True  # type: ignore[method-assign]
        monkeypatch.setattr("sys.stdin", answers)
        assert (run(command) == ExitCode.OK) is (code == ExitCode.OK)
        captured = capsys.readouterr()
        assert "after  voters 1, 2 (2 away)" in captured.err
        assert ("node 3 is removed" in captured.out) is (code == ExitCode.OK)


def test_a_node_that_the_cluster_cannot_do_without_is_not_removed_by_the_way(
    api: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["node", "remove", "5", "--admin", api]) == ExitCode.REFUSED
    what, why, fix = capsys.readouterr().err.splitlines()
    assert (what, fix) == ("node 5 must not be removed now", "type:    wait")
    assert "node 5 has the only copy (--yes" in why


@pytest.mark.parametrize("tls", ["in the file", "asked over", ""])
def test_the_steps_of_a_replacing_machine_make_the_certificate_before_the_start(
    api: str, tls: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Node 3 votes already and node 4 is gone, so the command ends at once: an interrupted one was typed again."""
    monkeypatch.chdir(tmp_path)
    keys = '[tls]\nmode = "enforcing"\ncert_file = "n.crt"\nkey_file = "n.key"\nca_file = "ca.crt"\n'
    file = tmp_path / "n3.toml"
    file.write_text(f'[node]\nid = 3\ndata_dir = "data"\n{keys if tls == "in the file" else ""}')
    if tls == "asked over":  # a cluster that speaks TLS, and a file that does not say so yet
        monkeypatch.setattr("raftmq.local.node_replacement.chosen_tls", Tls)
    assert run(["node", "replace", "4", "--config", str(file), "--via", api]) == ExitCode.OK
    first, *steps = capsys.readouterr().err.splitlines()
    assert first == "node 3 is a member; start it now, if it does not run:"
    assert steps[-1] == f"    raftmq serve --config {file}"
    certify = f"    raftmq cert node --config {file} --ca DIR --out DIR    (DIR has ca.crt and ca.key"
    assert [step[: len(certify)] for step in steps[:-1]] == ([certify] if tls else [])
    assert ("then set tls.mode" in "".join(steps)) is (tls == "asked over")


def test_a_plan_shows_the_voters_before_and_after(api: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["node", "remove", "3", "--plan", "--admin", api]
    assert run(command) == ExitCode.OK
    assert capsys.readouterr().out.splitlines() == [
        "now    voters 1, 2, 3 (2 away); 2 of 3 are a majority; no failure is survived",
        "after  voters 1, 2 (2 away); 2 of 2 are a majority; no majority: no writes",
        "raftmq node remove 3 would be refused: the remaining nodes would have no majority",
    ]
    assert run([*command, "--json"]) == ExitCode.OK
    plan = json.loads(capsys.readouterr().out)
    assert (plan["before"]["survives"], plan["after"]["survives"], plan["allowed"]) == (0, -1, False)
    assert run(["node", "remove", "2", "--plan", "--admin", api]) == ExitCode.OK
    assert capsys.readouterr().out.splitlines()[1:] == [
        "after  voters 1, 3; 2 of 2 are a majority; no failure is survived",
        "to do it: raftmq node remove 2 --yes",
    ]
    assert run(["node", "remove", "4", "--plan", "--admin", api]) == ExitCode.REFUSED
    assert "use one of 1, 2, 3, 5, 6, 7" in capsys.readouterr().err

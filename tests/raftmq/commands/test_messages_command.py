"""Messages browsed, republished and resent on the command line, each as a user sees it."""

from __future__ import annotations

import datetime
import io
import json
from contextlib import redirect_stdout
from typing import Any
from uuid import uuid4

import click
import pytest
import yaml
from click.testing import CliRunner, Result

from raftmq.cli import cli
from raftmq.client import connect
from raftmq.client.message import Message
from raftmq.commands.messages import printing
from raftmq.commands.messages.message_copies import ORIGIN
from raftmq.commands.messages.start_positions import StartType
from tests.support.rows import each_row
from tests.support.wait_until import wait

live = pytest.mark.live


@pytest.fixture
def run(live_cluster: Any) -> Any:
    """Runs `raftmq` with these words."""

    def run(*words: str) -> Result:
        return CliRunner().invoke(cli, [*words, "--servers", live_cluster.servers])

    return run


@pytest.fixture
def topic(live_cluster: Any) -> str:
    """A topic of two queues with the bodies 0 to 5 in queue 0 and 6 in queue 1."""
    name = f"orders-{uuid4().hex[:8]}"
    with connect(live_cluster.servers) as mq:
        mq.admin.create_topic(name, queues=2)
        for number in range(7):
            mq.send(name, b"n%d" % number, key=f"k{number}", queue_id=number // 6, properties={"shade": "blue"})
    return name


@live
def test_messages_by_queue_offset_time_and_body(run: Any, topic: str) -> None:
    assert run("messages", "browse", topic).stdout.split() == [f"n{number}" for number in range(7)]
    assert run("messages", "browse", topic, "--queue", "1").stdout.split() == ["n6"]
    assert run("messages", "browse", topic, "--queue", "0", "--from", "4").stdout.split() == ["n4", "n5"]
    assert run("messages", "browse", topic, "--body", "^n[35]$", "--max", "1").stdout.split() == ["n3"]
    assert run("messages", "browse", topic, "--from", "1h", "--until", "1h").stdout == ""
    assert run("messages", "browse", topic, "--from", "1h", "--max", "1").stdout == "n0\n"
    form = run("messages", "browse", topic, "--format", "{queue}/{offset} {key}\\t{body}", "--from", "5")
    assert form.stdout == "0/5 k5\tn5\n"
    documents = list(yaml.safe_load_all(run("messages", "browse", topic, "--max", "2", "--output", "yaml").stdout))
    assert [(one["key"], one["body"]) for one in documents] == [("k0", "n0"), ("k1", "n1")]
    refused = run("messages", "browse", topic, "--queue", "2")
    assert (refused.exit_code, "has no queue 2" in refused.stderr) == (5, True)


@live
def test_a_second_run_republishes_nothing_twice(run: Any, topic: str, live_cluster: Any) -> None:
    target = f"{topic}-copy"
    words = ("messages", "republish", topic, "--to", target, "--body", "^n[12]$")
    assert "2 messages" in run(*words, "--dry-run").stdout
    assert json.loads(run(*words, "--json").stdout)["sent"] == 2
    assert json.loads(run(*words, "--output", "json").stdout)["sent"] == 0
    assert json.loads(run("messages", "republish", topic, "--to", target, "--json").stdout)["sent"] == 5
    with connect(live_cluster.servers) as mq:
        copies = [one for queue in range(8) for one in mq.pull(target, queue, 0).messages]
        first = mq.pull(topic, 0, 1).messages[0]
    assert sorted(one.body for one in copies) == [b"n%d" % number for number in range(7)]
    (copy,) = (one for one in copies if one.body == b"n1")
    assert copy.properties[ORIGIN] == f"{topic}/0/1@{first.position}"
    assert (copy.key, copy.properties["shade"]) == ("k1", "blue")
    assert copy.message_id != first.message_id
    assert json.loads(run(*words, "--again", "--json").stdout)["sent"] == 2


@live
def test_copies_in_the_same_topic_are_not_copied(run: Any, topic: str) -> None:
    assert json.loads(run("messages", "republish", topic, "--json").stdout)["sent"] == 7
    told = json.loads(run("messages", "republish", topic, "--json").stdout)
    assert (told["selected"], told["sent"]) == (7, 0)


@live
def test_a_letter_is_resent_once(run: Any, live_cluster: Any) -> None:
    group = f"billing-{uuid4().hex[:8]}"
    with connect(live_cluster.servers) as mq:
        mq.admin.create_group(group)
        mq.send(f"%DLQ%{group}", b"poor", queue_id=0)
    assert "sent 1 message" in run("dlq", "resend", group, "--all").stdout
    assert "sent 0 messages" in run("dlq", "resend", group, "--all").stdout
    assert "sent 1 message" in run("dlq", "resend", group, "--all", "--again").stdout
    with connect(live_cluster.servers) as mq:
        mq.admin.delete_topic(f"%DLQ%{group}")
        mq.send(f"%DLQ%{group}", b"another", queue_id=0)
    assert "sent 1 message" in run("dlq", "resend", group, "--all").stdout, "offset 0 is another message now"


@live
def test_a_topic_that_is_nearly_right(run: Any, topic: str) -> None:
    for words in (("consume", topic[:-1]), ("messages", "browse", topic + "x")):
        refused = run(*words)
        assert (refused.exit_code, f"did you mean {topic}?" in refused.stderr) == (5, True)


@live
def test_what_the_shell_completes(live_cluster: Any, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAFTMQ_ADMIN", raising=False)
    monkeypatch.setenv("RAFTMQ_DATA", str(live_cluster.data))
    # A node tells its own list, which may be a moment behind, and a busy one may take longer than the second it has.
    wait(lambda: completed("topic describe ", topic[:-2]) == [topic], "the shell never saw the topic")
    wait(lambda: completed("node drain ", "") == ["1", "2", "3"], "the shell never saw the members")
    monkeypatch.setenv("RAFTMQ_DATA", "/nowhere")
    assert completed("topic describe ", topic[:-2]) == []
    monkeypatch.setenv("RAFTMQ_ADMIN", "127.0.0.1:1")
    assert completed("topic describe ", topic[:-2]) == []


def completed(words: str, begun: str) -> list[str]:
    from click.shell_completion import ShellComplete

    found = ShellComplete(cli, {}, "raftmq", "_RAFTMQ_COMPLETE").get_completions(words.split(), begun)
    return [each.value for each in found]


def test_commands_are_completed_and_the_script_is_printed() -> None:
    assert "messages" in completed("", "mess")
    for shell in ("bash", "zsh", "fish"):
        assert "_RAFTMQ_COMPLETE" in CliRunner().invoke(cli, ["completion", shell]).stdout


def test_places() -> None:
    start = StartType()
    assert start.convert("12", None, None) == 12
    before = datetime.datetime.now(datetime.UTC)
    found = start.convert("2h", None, None)
    assert isinstance(found, datetime.datetime)
    assert found - before >= datetime.timedelta(hours=-2, milliseconds=-1)
    assert start.convert("2026-11-20T10:00:00Z", None, None) == datetime.datetime(2026, 11, 20, 10, tzinfo=datetime.UTC)
    for wrong in ("noon", "-1", "2y", "0h", "1e3", "9" * 30, "999999999d", "0001-01-01"):
        with pytest.raises(click.BadParameter):
            start.convert(wrong, None, None)


@each_row("form", ["{nothing}", "{body", "{}", "{body!r}", "{body:>10}"])
def test_a_format_that_names_no_field(form: str) -> None:
    result = CliRunner().invoke(cli, ["consume", "t", "--format", form])
    assert (result.exit_code, "--format" in result.stderr) == (2, True)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_columns_and_obeys_none_of_them() -> None:
    one = Message("t", 1, 23, 4, b"a\x1b[2J\nb", "k", None, {}, "", 0, 1_795_600_000_000)
    with redirect_stdout(Terminal()):
        line = printing.line_of(as_json=False, form=None)(one).decode()
    assert line[23:] == "    1       23  k             -         a\\x1b[2J\\nb"
    with redirect_stdout(io.StringIO()):
        assert printing.line_of(as_json=False, form=None)(one) == one.body

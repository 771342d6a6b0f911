"""What an error tells a person to type can be typed: the command and its options exist, what is known is filled in, and
nobody is sent to a page there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache

import click
import pytest

from raftmq.cli import cli
from tests.support.tree import PACKAGES, parsed, sources

ERRORS = {"LocalError": 2, "ConfigError": 2, "show_error": 2, "ApiRefusal": 3}
"""Name of what makes an error -> the place of `fix` among its arguments."""
NAMES = {"fix", "hint", "instead"}
"""Variables and constants that hold such a text until then."""
PLACEHOLDER = re.compile(
    r"(?<![-.\w$])(?:HOST|PORT|USER|NAME|FILE|DIR|FOLDER|TOPIC|GROUP|ID|SECONDS|NODE|SECRET|CONTEXT|VALUE|TIME|KEY|ANOTHER|"
    r"NEWDIR|NEW_DIR|DATA|FIRST|URL|BACKUP|NUMBER|COMMAND|UUID|[A-Z]\d?)(?![\w.])"
)
CHOSEN = {
    "cluster/backup/from_tier.py": "BACKUP",
    "cluster/backup/manifest.py": "DIR NAME URL",
    "cluster/backup/metadata.py": "FILE",
    "cluster/backup/remote.py": "DIR",
    "cluster/backup/unsafe_recovery.py": "DIR NAME NEWDIR",
    "cluster/config/node_files.py": "P",
    "cluster/config/source.py": "DIR HOST",
    "jepsen_like/chaos_cli.py": "A B",
    "jepsen_like/demo.py": "NEW_DIR",
    "jepsen_like/live/run_lifecycle.py": "DIR NEW_DIR",
    "jepsen_like/live/subjects/owned_resources.py": "DIR",
    "raftmq/commands/access/auth.py": "NAME",
    "raftmq/commands/access/quota.py": "N",
    "raftmq/commands/data/export.py": "FILE",
    "raftmq/commands/data/metadata.py": "FILE",
    "raftmq/commands/messages/message.py": "GROUP",
    "raftmq/commands/messages/messages.py": "TIME",
    "raftmq/commands/nodes/config_files.py": "NEWDIR",
    "raftmq/commands/support.py": "FILE",
    "raftmq/local/cluster_files.py": "DIR",
    "raftmq/local/http/contexts.py": "FILE",
    "raftmq/local/init.py": "HOST N1 N2 PORT SECRET",
    "raftmq/local/made_mark.py": "TIME",
    "raftmq/local/process.py": "P",
    "raftmq/local/registry_processes.py": "P",
}
"""File -> what the person chooses, or alone can know: a new folder, a time, what a key is to be."""
ELSEWHERE = {
    "cluster/backup/restore.py": "DIR URL",
    "cluster/backup/tier_objects.py": "URL",
    "cluster/members/config_activation.py": "FILE",
    "cluster/members/voter_claims.py": "FILE HOST PORT SECRET",
    "cluster/members/new_node.py": "DATA NODE SECRET URL",
    "cluster/peer/secret.py": "NODE",
    "cluster/peer/secret_files.py": "DATA NODE",
    "raftmq/commands/access/common.py": "FILE",
    "raftmq/commands/access/login.py": "HOST NAME",
    "raftmq/commands/nodes/node.py": "HOST PORT",
    "raftmq/commands/nodes/rolling_restart.py": "HOST",
    "raftmq/commands/nodes/serve.py": "FILE HOST PORT",
    "raftmq/commands/shared_options.py": "FILE",
    "raftmq/local/http/admin_http.py": "CONTEXT FILE NAME USER",
    "raftmq/local/http/https.py": "FILE",
    "raftmq/local/single_node_init.py": "DIR FILE HOST PORT SECRET",
    "raftmq/local/tls/certificates.py": "FOLDER",
    "raftmq/local/tls/node_certificates.py": "FILE",
}
"""File -> what lies on another machine or with somebody else: secrets, certificates, users, addresses that were not
given."""


Returned = dict[str, list[ast.expr]]
"""Name of a function -> what it may return."""


def texts(node: ast.expr, returned: Returned) -> Iterator[str]:
    """Yields the texts that an expression may give; `~` stands for a value."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.JoinedStr):
        yield "".join(str(part.value) if isinstance(part, ast.Constant) else "~" for part in node.values)
        for part in node.values:
            if isinstance(part, ast.FormattedValue):
                yield from texts(part.value, returned)
    elif isinstance(node, ast.IfExp):
        yield from texts(node.body, returned)
        yield from texts(node.orelse, returned)
    elif isinstance(node, ast.BoolOp | ast.BinOp):
        for child in node.values if isinstance(node, ast.BoolOp) else (node.left, node.right):
            yield from texts(child, returned)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        for value in returned.get(node.func.id, ()):
            yield from texts(value, {})


def typed(source: ast.AST) -> Iterator[tuple[int, str]]:
    """Yields line and text of what errors tell to type."""
    returned = {
        function.name: [each.value for each in ast.walk(function) if isinstance(each, ast.Return) and each.value]
        for function in ast.walk(source)
        if isinstance(function, ast.FunctionDef)
    }
    for node in ast.walk(source):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            at = ERRORS.get(name)
            if at is not None and len(node.args) > at:
                yield from ((node.lineno, text) for text in texts(node.args[at], returned))
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    pairs = list(zip(target.elts, node.value.elts, strict=False))
                else:
                    pairs = [(target, node.value)]
                for each, value in pairs:
                    if isinstance(each, ast.Name) and each.id.lower().lstrip("_") in NAMES:
                        yield from ((node.lineno, text) for text in texts(value, returned))


@cache
def all_typed() -> list[tuple[str, int, str]]:
    """Returns (file, line, text) of all of them."""
    return [(file, line, said) for file, text in sources(*PACKAGES) for line, said in typed(parsed(text))]


def missing(text: str) -> Iterator[str]:
    """Yields the commands in a text that do not exist, and those with an option that they do not have. A value ends
    what can be checked of the words before it."""
    for words in re.findall(r"\braftmq ((?:[\w./:=-]+|~|…)(?: [\w./:=~'\"$-]+)*)", text):
        at: click.Command = cli
        for word in words.split():
            if isinstance(at, click.Group):
                found = at.get_command(click.Context(at), word.rstrip(".,:"))
                if found is None:
                    if word not in ("~", "...", "--help"):
                        yield f"raftmq {words}: there is no {word}"
                    break
                at = found
            elif word.startswith("--") and "~" not in word:
                option = word.partition("=")[0].rstrip(".,:")
                if option not in ("--help", *(each for one in at.params for each in (*one.opts, *one.secondary_opts))):
                    yield f"raftmq {words}: there is no {option}"


def test_the_commands_and_options_exist() -> None:
    wrong = [
        f"{file}:{line} {why}"
        for file, line, text in all_typed()
        for why in missing(text)
        if not text.startswith("--no-binary")
    ]
    assert not wrong, "\n".join(wrong)
    assert sum("raftmq " in text for _, _, text in all_typed()) > 150, "the commands are found"


def test_what_is_known_is_filled_in() -> None:
    """A word in capitals stands for what this place cannot know. A new one says here why."""
    found: dict[str, set[str]] = {}
    for file, _, text in all_typed():
        if words := set(PLACEHOLDER.findall(text)):
            found.setdefault(file, set()).update(words)
    assert {file: " ".join(sorted(words)) for file, words in found.items()} == CHOSEN | ELSEWHERE


def test_a_page_is_no_text_to_type() -> None:
    assert [each for each in all_typed() if re.search(r"\bthe page\b|\bsee the\b|\bof the docs\b", each[2])] == []


@pytest.mark.parametrize(
    ("planted", "says"),
    [
        ('raise LocalError("a", "b", "raftmq backup list --in DIR")', "there is no --in"),
        ('raise LocalError("a", "b", f"raftmq toppic create {name}")', "there is no toppic"),
        ('def f(name):\n    why, fix = "a", f"raftmq topic create {name} --queue 3"', "there is no --queue"),
    ],
)
def test_a_planted_command_is_found(planted: str, says: str) -> None:
    ((_, text),) = typed(ast.parse(planted))
    (why,) = missing(text)
    assert says in why

"""Real shells complete commands, keys of the configuration and codes of runbooks, as `raftmq completion` says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from raftmq.cli import ALIASES, COMMANDS, SECTIONS, cli
from raftmq.commands.command_group import CommandGroup, first_sentence
from tests.support.command_tree import commands, plugins
from tests.support.tools import needs

BASH = """
eval "$(raftmq completion bash)"
COMP_WORDS=({words} "{begun}")
COMP_CWORD=$(({count}))
_raftmq_completion raftmq
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
ZSH = """
autoload -Uz compinit && compinit -u -d "$HOME/dump"
compadd() {{ print -l -- "${{(@P)5}}" }}
_describe() {{ print -l -- "${{(@P)3}}" }}
eval "$(raftmq completion zsh)"
words=({words} "{begun}")
CURRENT=$(({count} + 1))
_raftmq_completion
"""
FISH = """
raftmq completion fish | source
complete -C '{words} {begun}'
"""
SHELLS = {"bash": ["bash", "-c"], "zsh": ["zsh", "-f", "-c"], "fish": ["fish", "--no-config", "-c"]}
SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}


def completed(shell: str, home: Path, line: str) -> set[str]:
    """The words that `shell` offers for a line; its last word is begun."""
    words, _, begun = line.rpartition(" ")
    count = len(words.split())
    program = home / "raftmq"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m raftmq "$@"\n')
    program.chmod(0o700)
    environment = {**os.environ, "HOME": str(home), "PATH": f"{home}:{os.environ['PATH']}"}
    script = SCRIPTS[shell].format(words=words, begun=begun, count=count)
    done = subprocess.run([*SHELLS[shell], script], env=environment, capture_output=True, text=True, check=False)
    return {each.split("\t")[0].split(":")[0] for each in done.stdout.splitlines() if each.strip()}


@pytest.mark.parametrize(
    "shell",
    ["bash", pytest.param("zsh", marks=needs("zsh")), pytest.param("fish", marks=needs("fish"))],
)
def test_shells_complete_commands_keys_and_codes(shell: str, tmp_path: Path) -> None:
    assert completed(shell, tmp_path, "raftmq mess") == {"messages"}
    assert completed(shell, tmp_path, "raftmq config explain raft.tick") == {"raft.tick_ms"}
    assert "retention.bytes_max" in completed(shell, tmp_path, "raftmq config set retention.")
    assert completed(shell, tmp_path, "raftmq config set retention.bytes_max ") == set()
    assert "disk_slow" in completed(shell, tmp_path, "raftmq runbook disk_")


def test_each_command_stands_below_one_heading() -> None:
    listed = [name for names in SECTIONS.values() for name in names.split()]
    assert sorted(listed) == sorted({*COMMANDS, *plugins()}), "twice, missing, or no command"
    assert not ALIASES.keys() & set(listed)


def test_help_shows_whole_first_sentences() -> None:
    for name, command in commands().items():
        told = first_sentence(command)
        assert told.endswith("."), name
        assert len(told) <= 160, name
    for name in (*COMMANDS, *plugins()):
        found = cli.get_command(cli.make_context("raftmq", ["status"], resilient_parsing=True), name)
        assert not hasattr(found, "commands") or isinstance(found, CommandGroup), name

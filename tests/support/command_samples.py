"""A sample of each command with the level and the bytes that it has for good: a line of packed_commands.txt.

A line is `LEVEL HEX SAMPLE`. `SAMPLE` is an expression that makes the command, `HEX` the bytes of an entry with it
alone: those that its first version packed. Who adds a command adds a line, and the test that compares prints the bytes.

Tests that draw commands take the samples, too, and `about` has them name a topic, a queue, a group or a client that the
test has. Everything else in a sample is as it stands in its line. So it takes effect as it stands: together with the
samples of its family, if it needs their rows. tests/statemachine/test_runs.py names the commands that never do.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from statemachine import tier
from statemachine.access.access_commands import Origin
from statemachine.command_table import COMMANDS
from statemachine.commands import Command

FILE = Path(__file__).parents[1] / "statemachine" / "data" / "packed_commands.txt"
ASKED = Origin(1_700_000_000_000, "ann", "10.0.0.9")
KNOWN: Mapping[str, Any] = {
    **{kind.__name__: kind for kind in COMMANDS.values()},
    **{name: value for name, value in vars(tier).items() if not name.startswith("_")},
    "ASKED": ASKED,
}
"""The names that a sample may use."""


class Sample(NamedTuple):
    """A line of the file."""

    level: int
    packed: bytes
    command: Command


def _sample(line: str) -> Sample:
    level, packed, made = line.split(" ", 2)
    command = eval(made, {"__builtins__": {}}, dict(KNOWN))
    assert isinstance(command, Command)
    return Sample(int(level), bytes.fromhex(packed), command)


SAMPLES = tuple(map(_sample, FILE.read_text().splitlines()))
COMMAND_SAMPLES = tuple(sample.command for sample in SAMPLES)


def about(sample: Command, **known: object) -> Command:
    """Returns the sample with these values, in those of the fields (`topic`, `topic_id`, `queue_id`, `group`,
    `client_id`) that it has."""
    fields = type(sample).__struct_fields__
    return msgspec.structs.replace(sample, **{name: value for name, value in known.items() if name in fields})

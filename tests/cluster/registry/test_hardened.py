"""What unmodified pysyncobj loses, and the registry does not, in the same schedule; and that only the version that was
read is used."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cluster.registry import peer_wire
from cluster.registry.pysyncobj_check import DIGESTS, VERSION, check, check_installed, installed
from cluster.runtime.peer_frames import WireError
from raftmq_wire.errors import LocalError
from tests.support.pace import at_most
from tests.support.rows import each_row

ROOT = Path(__file__).parents[3]


def outcome(kind: str, schedule: str, folder: Path) -> dict[str, int]:
    """In a process of its own: pysyncobj replaces functions of `socket`."""
    command = [sys.executable, "-m", "tests.support.registry_links", kind, schedule, str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=at_most(60), check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_process_keeps_the_functions_of_socket() -> None:
    code = "import cluster.registry.hardened, socket; assert socket.inet_ntop(socket.AF_INET, bytes(4)) == '0.0.0.0'"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=at_most(60))


def test_what_a_follower_confirmed_is_not_cut_by_what_comes_again(tmp_path: Path) -> None:
    """Unmodified, the schedule loses 280 of 300 operations that were acknowledged: else it would prove nothing."""
    stock = outcome("stock", "sent_again", tmp_path)
    assert stock["lost"] > 200
    assert stock["again"] > 200
    found = outcome("hardened", "sent_again", tmp_path)
    assert (found["acked"], found["lost"]) == (300, 0)
    assert found["again"] == 0, "what is on its way is not sent again"


def test_a_refuted_tail_is_given_up_at_once(tmp_path: Path) -> None:
    """Unmodified, a leader finds the place of the conflict one entry a round, and takes nothing for 10 s."""
    assert outcome("stock", "refuted_tail", tmp_path)["rounds"] == 200
    found = outcome("hardened", "refuted_tail", tmp_path)
    assert found["rounds"] < 30
    assert (found["acked"], found["lost"], found["refuted"]) == (300, 0, 0)


def test_the_parent_does_not_import_pysyncobj() -> None:
    """It replaces functions of `socket`, so it is in the registry's own processes alone."""
    code = "import sys, cluster.registry.child, cluster.registry.process; print('pysyncobj' in sys.modules)"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=at_most(20), check=True)
    assert done.stdout == "False\n"


def test_the_pysyncobj_that_was_read_is_installed() -> None:
    check_installed()


@each_row("name", sorted(DIGESTS))
def test_a_file_that_differs_is_refused(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "pysyncobj"
    shutil.copytree(installed(), folder)
    check(folder, VERSION)
    with (folder / name).open("a") as file:
        file.write("\n")
    with pytest.raises(LocalError, match=f"{name} is not that of pysyncobj"):
        check(folder, VERSION)
    (folder / name).unlink()
    with pytest.raises(LocalError, match=f"{name} is not that of pysyncobj"):
        check(folder, VERSION)


def test_another_version_is_refused() -> None:
    with pytest.raises(LocalError, match=r"pysyncobj 0\.3\.18 is installed"):
        check(installed(), "0.3.18")


# --- messages ------------------------------------------------------------------------------------------------------

APPEND = {"type": "append_entries", "term": 3, "commit_index": 1, "entries": [], "prevLogIdx": 4, "prevLogTerm": 2}


@each_row(
    "value",
    [
        APPEND,
        {**APPEND, "entries": [[b"\0a", 5, 2], [b"\1", 6, 3]]},
        {"type": "append_entries", "term": 3, "commit_index": 1, "serialized": None},
        {"type": "append_entries", "term": 3, "commit_index": 1, "serialized": [b"", False, True]},
        {"type": "request_vote", "term": 1, "last_log_index": 1, "last_log_term": 0},
        {"type": "apply_command", "command": b"\0a", "request_id": 1},
        {"type": "apply_command_response", "request_id": 1, "error": 2},
        {"type": "apply_command_response", "request_id": 1, "log_idx": 2, "log_term": 1},
    ],
)
def test_messages_of_known_shapes_pass(value: dict[str, object]) -> None:
    assert peer_wire.message(peer_wire.decode(peer_wire.encode(value))) == value


@each_row(
    "value",
    [
        None,
        [],
        {"type": "status"},
        {"type": ["request_vote"]},
        {"term": 1},
        {"type": "response_vote"},
        {"type": "response_vote", "term": -1},
        {"type": "response_vote", "term": True},
        {"type": "response_vote", "term": 1 << 63},
        {"type": "response_vote", "term": 1, "more": 1},
        {"type": "apply_command", "command": b"", "request_id": 1},
        {"type": "apply_command", "command": "a", "request_id": 1},
        {"type": "apply_command_response", "request_id": 1, "log_idx": 2},
        {**APPEND, "transmission": "start", "data": b"x"},
        {**APPEND, "prevLogIdx": None},
        {**APPEND, "entries": None},
        {**APPEND, "entries": [[b"\0", 6, 2]]},
        {**APPEND, "entries": [[b"\0", 5, 1]]},
        {**APPEND, "entries": [[b"", 5, 2]]},
        {**APPEND, "entries": [[b"\0", 5, 2, 1]]},
        {"type": "append_entries", "term": 3, "commit_index": 1},
        {"type": "append_entries", "term": 3, "commit_index": 1, "serialized": [1, False, True]},
    ],
)
def test_other_messages_are_refused(value: object) -> None:
    with pytest.raises(WireError):
        peer_wire.message(value)


@each_row("data", [b"", b"\xc1", b"\x91" * 5000, b"\xdd\xff\xff\xff\xff", b"\x80\x04.", b"\xc7\x01\x05x"])
def test_bytes_that_are_no_msgpack_are_refused(data: bytes) -> None:
    with pytest.raises(WireError):
        peer_wire.decode(data)

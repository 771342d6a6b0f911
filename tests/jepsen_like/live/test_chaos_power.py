"""The shim under a small program: what was synced stays, what was not goes, names and clock included."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from jepsen_like.live.harm.disk_shim import Shim
from jepsen_like.live.harm.power import NodeDisk, ShimError, build_shim, read_journal
from tests.support.tools import needs

pytestmark = needs("gcc")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_shim(tmp_path_factory.mktemp("shim"))


class Machine:
    """A disk with a home directory, and programs that die on it."""

    def __init__(self, folder: Path, library: Path) -> None:
        self.home = folder / "home"
        self.home.mkdir()
        self.disk = NodeDisk(self.home, folder / "shim", library)

    def run(self, program: str) -> str:
        """Runs it until it kills itself with -9."""
        code = "import os, signal, time\ndef sync_dir(p='.'):\n fd = os.open(p, os.O_RDONLY); os.fsync(fd)\n"
        code += program + "\nprint(end='', flush=True)\nos.kill(os.getpid(), signal.SIGKILL)"
        done = subprocess.run(
            [sys.executable, "-S", "-c", code],
            cwd=self.home,
            env=self.disk.environment(),
            capture_output=True,
            text=True,
        )
        assert done.returncode == -9, done.stderr
        return done.stdout

    def fail(self, survive: float = 0.0, seed: int = 1) -> None:
        self.disk.fail(random.Random(seed), survive)

    @property
    def files(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in sorted(self.home.iterdir()) if path.is_file()}


@pytest.fixture
def machine(tmp_path: Path, library: Path) -> Machine:
    return Machine(tmp_path, library)


OPEN = "f = os.open('a', os.O_RDWR | os.O_CREAT); sync_dir();"


def test_an_unsynced_write_goes_and_a_synced_one_stays(machine: Machine) -> None:
    machine.run(f"{OPEN} os.write(f, b'kept'); os.fdatasync(f); os.write(f, b'gone')")
    assert machine.files == {"a": b"keptgone"}, "the page cache survives kill -9"
    machine.fail()
    assert machine.files == {"a": b"kept"}


def test_what_was_overwritten_comes_back(machine: Machine) -> None:
    machine.run(
        f"{OPEN} os.write(f, b'0123456789'); os.fsync(f); os.pwritev(f, [b'ab', b'cd'], 3); os.pwrite(f, b'X', 9)"
    )
    assert machine.files == {"a": b"012abcd78X"}
    machine.fail()
    assert machine.files == {"a": b"0123456789"}


def test_zeros_written_ahead_come_back_as_zeros(machine: Machine) -> None:
    machine.run(f"{OPEN} os.write(f, bytes(8192)); os.fsync(f); os.pwrite(f, b'x' * 5000, 0)")
    machine.fail()
    assert machine.files == {"a": bytes(8192)}


def test_lengths_come_back(machine: Machine) -> None:
    machine.run(
        f"{OPEN} os.write(f, b'0123456789'); os.fsync(f); os.ftruncate(f, 4); os.write(f, b'Z'); os.ftruncate(f, 99)"
    )
    machine.fail()
    assert machine.files == {"a": b"0123456789"}
    machine.run("f = os.open('a', os.O_WRONLY | os.O_TRUNC)")
    assert machine.files == {"a": b""}
    machine.fail()
    assert machine.files == {"a": b"0123456789"}


def test_a_sync_of_another_file_helps_nothing(machine: Machine) -> None:
    machine.run(
        f"{OPEN} os.write(f, b'a'); g = os.open('b', os.O_RDWR | os.O_CREAT);"
        " os.write(g, b'b'); os.fsync(g); sync_dir()"
    )
    machine.fail()
    assert machine.files == {"a": b"", "b": b"b"}


def test_a_name_is_durable_once_its_directory_was_synced(machine: Machine) -> None:
    machine.run("f = os.open('lost', os.O_RDWR | os.O_CREAT); os.write(f, b'x'); os.fsync(f)")
    machine.fail()
    assert machine.files == {}


def test_a_rename_without_a_sync_of_the_directory_is_taken_back(machine: Machine) -> None:
    machine.run(
        f"{OPEN} os.write(f, b'old'); os.fsync(f); g = os.open('t', os.O_RDWR | os.O_CREAT); os.write(g, b'new');"
        " os.fsync(g); sync_dir(); os.rename('t', 'a')"
    )
    assert machine.files == {"a": b"new"}
    machine.fail()
    assert machine.files == {"a": b"old", "t": b"new"}
    machine.run("os.rename('t', 'a'); sync_dir()")
    machine.fail()
    assert machine.files == {"a": b"new"}


def test_a_removed_file_comes_back_with_its_content(machine: Machine) -> None:
    machine.run(f"{OPEN} os.write(f, b'x'); os.fsync(f); os.unlink('a')")
    assert machine.files == {}
    machine.fail()
    assert machine.files == {"a": b"x"}


def test_what_an_earlier_process_never_synced_goes_too(machine: Machine) -> None:
    machine.run(f"{OPEN} os.write(f, b'one')")
    machine.run("f = os.open('a', os.O_RDWR); print(os.read(f, 9))")
    machine.fail()
    assert machine.files == {"a": b""}
    machine.run("f = os.open('a', os.O_RDWR); os.write(f, b'one')")
    machine.run("f = os.open('a', os.O_RDWR); os.fsync(f); os.pwrite(f, b'two', 3)")
    machine.fail()
    assert machine.files == {"a": b"one"}, "a later process's sync covers what was there before it"


@pytest.mark.parametrize("seed", range(8))
def test_some_of_the_unsynced_may_survive_and_nothing_else_appears(machine: Machine, seed: int) -> None:
    machine.run(
        f"{OPEN} os.write(f, b'.' * 4096); os.fsync(f)\n"
        "for i in range(8): os.pwrite(f, bytes([65 + i]) * 1024, 3072 + 1024 * i)"
    )
    machine.fail(survive=0.5, seed=seed)
    content = machine.files["a"]
    assert content[:3072] == b"." * 3072
    assert 4096 <= len(content) <= 3072 + 8 * 1024
    for at in range(3072, len(content), 512):
        allowed = {bytes([65 + (at - 3072) // 1024]) * 512, (b"." if at < 4096 else b"\0") * 512}
        assert content[at : at + 512] in allowed


def test_the_wall_clock_moves_and_the_monotonic_one_does_not(machine: Machine) -> None:
    machine.disk.set_clock(-3_600_000)
    real, ticks = machine.run("print(time.time(), time.monotonic(), flush=True)").split()
    import time

    assert -3700 < float(real) - time.time() < -3500
    assert abs(float(ticks) - time.monotonic()) < 60
    assert machine.disk.skewed_readings > 0


def test_a_torn_last_record_is_of_a_write_that_never_was(tmp_path: Path, machine: Machine) -> None:
    machine.run(f"{OPEN} os.write(f, b'a'); os.write(f, b'b')")
    (journal,) = (tmp_path / "shim").glob("*.undo")
    whole = list(read_journal(journal))
    journal.write_bytes(journal.read_bytes()[:-10])
    assert list(read_journal(journal)) == whole[:-1]
    journal.write_bytes(b"?" * 60)
    with pytest.raises(ShimError, match="no record at byte 0"):
        list(read_journal(journal))


def test_a_full_disk_takes_no_write_until_it_has_space_again(machine: Machine) -> None:
    program = (
        OPEN
        + """
for at in range(2):
    for write in (lambda: os.write(f, b'x'), lambda: os.pwrite(f, b'x', 0), lambda: os.pwritev(f, [b'x'], 0)):
        try:
            write()
        except OSError as error:
            print(error.errno, end=' ')
"""
    )
    machine.disk.set_full(True)
    assert machine.run(program) == "28 " * 6
    machine.disk.set_full(False)
    assert machine.run(program) == ""


def test_a_process_that_another_one_starts_loses_what_it_did_not_sync_too(machine: Machine) -> None:
    machine.run("import subprocess, sys\n" + OPEN + "os.write(f, b'parent'); os.fsync(f)\n"
                "subprocess.run([sys.executable, '-S', '-c', 'import os; f = os.open(\"b\", os.O_RDWR | os.O_CREAT);"
                " os.write(f, b\"child\")'], check=True)")  # fmt: skip
    assert machine.files == {"a": b"parent", "b": b"child"}
    machine.fail()
    assert machine.files == {"a": b"parent"}


def test_a_node_that_joins_has_a_disk_of_its_own(tmp_path: Path, library: Path) -> None:
    shim = Shim(tmp_path / "nodes", tmp_path / "shim", library, 1)
    first, second = shim.environment(4), shim.environment(4)
    assert first["RAFTMQ_SHIM_ROOT"] == str(tmp_path / "nodes/n4")
    assert first["RAFTMQ_SHIM_PAGE"] == second["RAFTMQ_SHIM_PAGE"] != shim.environment(1)["RAFTMQ_SHIM_PAGE"]
    assert first["RAFTMQ_SHIM_JOURNAL"] != second["RAFTMQ_SHIM_JOURNAL"]
    shim.skew(4, 5)
    assert shim.skewed_readings(4) == 0

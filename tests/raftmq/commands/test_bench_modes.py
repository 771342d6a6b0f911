"""`raftmq bench modes`: every mode is measured under every load, and told from the strongest to the weakest."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from cluster.config.service_sections import ModesSection
from cluster.replication.acks.ack_levels import NAMES
from raftmq.commands import bench_modes as modes
from raftmq.commands.bench import bench
from raftmq.commands.bench_load import Result, request_frame, signed_frame
from raftmq.local.local_users import ClientOptions
from raftmq_wire.codec import decode_header, ext_of
from raftmq_wire.signature import ACCESS_KEY, SIGNATURE, Credentials, content, is_right


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, int, int]]:
    """(settings, level, size, in flight) of every load that would have run; nothing is started."""
    seen: list[tuple[str, str, int, int]] = []
    now: list[str] = []

    @contextmanager
    def cluster(
        directory: Path, settings: Mapping[str, str], *, secured: bool
    ) -> Iterator[tuple[int, list[int], ClientOptions]]:
        now[:] = [" ".join(settings)]
        yield 1, [], {}

    def load(port: int, level: str, size: int, in_flight: int, seconds: float, options: ClientOptions) -> Result:
        seen.append((now[0], level, size, in_flight))
        return Result(1000, 2.0, [1.0, 2.0, 3.0], 0)

    monkeypatch.setattr(modes, "_cluster", cluster)
    monkeypatch.setattr(modes, "_load", load)
    return seen


def test_every_mode_under_every_load(loads: list[tuple[str, str, int, int]], tmp_path: Path) -> None:
    report = modes.measure(tmp_path, [100, 5000], [1, 64], 0.1)
    assert len(report.rows) == len(modes.MODES) * 4
    assert [(row.level, row.flush) for row in report.rows[: len(modes.MODES)]] == [
        (mode.level, mode.flush) for mode in modes.MODES
    ]
    assert {(row.size_bytes, row.in_flight) for row in report.rows} == {(100, 1), (100, 64), (5000, 1), (5000, 64)}
    assert report.rows[0].messages_per_second == 500
    measured = {(settings, level) for settings, level, _, _ in loads if level}
    assert len(measured) == len(modes.MODES)
    assert not list(tmp_path.iterdir()), "the probe is removed"


def test_the_modes_exist() -> None:
    assert {mode.level for mode in modes.MODES} == set(NAMES)
    for mode in modes.MODES:
        ModesSection(**{key.lower(): value for key, value in mode.settings.items()})  # type: ignore[arg-type]


def test_the_level_is_in_the_frame() -> None:
    more = "ACK_LEVEL\\u0001all\\u0002"
    frame = request_frame("T", 1, 0, 1, b"x", more)
    header: dict[str, Any] = json.loads(frame[8:-1])
    assert header["extFields"]["i"].endswith("ACK_LEVEL\x01all\x02")


@pytest.mark.usefixtures("loads")
def test_the_command(tmp_path: Path) -> None:
    done = CliRunner().invoke(bench, ["modes", "--dir", str(tmp_path), "--seconds", "0.1"], env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    assert "quorum+fsync" in done.output
    assert "load average before the run" in done.output
    done = CliRunner().invoke(bench, ["modes", "--dir", str(tmp_path), "--in-flight", "7", "--json"])
    report = json.loads(done.output)
    assert {row["in_flight"] for row in report["rows"]} == {7}
    assert report["schema"] == 1
    assert not list(tmp_path.iterdir())


def test_a_signed_frame_says_the_same(tmp_path: Path) -> None:
    plain = request_frame("T", 5, 1, 1, b"body", "K\\u0001v\\u0002")
    signed = signed_frame(plain, Credentials("shop", "the-secret-of-shop"))
    before, after = (
        decode_header(frame[4], frame[8 : 8 + int.from_bytes(frame[5:8], "big")]) for frame in (plain, signed)
    )
    ext = dict(ext_of(after))
    assert is_right(b"the-secret-of-shop", content(ext, b"body"), ext.pop(SIGNATURE))
    assert ext.pop(ACCESS_KEY) == "shop"
    assert (ext, after.code, after.opaque) == (dict(ext_of(before)), before.code, before.opaque)
    assert signed.endswith(b"body")
    assert int.from_bytes(signed[:4], "big") == len(signed) - 4

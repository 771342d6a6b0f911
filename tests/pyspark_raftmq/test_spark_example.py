"""examples/spark_streaming.py runs as it stands, in the session and on the cluster of the other tests."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.live, pytest.mark.timeout(180)]
PROGRAM = Path(__file__).parents[2] / "examples" / "spark_streaming.py"


@pytest.mark.slow
def test_every_click_is_copied_once(
    spark: SparkSession,
    servers: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("RAFTMQ_SERVERS", servers)
    monkeypatch.chdir(tmp_path)
    text = PROGRAM.read_text(encoding="utf-8").replace('"checkpoint"', repr(str(tmp_path / "checkpoint")))
    exec(compile(text, str(PROGRAM), "exec"), {})
    assert "20 clicks copied; 10 in the cart" in capsys.readouterr().out

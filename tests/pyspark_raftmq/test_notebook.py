"""The cells of the notebook in examples/ run in order, as they stand, against a cluster of the test."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.live, pytest.mark.slow, pytest.mark.timeout(900)]

NOTEBOOK = Path(__file__).parents[2] / "examples" / "topics-as-tables.ipynb"
SERVERS = '"127.0.0.1:9876;127.0.0.1:9877;127.0.0.1:9878"'
FOLDER = '"/tmp/raftmq-notebook"'
STOP = "spark.stop()"


def test_its_cells_run(spark: SparkSession, servers: str, tmp_path: Path) -> None:
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    assert all(cell["outputs"] == [] for cell in cells if cell["cell_type"] == "code"), "saved without outputs"
    text = "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    for written, here in ((SERVERS, repr(servers)), (FOLDER, repr(str(tmp_path))), (STOP, "")):  # the session is shared
        assert text.count(written) == 1
        text = text.replace(written, here)
    names: dict[str, Any] = {}
    exec(compile(text, str(NOTEBOOK), "exec"), names)
    assert names["table"].num_rows == 300
    assert [row["messages"] for row in names["means"].collect()] == [60] * 5
    assert spark.read.parquet(str(tmp_path / "values")).count() == 300
    assert names["exported"].messages == 300

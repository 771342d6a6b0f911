"""What a session needs is checked before Java starts, and what is missing is said in three lines."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
import pytest

import pyspark_raftmq
from pyspark_raftmq.errors import SourceError
from pyspark_raftmq.spark_session import SparkMissing, check_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]


def test_a_spark_that_is_too_old_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    check_spark()
    monkeypatch.setattr(pyspark, "__version__", "4.2.9")
    with pytest.raises(SparkMissing, match=r"Spark 4\.2\.9 is too old"):
        check_spark()


def test_no_spark_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SparkMissing, match="Spark is not installed") as caught:
        check_spark()
    assert "raftmq[spark]" in caught.value.hint


def test_a_python_without_our_packages_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Spark's workers are when PYSPARK_PYTHON is not set and the environment is not activated."""

    def missing(name: str) -> object:
        raise ModuleNotFoundError("No module named 'msgspec'", name="msgspec")

    monkeypatch.setattr("importlib.import_module", missing)
    with pytest.raises(SourceError, match="lacks the package msgspec") as caught:
        _ = pyspark_raftmq.DefaultSource
    assert sys.executable in caught.value.why
    assert "PYSPARK_PYTHON" in caught.value.hint


def test_importing_the_package_needs_nothing_else() -> None:
    """`-S`: no site-packages, as in a Python that Spark picked by mistake."""
    code = "import pyspark_raftmq; pyspark_raftmq.DefaultSource"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert "Spark runs a Python that lacks the package" in done.stderr


@pytest.mark.spark
def test_the_session_is_usable(spark: SparkSession) -> None:
    """The tests' session is made by it, with this interpreter in the workers."""
    assert spark.sparkContext.pythonExec == sys.executable
    assert os.environ["PYSPARK_PYTHON"] == sys.executable
    assert pyspark_raftmq.session() is spark

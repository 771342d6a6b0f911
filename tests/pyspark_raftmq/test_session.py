"""The needs of a session are checked before Java starts, and what is missing is said in three lines."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pyspark
import pytest

import pyspark_raftmq
from pyspark_raftmq.errors import OptionError
from pyspark_raftmq.spark_session import SparkMissing, WrongPython, check_python, check_spark
from tests.support.pace import at_most

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]


def test_a_spark_that_is_too_old_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    check_spark()
    monkeypatch.setattr(pyspark, "__version__", "4.2.9")
    with pytest.raises(SparkMissing, match=r"Spark 4\.2\.9 is too old"):
        check_spark()


def test_no_spark_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(SparkMissing, match="Spark is not installed") as caught:
        check_spark()
    assert "raftmq[spark]" in caught.value.hint


def test_a_secret_is_not_written_on_the_command_line_of_java() -> None:
    with pytest.raises(OptionError, match="RAFTMQ_SECRET_KEY") as caught:
        pyspark_raftmq.session(config={"spark.executorEnv.RAFTMQ_SECRET_KEY": "the-planted-secret"})
    assert "userFile" in caught.value.hint
    assert "planted" not in str(caught.value)


def test_importing_the_package_needs_nothing_else_and_a_python_without_the_others_is_named() -> None:
    """`-S`: no site-packages. Spark's workers have such a Python when PYSPARK_PYTHON is not set and the environment is
    not activated."""
    code = "import pyspark_raftmq; pyspark_raftmq.DefaultSource"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=at_most(60), check=False
    )
    assert "Spark runs a Python that lacks the package" in done.stderr
    assert done.stderr.count(sys.executable) >= 1
    assert "PYSPARK_PYTHON" in done.stderr


class Session:
    """A plain one, of which nothing but its Python is looked at."""

    def __init__(self, python: str) -> None:
        self.sparkContext = self
        self.pythonExec = python


def python_without_packages(folder: Path) -> str:
    """Makes a Python like `python3` on the PATH where the environment is not activated: without the path of the tree,
    too, which xdist gives its workers."""
    path = folder / "python3"
    path.write_text(f'#!/bin/sh\ncd /\nunset PYTHONPATH\nexec {sys.executable} -S "$@"\n')
    path.chmod(0o755)
    return str(path)


def test_a_session_whose_python_lacks_the_package_is_told_what_to_set(tmp_path: Path) -> None:
    """Spark says DATA_SOURCE_NOT_FOUND, and sixty lines of Java."""
    wrong = Session(python_without_packages(tmp_path))
    with pytest.raises(WrongPython) as caught:
        pyspark_raftmq.register(cast("SparkSession", wrong))
    assert "No module named 'pyspark_raftmq'" in caught.value.why
    assert f"export PYSPARK_PYTHON={sys.executable}" in caught.value.hint
    with pytest.raises(WrongPython, match="No such file"):
        check_python(str(tmp_path / "no-python"))


def test_another_interpreter_that_has_the_package_will_do(tmp_path: Path) -> None:
    other = tmp_path / "python"
    other.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    other.chmod(0o755)
    check_python(str(other))


@pytest.mark.spark
def test_the_session_is_usable(spark: SparkSession) -> None:
    """The tests' session is made by it, with this interpreter in the workers."""
    assert spark.sparkContext.pythonExec == sys.executable
    assert os.environ["PYSPARK_PYTHON"] == sys.executable
    assert pyspark_raftmq.session() is spark

"""The options that the commands of `raftmq spark` share with all others: what --tls-ca names is read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest

from tests.raftmq.commands.test_options_read import WITH_CA, check_ca_is_read
from tests.support.rows import each_row

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@each_row(("words", "command"), [each for each in WITH_CA if each[0][0] == "spark"])
def test_a_ca_is_read(
    spark: SparkSession,
    words: tuple[str, ...],
    command: click.Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    check_ca_is_read(words, command, tmp_path, monkeypatch)

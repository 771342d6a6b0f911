"""The options that the commands of `raftmq spark` share with all others: what --tls-ca names is read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest

from tests.raftmq.commands.test_options_read import WITH_CA, check_ca_is_read

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.mark.parametrize(("words", "command"), [each for each in WITH_CA if str(each.id).startswith("spark ")])
def test_a_ca_is_read(
    spark: SparkSession,
    words: tuple[str, ...],
    command: click.Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    check_ca_is_read(words, command, tmp_path, monkeypatch)

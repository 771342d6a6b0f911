"""A store that cannot be one is an error of the configuration, in three lines."""

from __future__ import annotations

import pytest

from cluster.config.source import ConfigError
from cluster.config.storage_sections import TierSection
from cluster.tier.tier_assembly import configured_store


@pytest.mark.parametrize(
    "section",
    [
        TierSection(url="ftp://x"),
        TierSection(url="file://host/path"),
        TierSection(url="s3://user:password@bucket"),
        TierSection(url="s3://bucket", credentials_file="/nowhere"),
    ],
)
def test_a_store_that_cannot_be_one_is_said_in_three_lines(section: TierSection) -> None:
    with pytest.raises(ConfigError) as caught:
        configured_store(section)
    assert len(str(caught.value).split("\n")) == 3
    assert "password" not in str(caught.value)

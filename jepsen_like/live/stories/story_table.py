"""The table of scripted scenarios by name."""

from __future__ import annotations

from jepsen_like.live.plan import HOSTILE, ONE_BY_ONE
from jepsen_like.live.stories import (
    story_bitflip,
    story_failover,
    story_group_drain,
    story_groups,
    story_hostile,
    story_hot_topic,
    story_nearly_full,
    story_noisy_neighbour,
    story_one_by_one,
    story_quota_storm,
    story_registry,
    story_report_000,
    story_report_001,
    story_report_002,
    story_report_004,
    story_slow_follower,
)
from jepsen_like.live.stories.story import Story

STORIES: dict[str, Story] = {
    "report-000": story_report_000.STORY,
    "report-001": story_report_001.STORY,
    "report-002": story_report_002.STORY,
    "report-004-surge": story_report_004.STORY,
    "nearly-full": story_nearly_full.STORY,
    "slow-follower": story_slow_follower.STORY,
    "bitflip-minority": story_bitflip.STORY,
    "failover": story_failover.FAILOVER,
    "frozen-leader": story_failover.FROZEN,
    "isolated-leader": story_failover.ISOLATED,
    "graceful": story_failover.GRACEFUL,
    "group-join": story_groups.JOIN,
    "first-group-lost": story_groups.FIRST_LOST,
    "hot-topic": story_hot_topic.STORY,
    "registry-loss": story_registry.STORY,
    "registry-faults": story_registry.FAULTS_STORY,
    "group-drain": story_group_drain.STORY,
    "noisy-neighbour": story_noisy_neighbour.STORY,
    "quota-storm": story_quota_storm.STORY,
    HOSTILE: story_hostile.HOSTILE,
    ONE_BY_ONE: story_one_by_one.ONE_BY_ONE,
}
"""Every scripted scenario by name, and the two stories that are played when all faults are hostile clients: together,
or one by one."""

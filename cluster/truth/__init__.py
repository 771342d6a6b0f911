"""The truth: the topics, users, rules and settings that all groups of brokers have in common. This package brings it
from the first group to the others (docs/adr/0108-groups-share-one-truth-and-copy-it.md)."""

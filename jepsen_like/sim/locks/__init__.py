"""Simulated clients of RocketMQ's queue locks, and the judge that checks the answers that they get."""

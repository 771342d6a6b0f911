"""Measures and forecasts the lag of followers behind their leader, in bytes and in time.

`log_times` tells the age of an entry. `forecast` predicts how a lag changes. `follower_lag` uses both for each
follower.
"""

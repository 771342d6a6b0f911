"""The lag of followers behind their leader: in bytes, in time, and what becomes of it.

`log_times` tells the age of an entry, `forecast` the course of a lag; `follower_lag` measures each follower with both.
"""

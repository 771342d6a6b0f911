"""The commit log and the hard state on disk.

SegmentedLog is one open log. Its parts share a LogState: LogReader, LogWriter, LogCutter (conflicts), LogTrimmer (old
files), LogRepairer (a peer's copies) and LogPreparer (the next file).
"""

"""The open log: its reader, writer, cutter, trimmer and repairer."""

"""The common parts of raw clients of all kinds: requests and their fields, frames, connections, answers."""

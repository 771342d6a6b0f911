VERSION: int
SOURCE: str
"""SHA-256 of the `_native.pyx` that it was built from, in hex digits."""

def frames(data: bytes, limit: int) -> tuple[list[tuple[int, int]], int, int | None]: ...

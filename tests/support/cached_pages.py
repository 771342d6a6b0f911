"""Whether the operating system holds a page of a file in memory."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest


def cached(path: Path, offset: int) -> bool:
    """Whether the byte at the offset can be read without the disk. Skips the test where nobody says so."""
    if not hasattr(os, "RWF_NOWAIT"):
        pytest.skip("only Linux says what it has cached")
    fd = os.open(path, os.O_RDONLY)
    try:
        return os.preadv(fd, [bytearray(1)], offset, os.RWF_NOWAIT) == 1
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:
            raise
        pytest.skip("this file system does not say what it has cached")
    finally:
        os.close(fd)

"""Logs input that is not HTTP in one line; aiohttp's own record of it is an error with a traceback."""

from __future__ import annotations

import logging

from aiohttp.http_exceptions import HttpProcessingError

_LOGGER = logging.getLogger("aiohttp.server")
_SHOWN = 200


class _OneLine(logging.Filter):
    """Makes a warning of it, without the traceback; everything else passes as it is."""

    def filter(self, record: logging.LogRecord) -> bool:
        """See logging."""
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, HttpProcessingError):
            told = " ".join(str(error.message).split())
            record.msg, record.args = f"{record.getMessage()}: {told[:_SHOWN]!a}", ()
            record.levelno, record.levelname = logging.WARNING, "WARNING"
            record.exc_info = record.exc_text = None
        return True


_ONE_LINE = _OneLine()


def tell_in_one_line() -> None:
    """From now on, in this process; again changes nothing."""
    _LOGGER.addFilter(_ONE_LINE)

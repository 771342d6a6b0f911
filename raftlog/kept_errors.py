"""Errors that outlive the handler that caught them."""

from __future__ import annotations

from typing import TypeVar

E = TypeVar("E", bound=BaseException)


def bare(error: E) -> E:
    """Returns the error without its traceback, and those that led to it without theirs.

    A traceback holds the frames of the functions that raised, and they hold their callers. If one of them has the error
    in a variable, all of it, with the request that was being read, stays in memory until a collection: a flood of
    refused requests of 1 MB took 700 MiB. An error that is returned, yielded or assigned after it was caught goes
    through this function.
    """
    each: BaseException | None = error
    while each is not None:
        each.with_traceback(None)
        each = each.__cause__ or each.__context__
    return error

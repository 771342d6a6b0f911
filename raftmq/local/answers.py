"""A bound for answers of an HTTP API: any program may listen at an address, and send anything, without end."""

from __future__ import annotations

import http.client

ANSWER_BYTES_MAX = 256 << 20


def read_answer(response: http.client.HTTPResponse) -> bytes:
    """Returns the body of an answer. Raises HTTPException if it is longer than ANSWER_BYTES_MAX."""
    with response:
        body = response.read(ANSWER_BYTES_MAX + 1)
    if len(body) > ANSWER_BYTES_MAX:
        raise http.client.HTTPException(f"the answer is longer than {ANSWER_BYTES_MAX} bytes")
    return body

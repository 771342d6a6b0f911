"""One answer to many requests: what is the same in each of its frames is encoded once."""

from __future__ import annotations

from cluster.wire.codec import AlikeHeads


class SharedAnswer:
    """An answer that is given to several requests. See `Request.reply` for what it consists of."""

    __slots__ = ("body", "code", "ext", "heads", "remark")

    def __init__(self, code: int, remark: str | None, ext: dict[str, str], body: bytes) -> None:
        self.code = code
        self.remark = remark
        self.ext = ext
        self.body = body
        self.heads = AlikeHeads(code, len(body), ext=ext, remark=remark)
        """Of its frames in JSON."""

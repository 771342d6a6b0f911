"""Makes and checks passes: a node that forwards a request names the user who sent it, and proves that with a MAC.

The client's token is never forwarded: the address of another node comes from the table of members, and somebody else
may listen there. A pass is one header, whose words are separated by single spaces (docs/adr/0091):

    X-RaftMQ-Pass: 1 KEY FROM TO WHO ADDRESS TIME NONCE PROOF

KEY       the id of the key, 16 hex digits
FROM, TO  names of nodes: an id, or a text such as `2/1` in a further group of brokers; so a pass for one group proves
          nothing in another
WHO       the id of a user; `none` without a user; `node` for the node FROM itself; or `operator`
ADDRESS   the address of the client
TIME      the wall clock of FROM in milliseconds
NONCE     32 hex digits
PROOF     the HMAC-SHA256, 64 hex digits, of the words from KEY to NONCE, the cluster's uuid, the method, the path with
          the query, and the SHA-256 of the body. Its key is derived from the cluster's secret.

The operator is the person who can read the cluster's secret. The operator's tool makes the same pass, with 0 as FROM
and `-` as ADDRESS: the node takes the address from the connection. The secret itself is never sent.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from cluster.admin.errors import ApiError
from cluster.config.local_layout import NodeName
from cluster.runtime.key_file import key_id

if TYPE_CHECKING:
    from cluster.peer.keyring import Keyring

PASS_HEADER: Final = "X-RaftMQ-Pass"
NODE, NONE, OPERATOR = "node", "none", "operator"
TOOL: Final = 0
"""The value of FROM in a pass that an operator's tool has made. No node has this id."""
WINDOW_MS: Final = 60_000
"""The most milliseconds by which the time of a pass may differ from the clock of the node that checks it."""
NONCES_MAX: Final = 65_536
"""The most nonces that are remembered, so that no pass is accepted twice. Each is remembered for two windows, which
allows 546 passes a second."""
_NODE: Final = r"(?:\d{1,2}/)?\d{1,5}"
_PASS: Final = re.compile(
    rf"1 (?P<key>[0-9a-f]{{16}}) (?P<by>{_NODE}) (?P<to>{_NODE}) (?P<who>node|none|operator|\d{{1,19}}) "
    r"(?P<address>[.:%\w-]{1,64}) (?P<time>\d{1,16}) (?P<nonce>[0-9a-f]{32}) (?P<proof>[0-9a-f]{64})",
    re.ASCII,
)
_ADDRESS: Final = re.compile(r"[.:%\w-]{1,64}", re.ASCII)
_KEY_LABEL: Final = b"raftmq http pass key 1"
_LABEL: Final = b"raftmq http pass 1"
_LEAVE_IT: Final = "only nodes and the tools of an operator send this header: leave it out"


class Passed(NamedTuple):
    """The words of a pass whose proof is correct."""

    by: NodeName
    """The name of the node that sent the request; TOOL if an operator's tool sent it."""
    who: str
    """The user's id in digits, or NONE, NODE or OPERATOR."""
    address: str
    """The client's address, as the forwarding node saw it; "-" if a node or a tool asks for itself."""
    key: bytes
    """The id of the key with which the pass was proven."""


def operator_pass(
    key: bytes, uuid: str, node: NodeName, method: str, path: str, body: bytes, *, wall_ms: int, nonce: bytes
) -> dict[str, str]:
    """Returns the header with a pass for one request of an operator's tool to `node`. The pass proves that the tool has
    `key`. `wall_ms` is the tool's clock, `nonce` 16 random bytes."""
    words = [key_id(key).hex(), str(TOOL), str(node), OPERATOR, "-", str(wall_ms), nonce.hex()]
    return {PASS_HEADER: " ".join(["1", *words, _proof(key, uuid, words, method, path, body)])}


class Passes:
    """Makes the passes of one node, and checks the passes that it receives. Event loop only."""

    def __init__(
        self,
        *,
        node: NodeName,
        uuid: Callable[[], str],
        keyring: Callable[[], Keyring],
        entropy: Callable[[int], bytes],
        wall_ms: Callable[[], int],
        nonces_max: int = NONCES_MAX,
    ) -> None:
        """`uuid` returns the cluster's id. `entropy` returns the given number of random bytes. `nonces_max`: the most
        passes of other nodes that are remembered."""
        self._node = node
        self._uuid = uuid
        self._keyring = keyring
        self._entropy = entropy
        self._wall_ms = wall_ms
        self._nonces_max = nonces_max
        self._nonces: OrderedDict[bytes, int] = OrderedDict()
        """Nonce -> wall clock in ms at which it is forgotten, in ascending order."""
        self._begun_ms = wall_ms()
        """Wall clock in ms since when nonces are remembered. Older passes are refused."""

    @property
    def proven(self) -> bool:
        """True if this cluster has a secret. Then a node's statement about a client is always proven."""
        return bool(self._keyring().keys)

    def made(self, who: str, address: str, to: NodeName, method: str, path: str, body: bytes) -> dict[str, str]:
        """Returns the header with a pass for one request to the node `to`; {} in a cluster without a secret."""
        keyring = self._keyring()
        if not keyring.keys:
            return {}
        told = address if _ADDRESS.fullmatch(address) else "-"
        words = [keyring.newest.hex(), str(self._node), str(to), who, told, str(self._wall_ms()), self._nonce()]
        proof = _proof(keyring.keys[0], self._uuid(), words, method, path, body)
        return {PASS_HEADER: " ".join(["1", *words, proof])}

    def check(self, given: str, method: str, path: str, body: bytes) -> Passed:
        """Returns the words of a pass that came with a request. Raises ApiError if it is malformed, if its key is
        unknown or its proof wrong, if it is for another node, if its time differs too much, or if it was used before. A
        pass from before this object was made is refused, too: it may have been used then."""
        match = _PASS.fullmatch(given)
        if match is None:
            raise _bad_pass("it has another form", _LEAVE_IT)
        key = self._keyring().key(bytes.fromhex(match["key"]))
        if key is None:
            raise _bad_pass("it is proven with a key that this node does not have", "compare raftmq secret status")
        right = _proof(key, self._uuid(), given.split(" ")[1:-1], method, path, body)
        if not hmac.compare_digest(right, match["proof"]):
            raise _bad_pass("its proof is wrong", _LEAVE_IT)
        by, who = match["by"], match["who"]
        if by == str(TOOL) and who != OPERATOR:
            raise _bad_pass("a tool names another user than the operator", _LEAVE_IT)
        if match["to"] != str(self._node):
            raise _bad_pass(f"it is for node {match['to']}, and this is node {self._node}", "see raftmq node list")
        now_ms = self._wall_ms()
        off_ms = abs(now_ms - int(match["time"]))
        if off_ms > WINDOW_MS:
            other = f"node {by}" if by != str(TOOL) else "the operator's machine"
            why = f"the clocks of {other} and of node {self._node} differ by {off_ms // 1000} s"
            raise _bad_pass(why, "set the clocks")
        self._begun_ms = min(self._begun_ms, now_ms)  # if the clock was set back, new passes must count
        if int(match["time"]) < self._begun_ms:
            raise _bad_pass(f"it was made before node {self._node} started, and may have been used then", "ask again")
        self._remember(bytes.fromhex(match["nonce"]), now_ms)
        return Passed(int(by) if by.isdecimal() else by, who, match["address"], bytes.fromhex(match["key"]))

    def knows(self, key: bytes) -> bool:
        """Returns True if the keyring still has the key with that id."""
        return self._keyring().key(key) is not None

    def _nonce(self) -> str:
        return self._entropy(16).hex()

    def _remember(self, nonce: bytes, now_ms: int) -> None:
        nonces = self._nonces
        while nonces and next(iter(nonces.values())) < now_ms:
            nonces.popitem(last=False)
        if nonce in nonces:
            raise _bad_pass("it came a second time", "ask again")
        if len(nonces) >= self._nonces_max:
            why = f"{self._nonces_max} requests were passed on to this node within {2 * WINDOW_MS // 1000} s"
            raise ApiError("busy", why, f"ask node {self._node} itself")
        nonces[nonce] = now_ms + 2 * WINDOW_MS


def _proof(key: bytes, uuid: str, words: Sequence[str], method: str, path: str, body: bytes) -> str:
    derived = hmac.digest(key, _KEY_LABEL, "sha256")
    parts = [_LABEL, uuid.encode(), *[word.encode() for word in words], method.encode(), path.encode()]
    parts.append(hashlib.sha256(body).digest())
    return hmac.digest(derived, b"".join([len(part).to_bytes(4, "big") + part for part in parts]), "sha256").hex()


def _bad_pass(why: str, hint: str) -> ApiError:
    return ApiError("bad_pass", f"the pass is refused: {why}", hint)

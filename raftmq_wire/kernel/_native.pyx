# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The native kernel: compiled versions of the hot functions of RaftMQ. Most are about plain sends: from requests to
queued sends, from queued sends to the bytes of an entry, and from results to answers.

Each public name here is either a twin or a shortcut. A twin (`raftmq_wire.kernel.twin`) has a Python version of the
same name, which documents it and is the reference. A shortcut (`raftmq_wire.kernel.shortcut`) handles the usual cases
of what Python code can do in full. A shortcut handles *plain* sends one after the other; at the first send that is not
plain it stops, and returns the number of that send, which Python handles. Therefore nothing here refuses a request or
words an error. Python (`room`) says how many bytes of sends a node may hold. Layouts: `raftmq_wire.codec` (frame),
`raftmq_wire.message_format` (stored message), `statemachine.payload` (item, session row, key).

The directives above switch off Python's bounds checks, so the code that computes an index into bytes must check it.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_GetItem
from cpython.list cimport PyList_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from cpython.object cimport PyObject
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport INT32_MAX, INT32_MIN, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memchr, memcmp, memcpy, memset

import logging
import struct

from raftmq_wire.checksums import crc32c

from raftmq_wire.message_format import java_hash
from raftmq_wire.crc import crc32

cdef extern from *:
    """
    #ifndef RAFTMQ_KERNEL_SOURCE
    #define RAFTMQ_KERNEL_SOURCE ""
    #endif
    """
    const char* RAFTMQ_KERNEL_SOURCE

cdef extern from *:
    """
    #include <stddef.h>
    #include <stdint.h>
    #include <string.h>
    /* CRC32C by the instruction that x86 has for it since SSE 4.2; other processors take the library's. */
    #if defined(__x86_64__) && defined(__GNUC__)
    static int raftmq_has_crc32c(void) {
        __builtin_cpu_init();
        return __builtin_cpu_supports("sse4.2") != 0;
    }
    __attribute__((target("sse4.2")))
    static uint32_t raftmq_crc32c(uint32_t before, const uint8_t* at, size_t size) {
        unsigned long long crc = (uint32_t)~before, eight;
        for (; size >= 8; size -= 8, at += 8) {
            memcpy(&eight, at, 8);
            crc = __builtin_ia32_crc32di(crc, eight);
        }
        for (; size > 0; size--, at++) crc = __builtin_ia32_crc32qi((uint32_t)crc, *at);
        return ~(uint32_t)crc;
    }
    #else
    static int raftmq_has_crc32c(void) { return 0; }
    static uint32_t raftmq_crc32c(uint32_t before, const uint8_t* at, size_t size) {
        (void)before; (void)at; (void)size; return 0;
    }
    #endif
    """
    bint raftmq_has_crc32c() nogil
    uint32_t raftmq_crc32c(uint32_t before, const uint8_t* at, size_t size) nogil

VERSION = 12
SOURCE = RAFTMQ_KERNEL_SOURCE.decode()

logger = logging.getLogger(__name__)

cdef enum:
    KIND_OF_CLIENTS_MAX = 1  # the highest kind of message that clients send: NORMAL (0) or RETRY (1)
    MESSAGE_FIXED = 74  # bytes of a stored message without body, topic field, properties and the two addresses
    MESSAGE_HEAD = 48  # those of MESSAGE_FIXED that come before the first address
    HOST_V4 = 8  # bytes of an IPv4 address with its port; HOST_V6: of an IPv6 address
    HOST_V6 = 20
    SYS_FLAG_BORN_V6 = 0x10
    SYS_FLAG_STORE_V6 = 0x20
    SYS_FLAGS_OF_A_COPY = ~0x3C
    PACKED_ITEM = 32
    SESSION_HEAD = 40
    SESSION_ROW = 32
    PROPERTIES_ROOM = 65536
    HEADER_MAX = 1 << 20  # the longest request header, in bytes; equal to `raftmq_wire.codec.HEADER_BYTES_MAX`

cdef uint32_t MAGIC_V1 = 0xDAA320A7
cdef uint32_t MAGIC_V2 = 0xDAA320AB


cdef inline void put16(uint8_t* at, uint32_t value) noexcept nogil:
    at[0] = (value >> 8) & 0xFF
    at[1] = value & 0xFF


cdef inline void put32(uint8_t* at, uint32_t value) noexcept nogil:
    at[0] = value >> 24
    at[1] = (value >> 16) & 0xFF
    at[2] = (value >> 8) & 0xFF
    at[3] = value & 0xFF


cdef inline void put64(uint8_t* at, uint64_t value) noexcept nogil:
    put32(at, <uint32_t>(value >> 32))
    put32(at + 4, <uint32_t>value)


cdef inline uint32_t get32(const uint8_t* at) noexcept nogil:
    return (<uint32_t>at[0] << 24) | (<uint32_t>at[1] << 16) | (<uint32_t>at[2] << 8) | at[3]


cdef inline uint64_t get64(const uint8_t* at) noexcept nogil:
    return (<uint64_t>get32(at) << 32) | get32(at + 4)


# --- bytes to frames --------------------------------------------------------------------------------------------------


def frames(bytes data not None, Py_ssize_t limit):
    """Finds the complete frames in received bytes; the twin of `cluster.runtime.framing.frames`."""
    cdef const unsigned char* start = data
    cdef Py_ssize_t at = 0, end = len(data), stop
    cdef int32_t length
    cdef list found = []
    while end - at >= 4:
        length = <int32_t>get32(start + at)
        stop = at + 4 + length
        if length < 0 or length > limit or stop > end:
            return found, at, length
        found.append((at + 4, stop))
        at = stop
    return found, at, None


# --- records ----------------------------------------------------------------------------------------------------------


@cython.final
cdef class QueueCursor:
    cdef public int64_t topic_id, queue_id, next_offset, base, bytes
    cdef public list items

    def __init__(self, topic_id, queue_id, next_offset):
        self.topic_id = topic_id
        self.queue_id = queue_id
        self.next_offset = next_offset
        self.base = self.next_offset
        self.bytes = 0
        self.items = []


@cython.final
cdef class TopicSlot:
    cdef public object name, dedup, cursor
    cdef public int64_t topic_id, write_queues, queues, next_queue
    cdef public int perm, ack
    cdef public bint v2
    cdef public bytes field
    cdef public list cursors
    cdef bint strict

    def __init__(self, name, topic_id, write_queues, queues, perm, dedup, cursor, ack=0):
        encoded = name.encode()
        self.name = name
        self.topic_id = topic_id
        self.write_queues = max(1, write_queues)
        self.queues = queues
        self.perm = perm
        self.dedup = dedup
        self.strict = dedup == "strict"
        self.ack = ack
        self.v2 = len(encoded) > 127
        self.field = len(encoded).to_bytes(2 if self.v2 else 1, "big") + encoded
        self.cursor = cursor
        self.cursors = [None] * max(1, queues)
        self.next_queue = 0

    def open_cursor(self, queue_id):
        cursor = self.cursors[queue_id]
        if cursor is None:
            cursor = self.cursors[queue_id] = self.cursor(self.topic_id, queue_id)
        return cursor


cdef str GIVEN_BACK = "a hold gives back once what it took"


@cython.final
@cython.no_gc
cdef class Account:
    cdef readonly int64_t bytes, requests
    cdef Account above

    def __init__(self, Account above=None):
        self.bytes = 0
        self.requests = 0
        self.above = above

    cdef inline void count(self, int64_t requests, int64_t size) noexcept:
        cdef Account account = self
        while account is not None:
            account.requests += requests
            account.bytes += size
            account = account.above


@cython.final
@cython.no_gc
@cython.freelist(1024)
cdef class Hold:
    cdef Account connection, node
    cdef int64_t size

    def __init__(self, Account connection, Account node, int64_t size):
        self.connection = connection
        self.node = node
        self.size = size
        if connection is not None:
            connection.count(1, size)
        if node is not None:
            node.count(1, size)

    cpdef answered(self):
        cdef Account account = self.connection
        if account is None:
            raise RuntimeError(GIVEN_BACK)
        self.connection = None
        account.count(-1, -self.size)

    cpdef decided(self):
        cdef Account account = self.node
        if account is None:
            raise RuntimeError(GIVEN_BACK)
        self.node = None
        account.count(-1, -self.size)

    def ended(self):
        if self.connection is None and self.node is None:
            raise RuntimeError(GIVEN_BACK)
        if self.connection is not None:
            self.answered()
        if self.node is not None:
            self.decided()


cdef Hold NO_HOLD = Hold(None, None, 0)


def hold_each(list requests, Account connection not None, Account node not None):
    """Takes a Hold for each request. Returns the requests' bytes. It is the twin of `cluster.flow.hold.hold_each`."""
    cdef int64_t total = 0, others = 0
    cdef Py_ssize_t taken = 0
    cdef Send send
    cdef Hold hold
    for request in requests:
        if type(request) is not Send:
            request.hold = Hold(connection, node, request.size)
            others += request.size
            continue
        send = <Send>request
        hold = Hold.__new__(Hold)
        hold.connection = connection
        hold.node = node
        hold.size = send.size
        send.hold = hold
        total += send.size
        taken += 1
    connection.count(taken, total)
    node.count(taken, total)
    return total + others


def decide_each(list requests):
    """Calls `Hold.decided` for each request; the twin of `cluster.flow.hold.decide_each`."""
    for request in requests:
        if type(request) is Send:
            _hold_of(<Send>request).decided()
        else:
            request.hold.decided()


cdef inline Hold _hold_of(Send send):
    return send.hold if send.hold is not None else NO_HOLD


@cython.final
cdef class ConnectionSession:
    cdef public bytes producer_id
    cdef public int64_t next_sequence, low
    cdef set settled

    def __init__(self, bytes producer_id):
        self.producer_id = producer_id
        self.next_sequence = 1
        self.low = 1
        self.settled = set()

    @property
    def pending(self):
        return self.next_sequence - self.low - len(self.settled)

    def issue(self):
        sequence = self.next_sequence
        self.next_sequence = sequence + 1
        return self.producer_id, sequence, self.low

    cpdef settle(self, int64_t sequence):
        if sequence == self.low and sequence < self.next_sequence:
            self.low = sequence + 1
            while self.settled and self.low in self.settled:
                self.settled.remove(self.low)
                self.low += 1
        elif self.low < sequence < self.next_sequence:
            self.settled.add(sequence)


@cython.final
@cython.no_gc
cdef class MessageHead:
    cdef public int64_t sys_flag, born_ms, reconsume_times, prepared_position
    cdef public bytes born_host

    def __init__(self, sys_flag, born_ms, born_host, reconsume_times, prepared_position=0):
        self.sys_flag = sys_flag
        self.born_ms = born_ms
        self.born_host = born_host
        self.reconsume_times = reconsume_times
        self.prepared_position = prepared_position


@cython.final
@cython.no_gc
@cython.freelist(1024)
cdef class BatchMessage:
    cdef public int64_t flag, tag_hash
    cdef public uint64_t key_hash
    cdef public bytes body, properties, unique_key
    cdef public MessageHead head

    def __init__(self, flag, body, properties, tag_hash, key_hash, unique_key=b"", head=None):
        self.flag = flag
        self.body = body
        self.properties = properties
        self.tag_hash = tag_hash
        self.key_hash = key_hash
        self.unique_key = unique_key
        self.head = head


@cython.final
@cython.no_gc
@cython.freelist(1024)
cdef class Send:
    cdef public object connection
    cdef public int64_t size
    cdef object _origin
    cdef bytes header  # the request's header, if `Intake` took the request; otherwise None
    cdef Intake intake
    cdef int64_t opaque
    cdef public bint oneway
    cdef public TopicSlot slot
    cdef public int64_t queue_id, flag, sys_flag, born_ms
    cdef public bytes born_host
    cdef public int64_t reconsume_times
    cdef public bytes body, properties
    cdef public int64_t tag_hash
    cdef object _unique_key
    cdef bytes key  # the bytes of `unique_key`; None if the key was given as text
    cdef public int kind
    cdef public bytes producer_id
    cdef public int64_t sequence, low_sequence
    cdef public tuple batch
    cdef public int64_t received_ms
    cdef public int ack
    cdef public int64_t prepared_position
    cdef public object schedule, failure, effect
    cdef public int64_t due_ms
    cdef public object carried, done
    cdef public int64_t user
    cdef public bint issued
    cdef public uint64_t content
    cdef public Hold hold
    cdef public int64_t paced_ms

    def __init__(
        self,
        connection,
        size,
        origin,
        oneway,
        slot,
        queue_id,
        flag,
        sys_flag,
        born_ms,
        born_host,
        reconsume_times,
        body,
        properties,
        tag_hash,
        unique_key,
        kind,
        producer_id,
        sequence,
        low_sequence,
        batch,
        received_ms,
        ack=0,
        prepared_position=0,
        schedule=None,
        failure=None,
        effect=None,
        due_ms=0,
        carried=None,
        done=None,
        user=0,
        issued=False,
        content=0,
        hold=NO_HOLD,
        paced_ms=0,
    ):
        self.connection = connection
        self.size = size
        self._origin = origin
        self.oneway = oneway
        self.slot = slot
        self.queue_id = queue_id
        self.flag = flag
        self.sys_flag = sys_flag
        self.born_ms = born_ms
        self.born_host = born_host
        self.reconsume_times = reconsume_times
        self.body = body
        self.properties = properties
        self.tag_hash = tag_hash
        self._unique_key = unique_key
        self.kind = kind
        self.producer_id = producer_id
        self.sequence = sequence
        self.low_sequence = low_sequence
        self.batch = batch
        self.received_ms = received_ms
        self.ack = ack
        self.prepared_position = prepared_position
        self.schedule = schedule
        self.failure = failure
        self.effect = effect
        self.due_ms = due_ms
        self.carried = carried
        self.done = done
        self.user = user
        self.issued = issued
        self.content = content
        self.hold = hold
        self.paced_ms = paced_ms

    @property
    def origin(self):
        if self._origin is None and self.header is not None:
            self._origin = self.intake.origin_of(self.connection, self.header, self.body, self.size, self.user)
        return self._origin

    @property
    def unique_key(self):
        if self._unique_key is None:
            self._unique_key = self.key.decode("utf-8", "replace")
        return self._unique_key


# --- requests to sends ------------------------------------------------------------------------------------------------


cdef enum:
    CODE = 1 << 0
    OPAQUE = 1 << 1
    FLAG = 1 << 2
    REST = 1 << 3
    EXT = 1 << 4
    TOPIC = 1 << 5
    PROPERTIES = 1 << 6
    FIELDS = 1 << 7  # the bit of field "a"; the bits of the fields "b" to "z" follow


cdef struct Header:
    int64_t code, opaque, flag, version
    int64_t queue_id, sys_flag, born_ms, message_flag, reconsume_times
    const uint8_t* topic
    Py_ssize_t topic_len
    Py_ssize_t properties_len
    uint64_t seen
    bint is_batch
    bint foreign  # True if the properties have characters beyond ASCII


cdef enum:
    MARKS_MAX = 48  # the most ext fields of a signed send; a send of the Java client has about 20
    AT_ONCE = 2047  # the most bytes that hashlib hashes without releasing the GIL
    SIGNATURE = 28  # characters of a signature: 20 bytes in base64
    V4_9_3 = 399  # equal to `raftmq_wire.signature.V4_9_3`


cdef struct Share:
    # The user whose sends one read contains, and the bytes that they may still take (`room`).
    int64_t user, room
    bint asked


cdef struct Mark:
    const uint8_t* name
    const uint8_t* value  # NULL: the field is null, so it is not signed
    Py_ssize_t name_size, value_size


cdef struct Marks:
    Mark each[MARKS_MAX]  # the ext fields, sorted by name
    Py_ssize_t count


cdef bint mark(
    Marks* marks, const uint8_t* name, Py_ssize_t name_size, const uint8_t* value, Py_ssize_t value_size
) noexcept nogil:
    """Inserts a field into `marks`, which are sorted by name. Returns False if the name is there already, or if `marks`
    is full."""
    cdef Py_ssize_t at = marks.count
    cdef Mark* before
    cdef int side
    if at == MARKS_MAX:
        return False
    while at > 0:
        before = &marks.each[at - 1]
        side = memcmp(name, before.name, min(name_size, before.name_size))
        if side == 0:
            if name_size == before.name_size:
                return False
            side = 1 if name_size > before.name_size else -1
        if side > 0:
            break
        marks.each[at] = before[0]
        at -= 1
    marks.each[at].name = name
    marks.each[at].name_size = name_size
    marks.each[at].value = value
    marks.each[at].value_size = value_size
    marks.count += 1
    return True


cdef inline bint mark_json(
    Marks* marks, const uint8_t* name, Py_ssize_t name_size, const uint8_t* value, const uint8_t* stop
) noexcept nogil:
    """Inserts a field whose value is given as JSON text [value, stop) without escapes. Returns False as `mark` does,
    and for -0, which Python writes in another way."""
    if value[0] == c'"':
        return mark(marks, name, name_size, value + 1, stop - value - 2)
    if value[0] == c'n':
        return mark(marks, name, name_size, NULL, 0)
    return not (value[0] == c'-' and value[1] == c'0') and mark(marks, name, name_size, value, stop - value)


cdef inline const uint8_t* blank(const uint8_t* p, const uint8_t* end) noexcept nogil:
    while p < end and (p[0] == c' ' or p[0] == c'\n' or p[0] == c'\r' or p[0] == c'\t'):
        p += 1
    return p


cdef inline const uint8_t* text(const uint8_t* p, const uint8_t* end, const uint8_t** start) noexcept nogil:
    """Parses a JSON string of printable ASCII without escapes, whose opening quote is at `p`. Returns the position
    after the closing quote, and sets `start` to the first character; returns NULL if there is no such string."""
    if p >= end or p[0] != c'"':
        return NULL
    p += 1
    start[0] = p
    while p < end and p[0] != c'"':
        if p[0] < 0x20 or p[0] > 0x7E or p[0] == c'\\':
            return NULL
        p += 1
    return p + 1 if p < end else NULL


cdef inline const uint8_t* named(
    const uint8_t* p, const uint8_t* end, const uint8_t** name, Py_ssize_t* size
) noexcept nogil:
    """Parses the name of an object's member and the colon after it. Returns the position of the member's value, and
    sets `name` and `size`; returns NULL if the name is not a plain string (`text`)."""
    p = text(p, end, name)
    if p == NULL:
        return NULL
    size[0] = p - name[0] - 1
    p = blank(p, end)
    return blank(p + 1, end) if p < end and p[0] == c':' else NULL


cdef inline const uint8_t* number(const uint8_t* p, const uint8_t* end, int64_t* value) noexcept nogil:
    """Parses an integer of at most 18 digits without leading zeros into `value`. Returns the position after it; NULL if
    there is no such integer."""
    cdef bint negative = p < end and p[0] == c'-'
    cdef int64_t found = 0
    cdef const uint8_t* first
    if negative:
        p += 1
    first = p
    while p < end and c'0' <= p[0] <= c'9':
        if p - first == 18:
            return NULL
        found = 10 * found + (p[0] - c'0')
        p += 1
    if p == first or (first[0] == c'0' and p - first > 1) or (p < end and (p[0] == c'.' or p[0] | 0x20 == c'e')):
        return NULL
    value[0] = -found if negative else found
    return p


cdef inline const uint8_t* quoted(const uint8_t* p, const uint8_t* end, int64_t* value) noexcept nogil:
    """Parses an integer as `number` does, with or without quotes around it."""
    if p < end and p[0] == c'"':
        p = number(p + 1, end, value)
        return p + 1 if p != NULL and p < end and p[0] == c'"' else NULL
    return number(p, end, value)


cdef inline const uint8_t* word(const uint8_t* p, const uint8_t* end, const char* name, Py_ssize_t size) noexcept nogil:
    return p + size if end - p >= size and memcmp(p, name, size) == 0 else NULL


cdef inline const uint8_t* truth(const uint8_t* p, const uint8_t* end, bint* value) noexcept nogil:
    """Parses true or false, with or without quotes, or null, which means false, into `value`. Returns the position
    after it; NULL if it is none of these."""
    cdef bint is_text = p < end and p[0] == c'"'
    cdef const uint8_t* stop
    if is_text:
        p += 1
    stop = word(p, end, b"true", 4)
    value[0] = stop != NULL
    if stop == NULL:
        stop = word(p, end, b"false", 5)
    if stop == NULL and not is_text:
        return word(p, end, b"null", 4)
    if stop != NULL and is_text:
        return stop + 1 if stop < end and stop[0] == c'"' else NULL
    return stop


cdef inline const uint8_t* scalar(const uint8_t* p, const uint8_t* end) noexcept nogil:
    """Skips a value that is not needed. Returns the position after it; NULL if it is not a plain string, integer,
    boolean or null."""
    cdef const uint8_t* start
    cdef int64_t value
    cdef bint ignored
    if p >= end:
        return NULL
    if p[0] == c'"':
        return text(p, end, &start)
    if p[0] == c't' or p[0] == c'f' or p[0] == c'n':
        return truth(p, end, &ignored)
    return number(p, end, &value)


cdef inline int hexed(uint8_t c) noexcept nogil:
    if c'0' <= c <= c'9':
        return c - c'0'
    c |= 0x20
    return c - c'a' + 10 if c'a' <= c <= c'f' else -1


cdef const uint8_t* unescaped(
    const uint8_t* p, const uint8_t* end, uint8_t* into, Py_ssize_t* size, bint* foreign
) noexcept nogil:
    """Parses the string at `p`, and writes it without escapes to `into`, which has PROPERTIES_ROOM bytes. Sets `size`
    to the bytes written, and `foreign` to whether some are beyond ASCII. Returns the position after the string; NULL if
    it does not fit or has escapes of characters beyond ASCII."""
    cdef Py_ssize_t n = 0
    cdef uint8_t c
    cdef int digit, at, code
    foreign[0] = False
    if p >= end or p[0] != c'"':
        return NULL
    p += 1
    while p < end and n < PROPERTIES_ROOM:
        c = p[0]
        if c == c'"':
            size[0] = n
            return p + 1
        if c == c'\\':
            if end - p < 2:
                return NULL
            c = p[1]
            p += 2
            if c == c'u':
                if end - p < 4:
                    return NULL
                code = 0
                for at in range(4):
                    digit = hexed(p[at])
                    if digit < 0:
                        return NULL
                    code = code << 4 | digit
                if code > 0x7F:
                    return NULL
                c = <uint8_t>code
                p += 4
            elif c == c'n':
                c = 10
            elif c == c't':
                c = 9
            elif c == c'r':
                c = 13
            elif c == c'b':
                c = 8
            elif c == c'f':
                c = 12
            elif c != c'"' and c != c'\\' and c != c'/':
                return NULL
            into[n] = c
            n += 1
            continue
        if c < 0x20:
            return NULL
        if c > 0x7E:
            foreign[0] = True
        into[n] = c
        n += 1
        p += 1
    return NULL


cdef const uint8_t* fields(
    const uint8_t* p, const uint8_t* end, Header* h, uint8_t* scratch, Marks* marks
) noexcept nogil:
    """Parses the object `extFields` of a send with one-letter names into `h`, and its fields into `marks` unless that
    is NULL. Returns the position after the object; NULL if it is not plain."""
    cdef const uint8_t* key
    cdef const uint8_t* value_at
    cdef const uint8_t* ignored_at
    cdef Py_ssize_t size
    cdef int64_t value
    cdef bint ignored
    cdef uint64_t bit
    if p >= end or p[0] != c'{':
        return NULL
    p = blank(p + 1, end)
    if p < end and p[0] == c'}':
        return p + 1
    while True:
        p = named(p, end, &key, &size)
        if p == NULL:
            return NULL
        value_at = p
        if size == 1 and c'a' <= key[0] <= c'z':
            bit = <uint64_t>FIELDS << (key[0] - c'a')
            if h.seen & bit:
                return NULL
            h.seen |= bit
            if key[0] == c'b':
                p = text(p, end, &h.topic)
                if p == NULL:
                    return NULL
                h.topic_len = p - h.topic - 1
            elif key[0] == c'i':
                p = unescaped(p, end, scratch, &h.properties_len, &h.foreign)
            elif key[0] == c'a' or key[0] == c'c':
                p = text(p, end, &ignored_at)
            elif key[0] == c'm':
                p = truth(p, end, &h.is_batch)
            elif key[0] == c'l':
                p = word(p, end, b"null", 4)
            elif key[0] == c'j' and p < end and p[0] == c'n':
                p = word(p, end, b"null", 4)
            elif key[0] == c'd' or key[0] == c'e' or key[0] == c'f' or key[0] == c'g' or key[0] == c'h' or key[0] == c'j':
                p = quoted(p, end, &value)
                if p == NULL:
                    return NULL
                if key[0] == c'g':
                    if value < 0:
                        return NULL
                    h.born_ms = value
                elif value > INT32_MAX or value < INT32_MIN:
                    return NULL
                elif key[0] == c'e':
                    h.queue_id = value
                elif key[0] == c'h':
                    h.message_flag = value
                elif key[0] != c'd':
                    if value < 0:
                        return NULL
                    if key[0] == c'f':
                        h.sys_flag = value
                    else:
                        h.reconsume_times = value
            else:
                p = scalar(p, end)
        elif size >= 6 and memcmp(key, b"raftmq", 6) == 0:
            return NULL
        else:
            p = scalar(p, end)
        if p == NULL:
            return NULL
        if marks != NULL:
            if size == 1 and key[0] == c'i':
                if not mark(marks, key, size, scratch, h.properties_len):
                    return NULL
            elif not mark_json(marks, key, size, value_at, p):
                return NULL
        p = blank(p, end)
        if p >= end:
            return NULL
        if p[0] == c'}':
            return p + 1
        if p[0] != c',':
            return NULL
        p = blank(p + 1, end)


cdef bint scan(const uint8_t* p, const uint8_t* end, Header* h, uint8_t* scratch, Marks* marks) noexcept nogil:
    """Parses the JSON header [p, end) of a request. Returns True if it is the header of a plain send: then its fields
    are in `h`, its properties in `scratch`, and its ext fields in `marks` unless that is NULL."""
    cdef const uint8_t* key
    cdef Py_ssize_t size
    cdef uint64_t bit
    h.code = h.opaque = h.flag = h.version = h.sys_flag = h.born_ms = h.message_flag = h.reconsume_times = 0
    h.queue_id = -1
    h.topic = NULL
    h.topic_len = h.properties_len = 0
    h.seen = 0
    h.is_batch = h.foreign = False
    p = blank(p, end)
    if p >= end or p[0] != c'{':
        return False
    p = blank(p + 1, end)
    while True:
        p = named(p, end, &key, &size)
        if p == NULL:
            return False
        bit = 0
        if size == 4 and memcmp(key, b"code", 4) == 0:
            bit = CODE
            p = number(p, end, &h.code)
        elif size == 6 and memcmp(key, b"opaque", 6) == 0:
            bit = OPAQUE
            p = number(p, end, &h.opaque)
            if p == NULL or h.opaque > INT32_MAX or h.opaque < INT32_MIN:
                return False
        elif size == 4 and memcmp(key, b"flag", 4) == 0:
            bit = FLAG
            p = number(p, end, &h.flag)
        elif size == 7 and memcmp(key, b"version", 7) == 0:
            bit = REST
            p = number(p, end, &h.version)
            if p == NULL or h.version > INT32_MAX or h.version < INT32_MIN:
                return False
        elif size == 9 and memcmp(key, b"extFields", 9) == 0:
            bit = EXT
            if h.seen & EXT:
                return False
            p = fields(p, end, h, scratch, marks)
        elif size == 8 and memcmp(key, b"language", 8) == 0:
            p = text(p, end, &key)
        elif size == 6 and memcmp(key, b"remark", 6) == 0 and p < end and p[0] != c'"':
            p = word(p, end, b"null", 4)
        else:
            p = scalar(p, end)
        if p == NULL or h.seen & bit:
            return False
        h.seen |= bit
        p = blank(p, end)
        if p >= end:
            return False
        if p[0] == c'}':
            break
        if p[0] != c',':
            return False
        p = blank(p + 1, end)
    return blank(p + 1, end) == end and h.flag == 0 and h.topic_len > 0 and (h.code == 310 or h.code == 320)


cdef const char* _BASE64 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"


cdef bint is_base64(const uint8_t* text, const uint8_t* digest) noexcept nogil:
    """Returns True if the SIGNATURE characters at `text` are the base64 form of the 20 bytes at `digest`. Takes the
    same time in both cases."""
    cdef uint32_t three
    cdef int at
    cdef uint8_t wrong = text[27] ^ c'='
    for at in range(7):
        three = <uint32_t>digest[3 * at] << 16 | <uint32_t>digest[3 * at + 1] << 8
        if at < 6:
            three |= digest[3 * at + 2]
            wrong |= text[4 * at + 3] ^ <uint8_t>_BASE64[three & 63]
        wrong |= text[4 * at] ^ <uint8_t>_BASE64[three >> 18]
        wrong |= text[4 * at + 1] ^ <uint8_t>_BASE64[three >> 12 & 63]
        wrong |= text[4 * at + 2] ^ <uint8_t>_BASE64[three >> 6 & 63]
    return wrong == 0


cdef inline bint begins(const uint8_t* p, Py_ssize_t size, const char* name, Py_ssize_t length) noexcept nogil:
    return size >= length and memcmp(p, name, length) == 0


cdef inline bint gives(const uint8_t* p, const uint8_t* stop, const char* mark, Py_ssize_t size) noexcept nogil:
    """Returns True if the properties' entry [p, stop) has the name in `mark` (the name and 0x01) and a value that is
    not empty. If several entries of a name do, the last one counts (`raftmq_wire.properties`)."""
    return stop - p > size and memcmp(p, mark, size) == 0


cdef bytes value_of(const uint8_t* p, Py_ssize_t size, const char* mark, Py_ssize_t mark_size):
    """Returns the value of one property; b"" if no entry gives it a value. `mark`: the property's name and 0x01."""
    cdef const uint8_t* end = p + size
    cdef const uint8_t* stop
    cdef const uint8_t* value = NULL
    cdef Py_ssize_t value_size = 0
    while p < end:
        stop = <const uint8_t*>memchr(p, 2, end - p)
        if stop == NULL:
            stop = end
        if gives(p, stop, mark, mark_size):
            value, value_size = p + mark_size, stop - p - mark_size
        p = stop + 1
    return PyBytes_FromStringAndSize(<const char*>value, value_size) if value != NULL else b""


def property_of(bytes properties not None, bytes mark not None):
    """Returns the value of one property; the twin of `raftmq_wire.properties.property_of`."""
    return value_of(
        <const uint8_t*>PyBytes_AS_STRING(properties), PyBytes_GET_SIZE(properties),
        PyBytes_AS_STRING(mark), PyBytes_GET_SIZE(mark),
    )


cdef class PlainBatches:
    cdef int64_t properties_max, batch_max
    cdef bytes suffix
    cdef object new_key  # makes a key for a message without one; None: such a message is not plain
    cdef bytes key  # the UNIQ_KEY of the message that `_properties` parsed last
    cdef int64_t tag

    def __init__(self, limits, suffix):
        self.properties_max = limits.properties_bytes_max
        self.batch_max = limits.batch_messages_max
        self.suffix = suffix

    def split(self, bytes body not None):
        return self._split(<const uint8_t*>PyBytes_AS_STRING(body), PyBytes_GET_SIZE(body))

    cdef bint _is_plain(self, const uint8_t* p, Py_ssize_t size) noexcept nogil:
        """Returns True if the properties have none that Python must handle, such as a delay or a transaction."""
        cdef const uint8_t* end = p + size
        cdef const uint8_t* stop
        while p < end:
            size = end - p
            if p[0] == c'D':
                if begins(p, size, b"DELAY", 5):
                    return False
            elif p[0] == c'T':
                if begins(p, size, b"TIMER_D", 7) or begins(p, size, b"TRAN_MSG", 8):
                    return False
            elif p[0] == c'P':
                if begins(p, size, b"POP_CK\x01", 7):
                    return False
            elif p[0] == c'R':
                if begins(p, size, b"REPLY_TO_CLIENT\x01", 16):
                    return False
            elif p[0] == c'A':
                if begins(p, size, b"ACK_LEVEL\x01", 10):
                    return False
            elif p[0] == c'W' and begins(p, size, b"WAIT\x01false", 10):
                return False
            stop = <const uint8_t*>memchr(p, 2, size)
            if stop == NULL:
                break
            p = stop + 1
        return True

    cdef bytes _properties(self, const uint8_t* p, Py_ssize_t size):
        """Returns the properties in stored form; None if they are not plain. Sets `tag` to the hash of their tag (0
        without one) and `key` to their UNIQ_KEY, or to the new one that was added."""
        cdef const uint8_t* at = p
        cdef const uint8_t* end = p + size
        cdef const uint8_t* stop
        cdef const uint8_t* tag_at = NULL
        cdef const uint8_t* key_at = NULL
        cdef Py_ssize_t tag_size = 0, key_size = 0, letter, total
        cdef bytes stored, new_key
        cdef uint8_t* into
        cdef uint32_t hashed = 0
        cdef bint closed = size == 0 or (end - 1)[0] == 2
        if not self._is_plain(p, size):
            return None
        while at < end:
            stop = <const uint8_t*>memchr(at, 2, end - at)
            if stop == NULL:
                stop = end
            if gives(at, stop, b"UNIQ_KEY\x01", 9):
                key_at, key_size = at + 9, stop - at - 9
            elif gives(at, stop, b"TAGS\x01", 5):
                tag_at, tag_size = at + 5, stop - at - 5
            at = stop + 1
        if key_at == NULL and self.new_key is None:
            return None
        new_key = None if key_at != NULL else self.new_key()
        total = size + (not closed) + (10 + len(new_key) if new_key is not None else 0) + PyBytes_GET_SIZE(self.suffix)
        if total > self.properties_max:
            return None
        stored = PyBytes_FromStringAndSize(NULL, total)
        into = <uint8_t*>PyBytes_AS_STRING(stored)
        memcpy(into, p, size)
        into += size
        if not closed:
            into[0] = 2
            into += 1
        if new_key is not None:
            memcpy(into, b"UNIQ_KEY\x01", 9)
            memcpy(into + 9, PyBytes_AS_STRING(new_key), PyBytes_GET_SIZE(new_key))
            into += 9 + PyBytes_GET_SIZE(new_key)
            into[0] = 2
            into += 1
        memcpy(into, PyBytes_AS_STRING(self.suffix), PyBytes_GET_SIZE(self.suffix))
        self.tag = 0
        if tag_size > 0:
            for letter in range(tag_size):
                if tag_at[letter] > 0x7E:
                    self.tag = java_hash(PyBytes_FromStringAndSize(<const char*>tag_at, tag_size).decode("utf-8", "replace"))
                    break
                hashed = 31 * hashed + tag_at[letter]
            else:
                self.tag = <int32_t>hashed
        self.key = new_key if new_key is not None else PyBytes_FromStringAndSize(<const char*>key_at, key_size)
        return stored

    cdef tuple _split(self, const uint8_t* p, Py_ssize_t size):
        """Returns the messages in the body of a batch request; None if one is not plain or the body is malformed."""
        cdef const uint8_t* end = p + size
        cdef const uint8_t* properties_at
        cdef list messages = []
        cdef BatchMessage message
        cdef int64_t body_size, total
        cdef Py_ssize_t properties_size
        cdef bytes stored
        while p < end:
            if end - p < 22 or PyList_GET_SIZE(messages) == self.batch_max:
                return None
            total = <int32_t>get32(p)
            body_size = <int32_t>get32(p + 16)
            if body_size < 0 or body_size > end - p - 22:
                return None
            properties_at = p + 20 + body_size + 2
            properties_size = (<Py_ssize_t>(properties_at - 2)[0] << 8) | (properties_at - 1)[0]
            if properties_size > end - properties_at or total != 22 + body_size + properties_size:
                return None
            stored = self._properties(properties_at, properties_size)
            if stored is None:
                return None
            message = BatchMessage.__new__(BatchMessage)
            message.flag = <int32_t>get32(p + 12)
            message.body = PyBytes_FromStringAndSize(<const char*>p + 20, body_size)
            message.properties = stored
            message.tag_hash = self.tag
            message.unique_key = self.key
            messages.append(message)
            p = properties_at + properties_size
        return tuple(messages) if messages else None


@cython.final
cdef class Intake(PlainBatches):
    cdef object proposals, room, submit, retries, slot_of, origin_of
    cdef bint has_retries
    cdef dict plain, session_max
    cdef int64_t body_max
    cdef uint8_t* scratch

    def __cinit__(self):
        self.scratch = <uint8_t*>PyMem_Malloc(PROPERTIES_ROOM)
        if self.scratch == NULL:
            raise MemoryError()

    def __dealloc__(self):
        PyMem_Free(self.scratch)

    def __init__(self, proposals, room, submit, retries, limits, suffix, slot_of, new_key, origin_of):
        self.proposals = proposals
        self.room = room
        self.submit = submit
        self.retries = retries
        self.plain = proposals.plain
        self.session_max = proposals.session_max
        self.body_max = limits.message_bytes_max
        PlainBatches.__init__(self, limits, suffix)
        self.slot_of = slot_of
        self.new_key = new_key
        self.origin_of = origin_of

    def take(self, path, bytes data, list frames, Py_ssize_t at, judge=None):
        """Queues the plain sends among `frames`, from number `at` on. Returns the number of the first frame that it
        leaves to Python; `len(frames)` if it took all."""
        cdef ConnectionSession session = path.session
        cdef int64_t now
        cdef Share share
        cdef list sends = []
        cdef const uint8_t* base = <const uint8_t*>PyBytes_AS_STRING(data)
        cdef Py_ssize_t count = PyList_GET_SIZE(frames), start, stop
        cdef bytes born_host = path.born_host
        cdef object highest
        cdef tuple pair
        cdef Send send
        if session is None:
            return at
        highest = self.session_max.get(session.producer_id)
        if highest is None or highest >= session.next_sequence:
            return at
        now = self.proposals.now_ms
        self.has_retries = self.retries.count > 0  # read once for all sends of this read, none of which adds a retry
        # `room` is asked at the first send, because many calls take no send
        share.asked, share.user, share.room = False, 0, 0
        try:
            while at < count:
                pair = frames[at]
                start, stop = pair
                if not 0 <= start <= stop <= PyBytes_GET_SIZE(data):
                    raise ValueError(f"no frame of {PyBytes_GET_SIZE(data)} bytes is at {start} to {stop}")
                try:
                    send = self._send(path, session, born_host, base, start, stop, &share, judge)
                except Exception:
                    logger.exception("the kernel cannot take a send; it goes the long way")
                    break
                if send is None:
                    break
                send.received_ms = now
                share.room -= send.size
                sends.append(send)
                at += 1
        finally:
            if sends:
                self.submit(path, sends)
        return at

    cdef Send _send(
        self,
        object path,
        ConnectionSession session,
        bytes born_host,
        const uint8_t* base,
        Py_ssize_t start,
        Py_ssize_t stop,
        Share* share,
        object judge,
    ):
        cdef Header h
        cdef Marks marks
        cdef Send send
        cdef TopicSlot slot
        cdef Py_ssize_t header_at = start + 4, body_at, size = stop - start - 4
        cdef int64_t queue_id
        cdef bytes key, properties, body = None
        cdef tuple batch = (), right
        cdef int64_t user = 0
        cdef int64_t tag = 0
        cdef PyObject* found
        if size < 0 or base[start] != 0 or (share.asked and size > share.room):
            return None
        body_at = header_at + (get32(base + start) & 0xFFFFFF)
        if body_at > stop or body_at - header_at > HEADER_MAX:
            return None
        marks.count = 0
        if not scan(base + header_at, base + body_at, &h, self.scratch, NULL if judge is None else &marks):
            return None
        if stop - body_at > self.body_max:
            return None
        topic = PyBytes_FromStringAndSize(<const char*>h.topic, h.topic_len)
        found = PyDict_GetItem(self.plain, topic)
        if found != NULL:
            slot = <object>found
        else:
            slot = self.slot_of(topic)
            if slot is None:
                return None
        if h.foreign:
            try:
                PyUnicode_DecodeUTF8(<char*>self.scratch, h.properties_len, NULL)
            except UnicodeDecodeError:
                return None
        queue_id = h.queue_id
        if queue_id >= slot.queues:
            return None
        if judge is not None:
            body = PyBytes_FromStringAndSize(<const char*>base + body_at, stop - body_at)
            right = self._right(judge, &h, &marks, topic, body)
            if right is None:
                return None
            user = right[0]
        if not share.asked:
            share.asked, share.user, share.room = True, user, self.room(path.in_flight, user)
        if user != share.user or size > share.room:
            return None
        if h.is_batch:
            if not self._is_plain(self.scratch, h.properties_len):
                return None
            batch = self._split(base + body_at, stop - body_at)
            if batch is None:
                return None
            properties, key = b"", b""
        else:
            properties = self._properties(self.scratch, h.properties_len)
            if properties is None or (self.has_retries and self.retries.holds(user, slot.name, self.key)):
                return None
            key, tag = self.key, self.tag
        if queue_id < 0:
            queue_id = slot.next_queue % slot.write_queues
            slot.next_queue = queue_id + 1
        send = Send.__new__(Send)
        send.connection = path
        send.size = size
        send.header = PyBytes_FromStringAndSize(<const char*>base + header_at, body_at - header_at)
        send.intake = self
        send.opaque = h.opaque
        send.user = user
        send.slot = slot
        send.queue_id = queue_id
        send.flag = h.message_flag
        send.sys_flag = h.sys_flag & ~0x3C
        send.born_ms = h.born_ms
        send.born_host = born_host
        send.reconsume_times = h.reconsume_times
        if body is None:
            body = PyBytes_FromStringAndSize(<const char*>base + body_at, stop - body_at)
        send.body = body
        send.properties = properties
        send.tag_hash = tag
        send.key = key
        send.batch = batch
        send.issued = True
        send.producer_id = session.producer_id
        send.sequence = session.next_sequence
        session.next_sequence += 1
        send.low_sequence = session.low
        return send

    cdef tuple _right(self, object judge, Header* h, Marks* marks, bytes topic, bytes body):
        """Returns the right by which a user may send to the topic: (the user's id, the inner and the outer SHA-1 object
        of `raftmq_wire.signature.begun`, the user's secret). Returns None if the send does not have the user's
        signature, or the user has no right."""
        cdef Mark* field
        cdef Mark* name = NULL
        cdef Mark* signature = NULL
        cdef Py_ssize_t at, size = 0
        cdef bytes key, values, digest
        cdef uint8_t* into
        cdef PyObject* found
        cdef tuple right
        cdef bint together
        for at in range(marks.count):
            field = &marks.each[at]
            if field.value == NULL:
                continue
            if field.name_size == 9 and memcmp(field.name, b"AccessKey", 9) == 0:
                name = field
            elif field.name_size == 9 and memcmp(field.name, b"Signature", 9) == 0:
                signature = field
                continue
            elif h.version <= V4_9_3 and field.name_size == 17 and memcmp(field.name, b"_UNIQUE_KEY_QUERY", 17) == 0:
                field.value = NULL
                continue
            size += field.value_size
        if name == NULL or name.value_size == 0 or signature == NULL or signature.value_size != SIGNATURE:
            return None
        key = PyBytes_FromStringAndSize(NULL, name.value_size + 1 + PyBytes_GET_SIZE(topic))
        into = <uint8_t*>PyBytes_AS_STRING(key)
        memcpy(into, name.value, name.value_size)
        into[name.value_size] = 0
        memcpy(into + name.value_size + 1, PyBytes_AS_STRING(topic), PyBytes_GET_SIZE(topic))
        found = PyDict_GetItem(judge.rights, key)
        if found != NULL:
            right = <object>found
        else:
            right = judge.admit(key)
            if right is None:
                return None
        together = size + PyBytes_GET_SIZE(body) <= AT_ONCE
        values = PyBytes_FromStringAndSize(NULL, size + PyBytes_GET_SIZE(body) if together else size)
        into = <uint8_t*>PyBytes_AS_STRING(values)
        for at in range(marks.count):
            field = &marks.each[at]
            if field != signature and field.value != NULL:
                memcpy(into, field.value, field.value_size)
                into += field.value_size
        inner = right[1].copy()
        if together:
            memcpy(into, PyBytes_AS_STRING(body), PyBytes_GET_SIZE(body))
        inner.update(values)
        if not together:
            inner.update(body)
        outer = right[2].copy()
        outer.update(inner.digest())
        digest = outer.digest()
        if PyBytes_GET_SIZE(digest) != 20 or not is_base64(signature.value, <const uint8_t*>PyBytes_AS_STRING(digest)):
            return None
        if found == NULL:
            judge.proven(key, right)
        return right


# --- sends to an entry ------------------------------------------------------------------------------------------------


def cut(waiting, int64_t bytes_left, int64_t count_left):
    """Removes the sends of the next entry from `waiting`. Returns (sends, their bytes). It is the twin of the function
    in `cluster.replication.send_queue`."""
    cdef list sends = []
    cdef Send send
    cdef int64_t taken = 0
    cdef object popleft = waiting.popleft
    cdef Py_ssize_t left = len(waiting)
    while left and count_left > 0:
        send = waiting[0]
        if send.batch:
            bytes_left -= send.size
        else:
            bytes_left -= 115 + len(send.body) + len(send.properties) + len(send.slot.field)
        if bytes_left < 0 and sends:
            break
        popleft()
        left -= 1
        sends.append(send)
        taken += send.size
        count_left -= len(send.batch) or 1
    return sends, taken


cdef struct Fields:
    # The fields of a stored message that its send, or the head of the message that it copies, determines.
    int64_t sys_flag, born_ms, reconsume_times, prepared_position


cdef inline Fields _fields_of(Send send) noexcept:
    cdef Fields fields
    fields.sys_flag = send.sys_flag
    fields.born_ms = send.born_ms
    fields.reconsume_times = send.reconsume_times
    fields.prepared_position = send.prepared_position
    return fields


cdef inline Fields _fields_of_head(MessageHead head) noexcept:
    cdef Fields fields
    fields.sys_flag = head.sys_flag
    fields.born_ms = head.born_ms
    fields.reconsume_times = head.reconsume_times
    fields.prepared_position = head.prepared_position
    return fields


cdef bytes _message(
    bytes field,
    bint v2,
    int64_t queue_id,
    Fields* fields,
    bytes born_host,
    int64_t flag,
    bytes body,
    bytes properties,
    int64_t offset,
    int64_t position,
    int64_t store_ms,
    bytes store_host,
):
    """Returns the bytes of a stored message (`raftmq_wire.message_format`). `field`: the topic's name after its
    length."""
    cdef Py_ssize_t body_size = PyBytes_GET_SIZE(body), field_size = PyBytes_GET_SIZE(field)
    cdef Py_ssize_t properties_size = PyBytes_GET_SIZE(properties)
    cdef Py_ssize_t born_size = PyBytes_GET_SIZE(born_host), store_size = PyBytes_GET_SIZE(store_host)
    cdef Py_ssize_t total = MESSAGE_FIXED + born_size + store_size + body_size + field_size + properties_size
    cdef bytes message = PyBytes_FromStringAndSize(NULL, total)
    cdef uint8_t* at = <uint8_t*>PyBytes_AS_STRING(message)
    cdef uint32_t crc = crc32(body), sys_flag = <uint32_t>fields.sys_flag
    if born_size == HOST_V6:
        sys_flag |= SYS_FLAG_BORN_V6
    if store_size == HOST_V6:
        sys_flag |= SYS_FLAG_STORE_V6
    put32(at, total)
    put32(at + 4, MAGIC_V2 if v2 else MAGIC_V1)
    put32(at + 8, crc & INT32_MAX)
    put32(at + 12, <uint32_t>queue_id)
    put32(at + 16, <uint32_t>flag)
    put64(at + 20, offset)
    put64(at + 28, position)
    put32(at + 36, sys_flag)
    put64(at + 40, fields.born_ms)
    at += 48
    memcpy(at, PyBytes_AS_STRING(born_host), born_size)
    at += born_size
    put64(at, store_ms)
    memcpy(at + 8, PyBytes_AS_STRING(store_host), store_size)
    at += 8 + store_size
    put32(at, <uint32_t>fields.reconsume_times)
    put64(at + 4, fields.prepared_position)
    put32(at + 12, <uint32_t>body_size)
    at += 16
    memcpy(at, PyBytes_AS_STRING(body), body_size)
    at += body_size
    memcpy(at, PyBytes_AS_STRING(field), field_size)
    at += field_size
    put16(at, <uint32_t>properties_size)
    memcpy(at + 2, PyBytes_AS_STRING(properties), properties_size)
    return message


cdef bytes _item(int64_t position, bytes message, int64_t tag_hash, int64_t store_ms):
    """Returns the consume queue's item of a stored message: 32 bytes (`statemachine.payload`)."""
    cdef bytes item = PyBytes_FromStringAndSize(NULL, 32)
    cdef uint8_t* at = <uint8_t*>PyBytes_AS_STRING(item)
    cdef uint32_t crc = crc32c(message)
    put64(at, position)
    put32(at + 8, <uint32_t>PyBytes_GET_SIZE(message))
    put32(at + 12, crc)
    put64(at + 16, <uint64_t>tag_hash)
    put64(at + 24, store_ms)
    return item


@cython.final
cdef class _Keys:
    """Collects records of the message index, 8 bytes each, until `move` appends them to a bytearray."""

    cdef uint8_t* data
    cdef Py_ssize_t size, room

    def __dealloc__(self):
        PyMem_Free(self.data)

    cdef int add(self, uint32_t hashed, int64_t position) except -1:
        cdef uint8_t* data
        if self.room - self.size < 8:
            data = <uint8_t*>PyMem_Realloc(self.data, 2 * self.room + 4096)
            if data == NULL:
                raise MemoryError()
            self.data = data
            self.room = 2 * self.room + 4096
        put32(self.data + self.size, hashed)
        put32(self.data + self.size + 4, <uint32_t>position)
        self.size += 8
        return 0

    cdef int move(self, bytearray into) except -1:
        if self.size:
            into += PyBytes_FromStringAndSize(<const char*>self.data, self.size)
            self.size = 0
        return 0


cdef inline bint _has_words(bytes properties) noexcept:
    """Returns True if an entry of the properties begins with the name KEYS; its value may be empty."""
    cdef const char* p = PyBytes_AS_STRING(properties)
    cdef const char* end = p + PyBytes_GET_SIZE(properties)
    while p < end:
        if end - p >= 5 and memcmp(p, b"KEYS\x01", 5) == 0:
            return True
        p = <const char*>memchr(p, 2, end - p)
        if p == NULL:
            return False
        p += 1
    return False


cdef int _session_row(dict sessions, Send send, int64_t topic_id, int64_t offset, int64_t position) except -1:
    cdef bytes row = PyBytes_FromStringAndSize(NULL, 32)
    cdef uint8_t* at = <uint8_t*>PyBytes_AS_STRING(row)
    cdef list session
    put64(at, send.sequence)
    put32(at + 8, <uint32_t>topic_id)
    put32(at + 12, <uint32_t>send.queue_id)
    put64(at + 16, offset)
    put64(at + 24, position)
    session = sessions.get(send.producer_id)
    if session is None:
        sessions[send.producer_id] = [send.low_sequence, send.sequence, [row]]
        return 0
    if <object>session[0] < send.low_sequence:
        session[0] = send.low_sequence
    if <object>session[1] < send.sequence:
        session[1] = send.sequence
    (<list>session[2]).append(row)
    return 0


def add_messages(builder, Send send, Py_ssize_t at, Py_ssize_t end, QueueCursor cursor):
    """Adds the messages [at, end) of the batch in `send` to an entry; returns their positions in the log. It is the
    twin of the function in `cluster.replication.message_batch`."""
    cdef bytes store_host = builder.store_host, message, field
    cdef int64_t position = builder.position, store_ms = builder.store_ms, offset = 0, queue_id
    cdef list parts = builder.parts, items = cursor.items, places = []
    cdef bytearray records = builder.keys
    cdef TopicSlot slot = send.slot
    cdef bint queued = send.schedule is None, index = queued and builder.index, v2
    cdef object topic_id = slot.topic_id
    cdef _Keys keys = _Keys.__new__(_Keys)
    cdef Fields of_send = _fields_of(send), of_head
    cdef Fields* fields
    cdef bytes born_host
    cdef BatchMessage one
    if not 0 <= at <= end <= len(send.batch):
        raise IndexError(f"no messages {at} to {end} are in a batch of {len(send.batch)}")
    if queued:
        field, v2, queue_id = slot.field, slot.v2, send.queue_id
    else:
        field, v2, queue_id = send.schedule.topic.field, send.schedule.topic.v2, send.schedule.queue_id
    try:
        while at < end:
            one = send.batch[at]
            at += 1
            fields, born_host = &of_send, send.born_host
            if one.head is not None:
                of_head, born_host = _fields_of_head(one.head), one.head.born_host
                fields = &of_head
            if queued:
                offset = cursor.next_offset
            message = _message(
                field, v2, queue_id, fields, born_host, one.flag, one.body, one.properties,
                offset, position, store_ms, store_host,
            )
            parts.append(message)
            items.append(_item(position, message, one.tag_hash, store_ms))
            places.append(position)
            if index:
                if PyBytes_GET_SIZE(one.unique_key):
                    keys.add(crc32(one.unique_key, topic_id), position)
                if _has_words(one.properties):
                    keys.move(records)
                    builder.add_words(topic_id, one.properties, position)
            if queued:
                cursor.next_offset += 1
                if slot.strict and one.key_hash:
                    builder.add_unique(send, one.key_hash, one.body, offset, position)
            cursor.bytes += PyBytes_GET_SIZE(message)
            position += PyBytes_GET_SIZE(message)
    finally:
        builder.position = position
        keys.move(records)
    return tuple(places)


def add_plain(builder, list sends, Py_ssize_t at, list offsets, list positions):
    """Adds the plain sends from number `at` on to an entry. Returns the number of the first send that it leaves to
    Python; `len(sends)` if it took all. It is the twin of the function in `cluster.replication.message_batch`."""
    cdef Py_ssize_t count = PyList_GET_SIZE(sends)
    cdef bytes store_host = builder.store_host, message
    cdef int64_t position = builder.position, store_ms = builder.store_ms, offset, first
    cdef list parts = builder.parts, touched = builder.touched
    cdef dict sessions = builder.sessions
    cdef bytearray records = builder.keys
    cdef bint index = builder.index
    cdef _Keys keys = _Keys.__new__(_Keys)
    cdef Send send
    cdef TopicSlot slot
    cdef QueueCursor cursor
    cdef Fields fields
    cdef object topic_id, opened
    if PyBytes_GET_SIZE(store_host) != 8:
        return at
    try:
        while at < count:
            send = sends[at]
            slot = send.slot
            if send.kind > KIND_OF_CLIENTS_MAX or slot.strict or PyBytes_GET_SIZE(send.born_host) != 8:
                break
            if not 0 <= send.queue_id < PyList_GET_SIZE(slot.cursors):
                raise IndexError(f"topic {slot.name} has no queue {send.queue_id}")
            opened = slot.cursors[send.queue_id]
            cursor = opened if opened is not None else slot.open_cursor(send.queue_id)
            if not cursor.items:
                cursor.base = cursor.next_offset
                cursor.bytes = 0
                touched.append((cursor, send.kind))
            offset, first, topic_id = cursor.next_offset, position, slot.topic_id
            if send.batch:
                keys.move(records)
                builder.position = position
                positions.append(add_messages(builder, send, 0, len(send.batch), cursor))
                position = builder.position
            else:
                fields = _fields_of(send)
                message = _message(
                    slot.field, slot.v2, send.queue_id, &fields, send.born_host, send.flag, send.body, send.properties,
                    offset, position, store_ms, store_host,
                )
                parts.append(message)
                cursor.items.append(_item(position, message, send.tag_hash, store_ms))
                positions.append(first)
                if index:
                    if send.key is None:
                        send.key = send.unique_key.encode()
                    if PyBytes_GET_SIZE(send.key):
                        keys.add(crc32(send.key, topic_id), first)
                    if _has_words(send.properties):
                        keys.move(records)
                        builder.add_words(topic_id, send.properties, first)
                cursor.next_offset += 1
                cursor.bytes += PyBytes_GET_SIZE(message)
                position += PyBytes_GET_SIZE(message)
            offsets.append(offset)
            if PyBytes_GET_SIZE(send.producer_id):
                _session_row(sessions, send, slot.topic_id, offset, first)
            at += 1
    finally:
        builder.position = position
        keys.move(records)
    return at


def pack_sessions(dict sessions not None):
    """Packs the session rows of an entry; the twin of `cluster.replication.message_batch.pack_sessions`."""
    cdef Py_ssize_t size = 0
    cdef list session, rows
    cdef bytes packed, producer_id, row
    cdef uint8_t* at
    for session in sessions.values():
        rows = session[2]
        if PyList_GET_SIZE(rows) > 1:
            rows.sort()  # rows begin with their sequence, big-endian, so this sorts them by sequence
        size += SESSION_HEAD + SESSION_ROW * PyList_GET_SIZE(rows)
    packed = PyBytes_FromStringAndSize(NULL, size)
    at = <uint8_t*>PyBytes_AS_STRING(packed)
    for producer_id, session in sessions.items():
        rows = session[2]
        memset(at, 0, SESSION_HEAD)
        memcpy(at, PyBytes_AS_STRING(producer_id), min(PyBytes_GET_SIZE(producer_id), <Py_ssize_t>16))
        put64(at + 16, session[0])
        put64(at + 24, session[1])
        put32(at + 32, <uint32_t>PyList_GET_SIZE(rows))
        at += SESSION_HEAD
        for row in rows:
            if PyBytes_GET_SIZE(row) != SESSION_ROW:
                raise ValueError(f"a row of a session has {SESSION_ROW} bytes, not {PyBytes_GET_SIZE(row)}")
            memcpy(at, PyBytes_AS_STRING(row), SESSION_ROW)
            at += SESSION_ROW
    return packed


# --- stored messages to copies ----------------------------------------------------------------------------------------


cdef inline bint _same_head(MessageHead head, int64_t sys_flag, int64_t born_ms, const uint8_t* host, Py_ssize_t size,
                            int64_t reconsume_times) noexcept:
    return (
        head.sys_flag == sys_flag
        and head.born_ms == born_ms
        and head.reconsume_times == reconsume_times
        and PyBytes_GET_SIZE(head.born_host) == size
        and memcmp(PyBytes_AS_STRING(head.born_host), host, size) == 0
    )


cdef BatchMessage _copy(const uint8_t* p, const uint8_t* end, int64_t tag_hash, MessageHead like):
    """Returns a copy of the stored message [p, end); None if the bytes are not a message. `like`: the head of the copy
    before, which is used again if it is equal; or None."""
    cdef uint32_t magic = get32(p + 4), sys_flag = get32(p + 36)
    cdef int64_t born_ms = <int64_t>get64(p + 40)
    cdef Py_ssize_t born_size = HOST_V6 if sys_flag & SYS_FLAG_BORN_V6 else HOST_V4
    cdef Py_ssize_t store_size = HOST_V6 if sys_flag & SYS_FLAG_STORE_V6 else HOST_V4
    cdef const uint8_t* host = p + 48
    cdef const uint8_t* at = host + born_size + 8 + store_size
    cdef int64_t body_size, kept_flag = <int32_t>sys_flag & SYS_FLAGS_OF_A_COPY, reconsume_times
    cdef Py_ssize_t length = 1 if magic == MAGIC_V1 else 2, topic_size, properties_size
    cdef bytes body
    cdef BatchMessage copy
    if magic != MAGIC_V1 and magic != MAGIC_V2 or end - at < 16:
        return None
    reconsume_times, body_size = <int32_t>get32(at), get32(at + 12)
    at += 16
    if end - at - length - 2 < body_size:
        return None
    body = PyBytes_FromStringAndSize(<const char*>at, body_size)
    at += body_size
    topic_size = at[0] if length == 1 else (<Py_ssize_t>at[0] << 8) | at[1]
    at += length
    if end - at - 2 < topic_size:
        return None
    try:
        PyUnicode_DecodeUTF8(<char*>at, topic_size, NULL)
    except UnicodeDecodeError:
        return None
    at += topic_size
    properties_size = (<Py_ssize_t>at[0] << 8) | at[1]
    at += 2
    if end - at != properties_size or crc32(body) & INT32_MAX != get32(p + 8):
        return None
    if like is None or not _same_head(like, kept_flag, born_ms, host, born_size, reconsume_times):
        like = MessageHead(
            kept_flag, born_ms, PyBytes_FromStringAndSize(<const char*>host, born_size), reconsume_times
        )
    copy = BatchMessage.__new__(BatchMessage)
    copy.flag = <int32_t>get32(p + 16)
    copy.body = body
    copy.properties = PyBytes_FromStringAndSize(<const char*>at, properties_size)
    copy.tag_hash = tag_hash
    copy.unique_key = value_of(at, properties_size, b"UNIQ_KEY\x01", 9)
    copy.head = like
    return copy


def copies_of(bytes stored not None, bytes items not None):
    """Returns copies of the messages of a row, up to the first that cannot be copied. It is the twin of the function in
    `cluster.broker.message_copies`."""
    cdef const uint8_t* p = <const uint8_t*>PyBytes_AS_STRING(stored)
    cdef const uint8_t* end = p + PyBytes_GET_SIZE(stored)
    cdef const uint8_t* item = <const uint8_t*>PyBytes_AS_STRING(items)
    cdef const uint8_t* last = item + PyBytes_GET_SIZE(items)
    cdef list copies = []
    cdef int64_t size
    cdef BatchMessage copy
    cdef MessageHead like = None
    if PyBytes_GET_SIZE(items) % PACKED_ITEM:
        raise ValueError(f"{len(items)} bytes are not packed items")
    while item < last:
        size = get32(item + 8)
        if size < 48 or size > end - p or get32(p) != <uint32_t>size:
            break
        copy = _copy(p, p + size, <int64_t>get64(item + 16), like)
        if copy is None:
            break
        like = copy.head
        copies.append(copy)
        item += PACKED_ITEM
        p += size
    return tuple(copies)


# --- results to answers -----------------------------------------------------------------------------------------------


cdef bytes _QUEUE_ID = b'{"code":0,"extFields":{"queueId":"'
cdef bytes _MESSAGE_ID = b'","TRACE_ON":"true","MSG_REGION":"DefaultRegion","msgId":"'
cdef bytes _QUEUE_OFFSET = b'","queueOffset":"'
cdef bytes _KEY = b'","transactionId":"'
cdef bytes _OPAQUE = b'"},"flag":1,"language":"JAVA","opaque":'
cdef bytes _COMMA = b","
cdef const char* _HEX = b"0123456789ABCDEF"


@cython.final
cdef class _Answers:
    """Collects the bytes of answers to one connection, back to back."""

    cdef char* data
    cdef Py_ssize_t size, room

    def __dealloc__(self):
        PyMem_Free(self.data)

    cdef int reserve(self, Py_ssize_t more) except -1:
        cdef char* data
        if self.room - self.size < more:
            data = <char*>PyMem_Realloc(self.data, 2 * self.room + more + 16384)
            if data == NULL:
                raise MemoryError()
            self.data = data
            self.room = 2 * self.room + more + 16384
        return 0

    cdef inline void put(self, bytes data) noexcept:
        memcpy(self.data + self.size, PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))
        self.size += PyBytes_GET_SIZE(data)

    cdef inline void put_number(self, int64_t value) noexcept:
        cdef char digits[20]
        cdef Py_ssize_t at = 20
        cdef uint64_t left = <uint64_t>(-value) if value < 0 else <uint64_t>value
        while True:
            at -= 1
            digits[at] = <char>(c'0' + left % 10)
            left //= 10
            if not left:
                break
        if value < 0:
            at -= 1
            digits[at] = c'-'
        memcpy(self.data + self.size, digits + at, 20 - at)
        self.size += 20 - at

    cdef inline void put_id(self, bytes host, int64_t position) noexcept:
        cdef int shift
        self.put(host)
        for shift in range(60, -4, -4):
            self.data[self.size] = _HEX[(position >> shift) & 0xF]
            self.size += 1


def acknowledge(list sends, list offsets, list positions, Py_ssize_t at, bytes host, bytes tail, as_json):
    """Answers plain sends that are stored, from number `at` on. Returns the number of the first send that it leaves to
    Python; `len(sends)` if it answered all.

    `host`: the node's address in message ids, in hex. `tail`: the bytes of an answer after its opaque. `as_json`:
    returns a text as JSON, without the quotes.
    """
    cdef Py_ssize_t count = PyList_GET_SIZE(sends), begin, each
    cdef _Answers answers = _Answers.__new__(_Answers)
    cdef ConnectionSession session = None
    cdef object path = None
    cdef bint closed = True
    cdef Send send
    cdef bytes key
    cdef tuple places
    if PyList_GET_SIZE(offsets) < count or PyList_GET_SIZE(positions) < count:
        raise ValueError(f"{count} sends, and the places of {len(offsets)} and {len(positions)}")
    try:
        while at < count:
            send = sends[at]
            if send.header is None or send.oneway or send.done is not None or send.schedule is not None:
                break
            if send.connection is not path:
                if path is not None:
                    _hand(path, answers)
                path = send.connection
                closed = path.closed
                session = path.session
            _hold_of(send).answered()
            at += 1
            if closed:
                continue
            if session is not None and session.producer_id == send.producer_id:
                session.settle(send.sequence)
            key = _shown(send, as_json)
            places = positions[at - 1] if send.batch else None
            answers.reserve(300 + len(key) + len(tail) + (len(host) + 17) * (len(places) if send.batch else 1))
            begin = answers.size
            answers.size += 8
            answers.put(_QUEUE_ID)
            answers.put_number(send.queue_id)
            answers.put(_MESSAGE_ID)
            if send.batch:
                for each in range(len(places)):
                    if each:
                        answers.put(_COMMA)
                    answers.put_id(host, places[each])
            else:
                answers.put_id(host, positions[at - 1])
            answers.put(_QUEUE_OFFSET)
            answers.put_number(offsets[at - 1])
            answers.put(_KEY)
            answers.put(key)
            answers.put(_OPAQUE)
            answers.put_number(send.opaque)
            answers.put(tail)
            put32(<uint8_t*>answers.data + begin, <uint32_t>(answers.size - begin - 4))
            put32(<uint8_t*>answers.data + begin + 4, <uint32_t>(answers.size - begin - 8))
    finally:
        if path is not None:
            _hand(path, answers)
    return at


cdef int _hand(object path, _Answers answers) except -1:
    if answers.size:
        data = PyBytes_FromStringAndSize(answers.data, answers.size)
        answers.size = 0
        path.write_all(data)
    return 0


cdef bytes _shown(Send send, object as_json):
    """Returns the UNIQ_KEY of the send as the JSON of the answer contains it."""
    cdef Py_ssize_t at
    cdef char c
    for at in range(PyBytes_GET_SIZE(send.key)):
        c = PyBytes_AS_STRING(send.key)[at]
        if not (c'0' <= c <= c'9' or c'A' <= c <= c'Z' or c'a' <= c <= c'z'):
            return as_json(send.unique_key)
    return send.key


# --- rows and bytes to the body of a pull -----------------------------------------------------------------------------


cdef bint _HAS_CRC32C = raftmq_has_crc32c()


cdef uint32_t _checksum(const uint8_t* at, Py_ssize_t size) except? 0:
    """Returns the CRC-32C of the `size` bytes at `at`."""
    if _HAS_CRC32C:
        return raftmq_crc32c(0, at, size)
    return crc32c(PyBytes_FromStringAndSize(<const char*>at, size))


cdef inline Py_ssize_t _place(const uint8_t* item, uint64_t first, Py_ssize_t end) noexcept nogil:
    """Returns the offset in the block at which the item's message begins; `end`, the size of the block, if the message
    begins outside. `first`: the position in the log at which the block begins."""
    cdef uint64_t position = get64(item)
    return <Py_ssize_t>(position - first) if first <= position < first + <uint64_t>end else end


def body_of(bytes items not None, bytes block not None, uint64_t first):
    """Builds the body of a pull's answer; the twin of `cluster.broker.reads.pull_bodies.body_of`."""
    cdef const uint8_t* item = items
    cdef const uint8_t* data = block
    cdef const uint8_t* rows = item
    cdef Py_ssize_t rows_size = len(items), end = len(block), count = rows_size // PACKED_ITEM
    cdef Py_ssize_t number, at = 0, begin, size, good = 0
    cdef int64_t total = 0
    cdef uint64_t span
    cdef bint adjacent
    cdef bytes body
    cdef uint8_t* to
    if rows_size % PACKED_ITEM:
        raise struct.error(f"iterative unpacking requires a buffer of a multiple of {PACKED_ITEM} bytes")
    if not count:
        return b"", 0
    for number in range(count):
        total += get32(rows + number * PACKED_ITEM + 8)
    item = rows + (count - 1) * PACKED_ITEM
    span = get64(item) + get32(item + 8) - get64(rows)
    begin = _place(rows, first, end + 1)
    adjacent = begin <= end and span == <uint64_t>total
    total = 0
    for number in range(count):
        item = rows + number * PACKED_ITEM
        size = get32(item + 8)
        at = begin + total if adjacent else _place(item, first, end)
        if size > end - at or _checksum(data + at, size) != get32(item + 12):
            break
        total += size
        good += 1
    if adjacent:
        return (block if begin == 0 and total == end else block[begin : begin + total]), good
    body = PyBytes_FromStringAndSize(NULL, total)
    to = <uint8_t*>PyBytes_AS_STRING(body)
    for number in range(good):
        item = rows + number * PACKED_ITEM
        size = get32(item + 8)
        memcpy(to, data + _place(item, first, end), size)
        to += size
    return body, good


# --- the body of a pull to columns --------------------------------------------------------------------------------------


def message_starts(bytes data not None):
    """Finds where the messages of a pull's body begin; the twin of `raftmq.arrow.frames.message_starts`."""
    cdef const uint8_t* start = data
    cdef const uint8_t* message
    cdef Py_ssize_t size = len(data), at = 0, count = 0, body, length, number
    cdef uint32_t total, flags, crc
    cdef bytes starts
    cdef int64_t* begins
    while at < size:
        if size - at < MESSAGE_HEAD:
            return None
        total = get32(start + at)
        if total < MESSAGE_FIXED or total > size - at:
            return None
        at += total
        count += 1
    starts = PyBytes_FromStringAndSize(NULL, count * sizeof(int64_t))
    begins = <int64_t*>PyBytes_AS_STRING(starts)
    at = 0
    for number in range(count):
        message = start + at
        total, flags = get32(message), get32(message + 36)
        body = MESSAGE_HEAD + 8 + 16
        body += HOST_V6 if flags & SYS_FLAG_BORN_V6 else HOST_V4
        body += HOST_V6 if flags & SYS_FLAG_STORE_V6 else HOST_V4
        if body > total:
            return None
        length = get32(message + body - 4)
        if length > total - body:
            return None
        crc = crc32(PyBytes_FromStringAndSize(<const char*>message + body, length))
        if (crc & 0x7FFFFFFF) != get32(message + 8):
            return None
        begins[number] = at
        at += total
    return starts


# --- properties to columns --------------------------------------------------------------------------------------------


cdef enum:
    NAME_ENDS = 1
    ENTRY_ENDS = 2
    ENTRIES_MAX = 64  # the most entries of a row that are checked for a repeated name


@cython.final
cdef class _Texts:
    """Collects texts back to back, and the offset at which each ends: the two buffers of an Arrow column."""

    cdef uint8_t* data
    cdef int32_t* ends
    cdef Py_ssize_t size, count

    def __cinit__(self, Py_ssize_t size, Py_ssize_t count):
        """Allocates room for `count` texts that have at most `size` bytes together."""
        self.data = <uint8_t*>PyMem_Malloc(size + 1)
        self.ends = <int32_t*>PyMem_Malloc((count + 1) * sizeof(int32_t))
        if self.data == NULL or self.ends == NULL:
            raise MemoryError
        self.ends[0] = 0

    def __dealloc__(self):
        PyMem_Free(self.data)
        PyMem_Free(self.ends)

    cdef inline void add(self, const uint8_t* at, Py_ssize_t size) noexcept:
        memcpy(self.data + self.size, at, size)
        self.size += size
        self.count += 1
        self.ends[self.count] = <int32_t>self.size

    cdef tuple buffers(self):
        return (
            PyBytes_FromStringAndSize(<const char*>self.ends, (self.count + 1) * sizeof(int32_t)),
            PyBytes_FromStringAndSize(<const char*>self.data, self.size),
        )


cdef bint _is_twice(const uint8_t* data, const int32_t* ends, Py_ssize_t first, Py_ssize_t end) noexcept nogil:
    """Returns True if two of the texts [first, end) are equal. The time grows with the square of their number."""
    cdef Py_ssize_t one, other
    cdef int32_t size
    for one in range(first + 1, end):
        size = ends[one + 1] - ends[one]
        for other in range(first, one):
            if ends[other + 1] - ends[other] == size and not memcmp(data + ends[one], data + ends[other], size):
                return True
    return False


def split_properties(bytes data not None, const int64_t[::1] at, const int64_t[::1] end, tuple names, bint as_map):
    """Splits packed properties into columns; the twin of `raftmq.arrow.properties.split_properties`."""
    cdef Py_ssize_t rows = at.shape[0], row, number, total = 0, wanted = len(names), entries = 0
    cdef const uint8_t* start = data
    cdef const uint8_t* p
    cdef const uint8_t* stop
    cdef const uint8_t* name_end
    cdef const uint8_t* last
    cdef bytes name
    cdef bint repeated = False
    cdef list columns = [], present = []
    cdef _Texts keys = None, values = None, column
    cdef bytes bounds = b""
    cdef int32_t* bound = NULL
    cdef uint8_t* bits
    cdef const uint8_t* found[8]
    cdef Py_ssize_t sizes[8]
    if wanted > 8:
        raise ValueError(f"{wanted} names, of at most 8")
    if end.shape[0] != rows:
        raise ValueError(f"{rows} rows begin and {end.shape[0]} end")
    for row in range(rows):
        if not 0 <= at[row] <= end[row] <= len(data):
            raise ValueError(f"row {row} is not in the data")
        total += end[row] - at[row]
    if total > INT32_MAX:
        raise ValueError(f"{total} bytes are more than a column holds")
    for number in range(wanted):
        columns.append(_Texts(total, rows))
        present.append(PyBytes_FromStringAndSize(NULL, (rows + 7) // 8))
        memset(PyBytes_AS_STRING(present[number]), 0, (rows + 7) // 8)
    if as_map:
        keys, values = _Texts(total, total // 3 + 1), _Texts(total, total // 3 + 1)
        bounds = PyBytes_FromStringAndSize(NULL, (rows + 1) * sizeof(int32_t))
        bound = <int32_t*>PyBytes_AS_STRING(bounds)
        bound[0] = 0
    for row in range(rows):
        p, last = start + at[row], start + end[row]
        for number in range(wanted):
            found[number] = NULL
        while p < last:
            stop = <const uint8_t*>memchr(p, ENTRY_ENDS, last - p)
            if stop == NULL:
                stop = last
            name_end = <const uint8_t*>memchr(p, NAME_ENDS, stop - p)
            if name_end != NULL and name_end > p and name_end + 1 < stop:
                for number in range(wanted):
                    name = <bytes>names[number]
                    if PyBytes_GET_SIZE(name) == name_end - p and not memcmp(p, PyBytes_AS_STRING(name), name_end - p):
                        found[number], sizes[number] = name_end + 1, stop - name_end - 1
                if as_map:
                    keys.add(p, name_end - p)
                    values.add(name_end + 1, stop - name_end - 1)
            p = stop + 1
        for number in range(wanted):
            column = <_Texts>columns[number]
            if found[number] != NULL:
                column.add(found[number], sizes[number])
                bits = <uint8_t*>PyBytes_AS_STRING(present[number])
                bits[row >> 3] |= 1 << (row & 7)
            else:
                column.add(start, 0)
        if as_map:
            bound[row + 1] = <int32_t>keys.count
            if keys.count - bound[row] > ENTRIES_MAX or _is_twice(keys.data, keys.ends, bound[row], keys.count):
                repeated = True
    taken = [(present[number], *(<_Texts>columns[number]).buffers()) for number in range(wanted)]
    return taken, ((bounds, *keys.buffers(), *values.buffers(), repeated) if as_map else None)


# --- index files ------------------------------------------------------------------------------------------------------


cdef const uint64_t* _sort(uint64_t* rows, uint64_t* room, Py_ssize_t count) noexcept nogil:
    """Sorts `count` numbers by a radix sort, from the lowest byte to the highest. Returns a pointer to the sorted
    numbers: `rows`, or `room`, which has the same size. The four lower bytes are skipped if they ascend already among
    all numbers with the same highest byte, as positions in a bucket do."""
    cdef Py_ssize_t counts[8][256]
    cdef Py_ssize_t* places
    cdef Py_ssize_t i, value, start, many
    cdef uint64_t* other
    cdef uint32_t lows[256]
    cdef int byte, first = 4
    memset(counts, 0, sizeof(counts))
    memset(lows, 0, sizeof(lows))
    for i in range(count):
        for byte in range(4, 8):
            counts[byte][(rows[i] >> (8 * byte)) & 0xFF] += 1
        if <uint32_t>rows[i] < lows[rows[i] >> 56]:
            first = 0
        lows[rows[i] >> 56] = <uint32_t>rows[i]
    if not first:
        for i in range(count):
            for byte in range(4):
                counts[byte][(rows[i] >> (8 * byte)) & 0xFF] += 1
    for byte in range(first, 8):
        places = counts[byte]
        start = 0
        for value in range(256):
            many = places[value]
            places[value] = start
            start += many
        for i in range(count):
            value = (rows[i] >> (8 * byte)) & 0xFF
            room[places[value]] = rows[i]
            places[value] += 1
        other = rows
        rows = room
        room = other
    return rows


def sorted_rows(bytes records not None, uint64_t base):
    """Sorts records of the message index; the twin of `statemachine.index_file.index_of_rows.sorted_rows`."""
    cdef Py_ssize_t count = len(records) // 8, i
    if len(records) % 8:
        raise struct.error(f"unpack requires a buffer of {count * 8} bytes")
    cdef bytes made = PyBytes_FromStringAndSize(NULL, count * 8)
    cdef const uint8_t* at = records
    cdef uint8_t* out = <uint8_t*>PyBytes_AS_STRING(made)
    cdef uint32_t low = <uint32_t>base
    cdef uint64_t* rows = <uint64_t*>PyMem_Malloc(2 * count * 8)
    cdef const uint64_t* found
    if rows is NULL:
        raise MemoryError()
    for i in range(count):
        rows[i] = (<uint64_t>get32(at + 8 * i) << 32) | <uint32_t>(get32(at + 8 * i + 4) - low)
    found = _sort(rows, rows + count, count)
    for i in range(count):
        put64(out + 8 * i, found[i])
    PyMem_Free(rows)
    return made


# --- rows of an entry -------------------------------------------------------------------------------------------------


cdef enum:
    SESSION_WINDOW = 65536

cdef object _tuple = tuple.__new__


cdef uint32_t _continued(uint32_t before, bytes data) except? 0:
    """Returns the CRC-32C of the bytes whose CRC-32C is `before`, followed by `data`."""
    if _HAS_CRC32C:
        return raftmq_crc32c(before, <const uint8_t*>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))
    return crc32c(data, before)


cdef inline uint64_t _row_sum(uint32_t of_key, bytes value) except? 0:
    cdef uint32_t of_row = _continued(of_key, value)
    return (<uint64_t>of_row + 1) * (<uint64_t>(of_row ^ of_key) + 1)


def sum_of_changes(dict rows not None, dict known not None, read, uint32_t seed):
    """Computes the change of a family's sum; the twin of `statemachine.rows.running_digest.sum_of_changes`."""
    cdef uint64_t change = 0
    cdef uint32_t of_key
    cdef bytes key
    cdef PyObject* found
    for key, value in rows.items():
        found = PyDict_GetItem(known, key)
        if found != NULL:
            before = <object>found
        else:
            before = read(key)
            known[key] = before
        of_key = _continued(seed, key)
        if before is not None:
            change -= _row_sum(of_key, before)
        if value is not None:
            change += _row_sum(of_key, value)
    return change


cdef bytes _named(uint8_t kind, const uint8_t* producer_id):
    """Returns the key of a producer's row (`kind` "p"), or 25 bytes for the key of one of its session rows ("s"), whose
    last 8 the caller fills in."""
    cdef Py_ssize_t size = 17 if kind == c"p" else 25
    cdef bytes key = PyBytes_FromStringAndSize(NULL, size)
    PyBytes_AS_STRING(key)[0] = <char>kind
    memcpy(PyBytes_AS_STRING(key) + 1, producer_id, 16)
    return key


cdef bytes _session_key(const uint8_t* producer_id, uint64_t index):
    cdef bytes key = _named(c"s", producer_id)
    put64(<uint8_t*>PyBytes_AS_STRING(key) + 17, index)
    return key


cdef bytes _producer_row(uint64_t low, uint64_t high, uint64_t time_ms, object lone):
    """Returns the value of a producer's row. `lone`: the session part that the row contains, or None."""
    cdef bytes rows = b"" if lone is None else <object>PyTuple_GET_ITEM(lone, 3)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(rows)
    cdef bytes row = PyBytes_FromStringAndSize(NULL, 24 if lone is None else 32 + size)
    cdef uint8_t* at = <uint8_t*>PyBytes_AS_STRING(row)
    put64(at, low)
    put64(at + 8, high)
    put64(at + 16, time_ms)
    if lone is not None:
        put64(at + 24, <object>PyTuple_GET_ITEM(lone, 0))
        memcpy(at + 32, PyBytes_AS_STRING(rows), size)
    return row


cdef int _put_part(const uint8_t* producer_id, object part, dict rows, dict known) except -1:
    """Stages a row for a session part that has no row of its own yet."""
    cdef bytes key = _session_key(producer_id, <object>PyTuple_GET_ITEM(part, 0))
    rows[key] = <object>PyTuple_GET_ITEM(part, 3)
    if key not in known:
        known[key] = None
    return 0


def add_sessions(
    bytes data not None,
    Py_ssize_t at,
    uint64_t index,
    uint64_t time_ms,
    dict staged not None,
    sessions not None,
    dict rows not None,
    dict known not None,
    tuple kinds not None,
    tuple limits not None,
):
    """Adds the packed sessions from offset `at` on whose producers' sessions are in memory. Returns the offset of the
    first that it leaves to Python. See `statemachine.dedup.add_sessions`."""
    cdef const uint8_t* base = <const uint8_t*>PyBytes_AS_STRING(data)
    cdef const uint8_t* head
    cdef Py_ssize_t end = PyBytes_GET_SIZE(data), count, stop, number
    cdef uint64_t low, high, old_low, old_high
    cdef Py_ssize_t parts_max = limits[0], lone_bytes = limits[1]
    cdef bytes producer_id, new, key
    cdef object old, parts, part, added, part_kind = kinds[0], session_kind = kinds[1]
    cdef list left
    cdef bint is_staged, was_lone, is_lone
    cdef PyObject* found
    while end - at >= SESSION_HEAD + SESSION_ROW:
        head = base + at
        count = get32(head + 32)
        stop = at + SESSION_HEAD + count * SESSION_ROW
        if count == 0 or stop > end:
            break
        producer_id = PyBytes_FromStringAndSize(<const char*>head, 16)
        found = PyDict_GetItem(staged, producer_id)
        is_staged = found != NULL
        if not is_staged:
            found = PyDict_GetItem(sessions, producer_id)
        if found == NULL or <object>found is None:
            break
        old = <object>found
        parts = <object>PyTuple_GET_ITEM(old, 3)
        if <object>PyTuple_GET_ITEM(old, 4) or PyTuple_GET_SIZE(parts) >= parts_max:
            break
        if PyTuple_GET_SIZE(parts) and (<object>PyTuple_GET_ITEM(parts, PyTuple_GET_SIZE(parts) - 1))[0] == index:
            break
        old_low, old_high = <object>PyTuple_GET_ITEM(old, 0), <object>PyTuple_GET_ITEM(old, 1)
        low, high = get64(head + 16), get64(head + 24)
        if low < old_low:
            low = old_low
        if high < old_high:
            high = old_high
        if high > SESSION_WINDOW and low < high - SESSION_WINDOW:
            low = high - SESSION_WINDOW
        left = []
        was_lone = <object>PyTuple_GET_ITEM(old, 5)
        for number in range(PyTuple_GET_SIZE(parts)):
            part = <object>PyTuple_GET_ITEM(parts, number)
            if <uint64_t><object>PyTuple_GET_ITEM(part, 2) >= low:
                left.append(part)
                continue
            if was_lone:
                continue
            key = _session_key(head, <object>PyTuple_GET_ITEM(part, 0))
            if rows.pop(key, None) is None:
                rows[key] = None
                if key not in known:
                    known[key] = <object>PyTuple_GET_ITEM(part, 3)
        is_lone = was_lone and len(left) == 1
        if get64(base + stop - SESSION_ROW) >= low:
            new = PyBytes_FromStringAndSize(<const char*>head + SESSION_HEAD, count * SESSION_ROW)
            added = _tuple(part_kind, (index, get64(head + SESSION_HEAD), get64(base + stop - SESSION_ROW), new))
            is_lone = not left and count * SESSION_ROW <= lone_bytes
            if was_lone:
                for part in left:
                    _put_part(head, part, rows, known)
            if not is_lone:
                _put_part(head, added, rows, known)
            left.append(added)
        key = _named(c"p", head)
        rows[key] = _producer_row(low, high, time_ms, left[0] if is_lone else None)
        if not is_staged and key not in known:
            known[key] = _producer_row(
                old_low,
                old_high,
                <object>PyTuple_GET_ITEM(old, 2),
                <object>PyTuple_GET_ITEM(parts, 0) if was_lone else None,
            )
        staged[producer_id] = _tuple(session_kind, (low, high, time_ms, tuple(left), (), is_lone))
        at = stop
    return at

# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The receive stage in typed Cython: one pass over the bytes of a header, no object between them and the Send."""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memchr, memcmp, memcpy

from shapes import java_hash

cdef enum:
    SCRATCH = 32768


@cython.final
cdef class Send:
    cdef public object slot, body, properties, key, producer
    cdef public int64_t opaque, queue_id, flag, sys_flag, born_ms, reconsumes, tag, sequence, size


cdef struct Text:
    const uint8_t* at
    Py_ssize_t size
    bint escaped


cdef struct Wish:
    int64_t code, opaque, flag, version
    int64_t queue_id, sys_flag, born_ms, message_flag, reconsumes
    bint batch
    Text topic, properties


cdef inline uint32_t get32(const uint8_t* p) noexcept nogil:
    return (<uint32_t>p[0] << 24) | (<uint32_t>p[1] << 16) | (<uint32_t>p[2] << 8) | p[3]


cdef inline const uint8_t* blank(const uint8_t* p, const uint8_t* end) noexcept nogil:
    while p < end and (p[0] == 32 or p[0] == 10 or p[0] == 13 or p[0] == 9):
        p += 1
    return p


cdef inline const uint8_t* text(const uint8_t* p, const uint8_t* end, Text* found) noexcept nogil:
    """A string from its opening quote; NULL if it does not end or has a control character."""
    if p >= end or p[0] != 34:
        return NULL
    p += 1
    found.at = p
    found.escaped = False
    while p < end and p[0] != 34:
        if p[0] < 32:
            return NULL
        if p[0] == 92:
            found.escaped = True
            p += 1
        p += 1
    if p >= end:
        return NULL
    found.size = p - found.at
    return p + 1


cdef inline const uint8_t* digits(const uint8_t* p, const uint8_t* end, int64_t* value) noexcept nogil:
    cdef bint negative = p < end and p[0] == 45
    cdef int64_t n = 0
    cdef const uint8_t* first
    if negative:
        p += 1
    first = p
    while p < end and 48 <= p[0] <= 57 and p - first < 18:
        n = n * 10 + (p[0] - 48)
        p += 1
    if p == first or (first[0] == 48 and p - first > 1) or (p < end and (48 <= p[0] <= 57 or p[0] in b".eE")):
        return NULL
    value[0] = -n if negative else n
    return p


cdef inline bint number_of(Text* t, int64_t* value) noexcept nogil:
    return digits(t.at, t.at + t.size, value) == t.at + t.size


cdef Py_ssize_t unescape(Text* t, uint8_t* out) noexcept nogil:
    """Into `out`; -1 for what is left to Python: a character that is not ASCII."""
    cdef const uint8_t* p = t.at
    cdef const uint8_t* end = p + t.size
    cdef uint8_t* o = out
    cdef int i, digit
    cdef uint32_t n
    if t.size > SCRATCH:
        return -1
    while p < end:
        if p[0] != 92:
            o[0] = p[0]
            p += 1
        elif p[1] == 117:
            if end - p < 6:
                return -1
            n = 0
            for i in range(2, 6):
                digit = p[i]
                digit = digit - 48 if 48 <= digit <= 57 else (digit | 32) - 87 if 97 <= (digit | 32) <= 102 else 99999
                n = n * 16 + digit
            if n >= 128:
                return -1
            o[0] = <uint8_t>n
            p += 6
        else:
            if p[1] == 34 or p[1] == 92 or p[1] == 47:
                o[0] = p[1]
            elif p[1] == 110:
                o[0] = 10
            elif p[1] == 116:
                o[0] = 9
            else:
                return -1
            p += 2
        o += 1
    return o - out


cdef const uint8_t* fields(const uint8_t* p, const uint8_t* end, Wish* w) noexcept nogil:
    """The ext fields of a send by letters; NULL for what is left to Python."""
    cdef Text key, value
    if p >= end or p[0] != 123:
        return NULL
    p = blank(p + 1, end)
    while True:
        p = text(p, end, &key)
        if p == NULL or key.size != 1:
            return NULL
        p = blank(p, end)
        if p >= end or p[0] != 58:
            return NULL
        p = text(blank(p + 1, end), end, &value)
        if p == NULL:
            return NULL
        if key.at[0] == 98:
            w.topic = value
        elif key.at[0] == 105:
            w.properties = value
        elif key.at[0] == 101:
            if not number_of(&value, &w.queue_id):
                return NULL
        elif key.at[0] == 102:
            if not number_of(&value, &w.sys_flag):
                return NULL
        elif key.at[0] == 103:
            if not number_of(&value, &w.born_ms):
                return NULL
        elif key.at[0] == 104:
            if not number_of(&value, &w.message_flag):
                return NULL
        elif key.at[0] == 106:
            if not number_of(&value, &w.reconsumes):
                return NULL
        elif key.at[0] == 109:
            w.batch = value.size != 5
        p = blank(p, end)
        if p >= end:
            return NULL
        if p[0] == 125:
            return p + 1
        if p[0] != 44:
            return NULL
        p = blank(p + 1, end)


cdef bint scan(const uint8_t* p, const uint8_t* end, Wish* w) noexcept nogil:
    cdef Text key, value
    cdef int64_t n = 0
    p = blank(p, end)
    if p >= end or p[0] != 123:
        return False
    p = blank(p + 1, end)
    while True:
        p = text(p, end, &key)
        if p == NULL or key.escaped:
            return False
        p = blank(p, end)
        if p >= end or p[0] != 58:
            return False
        p = blank(p + 1, end)
        if p >= end:
            return False
        if key.size == 9 and memcmp(key.at, <const char*>b"extFields", 9) == 0:
            p = fields(p, end, w)
        elif p[0] == 34:
            p = text(p, end, &value)
        else:
            p = digits(p, end, &n)
            if key.size == 4 and memcmp(key.at, <const char*>b"code", 4) == 0:
                w.code = n
            elif key.size == 4 and memcmp(key.at, <const char*>b"flag", 4) == 0:
                w.flag = n
            elif key.size == 6 and memcmp(key.at, <const char*>b"opaque", 6) == 0:
                w.opaque = n
            elif key.size == 7 and memcmp(key.at, <const char*>b"version", 7) == 0:
                w.version = n
        if p == NULL:
            return False
        p = blank(p, end)
        if p >= end:
            return False
        if p[0] == 125:
            return blank(p + 1, end) == end
        if p[0] != 44:
            return False
        p = blank(p + 1, end)


cdef const uint8_t* find(const uint8_t* p, Py_ssize_t size, const char* word, Py_ssize_t length) noexcept nogil:
    cdef const uint8_t* end = p + size
    while end - p >= length:
        p = <const uint8_t*>memchr(p, word[0], end - p - length + 1)
        if p == NULL:
            return NULL
        if memcmp(p, word, length) == 0:
            return p
        p += 1
    return NULL


def take(context, bytes data not None):
    """The sends of a read; raises as `plain.take` does."""
    cdef const uint8_t* base = <const uint8_t*>PyBytes_AS_STRING(data)
    cdef Py_ssize_t at = 0, end = len(data), stop, middle, size, sequence = context.sequence, inflight = context.inflight
    cdef int64_t length
    cdef uint32_t word
    cdef Wish w
    cdef uint8_t scratch[SCRATCH + 1]
    cdef const uint8_t* key
    cdef const uint8_t* tag
    cdef const uint8_t* last
    cdef Send send
    cdef bytes suffix = context.suffix, stored
    cdef Py_ssize_t suffix_size = len(suffix), body_max = context.body_max, frame_max = context.frame_max
    cdef Py_ssize_t properties_max = context.properties_max
    cdef dict topics = context.topics, tags = context.tags
    cdef list out = []
    producer = context.prefix
    while end - at >= 8:
        length = <int32_t>get32(base + at)
        word = get32(base + at + 4)
        stop = at + 4 + length
        if length < 4 or length > frame_max or word >> 24:
            raise ValueError(length)
        if stop > end:
            break
        middle = at + 8 + word
        if middle > stop:
            raise ValueError("header")
        w.code = w.opaque = w.flag = w.version = w.sys_flag = w.born_ms = w.message_flag = w.reconsumes = 0
        w.queue_id = -1
        w.batch = False
        w.topic.at = w.properties.at = NULL
        w.properties.size = 0
        if not scan(base + at + 8, base + middle, &w) or w.code != 310 or w.flag & 1 or w.batch or w.topic.at == NULL:
            raise NotImplementedError
        if w.topic.escaped or w.topic.at[0] == 37:
            raise NotImplementedError
        slot = topics.get(PyUnicode_DecodeUTF8(<const char*>w.topic.at, w.topic.size, NULL))
        if slot is None or not slot.writable:
            raise ValueError("topic")
        if w.queue_id < 0:
            w.queue_id = slot.next_queue % slot.queues
            slot.next_queue = w.queue_id + 1
        elif w.queue_id >= slot.queues:
            raise ValueError("queue")
        if stop - middle > body_max:
            raise ValueError("body")
        size = unescape(&w.properties, scratch)
        if size <= 0:
            raise NotImplementedError
        if find(scratch, size, b"DELAY", 5) or find(scratch, size, b"TIMER_D", 7) or find(scratch, size, b"TRAN_MSG", 8):
            raise NotImplementedError
        if find(scratch, size, b"POP_CK\x01", 7):
            raise NotImplementedError
        if scratch[size - 1] != 2:
            scratch[size] = 2
            size += 1
        key = find(scratch, size, b"UNIQ_KEY\x01", 9)
        if key == NULL or key == scratch or (key - 1)[0] != 2:
            raise NotImplementedError
        if size + suffix_size > properties_max:
            raise ValueError("properties")
        send = Send.__new__(Send)
        key += 9
        last = <const uint8_t*>memchr(key, 2, scratch + size - key)
        send.key = PyUnicode_DecodeUTF8(<const char*>key, last - key, b"replace")
        stored = PyBytes_FromStringAndSize(NULL, size + suffix_size)
        memcpy(PyBytes_AS_STRING(stored), scratch, size)
        memcpy(PyBytes_AS_STRING(stored) + size, PyBytes_AS_STRING(suffix), suffix_size)
        tag = find(scratch, size, b"TAGS\x01", 5)
        if tag != NULL:
            tag += 5
            last = <const uint8_t*>memchr(tag, 2, scratch + size - tag)
            name = PyBytes_FromStringAndSize(<const char*>tag, last - tag)
            known = tags.get(name)
            if known is None:
                known = tags[name] = java_hash(name.decode())
            send.tag = known
        sequence += 1
        inflight += length - 4
        send.opaque, send.slot, send.queue_id, send.flag = w.opaque, slot, w.queue_id, w.message_flag
        send.sys_flag, send.born_ms, send.reconsumes = w.sys_flag & ~0x3C, w.born_ms, w.reconsumes
        send.body = PyBytes_FromStringAndSize(<const char*>base + middle, stop - middle)
        send.properties, send.producer, send.sequence, send.size = stored, producer, sequence, length - 4
        out.append(send)
        at = stop
    context.sequence, context.inflight = sequence, inflight
    return out

# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The kernel, compiled. Each name has a twin in Python, marked by `cluster.kernel.twin`, which says what it computes.

The directives above take out the checks of Python: every index into bytes is checked by the code that computes it.
"""

from libc.stdint cimport int32_t, uint32_t

cdef extern from *:
    """
    #ifndef RAFTMQ_KERNEL_SOURCE
    #define RAFTMQ_KERNEL_SOURCE ""
    #endif
    """
    const char* RAFTMQ_KERNEL_SOURCE

VERSION = 1
SOURCE = RAFTMQ_KERNEL_SOURCE.decode()


cdef inline int32_t _int32(const unsigned char* at) noexcept:
    """Big-endian, from four bytes that are there."""
    return <int32_t>((<uint32_t>at[0] << 24) | (<uint32_t>at[1] << 16) | (<uint32_t>at[2] << 8) | at[3])


def frames(bytes data not None, Py_ssize_t limit):
    """See `cluster.runtime.framing.frames`."""
    cdef const unsigned char* start = data
    cdef Py_ssize_t at = 0, end = len(data), stop
    cdef int32_t length
    cdef list found = []
    while end - at >= 4:
        length = _int32(start + at)
        stop = at + 4 + length
        if length < 0 or length > limit or stop > end:
            return found, at, length
        found.append((at + 4, stop))
        at = stop
    return found, at, None

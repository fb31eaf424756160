"""Which columns of an ORC file have a bloom filter, by the streams that its stripe footers name."""

from __future__ import annotations

from typing import Any

_BLOOM_FILTERS = {7, 8}
"""Kinds of streams: of bytes, and of text."""


def bloom_filter_ids(data: bytes) -> set[int]:
    """The numbers of the columns, of a file that is not compressed. 0 is the root of the types, 1 the first column."""
    postscript = dict(_fields(data[-1 - data[-1] : -1]))
    end = len(data) - 1 - data[-1]
    found = set()
    for number, value in _fields(data[end - postscript[1] : end]):
        if number == 3:
            stripe = dict(_fields(value))
            start = sum(stripe.get(length, 0) for length in (1, 2, 3))
            found |= _filtered_ids(data[start : start + stripe[4]])
    return found


def _filtered_ids(stripe_footer: bytes) -> set[int]:
    streams = [dict(_fields(value)) for number, value in _fields(stripe_footer) if number == 1]
    return {stream.get(2, 0) for stream in streams if stream.get(1, 0) in _BLOOM_FILTERS}


def _fields(message: bytes) -> list[tuple[int, Any]]:
    """The fields of a message of protocol buffers, as far as ORC's footers need them."""
    found: list[tuple[int, Any]] = []
    at = 0
    while at < len(message):
        tag, at = _number(message, at)
        kind = tag & 7
        if kind == 0:
            value, at = _number(message, at)
            found.append((tag >> 3, value))
            continue
        length = {1: 8, 5: 4}.get(kind)
        if length is None:
            length, at = _number(message, at)
        found.append((tag >> 3, message[at : at + length]))
        at += length
    return found


def _number(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at

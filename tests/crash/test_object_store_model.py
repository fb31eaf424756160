"""The model of S3 is as strict as any server: what some server refuses it refuses, by the words that servers use."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from s3_model import LEAST_PIECE_BYTES, ModelCalls
from s3_worlds import AWS, GATEWAY, IGNORANT

from partfile.stores.s3.handle import Piece

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from s3_model import Rules

LARGE, SMALL = bytes(LEAST_PIECE_BYTES), b"tail"


def upload(calls: ModelCalls, *bodies: bytes, numbers: Sequence[int] = (1, 2, 3)) -> tuple[str, list[Piece]]:
    """An upload of some parts."""
    name = calls.create_upload("key", {})
    pieces = []
    for number, data in zip(numbers, bodies, strict=False):
        etag = calls.upload_part("key", name, number, data, 0)
        pieces.append(Piece(number=number, etag=etag, size_bytes=len(data), crc32=0))
    return name, pieces


def test_an_upload_shows_nothing_until_it_is_completed_and_is_gone_then() -> None:
    """A second completion, a further part and an abort find no upload."""
    calls = ModelCalls(AWS)
    name, pieces = upload(calls, LARGE, SMALL)
    with pytest.raises(OSError, match="404"):
        calls.get("key", 100)
    calls.complete_upload("key", name, pieces, if_absent=True)
    assert calls.get("key", 100) == LARGE + SMALL
    for request in (
        lambda: calls.complete_upload("key", name, pieces, if_absent=False),
        lambda: calls.upload_part("key", name, 1, SMALL, None),
        lambda: calls.abort_upload("key", name),
        lambda: calls.look_at_upload("key", name),
    ):
        with pytest.raises(OSError, match="NoSuchUpload"):
            request()


@pytest.mark.fault("N8")
def test_upload_parts_that_make_no_file_are_refused() -> None:
    """Too small a part before the last, another order, bytes that were replaced, and on AWS a gap."""
    calls = ModelCalls(AWS)
    name, pieces = upload(calls, SMALL, SMALL)
    with pytest.raises(OSError, match="EntityTooSmall"):
        calls.complete_upload("key", name, pieces, if_absent=False)
    with pytest.raises(OSError, match="InvalidPartOrder"):
        calls.complete_upload("key", name, pieces[::-1], if_absent=False)
    calls.upload_part("key", name, 2, LARGE, 0)
    with pytest.raises(OSError, match="InvalidPart"):
        calls.complete_upload("key", name, pieces[1:], if_absent=False)
    with_gap, apart = upload(calls, LARGE, SMALL, numbers=(1, 3))
    with pytest.raises(OSError, match="InvalidPartOrder"):
        calls.complete_upload("key", with_gap, apart, if_absent=False)


@pytest.mark.parametrize(
    ("rules", "puts", "completes"), [(AWS, True, True), (GATEWAY, True, False), (IGNORANT, False, False)]
)
def test_each_server_has_its_own_way(rules: Rules, puts: bool, completes: bool) -> None:
    """Preconditions are honoured, or only on PUT, or not at all."""
    calls = ModelCalls(rules)
    calls.put("key", b"first", {}, if_absent=True)
    assert is_refused(lambda: calls.put("key", b"other", {}, if_absent=True)) is puts
    name, pieces = upload(calls, SMALL)
    assert is_refused(lambda: calls.complete_upload("key", name, pieces, if_absent=True)) is completes


@pytest.mark.parametrize("rules", [AWS, GATEWAY], ids=lambda rules: rules.name)
def test_a_gateway_wants_every_upload_part_named(rules: Rules) -> None:
    """AWS leaves out what is not named."""
    calls = ModelCalls(rules)
    name, pieces = upload(calls, LARGE, SMALL)
    is_gateway = rules is GATEWAY
    assert is_refused(lambda: calls.complete_upload("key", name, pieces[:1], if_absent=False)) is is_gateway


def is_refused(request: Callable[[], object]) -> bool:
    """Whether a request is refused."""
    try:
        request()
    except OSError:
        return True
    return False

"""URLs, options and lifecycle rules of the S3 store, without a server."""

from __future__ import annotations

import importlib.util
import traceback
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import ValidationError

import partfile as pf
from partfile.errors import AlreadyExists, ConfigError, NotApplied, NotFound, OutcomeUnknown
from partfile.stores.hadoop import HadoopConfiguration
from partfile.stores.registry import check_url, is_same_place, open_store, path_inside
from partfile.stores.s3.errors import S3Failure, Verdict, failure_of
from partfile.stores.s3.handle import HIGHEST_NUMBER, Piece, S3Staging, SideObject, piece_bytes
from partfile.stores.s3.options import S3Options
from partfile.stores.s3.probe import hadoop_hazards, rule_hazards
from partfile.stores.s3.store import S3Store
from partfile.stores.urls import S3Url

if TYPE_CHECKING:
    from collections.abc import Callable

    from partfile.errors import PartfileError


# URLs, options and errors of the S3 store, without a server.

SECRET = "do-not-show-me"  # noqa: S105 - the point of the tests that use it.
MIB = 1 << 20


class Answered(Exception):
    """What botocore raises of an answer."""

    def __init__(self, code: str, status: int) -> None:
        super().__init__(code)
        self.response = {"Error": {"Code": code, "Message": "m"}, "ResponseMetadata": {"HTTPStatusCode": status}}


class ReadTimeoutError(Exception):
    """Named as botocore's."""


class EndpointConnectionError(Exception):
    """Named as botocore's."""


@pytest.mark.parametrize(
    ("url", "shown", "key"),
    [
        ("s3://bucket", "s3://bucket", "x/y"),
        ("S3A://bucket/", "s3://bucket", "x/y"),
        ("s3://bucket/a b/c%20d/", "s3://bucket/a b/c%20d", "a b/c%20d/x/y"),
        ("s3://my.bucket_1/ü/?#", "s3://my.bucket_1/ü/?#", "ü/?#/x/y"),
    ],
)
def test_urls_are_literal(url: str, shown: str, key: str) -> None:
    """A URL is an S3 bucket and a prefix, of which nothing is decoded."""
    parsed = S3Url.of(url)
    assert str(parsed) == shown
    assert parsed.key_of("x/y") == key


@pytest.mark.parametrize(
    "url",
    [
        "s3:",
        "s3://",
        "s3:///x",
        "s3:/b/x",
        "s3://b/x",
        "s3://key:secret@bucket/x",
        "s3://bucket/a//b",
        "s3://bucket/../x",
    ],
)
def test_urls_that_name_no_place_are_refused(url: str) -> None:
    """Credentials in URLs, doubled slashes and dots are not guessed at."""
    for look in (S3Url.of, check_url, open_store):
        with pytest.raises(ConfigError):
            look(url)


@pytest.mark.fault("T9")
def test_places_are_compared_by_bucket_and_prefix() -> None:
    """Whichever way they are written; a local path is never the same place."""
    assert is_same_place("s3://bucket/a/", "s3a://bucket/a", {})
    assert not is_same_place("s3://bucket/a", "s3://other/a", {})
    assert not is_same_place("s3://bucket/a", "/bucket/a", {})
    assert path_inside("s3://bucket/a/_b/c", "s3://bucket/a", {}) == ("_b", "c")
    assert path_inside("s3://bucket/ab", "s3://bucket/a", {}) is None
    assert path_inside("s3://bucket/a", "s3://bucket", {}) == ("a",)
    assert path_inside("/a/b", "s3://bucket", {}) is None


def test_a_url_of_s3_opens_the_store_and_asks_nothing() -> None:
    """Not even whether there is a server."""
    with open_store("s3://bucket/x", {"endpoint_url": "http://127.0.0.1:1"}) as store:
        assert isinstance(store, S3Store)
        assert store.base == "s3://bucket/x"


def test_without_s3fs_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """The extra is named as pip takes it."""
    monkeypatch.setattr(
        "partfile.stores.registry.find_spec",
        lambda name: None if name == "s3fs" else importlib.util.find_spec(name),
    )
    with pytest.raises(ConfigError, match=r"pip install 'partfile\[s3\]'"):
        open_store("s3://bucket/x")


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"secret_key": SECRET}, "secret_key"),
        ({"key": "k", "secret": [SECRET]}, "secret"),
        ({"key": SECRET}, "key and secret"),
        ({"upload_part_bytes": 1000}, "upload_part_bytes"),
        ({"sse_kms_key_id": SECRET}, "sse_kms_key_id"),
        ({"call_timeout_s": 0}, "call_timeout_s"),
        ({"endpoint_url": f"http://user:{SECRET}@host"}, "endpoint_url"),
        ({"endpoint_url": "127.0.0.1:9000"}, "http://"),
        ({"ca_file": "/no/such"}, "ca_file='/no/such'"),
        ({"anon": True, "key": "k", "secret": SECRET}, "anon"),
        ({"region": ""}, "region"),
        ({"endpoint_url": f"http://user:{SECRET}/@host", "key": "k", "secret": SECRET}, "endpoint_url"),
    ],
)
def test_options_that_cannot_be_used_are_named_and_not_shown(options: dict[str, object], named: str) -> None:
    """A value that is refused may be a secret in the wrong place."""
    with pytest.raises(ConfigError) as raised:
        open_store("s3://bucket/x", options)
    assert named in str(raised.value)
    assert SECRET not in f"{raised.value!r} {raised.value}"


def test_options_of_no_dictionary_show_nothing_either() -> None:
    """Pydantic would show what it was given."""
    with pytest.raises(ValidationError) as raised:
        S3Options(endpoint_url=f"//{SECRET}@h")
    assert SECRET not in f"{raised.value!r} {raised.value}"


@pytest.mark.parametrize("secret", [SECRET, f"a/{SECRET}", f"a@{SECRET}"])
@pytest.mark.parametrize(
    "take",
    [lambda url: pf.FileSink(url, uid="u", format="text"), pf.read, pf.list_savepoints, S3Url.of],
    ids=["sink", "read", "savepoints", "url"],
)
def test_a_secret_in_a_url_is_not_shown(take: Callable[[str], object], secret: str) -> None:
    """Other clients take keys there; here the rest of the URL says which one is meant."""
    with pytest.raises(ConfigError) as raised:
        take(f"s3://AKIA:{secret}@bucket/x")
    assert SECRET not in "".join(traceback.format_exception(raised.value)) + repr(raised.value)
    assert "@bucket/x" in str(raised.value)


def test_secrets_are_in_no_repr_and_reach_the_client() -> None:
    """Neither of the options, nor of what a store shows."""
    options = S3Options.of({"key": SECRET, "secret": SECRET, "token": SECRET})
    assert SECRET not in f"{options!r} {options} {S3Store('s3://bucket/x', options)!r}"
    assert [options.client[name] for name in ("key", "secret", "token")] == [SECRET] * 3


@pytest.mark.parametrize(
    ("options", "is_signed"),
    [
        ({}, False),
        ({"endpoint_url": "https://s3.example"}, False),
        ({"endpoint_url": "http://127.0.0.1:1"}, True),
        ({"checksum": "when_required"}, True),
    ],
)
def test_bodies_are_hashed_for_the_signature_where_nothing_else_protects_them(
    options: dict[str, object], is_signed: bool
) -> None:
    """Without TLS, or without a checksum of ours."""
    config = S3Options.of(options).client["config_kwargs"]
    assert isinstance(config, dict)
    assert config["s3"].get("payload_signing_enabled", True) is is_signed


def test_what_is_written_carries_what_the_user_asked_for() -> None:
    """Encryption goes with every object, storage class and ACL with finished files alone."""
    options = S3Options.of(
        {"server_side_encryption": "aws:kms", "sse_kms_key_id": "k", "acl": "private", "storage_class": "STANDARD_IA"}
    )
    assert options.encryption == {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": "k"}
    assert options.finished == {"ACL": "private", "StorageClass": "STANDARD_IA"}
    assert S3Options().encryption == S3Options().finished == {}


@pytest.mark.parametrize(
    ("error", "verdict", "kind"),
    [
        (Answered("NoSuchKey", 404), Verdict.MISSING, NotFound),
        (Answered("404", 404), Verdict.MISSING, NotFound),
        (Answered("NoSuchUpload", 404), Verdict.MISSING, NotFound),
        (Answered("NoSuchBucket", 404), Verdict.NO_BUCKET, NotApplied),
        (Answered("PreconditionFailed", 412), Verdict.TAKEN, AlreadyExists),
        (Answered("ConditionalRequestConflict", 409), Verdict.CONFLICT, NotApplied),
        (Answered("SlowDown", 503), Verdict.BUSY, NotApplied),
        (Answered("429", 429), Verdict.BUSY, NotApplied),
        (Answered("InternalError", 500), Verdict.BROKEN, OutcomeUnknown),
        (Answered("InternalError", 200), Verdict.BROKEN, OutcomeUnknown),
        (Answered("Whatever", 200), Verdict.BROKEN, OutcomeUnknown),
        (Answered("502", 502), Verdict.BROKEN, OutcomeUnknown),
        (Answered("AccessDenied", 403), Verdict.DENIED, NotApplied),
        (Answered("InvalidPart", 400), Verdict.INVALID_PARTS, NotApplied),
        (Answered("InvalidPartOrder", 400), Verdict.INVALID_PARTS, NotApplied),
        (Answered("EntityTooSmall", 400), Verdict.INVALID_PARTS, NotApplied),
        (Answered("KMS.DisabledException", 400), Verdict.REFUSED, NotApplied),
        (Answered("NotImplemented", 501), Verdict.UNSUPPORTED, NotApplied),
        (Answered("501", 501), Verdict.UNSUPPORTED, NotApplied),
        (Answered("AuthorizationHeaderMalformed", 400), Verdict.MISCONFIGURED, ConfigError),
        (ReadTimeoutError("t"), Verdict.UNANSWERED, OutcomeUnknown),
        (EndpointConnectionError("t"), Verdict.UNREACHABLE, OutcomeUnknown),
        (ConnectionResetError("t"), Verdict.UNANSWERED, OutcomeUnknown),
        (ValueError("t"), Verdict.UNKNOWN, OutcomeUnknown),
    ],
)
def test_errors_say_whether_it_may_have_happened(error: Exception, verdict: Verdict, kind: type[PartfileError]) -> None:
    """By the server's code, else by status or class; what is in no list may have happened, unless it only reads."""
    wrapped = OSError("as s3fs raises it")
    wrapped.__cause__ = error
    failure = failure_of(wrapped if isinstance(error, Answered) else error)
    assert failure.verdict is verdict
    made = failure.as_error("write", "s3://bucket/x", reads=False)
    assert type(made) is kind
    assert "s3://bucket/x" in str(made)
    if kind is OutcomeUnknown:
        assert type(failure.as_error("read", "x", reads=True)) is NotApplied


def test_a_failure_has_one_line() -> None:
    """Whatever the client puts into its text."""
    assert failure_of(ValueError("first\nsecond")).text == "first"
    assert failure_of(ValueError()).text == "ValueError"
    assert isinstance(failure_of(ValueError()), S3Failure)


@pytest.mark.fault("N8")
def test_upload_parts_grow_so_that_their_numbers_suffice() -> None:
    """Ten thousand of them hold more than the 5 TiB that S3 has long allowed; none is under 5 MiB."""
    assert piece_bytes(1, 0) == 5 * MIB
    assert piece_bytes(1, 8 * MIB) == 8 * MIB
    assert sum(piece_bytes(number, 8 * MIB) for number in range(1, HIGHEST_NUMBER)) > 5 << 40


def test_side_objects_are_grouped_alike_in_each_process() -> None:
    """A writer that moves the first groups makes upload parts that who publishes all of them makes as well."""
    sizes = [3, 4, 2, 12, 1, 1, 1]
    sides = tuple(SideObject(name=f"{n:032x}.{n:032x}", size_bytes=size * MIB, crc32=0) for n, size in enumerate(sizes))
    staging = S3Staging(sides=sides)
    assert [[side.size_bytes // MIB for side in group] for group in staging.grouped_sides] == [
        [3, 4, 2],
        [12],
        [1, 1, 1],
    ]
    moved = staging.with_sides_spent("u", 3).with_pieces([Piece(number=1, etag="e", size_bytes=9 * MIB)])
    assert moved.grouped_sides == staging.grouped_sides[1:]
    assert S3Staging().grouped_sides == []


@pytest.mark.parametrize(
    ("is_contested", "crc32", "there", "is_same"),
    [
        (False, None, ("other", 10, None), True),
        (False, 7, ("other", 10, None), True),
        (False, 7, ("other", 10, 7), True),
        (False, 7, ("other", 10, 8), False),
        (False, 7, ("e", 11, 7), False),
        (True, None, ("other", 10, 7), False),
        (True, None, ("e", 10, None), True),
        (True, 7, ("other", 10, 7), True),
        (True, 7, ("other", 10, None), False),
    ],
)
def test_an_upload_part_is_known_by_number_length_and_checksum(
    is_contested: bool, crc32: int | None, there: tuple[str, int, int | None], is_same: bool
) -> None:
    """A number under which others may have sent other bytes needs a checksum, or the very ETag."""
    piece = Piece(number=1, etag="e", size_bytes=10, crc32=crc32)
    assert piece.is_same(*there, is_contested=is_contested) is is_same


# Which lifecycle rules of an S3 bucket, and which settings of Hadoop's S3 client, a sink warns of.

DAY_S = 86_400.0
ABORT = {"AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 7}}
EXPIRE = {"Expiration": {"Days": 30}}


def hazards(rule: dict[str, Any], *, prefix: str = "landing/x", longest_open_s: float = DAY_S) -> str:
    """What one enabled rule beside an innocent one that aborts after a year is warned of."""
    year = {"Status": "Enabled", "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 365}}
    return "\n".join(rule_hazards([year, {"Status": "Enabled", **rule}], prefix, longest_open_s))


@pytest.mark.parametrize(
    ("rule", "is_named"),
    [
        (EXPIRE, True),
        ({**EXPIRE, "Filter": {"Prefix": ""}}, True),
        ({**EXPIRE, "Filter": {"Prefix": "landing/"}}, True),
        ({**EXPIRE, "Prefix": "landing/x/_partfile/"}, True),
        ({**EXPIRE, "Filter": {"And": {"Prefix": "landing/", "ObjectSizeGreaterThan": 1}}}, True),
        ({**EXPIRE, "Filter": {"Prefix": "landing/x/day="}}, False),
        ({**EXPIRE, "Filter": {"Prefix": "elsewhere/"}}, False),
        ({**EXPIRE, "Filter": {"Tag": {"Key": "k", "Value": "v"}}}, False),
        ({**EXPIRE, "Filter": {"And": {"Prefix": "", "Tags": [{"Key": "k", "Value": "v"}]}}}, False),
        ({**EXPIRE, "Status": "Disabled"}, False),
        ({"Expiration": {"ExpiredObjectDeleteMarker": True}}, False),
        ({"NoncurrentVersionExpiration": {"NoncurrentDays": 1}}, False),
    ],
)
def test_a_rule_that_deletes_state_is_named(rule: dict[str, Any], is_named: bool) -> None:
    """Where it can meet _partfile; rules for finished files, for tagged objects and for old versions are none."""
    assert ("after 30 days" in hazards(rule)) is is_named


@pytest.mark.parametrize(
    ("start", "is_for_us"),
    [
        ("", True),
        ("landing/", True),
        ("landing/x", True),
        ("landing/x/", True),
        ("landing/x-old/", False),
        ("x/", False),
    ],
)
def test_a_rule_that_aborts_elsewhere_is_none(start: str, is_for_us: bool) -> None:
    """A prefix that begins with the base and goes on is another place's."""
    rule = {"Status": "Enabled", "Filter": {"Prefix": start}, **ABORT}
    text = "\n".join(rule_hazards([rule], "landing/x", DAY_S))
    assert ("no lifecycle rule" not in text) is is_for_us


def test_a_date_and_an_archive_are_named() -> None:
    """State that is deleted on a day, or that cannot be read any more; another storage class is no hazard."""
    assert "on 2027-01-31" in hazards({"Expiration": {"Date": datetime(2027, 1, 31, tzinfo=UTC)}})
    assert "archives" in hazards({"Transitions": [{"Days": 1, "StorageClass": "GLACIER"}]})
    assert "archives" not in hazards({"Transitions": [{"Days": 1, "StorageClass": "STANDARD_IA"}]})


@pytest.mark.parametrize(("longest_open_s", "is_named"), [(7 * DAY_S - 1, False), (7 * DAY_S, True)])
def test_the_soonest_rule_that_aborts_counts(longest_open_s: float, is_named: bool) -> None:
    """Compared with the longest that a part can stay open; a base at the root of the bucket is met by every rule."""
    for prefix in ("landing/x", ""):
        assert ("after 7 days" in hazards(ABORT, prefix=prefix, longest_open_s=longest_open_s)) is is_named


def test_no_rule_that_aborts_is_named() -> None:
    """What crashed tasks leave would cost for ever."""
    assert "no lifecycle rule" in "\n".join(rule_hazards([], "x", DAY_S))


@pytest.mark.parametrize(
    ("properties", "named"),
    [
        ({}, ""),
        ({"fs.s3a.multipart.purge": "false"}, ""),
        ({"fs.s3a.multipart.purge": "TRUE"}, "older than 86400 s"),
        ({"fs.s3a.multipart.purge": "true", "fs.s3a.multipart.purge.age": "60"}, "older than 60 s"),
        ({"fs.s3a.multipart.purge": "true", "fs.s3a.bucket.mine.multipart.purge": "false"}, ""),
        ({"fs.s3a.bucket.mine.multipart.purge": "true"}, "older than 86400 s"),
        ({"fs.s3a.committer.name": "file"}, ""),
        ({"fs.s3a.committer.name": "magic"}, "abort.pending.uploads"),
        ({"fs.s3a.committer.name": "magic", "fs.s3a.committer.abort.pending.uploads": "false"}, ""),
    ],
)
def test_settings_of_s3a_that_abort_uploads_are_named(properties: dict[str, str], named: str) -> None:
    """Those of the S3 bucket win over those of all, as in Hadoop."""
    text = "\n".join(hadoop_hazards(HadoopConfiguration(properties), "mine"))
    assert (named in text) if named else not text

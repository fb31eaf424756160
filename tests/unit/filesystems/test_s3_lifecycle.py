"""Which lifecycle rules of an S3 bucket, and which settings of Hadoop's S3 client, a sink warns of."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from partfile.stores.hadoop import HadoopConfiguration
from partfile.stores.s3.probe import hadoop_hazards, rule_hazards

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

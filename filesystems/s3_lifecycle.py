"""What lifecycle rules of an S3 bucket, and Hadoop's S3 client beside us, do to a sink. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from partfile.filesystems.port import STATE_DIRECTORY

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from partfile.filesystems.hadoop_configuration import HadoopConfiguration

_DAY_S = 86_400
_ARCHIVES = {"GLACIER", "DEEP_ARCHIVE"}
"""Storage classes whose objects have to be restored before they can be read."""
_COMMITTERS = {"directory", "partitioned", "magic", "staging"}
"""S3A's committers that keep uploads open."""


def rule_hazards(rules: Sequence[dict[str, Any]], prefix: str, longest_open_s: float) -> Iterator[str]:
    """Which rules hurt a sink, in sentences.

    Args:
        rules: As S3 gives them.
        prefix: Of the base, without slashes at its ends.
        longest_open_s: How long a part can stay open, in seconds.
    """
    enabled = [rule for rule in rules if rule.get("Status") == "Enabled" and not _has_tags(rule)]
    days = [rule["AbortIncompleteMultipartUpload"]["DaysAfterInitiation"] for rule in enabled if _aborts(rule, prefix)]
    if not days:
        yield "no lifecycle rule aborts incomplete uploads: what crashed tasks leave costs until it is cleaned"
    elif min(days) * _DAY_S <= longest_open_s:
        yield (
            f"a lifecycle rule aborts uploads after {min(days)} days, and parts stay open for up to "
            f"{longest_open_s:.0f} s: rows will be lost; allow for the longest outage as well"
        )
    state = f"{prefix}/{STATE_DIRECTORY}/".lstrip("/")
    for rule in enabled:
        if _meets(rule, state):
            yield from _state_hazards(rule)


def hadoop_hazards(configuration: HadoopConfiguration, bucket: str) -> Iterator[str]:
    """What S3A, Hadoop's client, may do to uploads of others, as far as Hadoop's files say it.

    Args:
        configuration: Hadoop's.
        bucket: Name of the S3 bucket, for which properties may be set apart.

    Source: Hadoop's ``S3AFileSystem.initializeMultipartUploads`` and its committers, as of 3.4.
    """

    def told(name: str) -> str:
        own = configuration.value(f"fs.s3a.bucket.{bucket}.{name}")
        return (own or configuration.value(f"fs.s3a.{name}")).lower()

    if told("multipart.purge") == "true":
        yield (
            "fs.s3a.multipart.purge is set: every S3A client that opens the S3 bucket aborts uploads older than "
            f"{told('multipart.purge.age') or _DAY_S} s, those of open parts as well: unset it"
        )
    if told("committer.name") in _COMMITTERS and told("committer.abort.pending.uploads") != "false":
        yield (
            "S3A's committers abort every upload below the directory of their job: let no such job write below this "
            "base, or set fs.s3a.committer.abort.pending.uploads to false"
        )


def _state_hazards(rule: dict[str, Any]) -> Iterator[str]:
    expiration = rule.get("Expiration", {})
    if "Days" in expiration or "Date" in expiration:
        when = f"after {expiration['Days']} days" if "Days" in expiration else f"on {expiration['Date']:%Y-%m-%d}"
        yield (
            f"a lifecycle rule deletes what is below {STATE_DIRECTORY} {when}: a sink that has stood still for so long "
            "finds checkpoints and open parts gone; let the rule name the directories of finished files alone"
        )
    if any(each.get("StorageClass") in _ARCHIVES for each in rule.get("Transitions", [])):
        yield (
            f"a lifecycle rule archives what is below {STATE_DIRECTORY}, where it cannot be read any more: let the "
            "rule name the directories of finished files alone"
        )


def _aborts(rule: dict[str, Any], prefix: str) -> bool:
    # Uploads stand under the keys of finished files, which begin with the base and a slash.
    keys = f"{prefix}/".lstrip("/")
    return "DaysAfterInitiation" in rule.get("AbortIncompleteMultipartUpload", {}) and _meets(rule, keys)


def _meets(rule: dict[str, Any], place: str) -> bool:
    """Whether a rule is for keys that begin with ``place``, or for some of them."""
    narrowed = rule.get("Filter", {})
    start = str(narrowed.get("And", narrowed).get("Prefix", rule.get("Prefix", "")))
    return place.startswith(start) or start.startswith(place)


def _has_tags(rule: dict[str, Any]) -> bool:
    """Whether a rule is for objects with tags alone, which partfile's have not."""
    narrowed = rule.get("Filter", {})
    return "Tag" in narrowed or bool(narrowed.get("And", {}).get("Tags"))

"""``recover --adopt-layout``: what becomes of a tree that another sink has written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer
from pydantic import Field

from partfile.cli import consent
from partfile.cli.adopting.adoption import AdoptionOptions, AdoptionPlan, Layout
from partfile.cli.adopting.applying import AdoptedReport, adopt, check_idle
from partfile.cli.adopting.flink_names import names_of
from partfile.cli.adopting.looking import plan_adoption
from partfile.cli.changing.liveness import store_now_ms
from partfile.cli.inspection.document import Json
from partfile.cli.inspection.exit_codes import DONE, FINDINGS
from partfile.cli.quantities import shown_bytes
from partfile.filesystems.errors import ConfigError

if TYPE_CHECKING:
    from partfile.cli.adopting.adoption import AdoptedItem
    from partfile.cli.consent import Consent
    from partfile.cli.output import Output
    from partfile.cli.verb import Call

AdoptLayout = Annotated[
    str | None,
    typer.Option(
        "--adopt-layout",
        metavar="WHOSE",
        help="PATH is another sink's: flink is a tree of a BucketingSink, spark one with a _spark_metadata. Says "
        "which files are finished or committed, and publishes, cuts or quarantines what is not.",
    ),
]
PublishPending = Annotated[
    bool,
    typer.Option(
        "--publish-pending",
        help="With --adopt-layout flink: publish closed parts too, although only Flink's state knows whether their "
        "checkpoints were completed.",
    ),
]
QuarantineInProgress = Annotated[
    bool,
    typer.Option(
        "--quarantine-in-progress",
        help="With --adopt-layout flink: move parts that were being written to the quarantine, although only Flink's "
        "state knows whether a checkpoint vouches for the beginning of them.",
    ),
]
Affix = Annotated[
    list[str] | None,
    typer.Option(
        "--affix",
        metavar="KEY=VALUE",
        help="With --adopt-layout flink: part-prefix, or the prefix or suffix of in-progress, pending or valid-length "
        "files, as pending-suffix=.waiting, where that is not Flink's default; may be repeated.",
    ),
]

_SHOWN = 20
_DOES = {"publish": "publish", "cut": "cut", "quarantine": "quarantine", "leave": "LEAVE"}


class AdoptReport(Json):
    """What ``recover --adopt-layout --json`` prints."""

    schema_name: Literal["partfile.adopt"] = Field("partfile.adopt", alias="schema")
    schema_version: Literal[1] = 1
    base: str
    """The base path as it was given."""
    plan: AdoptionPlan
    """What is to be done, or was done."""
    digest: str
    """Of the plan, for ``--plan``."""
    is_applied: bool
    """Whether ``--apply`` was given."""
    adopted: AdoptedReport | None
    """What was done; null without ``--apply``, or if there was nothing to do."""


def adoption_options(
    layout: str | None, affixes: list[str] | None, *, publish_pending: bool, quarantine_in_progress: bool
) -> AdoptionOptions | None:
    """The options as one value; None if no layout was named.

    Raises:
        ConfigError: They do not go together, or one cannot be used.
    """
    layouts: dict[str, Layout] = {"flink": "flink", "spark": "spark"}
    if layout != "flink" and (affixes or publish_pending or quarantine_in_progress):
        raise ConfigError(
            "--affix, --publish-pending and --quarantine-in-progress have no effect without --adopt-layout flink",
            hint="Leave them out, or say with --adopt-layout flink that PATH is a tree of Flink's.",
        )
    if layout is None:
        return None
    if layout not in layouts:
        raise ConfigError(f"--adopt-layout {layout!r} is no layout that is known", hint="There are flink and spark.")
    return AdoptionOptions(
        layout=layouts[layout],
        publish_pending=publish_pending,
        quarantine_in_progress=quarantine_in_progress,
        names=names_of(affixes or []),
    )


def adopt_tree(call: Call, given: Consent, options: AdoptionOptions) -> int:
    """Show the plan for a tree of another sink, and do it if that was asked for."""
    base = call.place.base
    with call.place.open_base() as store:
        with call.out.progress("listing files") as step:
            planned = plan_adoption(store, base, options, step)
        if not call.out.as_json:
            _show(planned, given, call.out)
        done = None
        if given.is_applied and planned.to_do:
            consent.check_plan(given, planned)
            # In the base, so that a refusal leaves no directory in a tree of somebody else's.
            now_ms = store_now_ms(store, "")
            if not given.may_fence:
                check_idle(planned, now_ms, given.idle_for_s(store))
            with call.out.progress("adopting files", len(planned.to_do)) as step:
                done = adopt(planned, store, base, now_ms, step)
    return _report(call, given, planned, done)


def _show(planned: AdoptionPlan, given: Consent, out: Output) -> None:
    word = "committed" if planned.options.layout == "spark" else "finished"
    out.line(f"{planned.finished.files} files are {word}, {shown_bytes(planned.finished.bytes)}: they stay", "green")
    if planned.ignored.files:
        out.line(f"{planned.ignored.files} other files are none of that sink's: they stay", "dim")
    for kind in dict.fromkeys(item.kind for item in planned.items):
        items = [item for item in planned.items if item.kind == kind]
        size = sum(item.size for item in items)
        out.line(f"{kind}: {len(items)}, {shown_bytes(size)}", "bold")
        for item in items[:_SHOWN]:
            _show_item(item, out)
        if len(items) > _SHOWN:
            out.line(f"  and {len(items) - _SHOWN} more; --json shows all")
    if planned.to_do:
        out.line(f"plan {planned.digest}", "bold")
    if planned.to_do and not given.is_applied:
        out.line("Nothing was changed. Stop that job for good, then add --apply to do this.", "dim")


def _show_item(item: AdoptedItem, out: Output) -> None:
    does = _DOES[item.action]
    if item.valid_length is not None and item.valid_length != item.size:
        does = f"cut to {shown_bytes(item.valid_length)}" + (" and publish" if item.action == "publish" else "")
    out.line(f"  {does}: {item.path}, {shown_bytes(item.size)}", "yellow" if item.action == "leave" else None)
    out.line(f"    {item.why}", "dim")


def _report(call: Call, given: Consent, planned: AdoptionPlan, done: AdoptedReport | None) -> int:
    if call.out.as_json:
        call.out.report(
            AdoptReport(
                base=call.place.base, plan=planned, digest=planned.digest, is_applied=given.is_applied, adopted=done
            )
        )
    elif done is not None:
        _show_done(done, call.out)
    is_left = len(planned.to_do) < len(planned.items)
    if given.is_applied:
        return FINDINGS if is_left or (done is not None and done.failed) else DONE
    return FINDINGS if planned.items else DONE


def _show_done(done: AdoptedReport, out: Output) -> None:
    out.line(f"{done.published} published, {done.cut} cut, {done.quarantined} moved to the quarantine", "green")
    if done.quarantine is not None:
        out.line(f"they are in _partfile/{done.quarantine}; delete that when nobody misses them")
    for one in done.failed:
        out.line(f"not done: {one.error}", "red")

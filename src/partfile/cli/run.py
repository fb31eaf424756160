"""The verb ``run``: the job of a Python file, until it ends."""

from __future__ import annotations

import runpy
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from pydantic import Field, JsonValue

from partfile.cli.command import COMMON_OPTIONS, ended
from partfile.cli.exit_codes import DONE
from partfile.cli.output import Output, counted
from partfile.errors import ConfigError, PartfileError
from partfile.pipeline.job import Pipeline, described_only
from partfile.recovery.documents import Json

if TYPE_CHECKING:
    from types import TracebackType

    from partfile.pipeline.job import JobProgress

_AS_JSON, _NO_COLOR, _DEBUG = (COMMON_OPTIONS[name][0] for name in ("as_json", "no_color", "debug"))


class CheckpointReport(Json):
    """One line of ``run --json``: a checkpoint of the job is complete."""

    schema_name: Literal["partfile.run.checkpoint"] = Field("partfile.run.checkpoint", alias="schema")
    schema_version: Literal[1] = 1
    job: str
    """The name of the pipeline."""
    uid: str
    """Of its sink."""
    checkpoint_id: int
    """Of the sink's log."""
    rows: int
    """Rows that count, since the job was begun by this process."""
    dead_letters: int
    """Records of this process that are no rows."""
    parts_finished: int
    """Parts that this checkpoint has published."""
    lag: dict[str, int]
    """Rows that are known to wait, by partition, or how many ``files``; empty where the source does not know."""
    restarts: int
    """Failures of this process, after which the job began again."""


class RunReport(Json):
    """The last line of ``run --json``: the job has ended without an error."""

    schema_name: Literal["partfile.run"] = Field("partfile.run", alias="schema")
    schema_version: Literal[1] = 1
    job: str
    """The name of the pipeline."""
    rows: int
    """Rows that count, of this process."""
    dead_letters: int
    """Records that are no rows."""
    checkpoints: int
    """Checkpoints of this process."""
    restarts: int
    """Failures after which it began again."""
    is_ended: bool
    """Whether the source has ended; false if a signal ended the job."""
    position: JsonValue
    """Where the source stands behind the last checkpoint."""


def run(
    *,
    file: Annotated[str, typer.Argument(metavar="FILE", help="Python file that makes a pf.Pipeline.")],
    job: Annotated[
        str | None, typer.Option("--job", metavar="NAME", help="Name of the pipeline, where the file makes several.")
    ] = None,
    as_json: _AS_JSON = False,  # type: ignore[valid-type]
    no_color: _NO_COLOR = False,  # type: ignore[valid-type]
    debug: _DEBUG = False,  # type: ignore[valid-type]
) -> None:
    """Run the job that a Python file describes, until its source ends or Ctrl-C ends it with a last checkpoint.

    The file is run as a module: what stands below ``if __name__ == "__main__"`` is not. SIGTERM and the first Ctrl-C
    take a last checkpoint, which publishes everything; a second Ctrl-C ends at once, and nothing that counts is lost.
    With --json it prints a line for each checkpoint, and one at the end. Of the options of every verb it has --json,
    --no-color and --debug.
    """
    out = Output(as_json=as_json, no_color=no_color)
    raise typer.Exit(ended(lambda: _run(_pipeline_in(file, job), file, out), out, debug=debug))


def _pipeline_in(file: str, name: str | None) -> Pipeline:
    """The pipeline that a file makes; raises ConfigError where there is none, or not one alone."""
    if not Path(file).is_file():
        raise ConfigError(
            f"there is no file {file!r}", hint="Name a Python file that makes a pf.Pipeline: partfile run FILE"
        )
    # As `python FILE` has it, so that the file finds the modules beside it.
    sys.path.insert(0, str(Path(file).resolve().parent))
    try:
        with described_only():
            found = runpy.run_path(file, run_name="partfile_job")
    except PartfileError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"{file} cannot be run{_line_of(error.__traceback__, file)}: {type(error).__name__}: {error}",
            hint=f"Mend it, and see its traceback: partfile run {file} --debug",
        ) from error
    jobs = {id(one): one for one in found.values() if isinstance(one, Pipeline)}
    chosen = [one for one in jobs.values() if name is None or one.name == name]
    if len(chosen) == 1:
        return chosen[0]
    names = ", ".join(repr(one.name) for one in jobs.values())
    if not jobs:
        raise ConfigError(
            f"{file} makes no pf.Pipeline that a variable of the module names",
            hint="Write job = pf.Pipeline(NAME) at its top level, with job.source(SOURCE) and job.sink(SINK).",
        )
    raise ConfigError(
        f"{file} makes the pipelines {names}" + ("" if name is None else f", and {len(chosen)} named {name!r}"),
        hint="Name one of them: --job NAME. Two of one name cannot be told apart: pf.Pipeline(ANOTHER)",
    )


def _line_of(trace: TracebackType | None, file: str) -> str:
    lines = [frame.lineno for frame in traceback.extract_tb(trace) if frame.filename == file]
    return f" (line {lines[-1]})" if lines else ""


def _run(job: Pipeline, file: str, out: Output) -> int:
    listener, unread = job.on_progress, list[BrokenPipeError]()
    with out.state_shown(f"{job.name}: no checkpoint yet") as show:

        def told(done: JobProgress) -> None:
            try:
                if out.as_json:
                    out.json_line(_checkpoint_report(done))
                    out.flush()
            except BrokenPipeError as error:
                unread.append(error)
                job.stop()
            show(_state_of(done))
            if listener is not None:
                listener(done)

        job.on_progress = told
        try:
            result = job.run()
        except PartfileError:
            raise
        except (Exception, SystemExit) as error:
            raise PartfileError(
                f"{job.name} has failed{_line_of(error.__traceback__, file)}: {type(error).__name__}: {error}",
                hint=f"Nothing that counts is lost. See its traceback: partfile run {file} --debug",
            ) from error
    if unread:
        raise unread[0]
    if out.as_json:
        out.json_line(
            RunReport(
                job=job.name,
                rows=result.rows,
                dead_letters=result.dead_letters,
                checkpoints=result.checkpoints,
                restarts=result.restarts,
                is_ended=result.is_ended,
                position=result.position,
            )
        )
    else:
        why = "its source has ended" if result.is_ended else "it was told to stop; run it again to go on"
        out.line(
            f"{job.name}: {counted(result.rows, 'row')}, {counted(result.dead_letters, 'dead letter')}, "
            f"{counted(result.checkpoints, 'checkpoint')}, {counted(result.restarts, 'restart')}; {why}"
        )
    return DONE


def _checkpoint_report(done: JobProgress) -> CheckpointReport:
    return CheckpointReport(
        job=done.job,
        uid=done.checkpoint.uid,
        checkpoint_id=done.checkpoint.checkpoint_id,
        rows=done.rows,
        dead_letters=done.dead_letters,
        parts_finished=done.checkpoint.parts_finished,
        lag=dict(done.lag),
        restarts=done.restarts,
    )


def _state_of(done: JobProgress) -> str:
    """The line that a terminal shows."""
    words = [f"{done.job}: {done.rows:,} rows", f"checkpoint {done.checkpoint.checkpoint_id}"]
    if done.lag:
        words.append(f"{sum(done.lag.values()):,} waiting")
    if done.dead_letters:
        words.append(counted(done.dead_letters, "dead letter"))
    if done.restarts:
        words.append(counted(done.restarts, "restart"))
    return ", ".join(words)

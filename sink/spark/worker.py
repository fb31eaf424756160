"""The Python worker processes of Spark: what is done once in each, and which version they must run."""

from __future__ import annotations

import functools
import gc

from partfile.filesystems.errors import PartfileError
from partfile.version import __version__


@functools.cache
def spare_modules_from_collection() -> None:
    """Take what the imports made out of the garbage collector's sight, once a process.

    Spark's worker runs a full collection after every task. Modules are never garbage, yet each collection walks their
    ninety thousand objects: 57 ms of CPU a task, while the driver plans the next batch beside it. See ``gc.freeze``.
    """
    gc.collect()
    gc.freeze()


def check_version(version: str) -> None:
    """Refuse an answer of a worker that runs another version of partfile than the driver.

    Args:
        version: The worker's, by its answer.

    Raises:
        PartfileError: It is another one.
    """
    if version != __version__:
        raise PartfileError(
            f"an executor has partfile {version}, the driver {__version__}",
            hint="Install the same version on every node.",
        )

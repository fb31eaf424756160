"""What a store can do."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from partfile.filesystems.port import Persisted


class Capabilities(Persisted):
    """What a store can do, as probed; reported at start, decided upon by the life cycle."""

    append: bool
    """An in-progress part can be appended to by a later process; else parts roll at every checkpoint."""
    lease: bool
    """Two processes cannot append to one part at once."""
    fence: bool
    """A coordinator can take the lease from whoever holds it, after which not one byte of his counts; else a part whose
    lease cannot be had is copied."""
    truncate: bool
    """A part can be cut in place."""
    no_replace: bool
    """Publishing cannot overwrite."""
    durable: bool
    """Persisted bytes and names survive power loss."""
    shared: bool
    """Other hosts see the same files; a guess for local paths, proven by the marker (S13)."""
    staged_files: bool = True
    """A part that is not finished is a file under its staged name. Else it is known by its handle alone: it shows
    nowhere, one handle can be resumed once, and a finished file tells whose it is."""
    exclusive_create: bool = True
    """Of several who create one metadata file, one succeeds. Else two coordinators are detected, not prevented."""
    stages: bool = False
    """A stage can be read back up to its valid length, by another process and while it is being written."""
    publish_threads: Annotated[int, Field(ge=1)] = 8
    """Parts that a coordinator does well to publish at the same time, unless the user says otherwise."""

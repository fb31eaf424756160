"""``python -m partfile``, and the command ``partfile``: the command line, which is an extra."""

from __future__ import annotations

import sys

_USAGE = 2


def main() -> None:
    """Run the command line; without its packages say which command installs them, and end with 2."""
    try:
        from partfile.cli.main import main as run  # noqa: PLC0415 - it needs the extra.

        run()
    except KeyboardInterrupt:
        # Before a verb had begun: nothing was changed.
        sys.exit(130)
    except ModuleNotFoundError as error:
        if error.name not in {"rich", "typer"}:
            raise
        sys.stderr.write(f"partfile: the command line needs {error.name}, which is not installed\n")
        sys.stderr.write("Hint: pip install 'partfile[cli]'\n")
        sys.exit(_USAGE)


if __name__ == "__main__":
    main()

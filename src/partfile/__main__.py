"""``python -m partfile``: the command line."""

from __future__ import annotations

import sys

if __name__ == "__main__":
    try:
        from partfile.cli.main import main

        main()
    except KeyboardInterrupt:
        # Before a verb had begun: nothing was changed.
        sys.exit(130)

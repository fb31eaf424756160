"""The command line: ``partfile VERB PATH``. The frame and its verbs; ``inspection`` knows nothing of a terminal."""

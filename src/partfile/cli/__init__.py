"""The command line: ``partfile VERB PATH``. One file a verb."""

"""moto's server, with conditional requests in turn: moto looks for the key and writes it in two steps, AWS in one.

Usage: ``python moto_in_turn.py PORT``, on 127.0.0.1.
"""

from __future__ import annotations

import io
import sys
import threading
from typing import TYPE_CHECKING, Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import run_simple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


PRECONDITIONS = frozenset({"HTTP_IF_MATCH", "HTTP_IF_NONE_MATCH"})


class InTurn:
    """A WSGI application whose requests with a precondition wait for each other; it has done its work once it returns.

    Args:
        application: Answers each request.
    """

    def __init__(self, application: Callable[..., Iterable[bytes]]) -> None:
        self._application = application
        self._turn = threading.Lock()

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        """Answer one request; its body is here before its turn comes, since a client may never send the rest."""
        if not PRECONDITIONS & environ.keys():
            return self._application(environ, start_response)
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        with self._turn:
            return self._application({**environ, "wsgi.input": io.BytesIO(body)}, start_response)


if __name__ == "__main__":
    run_simple(
        "127.0.0.1",
        int(sys.argv[1]),
        InTurn(DomainDispatcherApplication(create_backend_app)),
        threaded=True,
        request_handler=MotoRequestHandler,
    )

"""Tests of the engine of remote endpoints with answers that never end."""

import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress

import pytest

from selfplay.errors import RunError
from tests.helpers.endpoint_engine import answers, engine, quick, request
from tests.helpers.repository import ROOT

__all__ = ["quick"]


def test_an_answer_that_never_ends_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client's timeout applies to each byte alone, and here the next byte always arrives."""
    monkeypatch.setattr("selfplay.engines.openai.PAUSE", 0.0)

    def drip(connection: socket.socket) -> None:
        with suppress(OSError):
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 99999\r\n\r\n")
            while True:
                connection.sendall(b" ")
                time.sleep(0.05)

    def serve() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                threading.Thread(target=drip, args=(connection,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, daemon=True).start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        asked = engine(url, retries=0)
        asked.timeout = 0.5  # shorter than that of the client, which no byte exceeds
        with pytest.raises(RunError, match=r"an answer did not end within 0\.5 s"):
            answers(asked, request())


def test_a_request_in_flight_does_not_keep_the_process_alive() -> None:
    program = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r});"
        "from tests.engines.test_openai_timeouts import engine, request, silent;"
        "asked = engine(silent(), timeout=3600.0, retries=0); asked.add(request());"
        "asked.step(); asked.close()"
    )
    ran = subprocess.run([sys.executable, "-c", program], timeout=600)
    assert ran.returncode == 0


def silent() -> str:
    """Return the address of an endpoint that accepts connections and sends nothing."""
    listener = socket.create_server(("127.0.0.1", 0))
    KEPT.append(listener)
    return f"http://127.0.0.1:{listener.getsockname()[1]}/v1"


KEPT: list[socket.socket] = []
"""Listeners that stay open."""

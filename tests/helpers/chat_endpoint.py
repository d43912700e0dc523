"""A chat endpoint on loopback; a test chooses if it answers right, late, wrong or not at all."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Body = dict[str, Any]
Reply = tuple[int, str]
Behaviour = Callable[[int, Body], Reply | None]
"""(number of the request, its body) -> (status, body), or None to close the connection."""


def words(text: Any, *, finish: str = "stop", usage: Any = None) -> Reply:
    """Return an answer with this text."""
    message = {"role": "assistant", "content": text}
    spent = {"prompt_tokens": 10, "completion_tokens": 5} if usage is None else usage
    choices = [{"index": 0, "message": message, "finish_reason": finish}]
    return 200, json.dumps({"id": "x", "choices": choices, "usage": spent})


def failure(status: int, message: str) -> Reply:
    """Return an error in the format of chat endpoints."""
    return status, json.dumps({"error": {"message": message, "type": "error"}})


class Endpoint:
    """The address of a running endpoint, and the requests that it received."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.asked: list[Body] = []
        self.keys: list[str] = []
        self.most = 0
        """Largest number of requests in flight at the same time."""


@contextmanager
def serving(behaviour: Behaviour) -> Iterator[Endpoint]:
    """Yield an endpoint that answers until the context ends."""
    lock, in_flight = threading.Lock(), [0]

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            with lock:
                number = len(endpoint.asked)
                endpoint.asked.append({**body, "path": self.path})
                endpoint.keys.append(self.headers.get("authorization", ""))
                in_flight[0] += 1
                endpoint.most = max(endpoint.most, in_flight[0])
            reply = behaviour(number, body)
            with lock:
                in_flight[0] -= 1
            if reply is None:
                self.close_connection = True
                return
            status, text = reply
            try:
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(text.encode())))
                self.end_headers()
                self.wfile.write(text.encode())
            except OSError:
                return  # the client has closed the connection

        def log_message(self, format: str, *values: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    endpoint = Endpoint(f"http://127.0.0.1:{server.server_port}/v1")
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield endpoint
    finally:
        server.shutdown()
        server.server_close()

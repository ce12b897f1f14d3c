"""An engine that knows the routes by which vLLM is parked, and uses its memory for each completion.

    python -m tests.light_engine PORT DEVICE BYTES

As in vLLM a request that comes while it sleeps is kept until it is awake.
"""

import json
import mmap
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from tests.device_memory import device_memory


class Memory:
    """One block, there while the engine is awake."""

    def __init__(self, directory: str, size: int) -> None:
        self._directory = directory
        self._size = size
        self._block: mmap.mmap | None = None
        self._awake = threading.Condition()
        self.take()

    def take(self) -> None:
        with self._awake:
            if self._block is None:
                self._block = device_memory(self._directory, self._size)
            self._awake.notify_all()

    def leave(self) -> None:
        with self._awake:
            if self._block is not None:
                self._block.close()
            self._block = None

    def use(self) -> None:
        """Write to all of it, once it is there."""
        with self._awake:
            self._awake.wait_for(lambda: self._block is not None)
            assert self._block is not None
            self._block[:] = b"\xa5" * self._size


class Routes(BaseHTTPRequestHandler):
    """What workload_agents/adapters/vllm.py asks, and completions."""

    memory: Memory

    def do_GET(self) -> None:
        self._answer({})

    def do_POST(self) -> None:
        asked = urlsplit(self.path)
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        match asked.path, parse_qs(asked.query).get("tags"):
            case "/sleep", _:
                self.memory.leave()
                self._answer({})
            case "/wake_up", ["kv_cache"]:
                self.memory.take()
                self._answer({"status": "awake"})
            case "/v1/completions", _:
                self.memory.use()
                self._answer({"choices": [{"text": "done"}]})
            case _:
                self._answer({"status": "partly awake", "success": True})

    def _answer(self, content: object) -> None:
        body = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """A line for each request says nothing here."""


if __name__ == "__main__":
    port, directory, size = sys.argv[1:]
    Routes.memory = Memory(directory, int(size))
    ThreadingHTTPServer(("127.0.0.1", int(port)), Routes).serve_forever()

"""An engine that takes its memory as it starts and knows the routes by which it is parked.

    python3 -m tests.cluster.engine --host 127.0.0.1 --port PORT --worker-cls MIB

What it says at its start tells when that was, on CLOCK_MONOTONIC.
"""

import argparse
import json
import mmap
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from tests.cluster.tenant import device_memory


class Memory:
    """One block, there while the engine is awake."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._block: mmap.mmap | None = None
        self.take()

    def take(self) -> None:
        if self._block is None:
            self._block = device_memory(self._size)

    def leave(self) -> None:
        if self._block is not None:
            self._block.close()
            self._block = None


class Routes(BaseHTTPRequestHandler):
    """What workload_agents/adapters/vllm.py asks."""

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
            case _:
                self._answer({"status": "partly awake", "success": True})

    def _answer(self, content: object) -> None:
        body = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--worker-cls", type=int, required=True, dest="mib")
    given = parser.parse_args()
    print(json.dumps({"started": time.monotonic()}), flush=True)
    Routes.memory = Memory(given.mib << 20)
    ThreadingHTTPServer((given.host, given.port), Routes).serve_forever()

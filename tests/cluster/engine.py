"""The light engine, started as vLLM is in a pod.

    python3 -m tests.cluster.engine --host 127.0.0.1 --port PORT --worker-cls MIB

What it says at its start tells when that was, on CLOCK_MONOTONIC.
"""

import argparse
import json
import os
import time
from http.server import ThreadingHTTPServer

from tests.light_engine import Memory, Routes

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--worker-cls", type=int, required=True, dest="mib")
    given = parser.parse_args()
    print(json.dumps({"started": time.monotonic()}), flush=True)
    Routes.memory = Memory(os.environ["SIMDEVICE_DIR"], given.mib << 20)
    ThreadingHTTPServer((given.host, given.port), Routes).serve_forever()

"""Reads what devices hold, every few hundred microseconds, and tells what one tenant cannot hold.

    python -m tests.chaos.gauge BYTES EVERY_S DEVICE...

statvfs answers in one go, so more than any tenant's own memory is two tenants' at once, whatever
anybody says. Each time is told with its first and its last look. Ends with SIGTERM, and then tells
how often it looked.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any


def main(most: int, every_s: float, devices: list[str]) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    looks, worst = 0, dict.fromkeys(devices, 0)
    above = dict[str, dict[str, Any]]()
    print(json.dumps({"looks": 0}), flush=True)
    while signal.sigtimedwait([signal.SIGTERM], every_s) is None:
        looks += 1
        for device in devices:
            stat = os.statvfs(device)
            used = (stat.f_blocks - stat.f_bfree) * stat.f_frsize
            worst[device] = max(worst[device], used)
            if used > most:
                t = time.monotonic()
                found = above.setdefault(device, {"t": t, "device": Path(device).name, "used": 0})
                found |= {"until": t, "used": max(found["used"], used)}
            elif device in above:
                print(json.dumps(above.pop(device)), flush=True)
    for found in above.values():
        print(json.dumps(found), flush=True)
    print(json.dumps({"looks": looks, "worst": worst}), flush=True)


if __name__ == "__main__":
    most, every_s, *devices = sys.argv[1:]
    main(int(most), float(every_s), devices)

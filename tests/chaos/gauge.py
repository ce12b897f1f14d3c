"""Reads what devices hold, every few hundred microseconds, and tells what one tenant cannot hold.

    python -m tests.chaos.gauge BYTES EVERY_S DEVICE...

statvfs answers in one go, so more than any tenant's own memory is two tenants' at once, whatever
anybody says. Ends with SIGTERM, and then tells how often it looked.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path


def main(most: int, every_s: float, devices: list[str]) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    looks, worst = 0, dict.fromkeys(devices, 0)
    above = set[str]()
    print(json.dumps({"looks": 0}), flush=True)
    while signal.sigtimedwait([signal.SIGTERM], every_s) is None:
        looks += 1
        for device in devices:
            stat = os.statvfs(device)
            used = (stat.f_blocks - stat.f_bfree) * stat.f_frsize
            worst[device] = max(worst[device], used)
            if used <= most:
                above.discard(device)
            elif device not in above:
                above.add(device)
                found = {"t": time.monotonic(), "device": Path(device).name, "used": used}
                print(json.dumps(found), flush=True)
    print(json.dumps({"looks": looks, "worst": worst}), flush=True)


if __name__ == "__main__":
    most, every_s, *devices = sys.argv[1:]
    main(int(most), float(every_s), devices)

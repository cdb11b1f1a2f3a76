# SPDX-License-Identifier: Apache-2.0
"""Runs inside the guest: a counter in memory, with what it last knew in a file on the disk.

"born" is drawn once, so every branch of this process shows the same; "draw" is drawn from the kernel at every step, so no
two branches may ever show the same.
"""
import json
import os
import time

born, count = os.urandom(8).hex(), 0
while True:
    count += 1
    with open("counter.new", "w", encoding="utf-8") as file:
        json.dump({"born": born, "count": count, "draw": os.urandom(8).hex(), "pid": os.getpid()}, file)
    os.rename("counter.new", "counter.json")
    time.sleep(0.05)

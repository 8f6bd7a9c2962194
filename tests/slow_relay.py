"""A cable that is worse than it could be: frames go from one TAP device to another, later, or never.

    slow_relay.py PID1 DEVICE1 PID2 DEVICE2      makes DEVICE1 in the network of process PID1, DEVICE2 in that of PID2

It says `done` when the devices are there. Every line it is given, a JSON object, says how the cable is from now on:
`delay_s`, `loss` (a share of the frames, drawn from a fixed seed), `deaf` (nothing arrives at DEVICE2), `mute`
(nothing leaves it); again it says `done`. It ends with its standard input, and the devices with it.
"""

from __future__ import annotations

import collections
import ctypes
import fcntl
import json
import os
import random
import select
import struct
import sys
import time

TUNSETIFF, TAP, NO_HEADER, NEW_NETWORK = 0x400454CA, 0x0002, 0x1000, 0x40000000
LONGEST = 65_600
WAITING = 20_000
"""Frames that may be on their way; what comes then is lost, as in any router."""


def make_device(pid: int, name: str) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/proc/{pid}/ns/net") as place:
        if libc.setns(place.fileno(), NEW_NETWORK):
            raise OSError(ctypes.get_errno(), f"the network of process {pid}")
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", name.encode(), TAP | NO_HEADER))
    return device


def main(pid1: str, name1: str, pid2: str, name2: str) -> None:
    first, second = make_device(int(pid1), name1), make_device(int(pid2), name2)
    print("done", flush=True)
    delay_s, loss, deaf, mute = 0.0, 0.0, False, False
    under_way: collections.deque[tuple[float, int, bytes]] = collections.deque()
    chance = random.Random(1)
    while True:
        wait_s = max(0.0, under_way[0][0] - time.monotonic()) if under_way else None
        for source in select.select([0, first, second], [], [], wait_s)[0]:
            if source == 0:
                line = sys.stdin.readline()
                if not line:
                    return
                asked = json.loads(line)
                delay_s, loss, deaf, mute = asked["delay_s"], asked["loss"], asked["deaf"], asked["mute"]
                print("done", flush=True)
                continue
            is_inward = source == first
            for _ in range(64):
                try:
                    frame = os.read(source, LONGEST)
                except OSError:  # nothing more, or the device is down
                    break
                if (deaf if is_inward else mute) or chance.random() < loss or len(under_way) >= WAITING:
                    continue
                under_way.append((time.monotonic() + delay_s, second if is_inward else first, frame))
        now = time.monotonic()
        while under_way and under_way[0][0] <= now:
            _, where, frame = under_way.popleft()
            try:
                os.write(where, frame)
            except OSError:
                pass  # the device is down: a cable that is not plugged in


if __name__ == "__main__":
    main(*sys.argv[1:])

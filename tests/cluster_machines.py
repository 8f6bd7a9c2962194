"""Machines in a box: namespaces on this machine that a test makes, cuts apart and forgets.

        switch (net namespace, no address of its own)
          bridge -- port0 ----- veth ----- eth0   machine 0, 10.77.0.1     net, pid and mount namespaces,
                 -- port1 ----- veth ----- eth0   machine 1, 10.77.0.2     /mnt and /dev/shm of its own
                 -- port2 == TAP  relay  TAP == eth0   machine 2, 10.77.0.3     a link that may be slow, lossy or deaf

No namespace has a name, and none is connected with the network of this machine: an address in there leads nowhere else.
Each is kept by one process whose standard input is a pipe from the test. When the test ends, however it does (SIGKILL
too), the pipe ends, that process with it, every process of its pid namespace with that one, and then the devices. So
there is nothing to clean up. Needs root and Linux; `why_not`
says what is missing.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import IO

from running_processes import all_children
from waiting import wait_until

NET = "10.77.0"
DISK = "/mnt"
"""Where a machine has a disk of its own, in memory. They share all else with this one: the same code is there."""
KEEPER = """
import os, select, sys
print(os.getpid(), flush=True)
while True:  # the first process of its namespace: whoever loses its parent becomes its child
    if select.select([0], [], [], 0.1)[0]:
        sys.exit()  # the test says nothing, ever: it is gone
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
"""
FORBIDDEN = "this kernel or user may not make machines: "


@functools.cache
def why_not() -> str:
    """Why machines cannot be made here: empty if they can."""
    if sys.platform != "linux":
        return FORBIDDEN + f"namespaces are Linux's, this is {sys.platform}"
    if os.geteuid() != 0:
        return FORBIDDEN + "only root may"
    tried = (
        "ip link add end1 type veth peer name end2 && ip link add bridge type bridge && "
        "ip tuntap add tap1 mode tap && mount -t tmpfs none /mnt"
    )
    done = subprocess.run(
        ["unshare", "--net", "--pid", "--mount", "--fork", "--mount-proc", "sh", "-c", tried],
        capture_output=True,
        text=True,
        check=False,
    )
    return FORBIDDEN + (done.stderr.strip().splitlines() or ["no reason given"])[-1] if done.returncode else ""


class Machine:
    """A few namespaces and the process that keeps them. `run` starts programs in there."""

    def __init__(self, name: str, number: int, *, shm_mb: int, disk_mb: int) -> None:
        self.name = name
        self.address = f"{NET}.{number + 1}"
        self._keeper = subprocess.Popen(
            ["unshare", "--net", "--pid", "--mount", "--fork", "--mount-proc", sys.executable, "-S", "-c", KEEPER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # unshare complains when what it waits for is killed
        )
        self._entrances: list[subprocess.Popen[bytes]] = []
        assert self._keeper.stdout is not None
        assert self._keeper.stdout.readline(), f"{name} could not be made"
        [self.first_process] = all_children(self._keeper.pid)
        self.do("ip", "link", "set", "lo", "up")
        for folder, megabytes in ((DISK, disk_mb), ("/dev/shm", shm_mb)):
            self.do("mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=1777", "none", folder)

    def inside(self, *command: str) -> list[str]:
        """The command, as it has to be given to be run in there."""
        return ["nsenter", "-t", str(self.first_process), "-n", "-p", "-m", "--", *command]

    def do(self, *command: str) -> str:
        """Run something short in there, to its end."""
        done = subprocess.run(self.inside(*command), capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, f"{self.name}: {' '.join(command)}: {done.stderr or done.stdout}"
        return done.stdout

    def start(
        self, *command: str | Path, said: IO[bytes] | int, env: Mapping[str, str], cwd: Path | None = None
    ) -> subprocess.Popen[bytes]:
        """Start something in there. What is killed is its entrance: `process_of` says who does the work."""
        words = self.inside(*map(str, command))
        entrance = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT, env=dict(env), cwd=cwd
        )
        self._entrances.append(entrance)
        return entrance

    def processes(self) -> list[int]:
        """All that run in there, by their numbers out here, without the keeper."""
        space = os.readlink(f"/proc/{self.first_process}/ns/pid")
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if os.readlink(folder / "ns/pid") == space and int(folder.name) != self.first_process:
                    found.append(int(folder.name))
            except OSError:
                continue
        return found

    @property
    def is_on(self) -> bool:
        return self._keeper.poll() is None

    def switch_off(self) -> None:
        """As by pulling the plug: nothing in there gets to say a word."""
        if self._keeper.poll() is None:
            os.kill(self.first_process, signal.SIGKILL)
        for process in (self._keeper, *self._entrances):
            process.wait(60)
            for end in (process.stdin, process.stdout):
                if end is not None:
                    end.close()


def process_of(entrance: subprocess.Popen[bytes]) -> int:
    """What was started, behind its entrance."""
    found: list[int] = []

    def is_there() -> bool:
        found[:] = all_children(entrance.pid)
        return bool(found) or entrance.poll() is not None

    wait_until(is_there, what="a process in its namespace")
    assert found, "it has ended already"
    return found[0]


class Network:
    """A switch and machines on it. Leaving the block ends all of them."""

    def __init__(self) -> None:
        self._switch = Machine("switch", 200, shm_mb=1, disk_mb=1)
        self._ends = ExitStack()
        self._ends.callback(self._switch.switch_off)
        self._relays: dict[str, subprocess.Popen[str]] = {}
        self._ports: dict[str, str] = {}
        self.machines: list[Machine] = []
        self._on_switch("link", "add", "bridge", "type", "bridge")
        self._on_switch("link", "set", "bridge", "up")

    def __enter__(self) -> Network:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ends.close()

    def add(self, name: str, *, relayed: bool = False, shm_mb: int = 512, disk_mb: int = 512) -> Machine:
        """A machine more. Of a `relayed` one the link can be made worse (`degrade`)."""
        number = len(self.machines)
        machine, port = Machine(name, number, shm_mb=shm_mb, disk_mb=disk_mb), f"port{number}"
        self._ends.callback(machine.switch_off)
        self.machines.append(machine)
        self._ports[name] = port
        if relayed:
            self._relays[name] = self._relay(machine, port)
        else:
            there = str(machine.first_process)
            self._on_switch("link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", there)
        self._on_switch("link", "set", port, "master", "bridge", "up")
        machine.do("ip", "address", "add", f"{machine.address}/24", "dev", "eth0")
        machine.do("ip", "link", "set", "eth0", "up")
        return machine

    def cut(self, machine: Machine) -> None:
        """Pull its cable out of the switch."""
        self._on_switch("link", "set", self._ports[machine.name], "down")

    def is_relayed(self, machine: Machine) -> bool:
        return machine.name in self._relays

    def mend(self, machine: Machine) -> None:
        self._on_switch("link", "set", self._ports[machine.name], "up")

    def degrade(
        self, machine: Machine, *, delay_s: float = 0.0, loss: float = 0.0, deaf: bool = False, mute: bool = False
    ) -> None:
        """From now on everything takes so much longer and some of it is lost, both ways; `deaf`: nothing reaches the
        machine, `mute`: nothing leaves it. Without arguments the link is as good as new."""
        relay = self._relays[machine.name]
        assert relay.stdin is not None and relay.stdout is not None
        relay.stdin.write(json.dumps({"delay_s": delay_s, "loss": loss, "deaf": deaf, "mute": mute}) + "\n")
        relay.stdin.flush()
        assert relay.stdout.readline() == "done\n", "the relay is gone"

    def _relay(self, machine: Machine, port: str) -> subprocess.Popen[str]:
        program = Path(__file__).with_name("slow_relay.py")
        places = [f"{self._switch.first_process}", port, f"{machine.first_process}", "eth0"]
        relay = subprocess.Popen(
            [sys.executable, "-S", program, *places], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._ends.callback(_end, relay)
        assert relay.stdout is not None
        assert relay.stdout.readline() == "done\n", "the relay could not start"
        return relay

    def _on_switch(self, *words: str) -> None:
        switch = ["nsenter", "-t", str(self._switch.first_process), "-n", "--", "ip", *words]
        subprocess.run(switch, check=True, timeout=60)


def _end(relay: subprocess.Popen[str]) -> None:
    relay.kill()
    relay.wait()
    for end in (relay.stdin, relay.stdout):
        assert end is not None
        end.close()


def devices(words: Sequence[str] = ("ip", "-brief", "link")) -> list[str]:
    """The network devices of this machine itself."""
    return [line.split()[0] for line in subprocess.check_output(words, text=True).splitlines()]

"""The machines in a box themselves: apart from this one, cut at will, and gone with the test that made them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cluster_machines import Machine, Network, devices, why_not
from running_processes import all_children, is_running, wait_until_gone

pytestmark = [pytest.mark.skipif(bool(why_not()), reason=why_not()), pytest.mark.timeout(60)]

LISTEN = """
import socket, sys
with socket.create_server((sys.argv[1], 99)) as server:
    print("listening", flush=True)
    while True:
        server.accept()[0].close()
"""
CONNECT = """
import socket, sys, time
began = time.monotonic()
try:
    socket.create_connection((sys.argv[1], 99), float(sys.argv[2])).close()
    print(f"{time.monotonic() - began:.3f}")
except OSError as error:
    print(error)
"""


def listen(machine: Machine) -> None:
    command = (sys.executable, "-S", "-c", LISTEN, machine.address)
    server = machine.start(*command, said=subprocess.PIPE, env=os.environ)
    assert server.stdout is not None and server.stdout.readline() == b"listening\n"


def connect(machine: Machine, to: Machine, seconds: float = 10.0) -> str:
    """How long it took, or what went wrong."""
    return machine.do(sys.executable, "-S", "-c", CONNECT, to.address, str(seconds)).strip()


@pytest.mark.parametrize("relayed", [False, True])
def test_machines_reach_each_other_until_a_cable_is_pulled_and_again_when_it_is_back(relayed: bool) -> None:
    with Network() as network:
        here, there = network.add("here"), network.add("there", relayed=relayed)
        listen(there)
        assert float(connect(here, there)) < 5
        network.cut(there)
        assert "timed out" in connect(here, there, 0.5) or "route" in connect(here, there, 0.5)
        network.mend(there)
        assert float(connect(here, there)) < 10


def test_a_relayed_link_is_as_slow_and_as_deaf_as_it_is_told_to_be() -> None:
    with Network() as network:
        here, there = network.add("here"), network.add("there", relayed=True)
        listen(there)
        connect(here, there)
        network.degrade(there, delay_s=0.2)
        assert 0.4 <= float(connect(here, there)) < 5, "there and back"
        for one_way in ({"deaf": True}, {"mute": True}):
            network.degrade(there, **one_way)
            assert "timed out" in connect(here, there, 0.5)
        network.degrade(there)
        assert float(connect(here, there)) < 5


def test_an_address_in_there_leads_nowhere_out_here_and_the_other_way_round() -> None:
    before = devices()
    with Network() as network:
        machine = network.add("one")
        assert devices() == before
        assert "10.77.0.1/24" in machine.do("ip", "-brief", "address")
        [route] = machine.do("ip", "route").splitlines()
        assert route.startswith("10.77.0.0/24 dev eth0 "), "and no way further"
        assert machine.address not in subprocess.check_output(["ip", "-brief", "address"], text=True)


def test_a_test_that_is_killed_leaves_no_process_and_no_device() -> None:
    before = devices()
    program = (
        "import sys, time\nfrom cluster_machines import Network\nnetwork = Network()\n"
        "machine = network.add('one', relayed=True)\n"
        "machine.start('sleep', '600', said=open('/dev/null', 'wb'), env={'PATH': '/usr/bin:/bin'})\n"
        "print('made', flush=True)\ntime.sleep(600)\n"
    )
    path = os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, sys.path)])
    test = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path}
    )
    assert test.stdout is not None and test.stdout.readline() == b"made\n"
    children = all_children(test.pid)
    assert len(children) >= 6, "two keepers and their entrances, a relay, and what runs in the machine"
    test.send_signal(signal.SIGKILL)
    test.wait()
    test.stdout.close()
    wait_until_gone(children)
    assert not any(map(is_running, children))
    assert devices() == before

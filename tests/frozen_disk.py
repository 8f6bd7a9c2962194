"""A disk that stops answering: a small file system of its own that a test freezes and thaws.

    image (a file in memory) --loop device--> ext4, mounted where only `inside` sees it
    freeze: whoever writes there, syncs or makes a file waits, and no signal ends the wait; thaw: all of it goes through

The mount lives in a namespace of its own, kept by one process whose standard input is a pipe from the test. When the
test ends, however it does, the pipe ends, the keeper thaws, and mount and loop device go with it. Needs root and Linux;
`why_not` says what is missing.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType

from cluster_machines import FORBIDDEN

KEEPER = """
import fcntl, os, subprocess, sys
image, folder, mb = sys.argv[1], sys.argv[2], sys.argv[3]
FREEZE, THAW = 0xC0045877, 0xC0045878
def run(*words):
    subprocess.run(words, check=True, stdout=sys.stderr)
try:
    run("mount", "-t", "tmpfs", "-o", f"size={mb}m", "none", image)
    run("truncate", "-s", f"{int(mb) - 1}M", f"{image}/disk")
    run("mkfs.ext4", "-q", f"{image}/disk")
    run("mount", "-o", "loop", f"{image}/disk", folder)
except (OSError, subprocess.CalledProcessError) as error:
    sys.exit(str(error))
disk = os.open(folder, os.O_RDONLY)
is_frozen = False
print(os.getpid(), flush=True)
for line in sys.stdin:
    if (line == "freeze\\n") != is_frozen:
        fcntl.ioctl(disk, FREEZE if line == "freeze\\n" else THAW, 0)
        is_frozen = not is_frozen
    print("done", flush=True)
if is_frozen:
    fcntl.ioctl(disk, THAW, 0)
"""


@functools.cache
def why_not() -> str:
    """Why a disk cannot be frozen here: empty if it can."""
    if sys.platform != "linux":
        return FORBIDDEN + f"loop devices are Linux's, this is {sys.platform}"
    if os.geteuid() != 0:
        return FORBIDDEN + "only root may"
    with tempfile.TemporaryDirectory() as folder:
        try:
            with FrozenDisk(Path(folder)) as disk:
                disk.freeze()
                disk.thaw()
        except (OSError, RuntimeError) as error:
            return FORBIDDEN + str(error)
    return ""


class FrozenDisk:
    """The disk. Leaving the block thaws it and takes it away, with all that is on it."""

    def __init__(self, where: Path, *, mb: int = 64) -> None:
        self.folder = where / "disk"
        image = where / "image"
        self.folder.mkdir()
        image.mkdir()
        self._keeper = subprocess.Popen(
            ["unshare", "--mount", sys.executable, "-S", "-c", KEEPER, str(image), str(self.folder), str(mb)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._keeper.stdout is not None and self._keeper.stderr is not None
        line = self._keeper.stdout.readline()
        if not line:
            why = self._keeper.stderr.read().strip().splitlines() or ["it could not be mounted"]
            self._end()
            raise RuntimeError(why[-1])
        self._pid = int(line)

    def __enter__(self) -> FrozenDisk:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._end()

    def freeze(self) -> None:
        self._tell("freeze")

    def thaw(self) -> None:
        self._tell("thaw")

    def inside(self, *command: str) -> list[str]:
        """The command, as it has to be given to see the disk."""
        return ["nsenter", "-t", str(self._pid), "-m", "--wd=" + str(Path.cwd()), "--", *command]

    def _end(self) -> None:
        assert self._keeper.stdin is not None
        self._keeper.stdin.close()
        self._keeper.wait(60)
        for end in (self._keeper.stdout, self._keeper.stderr):
            assert end is not None
            end.close()

    def _tell(self, what: str) -> None:
        assert self._keeper.stdin is not None and self._keeper.stdout is not None
        self._keeper.stdin.write(what + "\n")
        self._keeper.stdin.flush()
        if self._keeper.stdout.readline() != "done\n":
            raise RuntimeError(f"the disk could not {what}")

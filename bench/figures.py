"""How benchmarks measure and print."""

from __future__ import annotations

import shutil
import statistics
import subprocess
import threading


def spread(values: list[float], digits: int = 0) -> str:
    """The median, and the least and the most of them."""
    if not values:
        return "-"
    return f"{statistics.median(values):,.{digits}f} ({min(values):,.{digits}f}..{max(values):,.{digits}f})"


class Busy:
    """How busy the GPU was meanwhile, by nvidia-smi."""

    def __enter__(self) -> Busy:
        self._shares: list[float] = []
        self._process = None
        if shutil.which("nvidia-smi"):
            words = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", "-lms", "100"]
            self._process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
            self._reader = threading.Thread(target=self._read, daemon=True)
            self._reader.start()
        return self

    def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._shares.append(float(line))

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
            self._reader.join()

    @property
    def share(self) -> float:
        return statistics.fmean(self._shares) / 100 if self._shares else float("nan")

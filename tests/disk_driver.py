"""A run of toys whose folder is on a disk that may freeze, as a program: `disk_driver.py JSON`, whose last line is a
JSON object. How far it is stands in a file that is not on that disk."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from headway.coordinator.roles import Stations
from headway.coordinator.settings import Deadlines, Plan, Settings
from headway.core.types import Batch
from headway.testing.toy_stations import ToyLearner, toy_stations


@dataclass(frozen=True)
class DiskJob:
    folder: str
    progress: str
    updates: int
    save_every: int = 0
    save_s: float = 600.0
    learn_ms: float = 5.0
    resume: bool = False

    def settings(self) -> Settings:
        plan = Plan(updates=self.updates, save_every=self.save_every, save_every_s=0.0)
        return Settings(plan=plan, collectors=2, max_lead=2, deadlines=Deadlines(save_s=self.save_s))

    def stations(self) -> Stations:
        plain = toy_stations(evaluates=False)
        return Stations(plain.collector, partial(CountingLearner, Path(self.progress), self.learn_ms / 1000))


class CountingLearner(ToyLearner):
    def __init__(self, progress: Path, pause_s: float) -> None:
        super().__init__()
        self._progress, self._pause_s, self._num = progress, pause_s, 0

    def learn(self, batch: Batch) -> Any:
        time.sleep(self._pause_s)
        self._num += 1
        self._progress.write_text(str(self._num))
        return super().learn(batch)


def main(job: DiskJob) -> dict[str, Any]:
    from headway import RunFailed
    from headway.runs.fingerprint import fingerprint
    from headway.runs.folder import RunFolder
    from headway.runs.launch_session import launch

    folder = RunFolder(Path(job.folder))
    try:
        result = launch(job.stations(), job.settings(), runtime="threads", folder=folder, resume=job.resume)
    except RunFailed as error:
        return {"failed": str(error)}
    return {"hash": fingerprint({"weights": result.weights["weights"]}), "updates": result.updates}


if __name__ == "__main__":
    print(json.dumps(main(DiskJob(**json.loads(sys.argv[1])))), flush=True)

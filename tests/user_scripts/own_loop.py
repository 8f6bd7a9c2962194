"""As users of PriorZero's coordinator write their loop: modes by degree, statistics at the end. One import is ours."""

import sys
import time

from headway import AsyncTrainingCoordinator

policy_config = dict(off_policy_degree=int(sys.argv[1]), enable_async_eval=sys.argv[2] == "True")


def collect():
    time.sleep(0.001)
    return {"data": "collected"}


def train():
    return {"loss": 0.1}


def evaluate():
    return 10.0


coordinator = AsyncTrainingCoordinator(**policy_config, buffer_size=10000, batch_size=32)
while coordinator.train_count < 12:
    if coordinator.can_collect():
        coordinator.run_collect(collect)
    if coordinator.can_train():
        coordinator.run_train(train)
        assert coordinator.collect_train_lag == coordinator.collect_count - coordinator.train_count
        if coordinator.train_count % 6 == 0:
            coordinator.run_eval(evaluate)
coordinator.shutdown()
coordinator.print_statistics()
statistics = coordinator.get_statistics()
assert statistics["mode"] == ("SYNCHRONOUS" if policy_config["off_policy_degree"] == 0 else "ASYNCHRONOUS")

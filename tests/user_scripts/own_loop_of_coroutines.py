"""As users of PriorZero's coordinator write their loop around coroutines, a mode at a time. One import is ours."""

import argparse
import asyncio

from headway import AsyncTrainingCoordinator


async def collect():
    await asyncio.sleep(0.01)
    return {"data": "collected"}


async def train():
    await asyncio.sleep(0.005)
    return {"loss": 0.1}


async def evaluate():
    await asyncio.sleep(0.02)
    return 10.0


async def one_after_another(enable_async_eval):
    coordinator = AsyncTrainingCoordinator(off_policy_degree=0, enable_async_eval=enable_async_eval)
    for step in range(3):
        assert (await coordinator.run_collect(collect))["data"] == "collected"
        assert (await coordinator.run_train(train))["loss"] == 0.1
        if step % 2 == 0:
            result = await coordinator.run_eval(evaluate)
            assert result == (None if enable_async_eval else 10.0)
    await coordinator.wait_for_eval()
    return coordinator


async def overlapping(degree):
    coordinator = AsyncTrainingCoordinator(degree, False, buffer_size=10000, batch_size=32)
    collecting, trained = None, 0
    while trained < 10:
        if (collecting is None or collecting.done()) and coordinator.can_collect():
            collecting = asyncio.create_task(coordinator.run_collect(collect))
        if coordinator.can_train():
            await coordinator.run_train(train)
            trained += 1
        else:
            await asyncio.sleep(0.001)
    if collecting and not collecting.done():
        await collecting
    return coordinator


async def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mode", choices=["sync", "async_low", "async_high", "async_eval", "auto_tune"])
    mode = parser.parse_args().mode
    degree = {"sync": 0, "async_eval": 0, "async_low": 5, "async_high": 20, "auto_tune": -1}[mode]
    coordinator = await (overlapping(degree) if degree else one_after_another(mode == "async_eval"))
    assert coordinator.is_synchronous == (degree == 0)
    assert coordinator.off_policy_degree > 0 if degree == -1 else coordinator.off_policy_degree == degree
    statistics = coordinator.get_statistics()
    assert statistics["collect_count"] - statistics["train_count"] == statistics["collect_train_lag"]
    assert 0 <= statistics["collect_train_lag"] <= coordinator.off_policy_degree
    coordinator.print_statistics()


if __name__ == "__main__":
    asyncio.run(main())

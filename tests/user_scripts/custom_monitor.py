"""As users of fully asynchronous training watch it: a function of what trainer and rollouter have done."""

import logging

logger = logging.getLogger(__name__)


def custom_monitor(trainer_stats, rollouter_stats):
    custom_metric = trainer_stats["processed_samples"] / max(1, rollouter_stats["total_generated_samples"])
    logger.info(f"Custom metric: {custom_metric}")
    return f"Custom metric: {custom_metric:.1f}" if trainer_stats["global_steps"] == 2 else None

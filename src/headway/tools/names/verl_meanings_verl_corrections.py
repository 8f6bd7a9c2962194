"""Corrections in the nested configuration of verl and its relatives, and which of ours each is.

    algorithm.rollout_correction.rollout_is=token, rollout_is_threshold=2    -->   token_is {cap: 2}
    rollout_is=sequence                                                      -->   sequence_is
    rollout_is=token and rollout_rs=token                                    -->   icepop: weights inside of a band
    rollout_rs=sequence or geometric                                         -->   sequence_mask: whole replies go
    bypass_mode, or async_training.compute_prox_log_prob=false               -->   clip: pi_prox is pi_b
    actor.policy_loss.loss_mode=cispo                                        -->   cispo
    loss_mode=gspo, clip_ratio_low=3e-4                                      -->   gspo {clip_low: 3e-4}

The flat names of older versions (`algorithm.rollout_is`, `actor.tis_imp_ratio_cap`) are read too. What has no row here
is refused: a correction that is nearly the one asked for is another one.
"""

from __future__ import annotations

from collections.abc import Mapping

from headway.core.types_opaque import SettingValue

NEW, OLD = "algorithm.rollout_correction", "algorithm"
CLIP = "actor_rollout_ref.actor.clip_ratio"
TIS, LOSS_MODE = "actor_rollout_ref.actor.tis_imp_ratio_cap", "actor_rollout_ref.actor.policy_loss.loss_mode"
COMPUTE_PROX = "async_training.compute_prox_log_prob"
THEIR_CAP = 2.0
CORRECTION_PATHS = (
    *(
        f"{NEW}.{name}"
        for name in (
            *("rollout_is", "rollout_is_threshold", "rollout_rs"),
            *("rollout_rs_threshold", "rollout_rs_threshold_lower", "bypass_mode"),
        )
    ),
    *(
        f"{OLD}.{name}"
        for name in (
            *("rollout_is", "rollout_is_threshold", "rollout_is_threshold_lower"),
            *("rollout_is_level", "rollout_is_mode"),
        )
    ),
    TIS,
    LOSS_MODE,
    COMPUTE_PROX,
)
MASKS = {"sequence": "product", "geometric": "geometric_mean"}


def find_meaning(theirs: Mapping[str, object]) -> dict[str, object] | str:
    """The correction that they ask for all together; or why none is."""
    mode = theirs.get(LOSS_MODE, "vanilla")
    level, cap, reject, low, high = _asked(theirs)
    bypass = bool(theirs.get(f"{NEW}.bypass_mode")) or theirs.get(COMPUTE_PROX) is False
    if mode not in ("vanilla", "cispo", "gspo"):
        raise ValueError(f"the loss {mode!r} is not here; allowed: vanilla, cispo, gspo (docs/corrections.md has more)")
    if (mode != "vanilla" or bypass) and (level or reject):
        raise ValueError("it takes the engine's log-probabilities as they are: rollout_is and rollout_rs must be off")
    if mode == "cispo":
        return {"correction": "cispo"}
    if mode == "gspo":
        return {"correction": "gspo", "correction_options": _gspo_options(theirs, bypass)}
    if bypass:
        return {"correction": "clip"}
    if not level and not reject:
        return "without rollout_is and rollout_rs it stays as `correction` says"
    if not reject and level in ("token", "sequence"):
        return {"correction": f"{level}_is", "correction_options": {"cap": cap}}
    band = {"low": low, "high": high}
    if level == reject == "token" and cap >= high:
        return {"correction": "icepop", "correction_options": band}
    if not level and reject in MASKS:
        return {"correction": "sequence_mask", "correction_options": {"statistic": MASKS[reject], **band}}
    raise ValueError(
        f"rollout_is={level or 'off'} with rollout_rs={reject or 'off'} is not here; allowed: rollout_is token or "
        "sequence, both token (with one threshold), rollout_rs sequence or geometric"
    )


def _gspo_options(theirs: Mapping[str, SettingValue], bypass: bool) -> dict[str, SettingValue]:
    """How far the ratio of a sequence may go, where they say it; anchored as they do, to recomputed log-probabilities
    unless those of the engine are taken."""
    both = theirs.get(CLIP)
    said = {"clip_low": theirs.get(f"{CLIP}_low", both), "clip_high": theirs.get(f"{CLIP}_high", both)}
    return {
        **{knob: value for knob, value in said.items() if value is not None},
        **({} if bypass else {"proximal": "recomputed"}),
    }


def _asked(theirs: Mapping[str, SettingValue]) -> tuple[str | None, float, str | None, float, float]:
    """What is weighted and by how much at most, what is left out, and outside of which band."""
    level, reject = theirs.get(f"{NEW}.rollout_is"), theirs.get(f"{NEW}.rollout_rs")
    cap, low = theirs.get(f"{NEW}.rollout_is_threshold"), theirs.get(f"{NEW}.rollout_rs_threshold_lower")
    flag = theirs.get(f"{OLD}.rollout_is")
    if flag:
        level = theirs.get(f"{OLD}.rollout_is_level", "token") if flag is True else flag
        reject = level if theirs.get(f"{OLD}.rollout_is_mode", "truncate") == "mask" else reject
        cap = theirs.get(f"{OLD}.rollout_is_threshold", cap)
        low = theirs.get(f"{OLD}.rollout_is_threshold_lower", low)
    truncated = theirs.get(TIS, -1)
    if _number(truncated) > 0:
        if level not in (None, "token"):
            raise ValueError(f"tis_imp_ratio_cap weighs tokens, but rollout_is={level!r} is set too")
        level, cap = "token", truncated
    cap = THEIR_CAP if cap is None else _number(cap)
    high = _number(theirs.get(f"{NEW}.rollout_rs_threshold", cap))
    return level or None, cap, reject or None, 1 / high if low is None else _number(low), high


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or value == 0:
        raise ValueError(f"a threshold must be a number, received {value!r}")
    return value

"""The one rule by which epochs and hyper-parameters are chosen: the best proper score on validation images.

The negative log-likelihood chooses the epoch of a training and the candidate of a method, and the same for every
method; a deterministic network has none and is chosen by its accuracy. ECE is not a proper score: chosen by it, a
method is rewarded for losing its mean. What each candidate would have scored on test is kept beside the choice.
"""

from collections.abc import Mapping, Sequence
from typing import Any

_LOST = 1.0  # a candidate with twice the smooth L1 of the network it starts from has failed to train


def candidate(options: Mapping[str, Any], result: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, Any]:
    """What is known of a candidate when one is to be chosen.

    Args:
        options: Its hyper-parameters.
        result: Its training.
        base: The training that it started from.
    """
    if result["status"] == "failed":
        return {"options": dict(options), "status": "diverged", "reason": result["reason"]}
    best = result["best"]
    lost = best["validation/l1"] / base["best"]["validation/l1"] - 1
    known = {
        "options": dict(options),
        "status": "done",
        "epoch": result["best_epoch"] + 1,
        "l1": best["validation/l1"],
        "accuracy_lost": round(lost, 4),
        "nll": best.get("validation/nll"),
        "ece_q": best.get("validation/ece_q"),
    }
    if lost > _LOST:
        known |= {"status": "failed", "reason": f"smooth L1 on validation rose by {lost:.0%}"}
    return known


def chosen(candidates: Sequence[Mapping[str, Any]], *, by: str) -> int | None:
    """Place of the chosen candidate; None where none could be trained.

    Args:
        candidates: What :func:`candidate` returned for each.
        by: What is lowest for the chosen one.

    Example:
        >>> plain, better = {"status": "done", "nll": 1.0}, {"status": "done", "nll": 0.8}
        >>> chosen([plain, better, {"status": "diverged"}], by="nll")
        1
    """
    for allowed in (("done",), ("done", "failed")):
        places = [place for place, one in enumerate(candidates) if one["status"] in allowed]
        if places:
            return min(places, key=lambda place: candidates[place][by])
    return None

"""Plan training runs: `plan` says what to keep, spill and recompute in so much memory, and how long that takes.

* `plan(model, batch, context, ram)` returns a `Plan`: `prediction`, `treatments`, `alternatives`;
* `measure(directory)` returns this `Machine`: its products, and its `Disk`;
* `observe(…)` returns the `Whole` that predicts any budget and choice, from a `Profile` of two layers.

`save_on_disk(policy="auto")` makes the same choice in a running training, from its first steps.
"""

from spillgrad.spill.planning.machine import Disk, Machine, measure
from spillgrad.spill.planning.plan import Alternative, Plan, Treatment, observe, plan
from spillgrad.spill.planning.predict import Prediction, Whole
from spillgrad.spill.planning.profile import Profile, profile

__all__ = [
    "Alternative",
    "Disk",
    "Machine",
    "Plan",
    "Prediction",
    "Profile",
    "Treatment",
    "Whole",
    "measure",
    "observe",
    "plan",
    "profile",
]

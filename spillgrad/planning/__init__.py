"""Plan training runs: choose what to keep, spill and recompute within a given memory, and predict a step's time.

* `plan(model, batch, context, ram)` returns a `Plan`: `prediction`, `treatments`, `alternatives`; its method `apply`
  prepares a model and an optimizer for a loop of your own;
* `measure(directory)` returns a `Machine`: the speed of this machine's matrix products, and of its `Disk`;
* `Link`, `parse_link`, `measure_link(group)` and `Scaling`: the network between several processes, and their steps;
* `observe(…)` makes a `Profile` of two layers and returns a `Whole`, which predicts a step for any budget and choice;
* `keep_within(ram, spill)` watches the memory of a training, and lowers the store's budget before memory runs out.

`save_on_disk(policy="auto")` makes the same choice during training, from measurements of the first steps. Each
parameter of a record, such as `Plan`, is its attribute, too.
"""

from spillgrad.distributed.link import Link, parse_latency, parse_link
from spillgrad.spill.planning.candidate import Alternative, Prediction
from spillgrad.spill.planning.keep_within import keep_within
from spillgrad.spill.planning.machine import Disk, Machine, measure
from spillgrad.spill.planning.measured_link import measure_link
from spillgrad.spill.planning.plan import Plan, Treatment, observe, plan
from spillgrad.spill.planning.planned_training import PlannedTraining
from spillgrad.spill.planning.predict import Whole
from spillgrad.spill.planning.profile import Profile, profile
from spillgrad.spill.planning.scaling import Scaling, scale

__all__ = [
    "Alternative",
    "Disk",
    "Link",
    "Machine",
    "Plan",
    "PlannedTraining",
    "Prediction",
    "Profile",
    "Scaling",
    "Treatment",
    "Whole",
    "keep_within",
    "measure",
    "measure_link",
    "observe",
    "parse_latency",
    "parse_link",
    "plan",
    "profile",
    "scale",
]

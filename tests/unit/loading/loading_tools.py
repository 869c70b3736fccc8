"""Types of the fixtures that make what a loader is asked to do."""

from collections.abc import Callable

from storebench.loading.batch import EpochPlan, LoadJob

MakeJob = Callable[..., LoadJob]
MakePlan = Callable[..., EpochPlan]

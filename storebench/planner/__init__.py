"""The planner: what each store of a run would deliver on a machine that it was not measured on."""

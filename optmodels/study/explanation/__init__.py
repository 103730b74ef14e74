"""Why an instance has no plan, or what its plan hangs on: found by solving changed copies of it."""

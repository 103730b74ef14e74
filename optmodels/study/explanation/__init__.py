"""Why an instance has no plan, or the limits that its plan depends on: found by solving changed copies of it."""

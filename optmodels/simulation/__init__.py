"""Plans judged on traces: a discrete-event simulation of instances with slots, its policies and its summary."""

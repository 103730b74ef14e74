"""Request traces: what arrived when, how long it was, and what its user may expect."""

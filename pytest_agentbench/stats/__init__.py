"""Statistics as pure functions: they take numbers and return intervals and decisions."""

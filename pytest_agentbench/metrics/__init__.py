"""What is measured, derived from the raw records: pure functions."""

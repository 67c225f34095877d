"""What this project is held against, beside its tests."""

"""What this project is held against beside its tests: speed and memory as ratios next to their targets, and reference runs."""

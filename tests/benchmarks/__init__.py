"""What a session costs, as ratios measured in one run next to the targets: `python -m tests.benchmarks`. Its own tests stand beside it."""

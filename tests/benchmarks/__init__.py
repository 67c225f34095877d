"""What a session costs, as ratios measured in one run next to the targets: `python -m tests.benchmarks`. None of it is a test."""

"""Do the gate's verdicts hold? Simulated suites with a known truth, and real runs."""

"""The gate: compares a run with limits or with a baseline run, and says PASS, FAIL or INCONCLUSIVE."""

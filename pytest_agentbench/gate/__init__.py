"""The gate: compares a run with limits or with a baseline run. Its verdict is PASS, FAIL or INCONCLUSIVE."""

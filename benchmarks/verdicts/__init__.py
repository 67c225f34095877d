"""Benchmarks of the gate: how often its verdicts are wrong, for simulated suites with known true means and for real runs.

A cell is one simulated setting (kind of scores, number of scenarios, trials). *Wrong PASS* and *wrong FAIL* are verdicts on changes that
are exactly as large as the margin. The *former* gate is an earlier method, for comparison.
"""

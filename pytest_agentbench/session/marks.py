"""Attributes of reports on tests, which xdist carries: a worker sets them, the controller reads them."""

from __future__ import annotations

BELOW = "agentbench_below"  # a threshold, where a gate decides
QUARANTINED = "agentbench_quarantined"  # below a threshold too, of a scenario in quarantine
IN_QUARANTINE = "agentbench_in_quarantine"  # every test of such a scenario, whatever came of it: [group, scenario]
APPLIED = "agentbench_applied"  # a test that reads a rollout and thresholds, and has judged it: the group of its rollout
UNMEASURED = "agentbench_unmeasured"  # nothing to judge: [what became of it, cause]
OVER = "agentbench_over"  # no test of the session after this one can have anything to judge

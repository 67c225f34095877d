"""General helpers for processes, files, locks and texts. No module here knows suites, rollouts or scores."""

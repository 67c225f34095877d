"""General helpers for processes, files, locks and texts. No module here depends on what a benchmark is."""

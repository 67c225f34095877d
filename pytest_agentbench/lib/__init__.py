"""What stands on its own: processes, files, locks, texts. Nothing here knows what a benchmark is."""

"""A run on disk and in memory: its journal, its directory, its identity, its tables."""

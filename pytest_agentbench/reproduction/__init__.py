"""A published experiment again: methods side by side at several concurrencies, a window of time for each."""

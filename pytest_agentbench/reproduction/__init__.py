"""Reproduces a published experiment: several methods at several concurrencies, each measured in a time window."""

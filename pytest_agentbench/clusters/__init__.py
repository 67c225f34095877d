"""Asks the engines of a cluster for machines, and follows what becomes of the requests. A file for each engine."""

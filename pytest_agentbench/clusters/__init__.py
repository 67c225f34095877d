"""Asks Slurm and Kubernetes for machines, looks at what they run there, and ends it. A file for each of them."""

"""The policy `lexical`, a file for each part of the work."""

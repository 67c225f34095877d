"""Statistics, pure: numbers in, intervals and decisions out."""

"""Benchmarks of this project: they measure its speed, memory and accuracy and compare them with targets. Also reference runs."""

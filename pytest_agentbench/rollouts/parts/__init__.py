"""Starts and watches the processes of the pool and the taps, and starts them again when they die."""

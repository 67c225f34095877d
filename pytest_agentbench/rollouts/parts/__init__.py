"""Starts and watches the pool (the process that runs rollouts) and the taps (recording proxies), and starts them again when they die."""

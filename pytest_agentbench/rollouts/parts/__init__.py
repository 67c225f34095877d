"""The processes of the pool and the taps: started, watched, and started again when they die."""

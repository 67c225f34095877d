"""Runs on other settings than their own: what their calls would have met there, by NVIDIA Dynamo's simulator."""

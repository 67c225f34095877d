"""Simulates runs with other stack settings by NVIDIA Dynamo's simulator."""

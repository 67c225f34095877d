"""The benchmark of routing under KV pressure: real Dynamo with workers of its mocker (a simulated engine).

The KV caches of the workers are smaller than the rollouts in flight need.
"""

"""Routing under KV pressure: real Dynamo before workers of its mocker, whose KV cache is smaller than what is in flight needs."""

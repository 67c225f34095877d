"""The benchmark of hints: learnt ones against static ones, before real routers with workers of Dynamo's mocker (a simulated engine)."""

"""The pytest side of a session: hooks, options, fixtures, and the controller that runs the session's processes."""

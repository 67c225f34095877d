"""The benchmark of the tap's timestamps. Agents in other processes call a server through the tap; the server records when it sends."""

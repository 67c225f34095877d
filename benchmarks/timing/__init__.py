"""The benchmark of the tap's stamps: a server that knows when it sent what, agents in processes of their own, and the tap between them."""

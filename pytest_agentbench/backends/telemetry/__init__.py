"""What servers and GPUs tell while a session runs."""

"""The tap: a relay process that stamps and records every LLM call on its way to the backend."""

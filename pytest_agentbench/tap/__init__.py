"""The tap, a recording HTTP proxy: a process between agents and backend that timestamps and records every LLM call."""

"""A router that learns by Thompson sampling which worker answers a call best. It stands before OpenAI-compatible engines."""

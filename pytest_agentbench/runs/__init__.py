"""A run as records: `run.Run` is what run.json holds, `codec` is its way to JSON and back."""

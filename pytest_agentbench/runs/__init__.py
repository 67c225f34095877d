"""A run as records: `contents.Run` is what run.json holds, `codec` is its way to JSON and back."""

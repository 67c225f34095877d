"""The files of a run directory: run.json (`run_file.Run`), rollouts.jsonl (`journal`), attempts.jsonl and sessions.jsonl."""

"""Reference runs: stored run directories and the files computed from them. They show what a change of the code changes."""

"""Reference data: twelve run directories, and the files that the code made of them, so that a change shows what it changes."""

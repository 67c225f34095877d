"""The policy `lexical`: choosing tools (`policy`), filling arguments (`arguments`), and finding values in texts (`texts`)."""

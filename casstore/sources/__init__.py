"""Files: finding them, noticing that they changed, and reading pictures."""

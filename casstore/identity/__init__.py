"""What something is: canonical JSON, digests, recipes, resolutions, keys. No file of the store is touched here."""

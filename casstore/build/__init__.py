"""Planning what is to be encoded, and doing it."""

"""`python -m casstore`."""

from casstore.cli import main

main()

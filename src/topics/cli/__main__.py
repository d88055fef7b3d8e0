"""`python -m topics.cli`, for where the script is not on the path."""

from topics.cli import main

main()

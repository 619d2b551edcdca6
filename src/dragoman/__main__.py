"""`python -m dragoman` is the command."""

from dragoman.cli import main

if __name__ == "__main__":
    raise SystemExit(main())

"""`python -m evclplus` is the command line."""

from evclplus.experiments.cli import main

if __name__ == "__main__":
    main()

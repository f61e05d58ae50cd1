"""`python -m isogon` is the command `isogon`."""

from isogon.cli import main

if __name__ == "__main__":
    main()

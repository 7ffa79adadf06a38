"""`python -m closelook` is the command `closelook`."""

from closelook.jobs.__main__ import main

if __name__ == "__main__":
    main()

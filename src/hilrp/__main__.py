"""``python -m hilrp`` is ``hilrp``."""

from hilrp.cli import app

if __name__ == "__main__":
    app()

"""What every worker needs, imported once and inherited by all: the libraries that are installed."""

from hilrp.names import installed

installed()

"""What every worker needs, imported once and inherited by all: the libraries that are installed."""

from hilrp.models.resolve import installed

installed()

"""The version of the npm package that these files come from."""

__version__ = '0.2.0'

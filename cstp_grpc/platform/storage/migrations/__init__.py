"""The migrations from an empty database to the present tables, in `versions`; there are no downgrades."""

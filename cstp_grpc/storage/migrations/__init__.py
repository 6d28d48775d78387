"""The steps from an empty database to the present tables, in `versions`; there is no way back."""

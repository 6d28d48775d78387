"""The screens of the console, one module each."""

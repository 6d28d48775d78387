"""CSTP: agents look before they act."""

"""Erasing the data of an agent, in every module."""

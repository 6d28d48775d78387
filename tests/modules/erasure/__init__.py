"""Tests of erasing what an agent has left."""

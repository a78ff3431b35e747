"""Tests of the mathematics room, each against a slow and obvious reference."""

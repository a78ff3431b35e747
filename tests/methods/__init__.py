"""Tests of the methods' stages, their losses against the loops of ``objectives.reference``."""

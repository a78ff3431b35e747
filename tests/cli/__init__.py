"""Tests of the command line."""

import pytest

pytest.register_assert_rewrite("cli.outcomes")  # so that its failures tell the values

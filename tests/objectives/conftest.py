"""What pytest has to know before the tests of objectives."""

import pytest

pytest.register_assert_rewrite("objectives.comparison_cases")  # so that its failures tell the values

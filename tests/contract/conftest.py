"""Show values in the failed assertions of the shipped suite."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("partfile.testing.store")

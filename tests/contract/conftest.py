"""Show values in the failed assertions of the shipped suite."""

from __future__ import annotations

import pytest

for module in ("base", "parts", "commit", "metadata"):
    pytest.register_assert_rewrite(f"partfile.filesystems.contract_{module}")
pytest.register_assert_rewrite("partfile.filesystems.contract")

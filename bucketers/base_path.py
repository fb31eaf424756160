"""Every row in one bucket: the base path itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from partfile.bucketers.naming import all_rows_in
from partfile.bucketers.port import Bucketer

if TYPE_CHECKING:
    import pyarrow as pa

    from partfile.bucketers.port import BucketContext


class BasePathBucketer(Bucketer):
    """Puts all part files directly below the base path."""

    def __repr__(self) -> str:
        return "BasePathBucketer()"

    def check(self, schema: pa.Schema) -> None:
        """Works on any columns."""

    def bucket_of(self, batch: pa.RecordBatch, context: BucketContext) -> pa.DictionaryArray[Any, Any]:
        """The base path for every row."""
        del context
        return all_rows_in("", len(batch))

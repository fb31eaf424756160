"""Parts on S3 brought to a state, and looked at from the inside."""

from __future__ import annotations

from typing import TYPE_CHECKING

from partfile.stores.s3.client import S3Calls
from partfile.stores.s3.handle import S3Staging
from partfile.stores.s3.store import S3Store
from partfile.stores.urls import S3Url
from partfile.testing.faults import intercept
from partfile.testing.store import new_part

if TYPE_CHECKING:
    from partfile.stores.base import PartHandle
    from partfile.stores.s3.options import S3Options
    from partfile.testing.faults import Interceptor


def watched(base: str, options: S3Options, interceptor: Interceptor, rules: type[S3Calls] = S3Calls) -> S3Store:
    """A store whose requests an interceptor sees."""
    return S3Store(base, options, calls=intercept(rules(S3Url.of(base).bucket, options), interceptor))


def ruled(base: str, options: S3Options, rules: type[S3Calls]) -> S3Store:
    """A store whose server has rules of its own."""
    return S3Store(base, options, calls=rules(S3Url.of(base).bucket, options))


def staging_of(handle: PartHandle) -> S3Staging:
    """What a handle is made of."""
    staging = S3Staging.of(handle)
    assert staging is not None
    return staging


def finished_size(store: S3Store, handle: PartHandle) -> int:
    """The size of the finished file."""
    (found,) = [file.size for file in store.list() if file.path == handle.path_of(handle.name)]
    return found


def written_in_batches(store: S3Store, batches: list[bytes], *, resumes: bool) -> PartHandle:
    """A part that gets one batch a checkpoint, in one stream or each in a stream of its own, and is closed."""
    stream = store.create(new_part())
    for data in batches[:-1]:
        stream.write(data)
        handle = stream.persist()
        if resumes:
            stream.close()
            stream = store.resume(handle)
    stream.write(batches[-1])
    return stream.close_for_commit()


def written_open(store: S3Store, batches: list[bytes], name: str = "part-0") -> PartHandle:
    """A part that gets one batch a checkpoint and stays open."""
    stream = store.create(new_part(name=name))
    for data in batches:
        stream.write(data)
        stream.persist()
    stream.close()
    return stream.handle

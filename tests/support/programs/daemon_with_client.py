"""A Spark worker daemon that has used a store before it forks any worker, as a site's own daemon module might.

``spark.python.daemon.module=support.programs.daemon_with_client``. URL and options of the store are in
``PARTFILE_TEST_STORE``, as JSON.
"""

from __future__ import annotations

import json
import os

from partfile.stores.registry import open_store
from support.programs.warm_daemon import serve
from support.spark.openers import clients_of

if __name__ == "__main__":
    url, options = json.loads(os.environ["PARTFILE_TEST_STORE"])
    with open_store(url, options) as store:
        store.list_names("")
    (client,) = clients_of(url)._clients.values()
    os.environ["PARTFILE_TEST_PARENT_CLIENT"] = str(id(client))
    serve()

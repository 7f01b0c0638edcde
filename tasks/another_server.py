"""Tests the store with another server than its own tests use: moto's, in whose environment this runs."""

import logging
import subprocess
import sys
import urllib.request

from moto.server import ThreadedMotoServer

TEST = "cargo test --workspace --test chains -- another_server:: --nocapture"

logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
address = "http://{}:{}".format(*server.get_host_and_port())
urllib.request.urlopen(urllib.request.Request(f"{address}/bucket", method="PUT")).close()
# The server's thread ends with this process.
sys.exit(subprocess.run(["env", f"DELTACHAIN_S3={address}", *TEST.split()]).returncode)

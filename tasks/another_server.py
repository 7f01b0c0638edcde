"""Tests the store at another server than the one of its own tests: that of moto, whose environment runs this."""

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
# Its thread ends with this process.
sys.exit(subprocess.run(["env", f"DELTACHAIN_S3={address}", *TEST.split()]).returncode)

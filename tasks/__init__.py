"""Programs behind `./task`."""

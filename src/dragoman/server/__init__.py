"""The runtime: the operations, the readers, the worker, and the application that contains them."""
